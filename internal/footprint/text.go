package footprint

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"hocket.example/hocket/internal/names"
	"hocket.example/hocket/internal/tensor"
)

// mostListed is the largest number of buffers in the table.
const mostListed = 12

// WriteText writes the peak, the bound and the largest buffers at the bound. The text whose is written before the
// peak's number of bytes.
func (r *Report) WriteText(w io.Writer, whose string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "peak\t%s\t%s%d bytes, %d buffers\n", tensor.Size(r.Peak), whose, r.Peak, r.Buffers)
	fmt.Fprintf(tw, "bound\t%s\tcan be live at once: the peak is %.1f %% above\n", tensor.Size(r.Bound), r.GapPercent)
	fmt.Fprintf(tw, "sequential\t%s\tlive at once in the order of the text\n", tensor.Size(r.Sequential))
	_ = tw.Flush()
	fmt.Fprintln(w, "at the bound:")
	held := slices.Clone(r.AtPeak)
	slices.SortStableFunc(held, func(a, b Held) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for k, h := range held {
		if k == mostListed {
			fmt.Fprintf(tw, "  and %d more\n", len(held)-k)
			break
		}
		where := ""
		if h.Line > 0 {
			where = fmt.Sprintf("line %d", h.Line)
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", h.Name, tensor.Size(h.Bytes), where)
	}
	_ = tw.Flush()
}

// WriteText writes the peaks of a device, and the call sites of the blocks that wait for other streams.
func (x *Explanation) WriteText(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if x.NoHistory {
		x.WriteEnd(tw)
		_ = tw.Flush()
		return
	}
	fmt.Fprintf(tw, "device %d\t\tof one rank: %d allocations traced\n", x.Device, x.Blocks)
	fmt.Fprintf(tw, "reserved\t%s\tthe most memory that the allocator had reserved\n", bothUnits(x.ReservedPeak))
	fmt.Fprintf(tw, "allocated\t%s\tthe most memory that the program had allocated\n", bothUnits(x.AllocatedPeak))
	fmt.Fprintf(tw,
		"waiting\t%s\tthe most memory that was freed but waited for other streams (record_stream)\n",
		bothUnits(x.Waiting))
	if !x.Together() {
		fmt.Fprint(tw, "\t\tthese three peaks are at different moments, and do not add up\n")
	}
	fmt.Fprintf(tw, "free\t%s\tin segments at the end, neither allocated nor waiting\n", tensor.Size(x.Free))
	if x.Private > 0 {
		fmt.Fprintf(tw, "private\t%s\tin segments at the end that only a captured graph or a MemPool uses\n",
			tensor.Size(x.Private))
	}
	if x.PrivateWaiting > 0 {
		fmt.Fprintf(tw, "held back\t%s\tof the private bytes: freed, but waiting at the end, because no event passes "+
			"within a capture\n", tensor.Size(x.PrivateWaiting))
	}
	fmt.Fprintf(tw, "rounding\t%s\tby which blocks exceed the requested sizes\n", tensor.Size(x.Rounding))
	for _, action := range slices.Sorted(maps.Keys(x.Ignored)) {
		fmt.Fprintf(tw, "ignored\t%d\tevents of the unknown action %s: the sums may lack them\n", x.Ignored[action],
			names.Quoted(action))
	}
	if x.Planned() {
		fmt.Fprintf(tw, "a plan\t%s\tfor the same lifetimes, of which %s are live at once\n",
			bothUnits(x.Peak), tensor.Size(x.Bound))
		fmt.Fprintf(tw, "cost\t%s\treserved memory minus the memory that a plan needs\n",
			bothUnits(max(0, x.ReservedPeak-x.Peak)))
	} else {
		fmt.Fprintf(tw, "a plan\tnone\ttoo many allocations are live at once: %s\n", tensor.Size(x.Bound))
	}
	_ = tw.Flush()
	x.writeWaiting(w)
}

// mostCalls is the largest number of call sites in the text.
const mostCalls = 8

// writeWaiting lists the call sites that allocated the blocks that wait for other streams at the peak.
func (x *Explanation) writeWaiting(w io.Writer) {
	if len(x.WaitingBySite) == 1 && x.WaitingBySite[0].Site == "" {
		fmt.Fprintln(w,
			"recorded without stacks: with its default arguments, _record_memory_history() also records "+
				"the calls that allocated waiting memory")
	}
	if len(x.WaitingBySite) == 0 || len(x.WaitingBySite) == 1 && x.WaitingBySite[0].Site == "" {
		return
	}
	fmt.Fprintln(w, "waiting memory at its peak, by the call that allocated it (change the record_stream of its result):")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for k, s := range x.WaitingBySite {
		if k == mostCalls {
			fmt.Fprintf(tw, "  and %d more\n", len(x.WaitingBySite)-k)
			break
		}
		fmt.Fprintf(tw, "  %s\t%s\t%d blocks\n", s.Name(), tensor.Size(s.Bytes), s.Blocks)
	}
	_ = tw.Flush()
}

// WaitingAdvice is the advice that is printed if blocks wait for other streams.
const WaitingAdvice = `waiting blocks were recorded on a stream (record_stream) and are not reused until that stream has passed them. To avoid that:
  delete tensor.record_stream(side)                if the current stream waits for side before the tensor is dropped: any torch
  drop the tensor after work.wait()                if async_op=True: torch 2.8 and later, and earlier with this variable:
  TORCH_NCCL_AVOID_RECORD_STREAMS=1 torchrun ...   against what collectives record, torch 2.1 to 2.7; nothing for your own call
  hocket memory SNAPSHOT.pickle --html page.html   draws it; docs/memory.md has the change, and what each torch records
  hocket memory examples/forum.hkt --dim B=8192    predicts another batch; give L= and D= of your layers, too
`

// bothUnits returns a number of bytes as text; large numbers also in GB, which torch prints.
func bothUnits(n int64) string {
	if n < 1e8 {
		return tensor.Size(n)
	}
	return fmt.Sprintf("%s (%.2f GB)", tensor.Size(n), float64(n)/1e9)
}
