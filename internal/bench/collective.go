package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Collective is the measurement of a collective with one message size, for one or more algorithms.
type Collective struct {
	Op    string `json:"op"`
	DType string `json:"dtype"`
	// Bytes is the message size: the size of the largest operand of a member.
	Bytes int64 `json:"bytes"`
	// Bound is the time in which the bytes that a rank must send or receive can be transferred at the rate of a copy
	// between two ranks. Bound is 0 on the CPU machine.
	Bound float64 `json:"bound_us"`
	// Ways are the measured algorithms; the first one is the algorithm that hocket chooses.
	Ways []contest.Way `json:"ways"`
	// Peers are the times of other programs in microseconds, by name.
	Peers map[string]float64 `json:"peers_us,omitempty"`
}

// TableUse describes the table from which algorithms were chosen.
type TableUse struct {
	From    string `json:"from"` // the name of a file, "shipped", or empty if there is no table
	Hash    string `json:"hash,omitempty"`
	Ignored string `json:"ignored,omitempty"` // why a tuned table is not used, or its ignored entries
}

// tableUse describes a table.
func tableUse(f comm.Found) *TableUse {
	return &TableUse{From: f.From, Hash: f.Table.Hash(), Ignored: cmp.Or(f.Ignored, contest.UnknownText(f.Unknown))}
}

func (t *TableUse) text() string {
	from := t.From
	if from == "" {
		from = "none"
	} else {
		from += ", hash " + t.Hash
	}
	if t.Ignored != "" {
		from += " (" + t.Ignored + ")"
	}
	return from
}

// RowSizes returns the sizes of 1, 4, 8 … 4096 rows of 8192 elements of 2 bytes. A model with hidden size 8192
// reduces messages of these sizes when it decodes and prefills.
func RowSizes() []int64 {
	var sizes []int64
	for _, rows := range []int64{1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 3062, 4096} {
		sizes = append(sizes, rows*rowBytes)
	}
	return sizes
}

const rowBytes = 8192 * 2

func collectiveOf(op ir.Op) func(*job, context.Context) error {
	return func(j *job, ctx context.Context) error { return j.collectives(ctx, op) }
}

// calls lists the calls to measure. Sizes are rounded down to sizes that can be divided among the
// ranks.
func (j *job) calls(op ir.Op) ([]contest.Call, error) {
	sizes := j.Sizes
	if sizes == nil && j.Rows {
		sizes = RowSizes()
	}
	if sizes == nil {
		for n := int64(1 << 10); n <= j.largest(); n *= 4 {
			sizes = append(sizes, n)
		}
	}
	var list []contest.Call
	for _, n := range sizes {
		c := contest.NewCall(op, n, j.Ranks, j.DType)
		if c.Bytes == 0 {
			return nil, contest.Usagef("%d bytes are fewer than one element for each of %d ranks", n, j.Ranks)
		}
		list = append(list, c)
	}
	return list, nil
}

func (j *job) largest() int64 {
	if j.embedded() {
		return 4 << 20
	}
	return 256 << 20
}

func (j *job) collectives(ctx context.Context, op ir.Op) error {
	if j.DType == ir.InvalidDType {
		j.DType = ir.BF16
	}
	if err := j.schedules(op); err != nil {
		return err
	}
	calls, err := j.calls(op)
	if err != nil {
		return err
	}
	wire, err := j.wireRate(ctx, j.wireBytes())
	if err != nil {
		return err
	}
	j.report.Wire = &wire
	a, err := contest.OpenArena(ctx, j.machine, j.Ranks, calls, j.DType, j.Cold)
	if err != nil {
		return err
	}
	found := comm.Find(j.machine.Name(), a.World)
	a.Dispatch = comm.NewDispatch(a.World, j.machine.Caps(), found.Table, comm.Policy{})
	j.report.Table = tableUse(found)
	for _, name := range j.Algorithms {
		if err := a.Dispatch.Check(name); name != "all" && err != nil {
			return a.Close(contest.Usagef("%v", err))
		}
	}
	if len(j.Schedules) > 0 && a.Dispatch.Scheduler() == "" {
		return a.Close(contest.Usagef("machine %s does not execute schedules of other tools; hocket run does on the CPU",
			j.machine.Name()))
	}
	j.collectiveMethod(calls)
	return a.Close(contest.Within(ctx, a.World, func() error {
		for i, c := range calls {
			j.done(i, len(calls))
			if err := j.collective(ctx, a, c); err != nil {
				return err
			}
		}
		return nil
	}))
}

func (j *job) collectiveMethod(calls []contest.Call) {
	where := "the same operands in every call, which stay in the cache"
	if j.Cold {
		where = "several operands, used alternately, which together exceed the cache"
	}
	j.method("%s, small random integers, out of place; %s", j.DType, where)
	if j.graphs() {
		j.method("graph: time per call, from the difference between a long and a short chain of calls in one "+
			"graph each (%d and %d calls at large sizes, %d and %d at small ones); slowest rank",
			contest.ChainsOf(1<<30).Long, contest.ChainsOf(1<<30).Short, contest.ChainsOf(1).Long,
			contest.ChainsOf(1).Short)
	}
	j.method("eager: a chain of %d to %d calls that one host thread issues one by one for all ranks; slowest rank",
		contest.ChainsOf(1<<30).Eager, contest.ChainsOf(1).Eager)
	j.method("algorithms are measured alternately; median of %d rounds after one warm-up round; spread is the "+
		"interquartile range", j.Rounds)
	if j.embedded() {
		j.method("no bound: ranks are threads that share the CPU's cores, and their synchronization takes longer " +
			"than the transfer of the bytes")
	} else {
		j.method("bound: time for the bytes that a rank must send or receive, at the rate of one large copy")
	}
	j.method("wrong: number of elements that differ from the exact result, eagerly or by graph; in large results " +
		"only some ranges are compared")
	var sizes []int64
	for _, c := range calls {
		sizes = append(sizes, c.Bytes)
	}
	j.lackPeers(calls[0].Op.String(), sizes)
	if names := j.Algorithms; len(names) > 0 {
		j.method("requested algorithms: %s", strings.Join(names, ", "))
	}
}

// collective measures one size.
func (j *job) collective(ctx context.Context, a *contest.Arena, c contest.Call) error {
	row := Collective{Op: c.Op.String(), DType: j.DType.String(), Bytes: c.Bytes, Peers: peersOf(j.Peers, c, j.Ranks)}
	// on the CPU machine there is no bound, because synchronization of ranks takes longer than the transfer
	if !j.embedded() {
		row.Bound = wireBytesOf(c, j.Ranks) / j.report.Wire.Median / 1e3
	}
	list, refused, err := j.entrants(a, c)
	if err != nil {
		return err
	}
	if err := j.measure(ctx, a, list); err != nil {
		return err
	}
	for _, e := range list {
		row.Ways = append(row.Ways, e.Way)
		if err := e.Leave(); err != nil {
			return err
		}
	}
	row.Ways = append(row.Ways, refused...)
	j.report.Collectives = append(j.report.Collectives, row)
	return nil
}

// measure checks the results of entrants and measures their times.
func (j *job) measure(ctx context.Context, a *contest.Arena, list []*contest.Entrant) error {
	for _, e := range list {
		if err := j.admit(ctx, a, e); err != nil {
			return fmt.Errorf("%s of %s by %s: %w", e.Call.Op, contest.BytesText(e.Call.Bytes), e.Way.Algorithm, err)
		}
	}
	return a.Race(ctx, list, j.Rounds, true)
}

// admit checks the results of an entrant, issued eagerly and by graph.
func (j *job) admit(ctx context.Context, a *contest.Arena, e *contest.Entrant) error {
	var err error
	if e.Way.Wrong, e.Way.Checked, err = a.Check(ctx, e, func() error { return a.Run(e, e.Slots) }); err != nil ||
		!j.graphs() {
		return err
	}
	if err := a.Capture(ctx, e); err != nil {
		return err
	}
	wrong, looked, err := a.Check(ctx, e, func() error { return a.Replay(ctx, e, e.Short, e.Chains.Short) })
	e.Way.Wrong, e.Way.Checked = e.Way.Wrong+wrong, e.Way.Checked+looked
	if err != nil {
		return err
	}
	return a.Choose(ctx, e)
}

// entrants opens channels for the call c, each with one algorithm: the one that hocket chooses, and each requested one.
// entrants also returns the requested algorithms that cannot run, with the reasons.
func (j *job) entrants(a *contest.Arena, c contest.Call) (list []*contest.Entrant, refused []contest.Way, err error) {
	chosen, err := a.Enter(c, a.Dispatch, device.Tuning{}, false)
	if err != nil {
		return nil, nil, err
	}
	list = append(list, chosen)
	names := j.Algorithms
	switch {
	case slices.Contains(names, "all"):
		names = a.Dispatch.Algorithms()
	case names == nil:
		names = a.Dispatch.Libraries()
	}
	for _, name := range names {
		if name == chosen.Way.Algorithm {
			continue
		}
		e, err := a.Enter(c, a.Dispatch, device.Tuning{Algo: name}, true)
		if errors.Is(err, device.ErrUnsupported) {
			refused = append(refused, contest.Way{Algorithm: name, By: "asked", Refused: err.Error()})
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		e.Way.By = "asked"
		list = append(list, e)
	}
	for _, s := range j.Schedules {
		tuning := device.Tuning{Algo: a.Dispatch.Scheduler(), Schedule: s}
		e, err := a.Enter(c, a.Dispatch, tuning, true)
		if errors.Is(err, device.ErrUnsupported) {
			refused = append(refused, contest.Way{Algorithm: contest.TuningText(tuning), By: "asked", Refused: err.Error()})
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		e.Way.Algorithm, e.Way.By = contest.TuningText(tuning), "asked"
		list = append(list, e)
	}
	return list, refused, nil
}

// schedules returns an error for schedules that do not fit the benchmark.
func (j *job) schedules(op ir.Op) error {
	for _, s := range j.Schedules {
		switch {
		case s.Op != op:
			return contest.Usagef("schedule %s is for %s, but this is a benchmark of %s", s.Name, s.Op, op)
		case s.Members != j.Ranks:
			return contest.Usagef("schedule %s is for %d ranks, but there are %d: run with -n %[2]d", s.Name,
				s.Members, j.Ranks)
		}
	}
	return nil
}

// wireBytesOf returns the smallest number of bytes that the busiest rank of a call has to send or receive.
func wireBytesOf(c contest.Call, ranks int) float64 {
	s, n := float64(c.Bytes), float64(ranks)
	switch c.Op {
	case ir.OpAllReduce:
		return 2 * s * (n - 1) / n
	case ir.OpBroadcast:
		return s
	}
	return s * (n - 1) / n
}
