package footprint

import (
	"bufio"
	"cmp"
	"io"
	"slices"
	"strconv"
	"strings"
)

// recorder records the steps of a simulated allocator in the same way as torch.cuda.memory._record_memory_history.
type recorder struct {
	events   []Event
	segments []Segment // currently reserved
	used     map[*block]bool
	site     string // call site of the next allocation, for example "forum.hkt:11 %h[6]"
}

func (r *recorder) add(action string, addr, bytes int64, site string, now float64) {
	r.events = append(r.events, Event{Action: action, Addr: addr + recordBase, Bytes: bytes, MicroSec: int64(now * 1e6),
		Site: site})
}

// recordBase is the address of the first segment. The address is not zero, because zero is not a valid address.
const recordBase = 1 << 40

// segment records that a segment was reserved, or returned to the device.
func (r *recorder) segment(action string, addr, bytes int64, now float64) {
	r.add(action, addr, bytes, r.site, now)
	at := addr + recordBase
	if action == "segment_free" {
		r.segments = slices.DeleteFunc(r.segments, func(s Segment) bool { return s.Addr == at })
		return
	}
	for i := range r.segments {
		if s := &r.segments[i]; action == "segment_map" && s.Addr+s.Bytes == at {
			s.Bytes += bytes
			return
		}
	}
	r.segments = append(r.segments, Segment{Addr: at, Bytes: bytes})
}

func (r *recorder) alloc(b *block, now float64) {
	b.site = r.site
	r.add("alloc", b.addr, b.bytes, b.site, now)
	if r.used == nil {
		r.used = map[*block]bool{}
	}
	r.used[b] = true
}

func (r *recorder) free(b *block, now float64) {
	r.add("free_completed", b.addr, b.bytes, b.site, now)
	delete(r.used, b)
}

// snapshot returns the data of torch.cuda.memory._snapshot().
func (a *Allocator) snapshot() *Snapshot {
	waits := map[*block]bool{}
	for _, w := range a.waiting {
		waits[w.b] = true
	}
	all := slices.Clone(a.blocks)
	for b := range a.trace.used {
		all = append(all, b)
	}
	slices.SortFunc(all, func(x, y *block) int { return cmp.Compare(x.addr, y.addr) })
	s := &Snapshot{Events: a.trace.events, Segments: slices.Clone(a.trace.segments)}
	for i := range s.Segments {
		g := &s.Segments[i]
		for _, b := range all {
			if at := b.addr + recordBase; at < g.Addr || at >= g.Addr+g.Bytes {
				continue
			}
			state := "inactive"
			switch {
			case waits[b]:
				state = "active_pending_free"
			case a.trace.used[b]:
				state = "active_allocated"
			}
			g.Blocks = append(g.Blocks, Block{Bytes: b.bytes, Requested: b.asked, State: state, Site: b.site})
		}
	}
	return s
}

// WriteSnapshot writes a snapshot in torch's pickle format, which PyTorch's memory viewer and
// ReadSnapshot read.
func WriteSnapshot(w io.Writer, s *Snapshot) error {
	k := &pickler{w: bufio.NewWriter(w)}
	k.bytes(0x80, 2)
	segments, events := []any{}, []any{}
	for _, g := range s.Segments {
		blocks, held, active := []any{}, int64(0), int64(0)
		at := g.Addr
		for _, b := range g.Blocks {
			blocks = append(blocks, fields{{"address", at}, {"size", b.Bytes}, {"requested_size", b.Requested},
				{"state", b.State}, {"frames", framesOf(b.Site)}})
			at += b.Bytes
			if b.State != "inactive" {
				active += b.Bytes
			}
			if b.State == "active_allocated" {
				held += b.Bytes
			}
		}
		segments = append(segments, fields{{"device", s.Device}, {"address", g.Addr}, {"total_size", g.Bytes},
			{"allocated_size", held}, {"active_size", active}, {"requested_size", active}, {"stream", int64(0)},
			{"segment_type", "large"}, {"segment_pool_id", tuple{int64(0), int64(0)}}, {"is_expandable", false},
			{"frames", []any{}}, {"blocks", blocks}})
	}
	for _, e := range s.Events {
		events = append(events, fields{{"action", e.Action}, {"addr", e.Addr}, {"size", e.Bytes}, {"stream", int64(0)},
			{"time_us", e.MicroSec}, {"frames", framesOf(e.Site)}})
	}
	k.value(fields{{"segments", segments}, {"device_traces", []any{events}}, {"allocator_settings", fields{}},
		{"external_annotations", []any{}}})
	k.bytes('.')
	return k.w.Flush()
}

// framesOf returns a stack whose only frame is the site, for example "forum.hkt:11 %h[6]".
func framesOf(site string) []any {
	place, name, _ := strings.Cut(site, " ")
	file, line, _ := strings.Cut(place, ":")
	n, _ := strconv.ParseInt(line, 10, 64)
	if file == "" {
		return []any{}
	}
	return []any{fields{{"filename", file}, {"line", n}, {"name", name}}}
}
