package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/internal/trace"
)

// OpTime is the time of one statement of a program in one run, summed over its executions, on the rank where this
// sum is the largest. Times are in microseconds.
type OpTime struct {
	Op    string `json:"op"` // names of all operations that are in one launch, for example "silu+mul"
	Line  int32  `json:"line"`
	Text  string `json:"text"`
	Times int    `json:"times"` // number of executions on the rank
	// Shapes are the types of the operands and, after "->", of the results, in the first execution.
	Shapes  string         `json:"shapes"`
	US      contest.Figure `json:"us"`
	Bound   sim.Bound      `json:"bound"`
	BoundUS float64        `json:"bound_us"`
	BoundBy string         `json:"bound_by,omitempty"`
	// Lost is the time by which US exceeds the bound.
	Lost float64 `json:"lost_us"`
}

// opKey identifies a statement on a rank.
type opKey struct {
	site, rank int32
	op         string
}

// opTimes collects the times of statements.
type opTimes struct {
	p       *plan.Plan
	members func(cmd int) []int
	bounds  *sim.Bounds
	keys    map[opKey]*opSamples
	order   []opKey
}

// opSamples are the times of a statement on a rank, one for each run.
type opSamples struct {
	us    []float64
	first int // index of the statement's first command
	times int
	bound sim.Bound
	limit float64 // sum of the bounds of its executions
}

// newOpTimes returns an opTimes for the statements of p. The function members returns all commands that are in one
// launch with a command, including the command itself. It returns nil if the command is launched alone.
func newOpTimes(p *plan.Plan, members func(cmd int) []int, bounds *sim.Bounds) *opTimes {
	return &opTimes{p: p, members: members, bounds: bounds, keys: map[opKey]*opSamples{}}
}

// add adds the times of a run. It ignores commands that only order streams, and the caller's transfers.
func (o *opTimes) add(t *trace.Trace) {
	if t == nil || t.Virtual {
		return
	}
	sums, counted := map[opKey]float64{}, map[opKey]bool{}
	for i := range t.Events {
		e := &t.Events[i]
		if e.Class == trace.Sync || e.Class == trace.IO {
			continue
		}
		k := opKey{o.p.Cmds[e.ID].Site, int32(e.Rank), e.Name}
		s := o.keys[k]
		if s == nil {
			s = &opSamples{first: int(e.ID)}
			o.keys[k] = s
			o.order = append(o.order, k)
		}
		if len(s.us) == 0 { // set in the first run
			b := o.boundOf(int(e.ID))
			s.times++
			s.limit += b.Time()
			s.bound.Memory += b.Memory
			s.bound.Compute += b.Compute
			s.bound.Wire += b.Wire
		}
		sums[k] += float64(e.Duration()) / 1e3
		counted[k] = true
	}
	for k := range counted {
		o.keys[k].us = append(o.keys[k].us, sums[k])
	}
}

func (o *opTimes) boundOf(cmd int) sim.Bound {
	if all := o.members(cmd); all != nil {
		return o.bounds.Group(all)
	}
	return o.bounds.Group([]int{cmd})
}

// ops lists the statements, the one with the largest Lost first.
func (o *opTimes) ops() []OpTime {
	type statement struct {
		site int32
		op   string
	}
	most := map[statement]OpTime{}
	for _, k := range o.order {
		s := o.keys[k]
		at, site := statement{k.site, k.op}, &o.p.Sites[k.site]
		t := OpTime{Op: k.op, Line: site.Pos.Line, Text: site.Text, Times: s.times, Shapes: o.shapes(s.first),
			US: contest.FigureOf(s.us), Bound: s.bound, BoundUS: s.limit, BoundBy: s.bound.By()}
		t.Lost = t.US.Median - t.BoundUS
		if other, ok := most[at]; !ok || t.US.Median > other.US.Median {
			most[at] = t
		}
	}
	var list []OpTime
	for _, t := range most {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b OpTime) int {
		return cmp.Or(cmp.Compare(b.Lost, a.Lost), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Op, b.Op),
			cmp.Compare(a.Text, b.Text))
	})
	return list
}

// bound returns the time that a rank's commands would take one after another, each at its bound. It is for the rank
// with the largest such time.
func (o *opTimes) bound() (most float64) {
	sums := map[int32]float64{}
	for k, s := range o.keys {
		sums[k.rank] += s.limit
	}
	for _, us := range sums {
		most = max(most, us)
	}
	return most
}

// shapes formats the types of the operands and results of a command, or of its launch.
func (o *opTimes) shapes(cmd int) string {
	all := o.members(cmd)
	if all == nil {
		all = []int{cmd}
	}
	reads, _ := o.p.Accesses(&o.p.Cmds[all[0]])
	_, writes := o.p.Accesses(&o.p.Cmds[all[len(all)-1]])
	return typesOf(reads) + " -> " + typesOf(writes)
}

// typesOf formats types of tensors: "bf16[8,4096], bf16[512,4096]".
func typesOf(refs []plan.Ref) string {
	var types []string
	for _, r := range refs {
		types = append(types, fmt.Sprintf("%s[%s]", r.DType,
			strings.Trim(strings.ReplaceAll(fmt.Sprint(r.Shape), " ", ","), "[]")))
	}
	return strings.Join(types, ", ")
}
