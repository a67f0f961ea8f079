package footprint

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/pickle"
)

// Snapshot is the data of torch.cuda.memory._snapshot() for one device.
type Snapshot struct {
	Device   int64
	Segments []Segment
	Events   []Event
}

// Segment is a range of memory that the allocator has reserved, with the blocks in it.
type Segment struct {
	Addr, Bytes, Stream int64
	// Private segments belong to the pool of a captured graph or of a torch.cuda.MemPool. Only
	// allocations captured into that pool use them.
	Private bool
	Blocks  []Block
}

// Block is a part of a segment. State is "active_allocated", "active_pending_free" or "inactive".
type Block struct {
	Bytes, Requested int64
	State            string
	Site             string // see Event.Site
}

// Event is one step of the allocator. Action is "alloc", "free_requested", "free_completed", "segment_alloc",
// "segment_free", "segment_map", "segment_unmap", "oom" or "snapshot".
type Event struct {
	Action              string
	Addr, Bytes, Stream int64
	MicroSec            int64
	// Site is the call site in the program, in the form of SiteBytes.Site.
	Site string
}

// ReadSnapshot reads a snapshot in torch's pickle format, optionally compressed by gzip. It never
// executes code from the file. It returns the devices that have segments or events.
func ReadSnapshot(r io.Reader) ([]*Snapshot, error) {
	b := bufio.NewReader(r)
	if magic, _ := b.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		s, err := readSnapshot(bufio.NewReader(z))
		if err != nil {
			return nil, fmt.Errorf("unpacked: %w", err)
		}
		return s, nil
	}
	return readSnapshot(b)
}

func readSnapshot(r *bufio.Reader) ([]*Snapshot, error) {
	switch head, err := r.Peek(64); {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty: torch.cuda.memory._dump_snapshot(file) writes a snapshot")
	case bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")), bytes.HasPrefix(bytes.TrimSpace(head), []byte("[")):
		begin, _ := r.Peek(1 << 14)
		return nil, fmt.Errorf("it is %s; a snapshot is a pickle, as torch.cuda.memory._dump_snapshot(file) writes it",
			cmp.Or(files.What(begin), "JSON"))
	}
	v, err := pickle.Decode(r, pickle.Limits{})
	if err != nil {
		return nil, err
	}
	top, ok := v.(*pickle.Dict)
	if !ok {
		return nil, errors.New("this pickle is no snapshot of torch's allocator: it holds no dict")
	}
	if top.Get("entries") != nil && top.Get("segments") == nil {
		return nil, errors.New("this pickle is a flight record of torch: hocket trace explains it")
	}
	for _, key := range []string{"segments", "device_traces"} {
		if top.Get(key) == nil {
			return nil, fmt.Errorf("this pickle is no snapshot of torch's allocator: it has no %q", key)
		}
	}
	d := &snapshotReader{byDevice: map[int64]*Snapshot{}}
	d.segments(top.Get("segments"))
	for dev, t := range d.list(top.Get("device_traces"), "device_traces") {
		for k, e := range d.list(t, "device_traces[%d]", dev) {
			d.event(int64(dev), e, k)
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	var out []*Snapshot
	for _, s := range d.byDevice {
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, errors.New("the snapshot is empty: record one with torch.cuda.memory._record_memory_history() on")
	}
	slices.SortFunc(out, func(a, b *Snapshot) int { return cmp.Compare(a.Device, b.Device) })
	return out, nil
}

// mostRecords bounds the total number of segments, blocks and events of a snapshot. A pickle can refer to one list many
// times, so its file size does not limit this number.
const mostRecords = 2 << 20

const mostDevices = 1024

// snapshotReader decodes a snapshot and keeps the first error.
type snapshotReader struct {
	byDevice map[int64]*Snapshot
	records  int
	sites    map[*pickle.List]string
	err      error
}

func (d *snapshotReader) failf(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// list returns the items of a list of records. It returns none after an error.
func (d *snapshotReader) list(v any, where string, args ...any) []any {
	var items []any
	switch l := v.(type) {
	case *pickle.List:
		items = l.Items
	case *pickle.Tuple:
		items = l.Items
	default:
		d.failf("%s is no list", fmt.Sprintf(where, args...))
	}
	if d.records += len(items); d.records > mostRecords {
		d.failf("%s: more than %d segments, blocks and events", fmt.Sprintf(where, args...), mostRecords)
	}
	if d.err != nil {
		return nil
	}
	return items
}

func (d *snapshotReader) dict(v any, where string, k int) *pickle.Dict {
	if m, ok := v.(*pickle.Dict); ok {
		return m
	}
	d.failf("%s %d is no dict", where, k)
	return &pickle.Dict{}
}

// number returns a numeric field.
func (d *snapshotReader) number(m *pickle.Dict, key, where string, k int) int64 {
	n, ok := m.Get(key).(int64)
	switch {
	case !ok:
		d.failf("%s %d: %s is %s, and not a number", where, k, key, pickle.Brief(m.Get(key)))
	case n < 0:
		d.failf("%s %d: %s is %d, but must not be negative", where, k, key, n)
	}
	return n
}

// size returns a field that is a number of bytes. It reports an error for numbers whose sums could overflow.
func (d *snapshotReader) size(m *pickle.Dict, key, where string, k int) int64 {
	n := d.number(m, key, where, k)
	if n > 1<<48 {
		d.failf("%s %d: %s is %d bytes", where, k, key, n)
		return 0
	}
	return n
}

func (d *snapshotReader) device(id int64) *Snapshot {
	s := d.byDevice[id]
	if s == nil {
		if len(d.byDevice) == mostDevices {
			d.failf("more than %d devices", mostDevices)
		}
		s = &Snapshot{Device: id}
		d.byDevice[id] = s
	}
	return s
}

func (d *snapshotReader) segments(v any) {
	for k, x := range d.list(v, "segments") {
		m := d.dict(x, "segment", k)
		s := Segment{Addr: d.number(m, "address", "segment", k), Bytes: d.size(m, "total_size", "segment", k)}
		s.Stream, _ = m.Get("stream").(int64)
		if id := m.Get("segment_pool_id"); id != nil { // (0, 0) is the common pool, which is the only pool in older versions of torch
			for _, part := range d.list(id, "segment_pool_id of segment %d", k) {
				s.Private = s.Private || part != int64(0)
			}
		}
		for i, y := range d.list(m.Get("blocks"), "blocks of segment %d", k) {
			b := d.dict(y, "block", i)
			state, _ := b.Get("state").(string)
			req, _ := b.Get("requested_size").(int64)
			s.Blocks = append(s.Blocks, Block{Bytes: d.size(b, "size", "block", i), Requested: req, State: state,
				Site: d.siteOf(b.Get("frames"))})
		}
		dev, _ := m.Get("device").(int64)
		if d.err != nil {
			return
		}
		on := d.device(dev)
		on.Segments = append(on.Segments, s)
	}
}

func (d *snapshotReader) event(dev int64, v any, k int) {
	m := d.dict(v, "event", k)
	action, ok := m.Get("action").(string)
	if !ok {
		d.failf("event %d: action is %s", k, pickle.Brief(m.Get("action")))
	}
	e := Event{Action: action, Bytes: d.size(m, "size", "event", k)}
	e.Addr, _ = m.Get("addr").(int64)
	e.Stream, _ = m.Get("stream").(int64)
	e.MicroSec, _ = m.Get("time_us").(int64)
	e.Site = d.siteOf(m.Get("frames"))
	if d.err == nil {
		on := d.device(dev)
		on.Events = append(on.Events, e)
	}
}

// Explanation is the result of Snapshot.Explain.
type Explanation struct {
	Device int64 `json:"device"`
	// NoHistory reports that the snapshot has no trace of the device. Without a trace, all amounts are the amounts at
	// the end, and there is no plan.
	NoHistory bool `json:"no_history,omitempty"`
	// ReservedPeak is the largest number of bytes that the allocator had reserved. AllocatedPeak is the largest number
	// of bytes that the program had allocated.
	ReservedPeak  int64 `json:"reserved_peak"`
	AllocatedPeak int64 `json:"allocated_peak"`
	// Waiting is the largest number of bytes that the program had freed but that still waited for other streams
	// (record_stream).
	Waiting int64 `json:"waiting_for_streams"`
	// WaitingBySite splits Waiting by call site, the largest number first.
	WaitingBySite []SiteBytes `json:"waiting_by_site,omitempty"`
	// Free is the number of bytes in segments that are neither allocated nor waiting at the end. Rounding is the number
	// of bytes by which blocks exceed their requested sizes.
	Free     int64 `json:"free"`
	Rounding int64 `json:"rounding"`
	// Private is the number of bytes in segments that belong to private pools at the end. PrivateWaiting is the number
	// of these bytes that wait for other streams.
	Private        int64 `json:"private_pools"`
	PrivateWaiting int64 `json:"waiting_in_private_pools"`
	// Kept is the number of bytes that were allocated before the trace and not freed in it.
	Kept int64 `json:"kept"`
	// Ignored is the number of events of the trace by their action, for actions that are not known. Sums may lack them.
	Ignored map[string]int `json:"ignored_actions,omitempty"`
	// Blocks is the number of allocations in the trace.
	Blocks int `json:"blocks"`
	// Bound is the largest number of bytes that were live at once: a plan for the same lifetimes needs at least this
	// much. Peak is the size of the plan that was found, or 0 if no plan was made (see Planned).
	Bound  int64  `json:"bound"`
	Peak   int64  `json:"peak"`
	AtPeak []Held `json:"at_peak"`
	// Curve is the state of the allocator before the first event and after each event. The field At of a point is the
	// number of allocations so far. Curve has no point between the two events that free a block without waiting.
	Curve []Point `json:"-"`
}

// Explain replays a snapshot's trace. In torch's traces, memory is freed at free_requested. The memory at the start of
// the trace is the memory at the end minus the memory that the trace added. A block that no other stream uses is freed
// by two consecutive events and does not wait.
func (s *Snapshot) Explain() *Explanation {
	x := &Explanation{Device: s.Device, NoHistory: len(s.Events) == 0}
	var reserved, allocated, waiting int64
	blocks := 0 // number of blocks that wait
	for _, g := range s.Segments {
		reserved += g.Bytes
		if g.Private {
			x.Private += g.Bytes
		}
		used := int64(0)
		for _, b := range g.Blocks {
			switch b.State {
			case "active_allocated":
				allocated += b.Bytes
				if b.Requested > 0 {
					x.Rounding += max(0, b.Bytes-b.Requested)
				}
			case "active_pending_free", "active_awaiting_free":
				waiting += b.Bytes
				blocks++
				if g.Private {
					x.PrivateWaiting += b.Bytes
				}
			default:
				continue
			}
			used += b.Bytes
		}
		x.Free += max(0, g.Bytes-used)
	}
	for _, e := range s.Events {
		r, a, w := e.change()
		reserved, allocated, waiting = reserved-r, allocated-a, waiting-w
		switch e.Action {
		case "free_requested":
			blocks--
		case "free_completed":
			blocks++
		}
	}
	reserved, allocated, waiting = max(reserved, 0), max(allocated, 0), max(waiting, 0)
	x.ReservedPeak, x.AllocatedPeak, x.Waiting = reserved, allocated, waiting
	sites := newLedger(s)
	if waiting > 0 {
		sites.add("", waiting, max(blocks, 1)) // waiting since before the trace
		x.WaitingBySite = sites.bySite()
	}
	if !x.NoHistory {
		x.Curve = append(x.Curve, Point{0, reserved, allocated, waiting})
	}
	for k, e := range s.Events {
		r, a, w := e.change()
		reserved, allocated, waiting = reserved+r, allocated+a, waiting+w
		sites.event(&e)
		x.ReservedPeak, x.AllocatedPeak = max(x.ReservedPeak, reserved), max(x.AllocatedPeak, allocated)
		switch e.Action {
		case "alloc":
			x.Blocks++
		case "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
			"snapshot",
			"oom", "user_defined", "workspace_snapshot":
		default:
			if x.Ignored == nil {
				x.Ignored = map[string]int{}
			}
			x.Ignored[e.Action]++
		}
		if next := k + 1; e.Action == "free_requested" && next < len(s.Events) &&
			s.Events[next].Action == "free_completed" && s.Events[next].Addr == e.Addr {
			continue
		}
		x.Curve = append(x.Curve, Point{float64(x.Blocks), reserved, allocated, waiting})
		if waiting > x.Waiting {
			x.Waiting, x.WaitingBySite = waiting, sites.bySite()
		}
	}
	if !x.NoHistory {
		s.plan(x)
	}
	return x
}

// Together reports whether reserved, allocated and waiting memory peak at the same moment. It is
// true if nothing waits.
func (x *Explanation) Together() bool {
	return x.Waiting == 0 || slices.ContainsFunc(x.Curve, func(p Point) bool {
		return p.Reserved == x.ReservedPeak && p.Held == x.AllocatedPeak && p.Waiting == x.Waiting
	})
}

// change returns the changes, in bytes, of reserved, allocated and waiting memory by an event.
func (e *Event) change() (reserved, allocated, waiting int64) {
	switch e.Action {
	case "segment_alloc", "segment_map":
		return e.Bytes, 0, 0
	case "segment_free", "segment_unmap":
		return -e.Bytes, 0, 0
	case "alloc":
		return 0, e.Bytes, 0
	case "free_requested":
		return 0, -e.Bytes, e.Bytes
	case "free_completed":
		return 0, 0, -e.Bytes
	}
	return 0, 0, 0
}
