package footprint

import (
	"fmt"
	"io"

	"hocket.example/hocket/internal/planner/pack"
	"hocket.example/hocket/internal/tensor"
)

// plan packs the lifetimes of a trace. A lifetime extends from a block's event alloc to its event free_requested, which
// follows the last use in host order. All memory that was allocated before the trace is treated as one block.
func (s *Snapshot) plan(x *Explanation) {
	var items []pack.Item
	open := map[int64]int{}
	base := x.base(s)
	step := int32(0)
	for _, e := range s.Events {
		switch e.Action {
		case "alloc":
			open[e.Addr] = len(items)
			items = append(items, pack.Item{Size: e.Bytes, Begin: step})
			step++
		case "free_requested":
			k, ok := open[e.Addr]
			if !ok { // allocated before the trace
				items = append(items, pack.Item{Size: e.Bytes, End: step})
				base -= e.Bytes
			} else {
				items[k].End = step
				delete(open, e.Addr)
			}
			step++
		}
	}
	for _, k := range open {
		items[k].End = step
	}
	x.Kept = max(base, 0)
	load, at := pack.Load(items)
	x.Bound = x.Kept + load
	if pack.Overlaps(items) <= mostPairs {
		x.Peak = x.Kept + pack.Height(items, pack.Search(items, load, 20e6))
	}
	for k, it := range items {
		if it.Begin <= at && at < it.End {
			x.AtPeak = append(x.AtPeak, Held{Name: fmt.Sprintf("allocation %d", k), Bytes: it.Size})
		}
	}
}

// base returns the number of bytes that were allocated before the trace.
func (x *Explanation) base(s *Snapshot) int64 {
	bytes := int64(0)
	for _, g := range s.Segments {
		for _, b := range g.Blocks {
			if b.State == "active_allocated" {
				bytes += b.Bytes
			}
		}
	}
	for _, e := range s.Events {
		_, a, _ := e.change()
		bytes -= a
	}
	return max(bytes, 0)
}

// Planned reports whether a plan was made. No plan is made if more than 2^28 pairs of allocations are live at the same
// time.
func (x *Explanation) Planned() bool { return !x.NoHistory && x.Peak >= x.Bound }

// WriteEnd writes the amounts of memory in a snapshot without history. Columns are separated by tabs.
func (x *Explanation) WriteEnd(w io.Writer) {
	fmt.Fprintf(w, "device %d\t\tno history: these are the amounts at the end\n", x.Device)
	for _, row := range []struct {
		name string
		n    int64
		what string
	}{
		{"reserved", x.ReservedPeak, "by the allocator"},
		{"allocated", x.AllocatedPeak, "by the program"},
		{"waiting", x.Waiting, "freed, and waiting for other streams (record_stream)"},
		{"free", x.Free, "in segments, neither allocated nor waiting"},
	} {
		fmt.Fprintf(w, "%s\t%s\t%s\n", row.name, tensor.Size(row.n), row.what)
	}
	fmt.Fprint(w, "a plan\tnone\tcall torch.cuda.memory._record_memory_history() before the run to record its history\n")
}

// Report returns the memory that a plan of the snapshot's lifetimes needs.
func (x *Explanation) Report() *Report {
	r := &Report{Peak: x.Peak, Bound: x.Bound, Sequential: x.Bound, Reserved: x.ReservedPeak,
		Buffers: x.Blocks, AtPeak: x.AtPeak}
	if x.Planned() {
		r.GapPercent = gap(x.Peak, x.Bound)
	}
	return r
}
