package hocket

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/plancache"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// Report describes one run: its results, and measurements of its cost.
type Report struct {
	// Out holds the results as global tensors, keyed by name. Out omits the results that were left in device tensors
	// (Args.DeviceOut). OutNames lists the names in order, with inout parameters last.
	Out      map[string]*Tensor
	OutNames []string
	// OutLocal holds the blocks of this process's ranks, keyed by the result's name and then by the rank. It is nil unless
	// the machine has a World of several processes.
	OutLocal map[string]map[int]*Tensor

	Func   string
	Ranks  int
	Dims   map[string]int64
	Ops    int   // number of tensor ops, collectives and transfers of all ranks
	Bytes  int64 // number of bytes moved between ranks, by all ranks
	Memory Memory
	// Proof is Proved if the plan was proved before it ran. Otherwise Proof is Unknown, and Unproved is the reason.
	Proof    VerdictKind
	Unproved string
	// Detours names the pairs of devices without peer access, each with the reason. Data between these devices was
	// copied through host memory. Detours is empty if there are no such pairs.
	Detours []string
	// Guesses names the GEMMs of this process that used the first algorithm that the library suggests, because there
	// was too little memory to time other algorithms: see LoadOptions.Cache. It is usually empty.
	Guesses []string
	// PassedOver is the reason why a table of collectives that was tuned for this machine was not used. It is empty if the
	// table was used or does not exist.
	PassedOver string
	// Overlap has one entry for each statement that moves data between ranks. The entries contain times only if
	// LoadOptions.Trace was set.
	Overlap []Overlap

	trace *trace.Trace
}

// Memory holds the sizes of each rank's memory, in bytes.
type Memory struct {
	Peak  int64 // as laid out
	Bound int64 // largest number of bytes that are live at the same time in issue order
	Host  int64 // bytes of pinned host memory for buffers that are declared host; not included in the other sizes
}

// Overlap describes how much of one statement's communication was hidden by computation.
type Overlap struct {
	Op   string // "all_reduce"
	Line int32  // line of the statement, or of the statement from which lowering has made it, in the program's text
	// Statement is the header of the statement as it is after lowering, for example "put %y.i into %y.g.to at tp[%y.g.d]".
	Statement string
	// Algorithm names the algorithm of a collective, for example "two-shot". If different message sizes used different
	// algorithms, their names are joined by "+". It is empty for other ops.
	Algorithm string
	// Bytes is the number of bytes moved, summed over all ranks and all executions of the statement.
	Bytes int64
	// BusyNS is the time that the statement's executions took, and ExposedNS is the part of it in which no tensor op ran
	// on the same rank. Both are sums over the executions on the rank that has the most exposed time, in nanoseconds.
	BusyNS, ExposedNS int64
}

// OutputsSHA256 returns a hash of the results in Out. Runs with equal results have equal hashes; docs/language.md
// defines the hash.
func (r *Report) OutputsSHA256() string {
	var list []tensor.Named
	for name, t := range r.Out {
		list = append(list, tensor.Named{Name: name, Tensor: t.host()})
	}
	return tensor.SHA256(list)
}

// checkOut returns an error about the tensors that cannot receive a plan's results.
func checkOut(p *plan.Plan, into map[string]*Tensor) error {
	for _, name := range slices.Sorted(maps.Keys(into)) {
		i := slices.IndexFunc(p.Outputs, func(o plan.IO) bool { return o.Name == name })
		if i < 0 {
			return fmt.Errorf("%w: the program has no result %%%s", ErrInput, name)
		}
		dst, want := into[name], &tensor.Tensor{DType: p.Outputs[i].DType, Shape: p.Outputs[i].Shape}
		switch {
		case dst == nil:
		case dst.DType != want.DType || !slices.Equal(dst.Shape, want.Shape):
			return fmt.Errorf("%w: result %%%s is %s, but its destination is %s", ErrInput, name, want, dst)
		case dst.host().Check() != nil:
			return fmt.Errorf("%w: the destination of result %%%s: %w", ErrInput, name, dst.host().Check())
		}
	}
	return nil
}

// reporter makes the reports of a plan's runs. The data that all runs have in common are computed only once.
type reporter struct {
	plan *plan.Plan
	same Report
	at   map[int32]int // by site of a statement: index of its entry in Overlap
}

// usage is what a model stores with a loaded plan.
type usage struct {
	proof proofOf // the result of proving the plan
	// reporter is set when a run has ended. Only the holder of the model's lease may use it.
	reporter *reporter
}

type (
	loaded = plancache.Loaded[usage]
	user   = plancache.User[usage]
)

// reports returns the reports of a batch of runs of a plan. The batch must contain at least one run.
func reports(l *loaded, results []*exec.Result) []*Report {
	if l.Value.reporter == nil {
		l.Value.reporter = newReporter(l.Plan, results[0].Algorithms, l.Value.proof)
	}
	list := make([]*Report, len(results))
	for i, r := range results {
		list[i] = l.Value.reporter.report(r)
	}
	return list
}

func newReporter(p *plan.Plan, algorithms []string, proof proofOf) *reporter {
	s := &reporter{plan: p, same: Report{
		Func: p.Func, Ranks: p.Ranks, Dims: map[string]int64{}, Proof: proof.kind, Unproved: proof.reason,
		Memory: Memory{Peak: p.Memory.Peak, Bound: p.Memory.Bound, Host: p.HostBytes},
	}}
	for _, d := range p.Dims {
		s.same.Dims[d.Name] = d.Value
	}
	for i := range p.Cmds {
		s.same.count(p, &p.Cmds[i])
	}
	s.same.Overlap, s.at = overlap(p)
	s.same.nameAlgorithms(p, s.at, algorithms)
	return s
}

// report makes the report of one run.
func (s *reporter) report(r *exec.Result) *Report {
	rep := s.same
	rep.Out, rep.Dims, rep.Overlap = map[string]*Tensor{}, maps.Clone(rep.Dims), slices.Clone(rep.Overlap)
	rep.Detours, rep.Guesses, rep.PassedOver, rep.trace = r.Detours, r.Guesses, r.PassedOver, r.Trace
	for _, o := range s.plan.Outputs {
		if local := r.Local[o.Name]; local != nil {
			if rep.OutLocal == nil {
				rep.OutLocal = map[string]map[int]*Tensor{}
			}
			rep.OutLocal[o.Name] = map[int]*Tensor{}
			for rank, block := range local {
				rep.OutLocal[o.Name][rank] = (*Tensor)(block)
			}
		}
		t := (*Tensor)(r.Outputs[o.Name])
		if t == nil { // the result stays on the devices, or another process holds a part of it
			continue
		}
		rep.Out[o.Name] = t
		rep.OutNames = append(rep.OutNames, o.Name)
	}
	s.exposed(rep.Overlap, r.Trace)
	return &rep
}

// exposed adds the times from a trace to the entries of list. It does nothing if there are no times.
func (s *reporter) exposed(list []Overlap, t *trace.Trace) {
	if t == nil || t.Virtual {
		return
	}
	siteOf := func(id int64) int {
		if k, ok := s.at[s.plan.Cmds[id].Site]; ok {
			return k
		}
		return -1
	}
	for k, x := range t.ExposedBy(siteOf, len(list)) {
		list[k].BusyNS, list[k].ExposedNS = x.Busy, x.Exposed
	}
}

// count adds a command's operations and bytes to the report's totals.
func (r *Report) count(p *plan.Plan, c *plan.Cmd) {
	switch c.Kind {
	case plan.Compute, plan.Copy, plan.Collective, plan.Group:
		r.Ops++
	}
	r.Bytes += remoteBytes(p, c)
}

// remoteBytes returns the number of bytes that a command moves between ranks.
func remoteBytes(p *plan.Plan, c *plan.Cmd) int64 {
	switch c.Kind {
	case plan.Copy:
		if c.Ins[0].Rank != c.Outs[0].Rank {
			return c.Ins[0].Bytes()
		}
	case plan.Collective:
		return p.Colls[c.Coll].Moved(int(c.Part))
	case plan.Group:
		n := int64(0)
		for _, g := range c.Group {
			if g.Send {
				n += p.Pairs[g.Pair].Src.Bytes()
			}
		}
		return n
	}
	return 0
}

// overlap sums the communication of each statement. The map gives the index in the list of each statement's site.
func overlap(p *plan.Plan) ([]Overlap, map[int32]int) {
	var out []Overlap
	at := map[int32]int{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		n := remoteBytes(p, c)
		if n == 0 {
			continue
		}
		k, seen := at[c.Site]
		if !seen {
			k = len(out)
			at[c.Site] = k
			site := p.Sites[c.Site]
			out = append(out, Overlap{Op: site.Op.String(), Line: site.Pos.Line, Statement: site.Text})
		}
		out[k].Bytes += n
	}
	return out, at
}

// nameAlgorithms sets the algorithm of each statement that is a collective. at maps sites of statements to indices in
// Overlap.
func (r *Report) nameAlgorithms(p *plan.Plan, at map[int32]int, algorithms []string) {
	for i := range p.Cmds {
		c := &p.Cmds[i]
		k, moves := at[c.Site]
		if c.Kind != plan.Collective || !moves {
			continue
		}
		o := &r.Overlap[k]
		if name := algorithms[c.Coll]; !slices.Contains(strings.Split(o.Algorithm, "+"), name) {
			o.Algorithm = strings.TrimPrefix(o.Algorithm+"+"+name, "+")
		}
	}
}

// WriteTable writes a short table with the number of ops, the bytes moved, the peak memory and, for a traced run, the
// exposed communication.
func (r *Report) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	ranks := "ranks"
	if r.Ranks == 1 {
		ranks = "rank"
	}
	fmt.Fprintf(tw, "ops\t%d on %d %s\n", r.Ops, r.Ranks, ranks)
	fmt.Fprintf(tw, "bytes moved\t%s between ranks\n", tensor.Size(r.Bytes))
	fmt.Fprintf(tw, "memory\t%s a rank; at most %s are live at once in issue order\n",
		tensor.Size(r.Memory.Peak),
		tensor.Size(r.Memory.Bound))
	if r.Memory.Host > 0 {
		fmt.Fprintf(tw, "host memory\t%s a rank\n", tensor.Size(r.Memory.Host))
	}
	for _, d := range r.Detours {
		fmt.Fprintf(tw, "through the host\t%s\n", d)
	}
	for _, g := range r.Guesses {
		fmt.Fprintf(tw, "not timed\tGEMM %s: its algorithm is the library's first guess, because no memory was free to time others\n", g)
	}
	if r.PassedOver != "" {
		fmt.Fprintf(tw, "tuned table\tnot used: %s\n", r.PassedOver)
	}
	for _, o := range r.Overlap {
		if o.BusyNS > 0 {
			by := ""
			if o.Algorithm != "" {
				by = " by " + o.Algorithm
			}
			fmt.Fprintf(tw, "line %d: %s\t%s%s, %s in flight, %s exposed (%.0f %% hidden)\n", o.Line, o.Op,
				tensor.Size(o.Bytes), by,
				duration(o.BusyNS), duration(o.ExposedNS), 100*float64(o.BusyNS-o.ExposedNS)/float64(o.BusyNS))
		}
	}
	return tw.Flush()
}

// WriteTimeline draws a lane for each stream of each rank, with a width of width columns. It draws nothing for a run
// without times: a run that was not traced, or a run on a scheduled machine.
func (r *Report) WriteTimeline(w io.Writer, width int) error {
	if r.trace == nil || r.trace.Virtual {
		return nil
	}
	return r.trace.Timeline(w, width)
}

// Span returns the time at which the first command of the run began and the time at which the last command ended. All
// runs of a batch use the same clock. Both times are zero if the run was not traced or has no times.
func (r *Report) Span() (begin, end time.Duration) {
	if r.trace == nil || r.trace.Virtual || len(r.trace.Events) == 0 {
		return 0, 0
	}
	lo, hi := r.trace.Bounds()
	return time.Duration(lo), time.Duration(hi)
}

var errUntraced = errors.New("the run was not traced: set LoadOptions.Trace")

// WriteTrace writes the run in the JSON trace-event format, which Perfetto and chrome://tracing can open.
func (r *Report) WriteTrace(w io.Writer) error {
	if r.trace == nil {
		return errUntraced
	}
	return r.trace.WriteJSON(w)
}

func duration(ns int64) string {
	switch {
	case ns < 10_000:
		return fmt.Sprintf("%.1f µs", float64(ns)/1e3)
	case ns < 1_000_000:
		return fmt.Sprintf("%.0f µs", float64(ns)/1e3)
	}
	return fmt.Sprintf("%.2f ms", float64(ns)/1e6)
}
