package verify_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

var schedules = flag.Int("schedules", 6, "how many schedules each mutant that is proved is run under")

var every = flag.Bool("every-mutant", false, "try every mutant of every program, not some of each: takes long")

var only = flag.String("mutants-of", "", "only programs with this in their name")

// some returns a few elements of a list, at equal distances.
func some[T any](all []T) []T {
	few := 24
	if testing.Short() {
		few = 6
	}
	if *every || len(all) <= few {
		return all
	}
	var out []T
	for i := range few {
		out = append(out, all[i*len(all)/few])
	}
	return out
}

// small overrides the dims of those examples whose default sizes are too large for this test.
var small = map[string]map[string]int64{
	"row_parallel.hkt": {"T": 26, "K": 32, "N": 8},
	"mlp.hkt":          {"T": 32, "H": 16, "F": 32},
}

// score counts the mutants of one kind by their outcome.
type score struct {
	mutants, refused, refuted, equivalent, other, missed int
}

// TestMutationScore makes every kind of small mistake in every example and lowered program. Each mutant must be refused
// by the planner or refuted by the checker. A mutant that is not refused or refuted must be proved, and must return the
// same results under every schedule.
func TestMutationScore(t *testing.T) {
	scores := map[string]*score{}
	at := func(kind string) *score {
		if scores[kind] == nil {
			scores[kind] = &score{}
		}
		return scores[kind]
	}
	odd := int(longtest.Drawn(t) % 2)
	for i, l := range append(lowerings(t, small), rooted(t)...) {
		if i%2 != odd && !longtest.On() {
			continue
		}
		if *only != "" && !strings.Contains(l.name, *only) {
			continue
		}
		if len(l.original.Cmds) > 300 && !*every {
			continue
		}
		want := results(t, l.original, 0)
		judge := func(kind, what string, p *plan.Plan, err error) {
			s := at(kind)
			s.mutants++
			if err != nil {
				s.refused++
				return
			}
			r := verify.Plan(p, verify.Options{FaultsOnly: true})
			if r.Verdict == verify.Refuted {
				s.refuted++
				return
			}
			switch disagree := sameUnderAll(p, want); {
			case disagree == "":
				s.equivalent++
			case strings.HasPrefix(disagree, "every"):
				s.other++ // the program is wrong, but always returns the same wrong results
			default:
				s.missed++
				t.Errorf("%s: %s is %v, and yet %s", l.name, what, r.Verdict, disagree)
			}
		}
		for _, m := range some(textMutants(l.prog, l.fn)) {
			_, p, err := build(m.prog, l.binding)
			judge(m.kind, m.what, p, err)
		}
		for _, m := range some(planMutants(l.original)) {
			judge(m.kind, m.what, m.plan, nil)
		}
	}
	report(t, scores)
}

func report(t *testing.T, scores map[string]*score) {
	var total score
	t.Logf("%-34s %8s %8s %8s %11s %7s %7s", "mutation", "mutants", "refused", "refuted", "equivalent", "other",
		"missed")
	for _, kind := range slices.Sorted(maps.Keys(scores)) {
		s := scores[kind]
		t.Logf("%-34s %8d %8d %8d %11d %7d %7d", kind, s.mutants, s.refused, s.refuted, s.equivalent, s.other, s.missed)
		total.mutants += s.mutants
		total.refused += s.refused
		total.refuted += s.refuted
		total.equivalent += s.equivalent
		total.other += s.other
		total.missed += s.missed
	}
	t.Logf("%-34s %8d %8d %8d %11d %7d %7d", "all", total.mutants, total.refused, total.refuted, total.equivalent,
		total.other, total.missed)
	t.Logf("score: %.1f %% (%d schedules for each mutant that was proved)",
		100*float64(total.mutants-total.missed)/float64(total.mutants), *schedules)
}

// inputs returns the inputs of a plan for one run.
func inputs(t testing.TB, p *plan.Plan, seed uint64) map[string]*tensor.Tensor {
	in := map[string]*tensor.Tensor{}
	for _, io := range p.Inputs {
		x, err := tensor.New(io.DType, io.Shape)
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.Fill(x, io.Name, tensor.Spec{Seed: seed}); err != nil {
			t.Fatal(err)
		}
		in[io.Name] = x
	}
	return in
}

// backToBack is the number of consecutive runs without a barrier between them.
const backToBack = 3

// runOnce runs a plan under one schedule and returns the bytes of all results.
func runOnce(p *plan.Plan, in []map[string]*tensor.Tensor, seed int64) ([]byte, error) {
	ctx := context.Background()
	prog, err := exec.Load(ctx, cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed}), p, exec.Options{})
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	res, err := prog.RunBatch(ctx, exec.Inputs(in), nil)
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, r := range res {
		for _, name := range slices.Sorted(maps.Keys(r.Outputs)) {
			all = append(all, r.Outputs[name].Data...)
		}
	}
	return all, nil
}

type reference struct {
	in    []map[string]*tensor.Tensor
	bytes []byte
}

func results(t testing.TB, p *plan.Plan, seed int64) reference {
	t.Helper()
	var ref reference
	for i := range backToBack {
		ref.in = append(ref.in, inputs(t, p, uint64(i)))
	}
	out, err := runOnce(p, ref.in, seed)
	if err != nil {
		t.Fatal(err)
	}
	ref.bytes = out
	return ref
}

// sameUnderAll runs a plan under many schedules. It returns "" if each run returns the reference's results, and a text
// that begins with "every" if all runs return equal results that differ from them.
func sameUnderAll(p *plan.Plan, want reference) string {
	n := *schedules
	if testing.Short() {
		n = min(n, 3)
	}
	var first []byte
	for seed := range int64(n) {
		out, err := runOnce(p, want.in, seed)
		if err != nil && strings.Contains(err.Error(), "should hold the same elements") {
			return "every schedule leaves ranks with different results" // the checker does not check computed values
		}
		if err != nil {
			return fmt.Sprintf("schedule %d fails: %v", seed, err)
		}
		if seed == 0 {
			first = out
		} else if !bytes.Equal(first, out) {
			return fmt.Sprintf("schedules 0 and %d disagree", seed)
		}
	}
	if !bytes.Equal(first, want.bytes) {
		return "every schedule gives another result than the original"
	}
	return ""
}

// textMutant is a program with one mistake in its text.
type textMutant struct {
	kind, what string
	prog       *ir.Program
}

// textMutants returns programs with one mistake, for each place in a function's text at which the mistake is possible.
func textMutants(prog *ir.Program, fn string) []textMutant {
	var out []textMutant
	count := 0
	prog.Func(fn).Body.Walk(func(*ir.Stmt) { count++ })
	// try applies the function change to the i-th statement of a copy of the function.
	try := func(i int, kind string, change func(p *ir.Program, s *ir.Stmt) bool) {
		c := prog.Clone()
		var s *ir.Stmt
		k := 0
		c.Func(fn).Body.Walk(func(x *ir.Stmt) {
			if k == i {
				s = x
			}
			k++
		})
		what := fmt.Sprintf("%s at line %d: %s", kind, s.Pos.Line, s)
		if change(c, s) {
			out = append(out, textMutant{kind, what, c})
		}
	}
	for i := range count {
		try(i, "delete", func(p *ir.Program, s *ir.Stmt) bool {
			switch s.Op {
			case ir.OpWait, ir.OpRecord, ir.OpSignal, ir.OpBarrier, ir.OpFree:
				return remove(p.Func(fn).Body, s)
			}
			return false
		})
		try(i, "peer + 1", func(p *ir.Program, s *ir.Stmt) bool {
			if s.Peer == nil {
				return false
			}
			s.Peer.Index = ir.Mod(ir.Add(s.Peer.Index, ir.Int(1)), ir.Size(s.Peer.Axis))
			return true
		})
		try(i, "chunk + 1", func(p *ir.Program, s *ir.Stmt) bool {
			if s.Op != ir.OpChunk {
				return false
			}
			s.Exprs[0] = ir.Mod(ir.Add(s.Exprs[0], ir.Int(1)), s.Exprs[1])
			return true
		})
		for _, attr := range []string{"root", "to", "from"} {
			try(i, attr+"= + 1", func(_ *ir.Program, s *ir.Stmt) bool { return nextMember(s, attr, false) })
			try(i, attr+"= + 1 on one rank", func(_ *ir.Program, s *ir.Stmt) bool { return nextMember(s, attr, true) })
		}
		for _, side := range []string{"argument", "destination"} {
			try(i, side+" index + 1", func(p *ir.Program, s *ir.Stmt) bool {
				pl := s.Into
				if side == "argument" {
					if len(s.Args) == 0 {
						return false
					}
					pl = &s.Args[0]
				}
				if pl == nil || pl.Index == nil {
					return false
				}
				pl.Index = ir.Add(pl.Index, ir.Int(1))
				return true
			})
			try(i, "shrink: "+side+" index 0", func(p *ir.Program, s *ir.Stmt) bool {
				pl := s.Into
				if side == "argument" {
					if len(s.Args) == 0 || s.Op == ir.OpOn || s.Op == ir.OpWait {
						return false
					}
					pl = &s.Args[0]
				}
				if pl == nil || pl.Index == nil || pl.Index.IsInt(0) {
					return false
				}
				pl.Index = ir.Int(0)
				return true
			})
		}
	}
	return out
}

func remove(b *ir.Block, s *ir.Stmt) bool {
	if b == nil {
		return false
	}
	if i := slices.Index(b.Stmts, s); i >= 0 {
		b.Stmts = slices.Delete(b.Stmts, i, i+1)
		return true
	}
	return slices.ContainsFunc(b.Stmts, func(x *ir.Stmt) bool { return remove(x.Body, s) || remove(x.Else, s) })
}

// planMutant is a plan with one mistake.
type planMutant struct {
	kind, what string
	plan       *plan.Plan
}

// planMutants returns plans with mistakes that a planner might make.
func planMutants(p *plan.Plan) []planMutant {
	var out []planMutant
	add := func(kind, what string, m *plan.Plan) { out = append(out, planMutant{kind, what, m}) }
	for i := range p.Cmds {
		c := &p.Cmds[i]
		what := fmt.Sprintf("command %d", i)
		switch c.Kind {
		case plan.WaitEvent:
			add("plan: delete a wait", what, without(p, i))
			if rec := recordOf(p, c.Event); rec >= 0 {
				add("plan: record behind its wait", what, moved(p, rec, i))
			}
		case plan.WaitCounter:
			add("plan: delete a counter wait", what, without(p, i))
		case plan.Signal:
			m := without(p, i)
			ctr := &m.Counters[c.Counter]
			ctr.PerRun = slices.Clone(ctr.PerRun)
			ctr.PerRun[c.Peer*ctr.Len+c.Elem]--
			add("plan: delete a signal", what, m)
		case plan.Record:
			add("plan: delete a record", what, without(p, i))
		case plan.Collective:
			if m := swapCollective(p, i); m != nil {
				add("plan: swap collectives on a rank", what, m)
			}
			if c.Part == 0 {
				otherMembers(p, c.Coll, add)
			}
			if p.Colls[c.Coll].Op == ir.OpBarrier && c.Part == 0 {
				add("plan: delete a barrier", what, withoutColl(p, c.Coll))
			}
		case plan.Copy:
			if m := otherPeer(p, i); m != nil {
				add("plan: another peer", what, m)
			}
		}
	}
	for i := range p.Buffers {
		if p.Buffers[i].Role == plan.RoleInput || p.Buffers[i].Bytes == 0 {
			continue
		}
		m := clonePlan(p)
		m.Buffers[i].Bytes -= min(m.Buffers[i].Bytes, plan.Align)
		add("plan: shrink a buffer", p.Buffers[i].Name, m)
		for j := range i {
			if p.Buffers[j].Offset != p.Buffers[i].Offset && p.Buffers[i].Space == p.Buffers[j].Space {
				m := clonePlan(p)
				m.Buffers[i].Offset = p.Buffers[j].Offset
				if m.Buffers[i].Offset+m.Buffers[i].Bytes > m.ArenaBytes {
					m.ArenaBytes = m.Buffers[i].Offset + m.Buffers[i].Bytes
				}
				add("plan: two buffers on one place", p.Buffers[i].Name+" on "+p.Buffers[j].Name, m)
			}
		}
	}
	return out
}

// clonePlan copies the parts of a plan that mutants change.
func clonePlan(p *plan.Plan) *plan.Plan {
	c := *p
	c.Cmds, c.Buffers, c.Counters, c.Colls = slices.Clone(p.Cmds), slices.Clone(p.Buffers), slices.Clone(p.Counters),
		slices.Clone(p.Colls)
	return &c
}

func without(p *plan.Plan, i int) *plan.Plan {
	c := clonePlan(p)
	c.Cmds = slices.Delete(c.Cmds, i, i+1)
	return c
}

// moved returns a plan in which command number from is directly after command number to.
func moved(p *plan.Plan, from, to int) *plan.Plan {
	c := clonePlan(p)
	cmd := c.Cmds[from]
	c.Cmds = slices.Delete(c.Cmds, from, from+1)
	c.Cmds = slices.Insert(c.Cmds, to, cmd)
	return c
}

func recordOf(p *plan.Plan, event int32) int {
	return slices.IndexFunc(p.Cmds, func(c plan.Cmd) bool { return c.Kind == plan.Record && c.Event == event })
}

// withoutColl removes a barrier on all ranks.
func withoutColl(p *plan.Plan, coll int32) *plan.Plan {
	c := clonePlan(p)
	c.Cmds = slices.DeleteFunc(c.Cmds, func(x plan.Cmd) bool { return x.Kind == plan.Collective && x.Coll == coll })
	for i := range c.Cmds {
		if x := &c.Cmds[i]; x.Kind == plan.Collective && x.Coll > coll {
			x.Coll--
		}
	}
	ch, seq := c.Colls[coll].Channel, c.Colls[coll].Seq
	c.Colls = slices.Delete(c.Colls, int(coll), int(coll)+1)
	for i := range c.Colls {
		if c.Colls[i].Channel == ch && c.Colls[i].Seq > seq {
			c.Colls[i].Seq--
		}
	}
	return c
}

// swapCollective exchanges a rank's collective with the next one on its stream.
func swapCollective(p *plan.Plan, i int) *plan.Plan {
	for j := i + 1; j < len(p.Cmds); j++ {
		if x := &p.Cmds[j]; x.Kind == plan.Collective && x.Stream == p.Cmds[i].Stream {
			c := clonePlan(p)
			a, b := &c.Cmds[i], &c.Cmds[j]
			a.Coll, b.Coll, a.Part, b.Part = b.Coll, a.Coll, b.Part, a.Part
			return c
		}
	}
	return nil
}

// otherPeer changes the peer of a put or get to the next rank.
func otherPeer(p *plan.Plan, i int) *plan.Plan {
	c := clonePlan(p)
	x := &c.Cmds[i]
	if x.Peer < 0 || p.Ranks < 3 {
		return nil
	}
	old := x.Peer
	x.Peer = (x.Peer + 1) % int32(p.Ranks)
	x.Ins, x.Outs = slices.Clone(x.Ins), slices.Clone(x.Outs)
	for _, r := range []*plan.Ref{&x.Ins[0], &x.Outs[0]} {
		if r.Rank == old {
			r.Rank = x.Peer
		}
	}
	return c
}
