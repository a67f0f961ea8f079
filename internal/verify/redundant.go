package verify

import (
	"fmt"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// redundancy finds waits that add no order, because earlier or adjacent waits of the stream already order the same
// commands. A statement is listed only if this is true for each of its executions, on every rank and in both runs.
type redundancy struct {
	ix     *index
	open   [][]heard // for each stream: the waits since the stream's last other command
	needed map[int32]bool
	by     map[int32]int32 // for each site of a wait: the site of another wait that implies it, or -1
	order  []int32         // sites of waits in the order of their first occurrence
}

// heard describes one wait: the snapshot that the stream received from it, and whether the stream already had this
// knowledge.
type heard struct {
	cmd   int32
	snap  snapshot
	known bool
}

func newRedundancy(ix *index) *redundancy {
	return &redundancy{ix: ix, open: make([][]heard, len(ix.streams)), needed: map[int32]bool{}, by: map[int32]int32{}}
}

// wait records a wait of a stream. It is called before the stream adds the snapshot to its knowledge.
func (r *redundancy) wait(v *view, cmd int32, snap snapshot) {
	r.open[v.stream] = append(r.open[v.stream], heard{cmd, snap, v.knows(epoch{snap.stream, snap.done})})
}

// other examines the block of consecutive waits that ends because a stream executes another command.
func (r *redundancy) other(stream int32) {
	block := r.open[stream]
	for i := range block {
		site := r.ix.p.Cmds[block[i].cmd].Site
		by, implied := r.implied(block, i)
		if _, seen := r.by[site]; !seen {
			r.by[site] = by
			r.order = append(r.order, site)
		}
		r.needed[site] = r.needed[site] || !implied
	}
	r.open[stream] = block[:0]
}

// implied reports whether the i-th wait of a block of consecutive waits adds nothing to the knowledge that the stream
// has or receives from the other waits. If two waits add the same knowledge, only the second is implied.
func (r *redundancy) implied(block []heard, i int) (by int32, ok bool) {
	h := &block[i]
	e := epoch{h.snap.stream, h.snap.done}
	for j := range block {
		o := &block[j]
		same := o.snap.stream == e.stream && o.snap.done == e.pos
		if j != i && o.snap.knows(e) && !o.known && (!same || j < i) {
			return r.ix.p.Cmds[o.cmd].Site, true
		}
	}
	return -1, h.known
}

// written is the set of the waits and barriers in the text of a program, by position. Lowering gives a statement the
// position of the source statement that it implements. Therefore a wait that a strategy has inserted has the position
// of a collective or a GEMM, and is not in the set. A nil set stands for all waits and barriers.
type written map[ir.Pos]bool

// writtenIn returns the waits and barriers of a program, or nil if the program is nil.
func writtenIn(prog *ir.Program) written {
	if prog == nil {
		return nil
	}
	w := written{}
	for _, f := range prog.Funcs {
		f.Body.Walk(func(s *ir.Stmt) {
			if s.Op == ir.OpWait || s.Op == ir.OpBarrier {
				w[s.Pos] = true
			}
		})
	}
	return w
}

// has reports whether the set contains a wait or barrier of a plan.
func (w written) has(s *plan.Site) bool { return w == nil || w[s.Pos] }

func (r *redundancy) findings(w written) []Finding {
	for st := range r.open {
		r.other(int32(st))
	}
	first := map[int32]int32{}
	for i := range r.ix.p.Cmds {
		c := &r.ix.p.Cmds[i]
		if _, seen := first[c.Site]; !seen && (c.Kind == plan.WaitEvent || c.Kind == plan.WaitCounter) {
			first[c.Site] = int32(i)
		}
	}
	var out []Finding
	for _, site := range r.order {
		s := &r.ix.p.Sites[site]
		if r.needed[site] || s.Op != ir.OpWait || !w.has(s) {
			continue
		}
		f := Finding{
			Warning: true, Kind: KindRedundant, Acts: []Act{{Cmd: first[site]}}, Count: 1,
			Message: fmt.Sprintf("redundant: %s adds no order: earlier waits already order the same work", s.Text),
			Help:    "remove it",
		}
		if by := r.by[site]; by >= 0 && by != site {
			o := r.ix.p.Sites[by]
			f.Message = fmt.Sprintf("redundant: %s is implied by %s at line %d, which already orders the same work", s.Text, o.Text, o.Pos.Line)
		}
		out = append(out, f)
	}
	return out
}
