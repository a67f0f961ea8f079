// Package flight reads the records of torch's flight recorder. Torch writes the most recent collectives of each
// rank to such a record when a collective does not end.
package flight

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/names"
	"hocket.example/hocket/internal/pickle"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/jsonscan"
)

// Limits of the contents of one record.
const (
	maxEntry   = 1 << 20   // bytes of an entry's text
	maxEntries = 1 << 18   // torch keeps 2000 by default
	maxText    = 256 << 20 // bytes of the texts of all entries and groups together
)

// Record is the data of one rank's flight recorder.
type Record struct {
	Rank    int // number of the rank; -1 if the file does not contain it
	Entries []Entry
	Groups  map[string]Group // groups of ranks, by the names that the entries use
	// Enqueued is the number of the last call that the rank has made in each group, according to the status in the
	// record; empty if the record has no status.
	Enqueued map[string]int64
	// Whole reports whether Entries begins with the rank's first call. Torch overwrites the oldest entries.
	Whole bool

	read int // number of entries read so far, including those that end batches
	text int // bytes of the text of entries and groups read so far
}

// Group is a group of ranks.
type Group struct {
	Name    string
	Members []int // nil if unknown
}

// GroupName returns the name of the group with the given key: its description or, if it has none, the key.
func (r *Record) GroupName(key string) string {
	if name := r.Groups[key].Name; name != "" && name != "undefined" {
		return name
	}
	return key
}

// Entry is one call of a collective, or of a send or a receive.
type Entry struct {
	Op    string
	Group string // a key of Record.Groups
	Seq   int64
	P2P   bool
	// From and To are the sender and the receiver of a send or a receive, as numbers in the group. From and To are -1
	// if P2P is set but the ranks are unknown.
	From, To int
	p2pSeq   int64
	DType    string
	In, Out  int64 // numbers of elements passed in and received; -1 if unknown
	Sizes    string
	State    string // "scheduled", "started", "completed"; empty if the file was cut short
	// Created is the time of the host's call, by its wall clock, in nanoseconds. Started and Completed are the times at
	// which the recorder noticed that the collective had started and completed; 0 if it has not noticed this.
	Created, Started, Completed int64
	Stack                       []string // innermost call first
}

// written is an entry in the form in which torch writes it.
type written struct {
	ID        *int64    `json:"record_id"`
	OldID     *int64    `json:"id"` // before torch 2.4
	Group     []any     `json:"process_group"`
	Seq       *int64    `json:"collective_seq_id"`
	OldSeq    *int64    `json:"seq_id"` // before torch 2.4
	P2PSeq    int64     `json:"p2p_seq_id"`
	P2P       bool      `json:"is_p2p"`
	Name      string    `json:"profiling_name"`
	In        [][]int64 `json:"input_sizes"`
	Out       [][]int64 `json:"output_sizes"`
	InTypes   []string  `json:"input_dtypes"`
	OutTypes  []string  `json:"output_dtypes"`
	State     *string   `json:"state"`
	Created   int64     `json:"time_created_ns"`
	Started   *int64    `json:"time_discovered_started_ns"`
	Completed *int64    `json:"time_discovered_completed_ns"`
	Frames    []frame   `json:"frames"`
}

type frame struct {
	Name string `json:"name"`
	File string `json:"filename"`
	Line int    `json:"line"`
}

// config is a group in the form in which torch writes it.
type config struct {
	Desc  string          `json:"desc"`
	Ranks json.RawMessage `json:"ranks"`
}

// ReadJSON reads a record in JSON.
func ReadJSON(r io.Reader) (*Record, error) {
	out := &Record{Rank: -1, Groups: map[string]Group{}}
	scan := jsonscan.New(r)
	found := false
	err := scan.Object(func(key string) error {
		switch key {
		case "entries":
			found = true
			return scan.Array(func() error {
				raw, err := scan.Raw(maxEntry)
				if err != nil {
					return err
				}
				return out.add(raw, scan.Decode)
			})
		case "pg_config":
			raw, err := scan.Raw(maxEntry)
			if err != nil {
				return err
			}
			return out.groups(raw, scan.Decode)
		case "pg_status":
			raw, err := scan.Raw(maxEntry)
			if err != nil {
				return err
			}
			return out.status(raw, scan.Decode)
		case "rank":
			raw, err := scan.Raw(32)
			if n, bad := strconv.Atoi(string(raw)); bad == nil && n >= 0 {
				out.Rank = n
			}
			return err
		}
		return scan.Skip()
	})
	if err == nil {
		err = scan.End()
	}
	if err == nil && !found {
		err = errors.New(`JSON with neither "traceEvents" nor "entries" is neither a timeline nor a flight record`)
	}
	return out, err
}

// ReadPickle reads a record that torch has pickled. ReadPickle executes no code from the pickle.
func ReadPickle(r io.Reader) (*Record, error) {
	v, err := pickle.Decode(r, pickle.Limits{Memory: 192 << 20})
	if err != nil {
		return nil, err
	}
	top, ok := v.(*pickle.Dict)
	if !ok {
		return nil, errors.New("the pickle is not a flight record: it does not hold a dict")
	}
	entries, ok := top.Get("entries").(*pickle.List)
	if !ok && top.Get("segments") != nil {
		return nil, errors.New("it is a memory snapshot of torch: hocket memory explains it")
	}
	if !ok {
		return nil, errors.New(`the pickle has no list "entries": no flight record`)
	}
	out := &Record{Rank: -1, Groups: map[string]Group{}}
	if n, ok := top.Get("rank").(int64); ok && n >= 0 && n < 1<<20 {
		out.Rank = int(n)
	}
	into := func(v any, add func([]byte, func([]byte, any) error) error) error {
		left := maxEntry
		p, err := plain(v, 8, &left)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return add(raw, json.Unmarshal)
	}
	for _, e := range entries.Items {
		if err := into(e, out.add); err != nil {
			return nil, err
		}
	}
	for key, add := range map[string]func([]byte, func([]byte, any) error) error{"pg_config": out.groups,
		"pg_status": out.status} {
		if v := top.Get(key); v != nil {
			if err := into(v, add); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// plain converts a value of a pickle to types that encoding/json supports, down to the given depth. left is the number
// of bytes that the result may still occupy. The limit is necessary because a pickle can refer to one value many times.
func plain(v any, depth int, left *int) (any, error) {
	if depth == 0 {
		return nil, errors.New("values are nested deeper than in any flight record")
	}
	list := func(items []any) (any, error) {
		out := []any{} // nil would be null in JSON
		for _, x := range items {
			p, err := plain(x, depth-1, left)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		}
		return out, nil
	}
	*left -= 2 // each value takes at least a digit and a comma
	switch v := v.(type) {
	case string:
		*left -= len(v)
	case []byte:
		*left -= len(v)
	}
	if *left < 0 {
		return nil, fmt.Errorf("an entry has more than %d bytes", maxEntry)
	}
	switch v := v.(type) {
	case *pickle.Tuple:
		return list(v.Items)
	case *pickle.List:
		return list(v.Items)
	case *pickle.Set:
		return list(v.Items)
	case *pickle.Dict:
		out := map[string]any{}
		for i, k := range v.Keys {
			key, ok := k.(string)
			if !ok {
				key = pickle.Brief(k)
			}
			*left -= len(key)
			p, err := plain(v.Values[i], depth-1, left)
			if err != nil {
				return nil, err
			}
			out[key] = p
		}
		return out, nil
	case []byte:
		return string(v), nil
	case *pickle.Object:
		return nil, fmt.Errorf("it holds %s, which no flight record does", pickle.Brief(v))
	}
	return v, nil
}

// count adds the size of a part of the record, and returns an error if the stored parts exceed the limits.
func (r *Record) count(raw []byte) error {
	if r.text += len(raw); r.text > maxText {
		return fmt.Errorf("entries and groups have more than %d bytes", maxText)
	}
	return nil
}

func (r *Record) add(raw []byte, decode func(raw []byte, into any) error) error {
	r.read++
	n := r.read
	if n > maxEntries {
		return fmt.Errorf("more than %d entries", maxEntries)
	}
	if err := r.count(raw); err != nil {
		return fmt.Errorf("entry %d: %w", n, err)
	}
	var w written
	if err := decode(raw, &w); err != nil {
		return fmt.Errorf("entry %d: %w", n, err)
	}
	if err := w.check(); err != nil {
		return fmt.Errorf("entry %d: %w", n, err)
	}
	if id := cmp.Or(w.ID, w.OldID); n == 1 && id != nil {
		r.Whole = *id == 0
	}
	name := strings.TrimPrefix(names.Quoted(w.Name), "nccl:")
	e := Entry{Op: trace.CollectiveOp(name), Seq: *cmp.Or(w.Seq, w.OldSeq), P2P: w.P2P, p2pSeq: w.P2PSeq,
		State:   *w.State,
		Created: w.Created, In: elements(w.In), Out: elements(w.Out),
		DType: names.Quoted(strings.Join(w.InTypes, ",")), Sizes: fmt.Sprint(w.In, " → ", w.Out)}
	e.setPeers(name)
	e.Group = names.Quoted(fmt.Sprint(w.Group[0]))
	if len(w.Group) > 1 && r.Groups[e.Group].Name == "" {
		g := r.Groups[e.Group]
		g.Name = names.Quoted(fmt.Sprint(w.Group[1]))
		r.Groups[e.Group] = g
	}
	if w.Started != nil {
		e.Started = *w.Started
	}
	if w.Completed != nil {
		e.Completed = *w.Completed
	}
	for _, f := range w.Frames[:min(len(w.Frames), 64)] {
		e.Stack = append(e.Stack, names.Quoted(fmt.Sprintf("%s (%s:%d)", f.Name, f.File, f.Line)))
	}
	if !r.ends(&e) {
		r.Entries = append(r.Entries, e)
	}
	return nil
}

// coalesced is the name of the entry that torch writes after the calls of a batch.
const coalesced = "coalesced"

// ends reports whether an entry ends a batch of calls, and gives its state and times to the calls of the batch. Torch
// records no state for the calls of a batch: they remain scheduled.
func (r *Record) ends(e *Entry) bool {
	if e.Op != coalesced {
		return false
	}
	i := len(r.Entries)
	for ; i > 0; i-- {
		x := &r.Entries[i-1]
		if x.Group != e.Group || x.Seq != e.Seq || x.p2pSeq != e.p2pSeq || x.State != "scheduled" || x.Started != 0 {
			break
		}
		x.State, x.Started, x.Completed = e.State, e.Started, e.Completed
	}
	return i < len(r.Entries)
}

// check returns an error if the entry lacks a necessary part, or has an impossible one.
func (w *written) check() error {
	if w.State != nil {
		switch *w.State {
		case "", "scheduled", "started", "completed": // entries of a file that was cut short have no state
		default:
			return fmt.Errorf("the state is %.40q; torch writes scheduled, started or completed", *w.State)
		}
	}
	for _, part := range []struct {
		name    string
		present bool
	}{{"process_group", len(w.Group) > 0}, {"profiling_name", w.Name != ""},
		{"collective_seq_id", cmp.Or(w.Seq, w.OldSeq) != nil}, {"state", w.State != nil}} {
		if !part.present {
			return fmt.Errorf("it has no %s", part.name)
		}
	}
	for _, at := range []*int64{&w.Created, w.Started, w.Completed} {
		if at != nil && *at < 0 {
			return fmt.Errorf("a time is %d ns since 1970", *at)
		}
	}
	for _, shape := range slices.Concat(w.In, w.Out) {
		for _, d := range shape {
			if d < 0 {
				return fmt.Errorf("a tensor has the shape %.60s", fmt.Sprint(shape))
			}
		}
	}
	return nil
}

// peers matches the names that torch gives to sends and receives: "send 0->1", "recv 1<-0".
var peers = regexp.MustCompile(`^(send|recv) (\d{1,7})(->|<-)(\d{1,7})$`)

// setPeers sets P2P, From and To by the name of the call.
func (e *Entry) setPeers(name string) {
	m := peers.FindStringSubmatch(name)
	if m == nil {
		if e.P2P {
			e.From, e.To = -1, -1
		}
		return
	}
	e.P2P = true // the field is_p2p is new in torch 2.4
	e.From, _ = strconv.Atoi(m[2])
	e.To, _ = strconv.Atoi(m[4])
	if m[3] == "<-" {
		e.From, e.To = e.To, e.From
	}
}

// elements returns the number of elements of some tensors, or -1 if it is unknown or impossible.
func elements(sizes [][]int64) int64 {
	if sizes == nil {
		return -1
	}
	var sum int64
	for _, shape := range sizes {
		n := int64(1)
		for _, d := range shape {
			if d > 0 && n > 1<<60/d {
				return -1
			}
			n *= d
		}
		if sum += n; sum > 1<<60 {
			return -1
		}
	}
	return sum
}

func (r *Record) groups(raw []byte, decode func(raw []byte, into any) error) error {
	if err := r.count(raw); err != nil {
		return fmt.Errorf("pg_config: %w", err)
	}
	var all map[string]config
	if err := decode(raw, &all); err != nil {
		return fmt.Errorf("pg_config: %w", err)
	}
	for key, c := range all {
		g := Group{Name: names.Quoted(c.Desc)}
		text := bytes.Trim(c.Ranks, `"`)
		var ranks []int
		if json.Unmarshal(text, &ranks) == nil {
			g.Members = ranks
		}
		r.Groups[names.Quoted(key)] = g
	}
	return nil
}

// status reads the numbers of the last calls of each group. Torch writes them as texts.
func (r *Record) status(raw []byte, decode func(raw []byte, into any) error) error {
	if err := r.count(raw); err != nil {
		return fmt.Errorf("pg_status: %w", err)
	}
	var all map[string]struct {
		Enqueued json.RawMessage `json:"last_enqueued_collective"`
	}
	if decode(raw, &all) != nil {
		return nil // the status only adds to the entries
	}
	for key, s := range all {
		if n, err := strconv.ParseInt(string(bytes.Trim(s.Enqueued, `"`)), 10, 64); err == nil && n >= 0 {
			if r.Enqueued == nil {
				r.Enqueued = map[string]int64{}
			}
			r.Enqueued[names.Quoted(key)] = n
		}
	}
	return nil
}

// Number assigns the next free number to each rank whose record contains none. Number returns an error if two records
// are of the same rank.
func Number(records []*Record) error {
	taken := map[int]bool{}
	for _, r := range records {
		if r.Rank >= 0 && taken[r.Rank] {
			return fmt.Errorf("two flight records are of rank %d: give each rank once", r.Rank)
		}
		taken[r.Rank] = true
	}
	next := 0
	for _, r := range records {
		if r.Rank < 0 {
			for taken[next] {
				next++
			}
			r.Rank = next
			taken[next] = true
		}
	}
	return nil
}
