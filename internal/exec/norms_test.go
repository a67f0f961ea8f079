package exec

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// The following types implement a CPU machine whose teams can fuse an all_reduce with the add and the norm after it
// into one launch. The fused launch reads its residual and weights before it meets the other members, and does not
// write the result of the all_reduce. The teams decline a stored sum that overlaps the weights, or the operand at
// another address, like GPUs that process some rows before they read others.
type (
	normMachine struct {
		device.Machine
		declines map[string]error // by the name of the method that declines: "supports" or "prepares"
	}
	normWorld struct {
		device.World
		m        normMachine
		unstored int // number of parts of prepared norms that do not store their sum
	}
	normDevice struct{ device.Device }
	normStream struct{ device.Stream }
	normTeam   struct {
		device.DefaultTeam
		w       *normWorld
		members []device.Member
	}
	// normLaunch is a member's part of an all_reduce and of the operations that follow it.
	normLaunch struct {
		sum    *comm.Channel
		member int
		run    int64
		before []([2]device.View) // copies
		after  []device.Launch
	}
)

func (*normWorld) TeamAlgorithms() []device.Algorithm {
	return []device.Algorithm{{Name: "ll", Ops: device.Even, OneShot: true},
		{Name: "nccl", Ops: device.Even, Library: true}}
}

func (m normMachine) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	return &normWorld{World: w, m: m}, err
}

func (w *normWorld) Device(r int) device.Device                      { return normDevice{w.World.Device(r)} }
func (t *normTeam) NormAlgorithm() device.Algorithm                  { return device.Algorithm{Name: "lamport-norm"} }
func (*normWorld) Identity() string                                  { return "abacus" }
func (t *normTeam) Bytes() int64                                     { return 0 }
func (t *normTeam) Close() error                                     { return nil }
func (t *normTeam) PrepareNormAhead(*device.Norm)                    {}
func (l *normLaunch) Release()                                       {}
func (t *normTeam) Supports(device.Tuning, *device.Collective) error { return nil }

func (w *normWorld) OpenTeam(members []device.Member) (device.Team, error) {
	t := &normTeam{w: w}
	for _, m := range members {
		t.members = append(t.members, device.Member{Rank: m.Rank, Stream: m.Stream.(normStream).Stream})
	}
	return t, nil
}

func (t *normTeam) SupportsNorm(n *device.Norm) error {
	overlap := func(a, b device.View) bool {
		return a.Mem == b.Mem && a.Off < b.Off+b.Elements()*b.DType.Size() && b.Off < a.Off+a.Elements()*a.DType.Size()
	}
	for _, p := range n.Parts {
		if p.Stores() && (overlap(p.Sum, p.Weight) || overlap(p.Sum, p.In) && p.Sum.Off != p.In.Off) {
			return fmt.Errorf("%w: the sum overlaps an operand", device.ErrUnsupported)
		}
	}
	return t.w.m.declines["supports"]
}

func (d normDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	return normStream{s}, err
}

func (s normStream) Launch(l device.Launch) error {
	n, ok := l.(*normLaunch)
	if !ok {
		return s.Stream.Launch(l)
	}
	for _, c := range n.before {
		if err := s.Copy(c[0], c[1]); err != nil {
			return err
		}
	}
	n.run++
	if err := n.sum.Issue(0, n.member, n.run-1); err != nil {
		return err
	}
	for _, one := range n.after {
		if err := s.Stream.Launch(one); err != nil {
			return err
		}
	}
	return nil
}

func (t *normTeam) Prepare(_ device.Tuning, c *device.Collective) ([]device.Launch, error) {
	ch, err := comm.NewDispatch(t.w.World, t.w.m.Caps(), nil, comm.Policy{}).Design(t.members,
		[]comm.Instance{{Collective: *c}})
	if err == nil {
		err = ch.Open()
	}
	var all []device.Launch
	for i := range t.members {
		all = append(all, &normLaunch{sum: ch, member: i})
	}
	return all, err
}

func (t *normTeam) PrepareNorm(n *device.Norm) ([]device.Launch, error) {
	if err := t.w.m.declines["prepares"]; err != nil {
		return nil, err
	}
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	var early [][]device.View // residual, weight, plain sum
	for i, p := range n.Parts {
		var own []device.View
		for _, v := range []device.View{p.Residual, p.Weight, p.In} {
			mem, err := t.w.World.Device(t.members[i].Rank).Alloc(v.Elements()*v.DType.Size(), device.Shared)
			if err != nil {
				return nil, err
			}
			own = append(own, device.View{Mem: mem, DType: v.DType, Shape: v.Shape, Strides: tensor.Strides(v.Shape)})
		}
		early = append(early, own)
		c.Parts = append(c.Parts, device.Part{In: p.In, Out: own[2], Reads: true, Writes: true})
	}
	all, err := t.Prepare(device.Tuning{}, c)
	if err != nil {
		return nil, err
	}
	for i, p := range n.Parts {
		l, own := all[i].(*normLaunch), early[i]
		l.before = [][2]device.View{{own[0], p.Residual}, {own[1], p.Weight}}
		total := p.Sum
		if !p.Stores() {
			total = own[2]
			t.w.unstored++
		}
		for _, k := range []device.Kernel{
			{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{own[2], own[0]}, Outs: []device.View{total}},
			{Op: device.RMSNorm{Eps: n.Eps}, Ins: []device.View{total, own[1]}, Outs: []device.View{p.Out}},
		} {
			one, err := t.w.World.Device(t.members[i].Rank).Prepare(k)
			if err != nil {
				return nil, err
			}
			l.after = append(l.after, one)
		}
	}
	return all, nil
}

// normTable returns a table that makes the machine's launches run all collectives.
func normTable(t *testing.T, ranks int, algorithm string) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	path, err := comm.Path("abacus", ranks)
	if err != nil {
		t.Fatal(err)
	}
	table := &comm.Table{Version: comm.TableVersion, Identity: "abacus", Ranks: ranks,
		Entries: []comm.Entry{{Op: "all_reduce", Reduction: "sum", Elem: 4, Members: ranks,
			Brackets: []comm.Bracket{{Best: []comm.Timed{{Tuning: device.Tuning{Algo: algorithm}}}}}}}}
	if err := table.Write(path); err != nil {
		t.Fatal(err)
	}
}

// normRig builds a plan of two ranks that contains all_reduces followed by an add and a norm.
type normRig struct {
	*builder
	x, h, w, part, sum, total, out int32 // buffers
	channel                        int32
	waited                         int // index of a command that waits for a counter
	eps                            func(rank int) float64
}

var normShape = []int64{12, 8}

func newNormRig() *normRig {
	r := &normRig{builder: newBuilder(2, ir.F32), eps: func(int) float64 { return 1e-5 }}
	r.x, r.w = r.input("x", false, normShape...), r.input("w", false, 8)
	r.h = r.input("h", true, 24, 8)
	r.part, r.sum = r.buffer("%part", plan.RoleValue, normShape...), r.buffer("%sum", plan.RoleValue, normShape...)
	r.total, r.out = r.result("total", true, 24, 8), r.result("out", true, 24, 8)
	r.channel = r.builder.channel("main")
	for i := range 2 {
		r.compute(i, "main", ir.OpNeg, r.at(i, r.part), r.at(i, r.h))
	}
	return r
}

func (r *normRig) at(rank int, buf int32) plan.Ref { return r.ref(rank, buf, normShape...) }

// reduce appends an all_reduce.
func (r *normRig) reduce(in, out int32) {
	r.collective("main", r.channel, ir.OpAllReduce, func(rank int) plan.CollPart {
		return plan.CollPart{In: r.at(rank, in), Out: r.at(rank, out)}
	})
}

// norm appends an rms_norm with the weights w.
func (r *normRig) norm(rank int, out, in int32) {
	r.compute(rank, "main", ir.OpRMSNorm, r.at(rank, out), r.at(rank, in), r.ref(rank, r.w, 8))
	r.p.Cmds[len(r.p.Cmds)-1].Attr.Numbers = ir.Reals(r.eps(rank))
}

func (r *normRig) add(rank int, out, a, b int32) {
	r.compute(rank, "main", ir.OpAdd, r.at(rank, out), r.at(rank, a), r.at(rank, b))
}

// end appends an all_reduce, an add and a norm, which usually end a block of layers.
func (r *normRig) end() {
	r.reduce(r.part, r.sum)
	for i := range 2 {
		r.add(i, r.total, r.sum, r.x)
		r.norm(i, r.out, r.total)
	}
}

// tail appends an all_reduce, an add and a norm on another stream, for which main then waits.
func (r *normRig) tail(stream string) {
	r.collective(stream, r.builder.channel(stream), ir.OpAllReduce, func(rank int) plan.CollPart {
		return plan.CollPart{In: r.at(rank, r.part), Out: r.at(rank, r.sum)}
	})
	for i := range 2 {
		r.compute(i, stream, ir.OpAdd, r.at(i, r.total), r.at(i, r.sum), r.at(i, r.x))
		r.compute(i, stream, ir.OpRMSNorm, r.at(i, r.out), r.at(i, r.total), r.ref(i, r.w, 8))
		r.p.Cmds[len(r.p.Cmds)-1].Attr.Numbers = ir.Reals(r.eps(i))
		r.after(i, "main", stream)
	}
}

// again makes another stream overwrite the residual after all other commands.
func (r *normRig) again() {
	told := r.counter("told", 1)
	for i := range 2 {
		r.signal(i, "main", told, 0, i)
		r.waited = len(r.p.Cmds)
		r.waitCounter(i, "main", told, 0, 1)
	}
	res := r.buffer("%res", plan.RoleAlloc, normShape...)
	for i := range 2 {
		r.compute(i, "main", ir.OpNeg, r.at(i, res), r.at(i, r.x))
	}
	r.x = res
	r.end()
	for i := range 2 {
		r.after(i, "side", "main")
		r.compute(i, "side", ir.OpNeg, r.at(i, res), r.at(i, r.out))
		r.after(i, "main", "side")
	}
}

// middle makes a private buffer the result of the add.
func (r *normRig) middle() { r.total = r.buffer("%total", plan.RoleValue, normShape...) }

// over makes a private buffer the result of the add. The buffer overlaps the operand of the all_reduce, which begins at
// a lower address.
func (r *normRig) over() {
	r.middle()
	both := &r.p.Buffers[r.buffer("%both", plan.RoleValue, 3*normShape[0], normShape[1])]
	r.p.Buffers[r.part].Offset, r.p.Buffers[r.total].Offset = both.Offset, both.Offset+plan.Align
}

// reread makes each rank read a buffer.
func (r *normRig) reread(buf int32) {
	again := r.result("again", true, 24, 8)
	for i := range 2 {
		r.compute(i, "main", ir.OpNeg, r.at(i, again), r.at(i, buf))
	}
}

// readAside makes each rank read a buffer on another stream.
func (r *normRig) readAside(buf int32) {
	for i := range 2 {
		r.after(i, "side", "main")
		r.compute(i, "side", ir.OpSub, r.at(i, r.out), r.at(i, r.out), r.at(i, buf))
		r.after(i, "main", "side")
	}
}

// readByPeer makes each rank read its peer's buffer.
func (r *normRig) readByPeer(buf int32) {
	r.barrier(r.channel)
	for i := range 2 {
		r.put(i, "main", r.at(i, r.out), r.at(1-i, buf))
	}
	r.barrier(r.channel)
}

func (r *normRig) last() *plan.Coll { return &r.p.Colls[len(r.p.Colls)-1] }

// elsewhere makes each rank write its peer's buffer, in a command that ends before the rank's part of the next command
// ends.
func (r *normRig) elsewhere(buf int32, shape ...int64) int32 {
	got := r.buffer("%got", plan.RoleAlloc, shape...)
	for i := range 2 {
		r.compute(i, "main", ir.OpNeg, r.ref(i, got, shape...), r.ref(i, buf, shape...))
	}
	r.barrier(r.channel)
	for i := range 2 {
		r.put(i, "main", r.ref(1-i, got, shape...), r.ref(i, buf, shape...))
	}
	return got
}

func (r *normRig) inputs(t *testing.T, seed uint64) map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{"x": ints(t, ir.F32, "x", seed, normShape...),
		"w": ints(t, ir.F32, "w", seed+1, 8), "h": ints(t, ir.F32, "h", seed+2, 24, 8)}
}

// runNorms runs a plan twice, back to back, several times, and returns the last result.
func runNorms(t *testing.T, m device.Machine, r *normRig, o Options) (*Result, *Program) {
	t.Helper()
	prog, err := Load(t.Context(), m, r.p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	var last *Result
	for seed := range uint64(3) {
		rs, err := prog.RunBatch(t.Context(),
			Inputs([]map[string]*tensor.Tensor{r.inputs(t, 10*seed), r.inputs(t, 10*seed+5)}), nil)
		if err != nil {
			t.Fatal(err)
		}
		last = rs[1]
	}
	return last, prog
}

func joinedSums(p *Program) (n int) {
	for _, a := range p.im.Algorithms {
		if a == "lamport-norm" {
			n++
		}
	}
	return n
}

func unstoredSums(p *Program) int { return p.im.World.(*normWorld).unstored }

// TestNorms checks which all_reduces run together with an add and a norm, which of them do not store the result of the
// add, and that the result bits are the same as with separate launches.
func TestNorms(t *testing.T) {
	for name, c := range map[string]struct {
		emit     func(r *normRig)
		want     int
		unstored int // number of parts that do not store the result of the add
	}{
		"usual": {(*normRig).end, 1, 0},
		"the residual first": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.add(i, r.total, r.x, r.sum)
				r.norm(i, r.out, r.total)
			}
		}, 1, 0},
		"in place": {func(r *normRig) {
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, r.at(i, r.total), r.at(i, r.x))
			}
			r.reduce(r.part, r.part)
			for i := range 2 {
				r.add(i, r.total, r.part, r.total)
				r.norm(i, r.part, r.total)
				r.compute(i, "main", ir.OpNeg, r.at(i, r.out), r.at(i, r.part))
			}
		}, 1, 0},
		"into the sum": {func(r *normRig) {
			r.reduce(r.part, r.total)
			for i := range 2 {
				r.add(i, r.total, r.total, r.x)
				r.norm(i, r.out, r.total)
			}
		}, 1, 0},
		"a loop": {func(r *normRig) {
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, r.at(i, r.total), r.at(i, r.x))
				r.compute(i, "main", ir.OpNeg, r.at(i, r.out), r.at(i, r.h))
			}
			for range 5 {
				for i := range 2 {
					r.compute(i, "main", ir.OpNeg, r.at(i, r.part), r.at(i, r.out))
				}
				r.reduce(r.part, r.sum)
				for i := range 2 {
					r.add(i, r.total, r.sum, r.total)
					r.norm(i, r.out, r.total)
				}
			}
		}, 5, 0},
		"the next round looks back": {func(r *normRig) {
			r.end()
			for i := range 2 {
				r.compute(i, "main", ir.OpMul, r.at(i, r.part), r.at(i, r.sum), r.at(i, r.out))
			}
			r.end()
		}, 1, 0}, // the second
		"read later": {func(r *normRig) {
			r.end()
			for i := range 2 {
				r.compute(i, "main", ir.OpSub, r.at(i, r.out), r.at(i, r.out), r.at(i, r.sum))
			}
		}, 0, 0},
		"a part is read later": {func(r *normRig) {
			r.end()
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, rows(r.at(i, r.out), 1, 2), rows(r.at(i, r.sum), 2, 3))
			}
		}, 0, 0},
		"a part is written, another read": {func(r *normRig) {
			r.end()
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, rows(r.at(i, r.sum), 0, 2), rows(r.at(i, r.x), 0, 2))
				r.compute(i, "main", ir.OpNeg, rows(r.at(i, r.out), 1, 2), rows(r.at(i, r.sum), 2, 3))
			}
		}, 0, 0},
		"read by another stream": {func(r *normRig) {
			r.end()
			r.readAside(r.sum)
		}, 0, 0},
		"read by a peer": {func(r *normRig) {
			r.end()
			r.readByPeer(r.sum)
		}, 0, 0},
		"reduced again": {func(r *normRig) {
			r.end()
			r.reduce(r.sum, r.out)
		}, 0, 0},
		"a result": {func(r *normRig) {
			sum := r.result("sum", true, 24, 8)
			r.reduce(r.part, sum)
			for i := range 2 {
				r.add(i, r.total, sum, r.x)
				r.norm(i, r.out, r.total)
			}
		}, 0, 0},
		"the residual comes from a peer": {func(r *normRig) {
			got := r.elsewhere(r.x, normShape...)
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.add(i, r.total, r.sum, got)
				r.norm(i, r.out, r.total)
			}
			r.barrier(r.channel)
		}, 0, 0},
		"weights come from a peer": {func(r *normRig) {
			r.w = r.elsewhere(r.w, 8)
			r.end()
			r.barrier(r.channel)
		}, 0, 0},
		"something before the add": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.after(i, "side", "main")
				r.add(i, r.total, r.sum, r.x)
				r.norm(i, r.out, r.total)
			}
		}, 0, 0},
		"something before the norm": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.add(i, r.total, r.sum, r.x)
				r.after(i, "side", "main")
				r.norm(i, r.out, r.total)
			}
		}, 0, 0},
		"an add of another kind on one rank": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			r.add(0, r.total, r.sum, r.x)
			r.norm(0, r.out, r.total)
			r.add(1, r.total, r.x, r.x)
			r.add(1, r.total, r.sum, r.x)
			r.norm(1, r.out, r.total)
		}, 0, 0},
		"read on one rank": {func(r *normRig) {
			r.end()
			unseen := r.buffer("%unseen", plan.RoleValue, normShape...)
			r.compute(1, "main", ir.OpNeg, r.at(1, unseen), r.at(1, r.sum))
		}, 0, 0},
		"other eps": {func(r *normRig) {
			r.eps = func(rank int) float64 { return float64(1 + rank) }
			r.end()
		}, 0, 0},
		"maxima":    {func(r *normRig) { r.end(); r.last().Red = ir.Max }, 0, 0},
		"average":   {func(r *normRig) { r.end(); r.last().Red = ir.Avg }, 0, 0},
		"pinned":    {func(r *normRig) { r.end(); r.last().Algo = "ll" }, 0, 0},
		"bounded":   {func(r *normRig) { r.end(); r.last().CTAs = 4 }, 0, 0},
		"any order": {func(r *normRig) { r.end(); r.last().AnyOrd = true }, 1, 0},
		"a difference": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.compute(i, "main", ir.OpSub, r.at(i, r.total), r.at(i, r.sum), r.at(i, r.x))
				r.norm(i, r.out, r.total)
			}
		}, 0, 0},
		"twice the sum": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.add(i, r.total, r.sum, r.sum)
				r.norm(i, r.out, r.total)
			}
		}, 0, 0},
		"the plain sum is normalised": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.add(i, r.total, r.sum, r.x)
				r.norm(i, r.out, r.sum)
			}
		}, 0, 0},
		"something else is added": {func(r *normRig) {
			r.reduce(r.part, r.sum)
			for i := range 2 {
				r.add(i, r.total, r.x, r.part)
				r.norm(i, r.out, r.total)
			}
		}, 0, 0},
		"all on another stream": {func(r *normRig) {
			for i := range 2 {
				r.after(i, "side", "main")
			}
			r.tail("side")
		}, 1, 0},
		"by way of a third stream": {func(r *normRig) {
			for i := range 2 {
				r.after(i, "third", "main")
				r.after(i, "side", "third")
			}
			r.tail("side")
		}, 1, 0},
		"weights known to be there by way of peers": {func(r *normRig) {
			for i := range 2 {
				r.after(i, "side", "main")
			}
			w := r.buffer("%w2", plan.RoleAlloc, 8)
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, r.ref(i, w, 8), r.ref(i, r.w, 8))
			}
			r.w = w
			r.barrier(r.channel)
			told := r.counter("told", 1)
			for i := range 2 {
				r.signal(i, "main", told, 0, 1-i)
				r.waitCounter(i, "side", told, 0, 1)
			}
			r.tail("side")
		}, 0, 0},
		"written again later, elsewhere": {func(r *normRig) { r.again() }, 1, 0},
		"written again, where waits come before time": {func(r *normRig) { r.again(); r.p.Cmds[r.waited].Late = true },
			0, 0},
		"on other streams": {func(r *normRig) {
			for i := range 2 {
				r.after(i, "side", "main")
			}
			side := r.builder.channel("side")
			r.collective("side", side, ir.OpAllReduce, func(rank int) plan.CollPart {
				return plan.CollPart{In: r.at(rank, r.part), Out: r.at(rank, r.sum)}
			})
			for i := range 2 {
				r.after(i, "main", "side")
				r.add(i, r.total, r.sum, r.x)
				r.norm(i, r.out, r.total)
			}
		}, 0, 0},
		"only the norm reads the total": {func(r *normRig) { r.middle(); r.end() }, 1, 2},
		"the total is over the operand": {func(r *normRig) { r.over(); r.end() }, 1, 2},
		"the total is over the operand, and read later": {func(r *normRig) {
			r.over()
			r.end()
			r.reread(r.total)
		}, 0, 0},
		"the total is read later": {func(r *normRig) { r.middle(); r.end(); r.reread(r.total) }, 1, 0},
		"the total is read on one rank": {func(r *normRig) {
			r.middle()
			r.end()
			r.compute(1, "main", ir.OpAdd, r.at(1, r.out), r.at(1, r.out), r.at(1, r.total))
		}, 1, 1},
		"the total is read on another stream": {func(r *normRig) {
			r.middle()
			r.end()
			r.readAside(r.total)
		}, 1, 0},
		"the total is read by a peer": {func(r *normRig) {
			r.middle()
			r.end()
			r.readByPeer(r.total)
		}, 1, 0},
		"the total is overwritten before it is read": {func(r *normRig) {
			r.middle()
			r.end()
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, r.at(i, r.total), r.at(i, r.x))
			}
			r.reread(r.total)
		}, 1, 2},
		"a part of the total is overwritten before it is read": {func(r *normRig) {
			r.middle()
			r.end()
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, rows(r.at(i, r.total), 0, 2), rows(r.at(i, r.x), 0, 2))
			}
			r.reread(r.total)
		}, 1, 0},
		"the total is normalised in place": {func(r *normRig) {
			r.middle()
			r.out = r.total
			r.end()
			r.reread(r.total)
		}, 1, 2},
		"the total replaces the sum": {func(r *normRig) {
			r.middle()
			r.sum = r.total
			r.end()
		}, 1, 2},
		"the total is also the weights": {func(r *normRig) {
			r.middle()
			r.w = r.total
			r.end()
		}, 0, 0},
		"a loop carries the total": {func(r *normRig) {
			r.middle()
			for i := range 2 {
				r.compute(i, "main", ir.OpNeg, r.at(i, r.total), r.at(i, r.x))
				r.compute(i, "main", ir.OpNeg, r.at(i, r.out), r.at(i, r.h))
			}
			r.x = r.total
			for range 5 {
				for i := range 2 {
					r.compute(i, "main", ir.OpNeg, r.at(i, r.part), r.at(i, r.out))
				}
				r.end()
			}
		}, 5, 2}, // the last round's total is not read
	} {
		t.Run(name, func(t *testing.T) {
			normTable(t, 2, "ll")
			r := newNormRig()
			c.emit(r)
			r.output()
			m := normMachine{Machine: cpu.New(cpu.Options{})}
			got, prog := runNorms(t, m, r, Options{Trace: true})
			if n := joinedSums(prog); n != c.want {
				t.Errorf("%d all_reduces included the add and the norm, want %d", n, c.want)
			}
			if n := unstoredSums(prog); n != c.unstored {
				t.Errorf("%d parts did not store the result of the add, want %d", n, c.unstored)
			}
			names := map[string]int{}
			for _, e := range got.Trace.Events {
				names[e.Name]++
			}
			if names["all_reduce+add+rms_norm"] != 2*c.want {
				t.Errorf("the trace has %v", names)
			}
			want, alone := runNorms(t, m, r, Options{Options: image.Options{NoChains: true}})
			if n := joinedSums(alone); n != 0 {
				t.Errorf("%d all_reduces included the add and the norm, want none", n)
			}
			for k, o := range want.Outputs {
				if !bytes.Equal(got.Outputs[k].Data, o.Data) {
					t.Errorf("%s: %v, not %v", k, floats(got.Outputs[k]), floats(o))
				}
			}
		})
	}
}

// TestNormsAsked checks that no fused launch is used if the user names an algorithm, if another algorithm is expected
// to be faster, or if the team declines.
func TestNormsAsked(t *testing.T) {
	r := newNormRig()
	r.end()
	r.output()
	for name, c := range map[string]struct {
		table    string
		opts     Options
		declines string
		want     int
	}{
		"nothing":           {table: "ll", want: 1},
		"an algorithm":      {table: "ll", opts: Options{Options: image.Options{Algorithm: "ll"}}},
		"a schedule":        {table: "ll", opts: Options{Options: image.Options{Algorithm: "staged"}}},
		"one for all sizes": {table: "ll", opts: Options{Options: image.Options{Fixed: true}}},
		"each by itself":    {table: "ll", opts: Options{Options: image.Options{NoChains: true}}},
		"NCCL is faster":    {table: "nccl"},
		"staged is faster":  {table: "staged"},
		"the team declines": {table: "ll", declines: "supports"},
		"it does so late":   {table: "ll", declines: "prepares"},
	} {
		t.Run(name, func(t *testing.T) {
			normTable(t, 2, c.table)
			m := normMachine{cpu.New(cpu.Options{}),
				map[string]error{c.declines: fmt.Errorf("%w: not today", device.ErrUnsupported)}}
			got, prog := runNorms(t, m, r, c.opts)
			if n := joinedSums(prog); n != c.want {
				t.Errorf("%d all_reduces included the add and the norm, want %d", n, c.want)
			}
			want, _ := runNorms(t, cpu.New(cpu.Options{}), r, Options{})
			for k, o := range want.Outputs {
				if !bytes.Equal(got.Outputs[k].Data, o.Data) {
					t.Errorf("%s: %v, not %v", k, floats(got.Outputs[k]), floats(o))
				}
			}
		})
	}
}

// randomNorms returns a random plan of all_reduces, adds and norms, with other work between them, on streams and ranks
// that wait for each other.
func randomNorms(rng *rand.Rand) *normRig {
	r := newNormRig()
	pool := []int32{r.part, r.sum, r.total, r.out}
	for i := range 3 {
		pool = append(pool, r.buffer(fmt.Sprintf("%%b%d", i), plan.RoleValue, normShape...))
	}
	for i := range 2 {
		for k, b := range pool[1:] {
			r.compute(i, "main", ir.OpSub, r.at(i, b), r.at(i, []int32{r.x, r.h}[k%2]), r.at(i, r.part))
		}
	}
	pick := func() int32 { return pool[rng.IntN(len(pool))] }
	another := func(than int32) int32 {
		for {
			if b := pick(); b != than {
				return b
			}
		}
	}
	for range 2 + rng.IntN(8) {
		switch rng.IntN(8) {
		case 0: // the peer writes an operand of the next all_reduce
			to := pick()
			from, in, out := another(to), another(to), another(to)
			total := another(out)
			normed := another(total)
			r.barrier(r.channel)
			for i := range 2 {
				r.put(i, "main", r.at(1-i, to), r.at(i, from))
			}
			r.reduce(in, out)
			for i := range 2 {
				r.add(i, total, out, to)
				r.norm(i, normed, total)
			}
		case 1: // another stream works
			a, b := pick(), pick()
			for i := range 2 {
				r.after(i, "side", "main")
				r.compute(i, "side", ir.OpNeg, r.at(i, a), r.at(i, b))
				r.after(i, "main", "side")
			}
		case 2, 3:
			a, b, c := pick(), pick(), pick()
			for i := range 2 {
				r.compute(i, "main", ir.OpSub, r.at(i, a), r.at(i, b), r.at(i, c))
			}
		default:
			in, out, residual, total := pick(), pick(), pick(), pick()
			normed := another(total)
			r.reduce(in, out)
			for i := range 2 {
				if rng.IntN(2) == 0 {
					r.add(i, total, out, residual)
				} else {
					r.add(i, total, residual, out)
				}
				r.norm(i, normed, total)
			}
		}
	}
	for k, b := range pool {
		final := r.result(fmt.Sprint("r", k), true, 24, 8)
		for i := range 2 {
			r.compute(i, "main", ir.OpNeg, r.at(i, final), r.at(i, b))
		}
	}
	r.output()
	return r
}

// TestNormsRandom runs random plans with and without fused launches and compares the results.
func TestNormsRandom(t *testing.T) {
	normTable(t, 2, "ll")
	joined, unstored, sums := 0, 0, 0
	for seed := range uint64(150) {
		r := randomNorms(rand.New(rand.NewPCG(seed, 7)))
		m := normMachine{Machine: cpu.New(cpu.Options{})}
		got, prog := runNorms(t, m, r, Options{})
		want, _ := runNorms(t, m, r, Options{Options: image.Options{NoChains: true}})
		for k, o := range want.Outputs {
			if !bytes.Equal(got.Outputs[k].Data, o.Data) {
				t.Fatalf("seed %d: %s: %v, not %v\n%s", seed, k, floats(got.Outputs[k]), floats(o), r.p)
			}
		}
		joined, unstored = joined+joinedSums(prog), unstored+unstoredSums(prog)
		for i := range r.p.Colls {
			if r.p.Colls[i].Op == ir.OpAllReduce {
				sums++
			}
		}
	}
	t.Logf("%d of %d all_reduces included an add and a norm; %d of %d parts did not store the result of the add",
		joined, sums, unstored, 2*joined)
	if joined < 50 || joined > sums-50 || unstored < 20 || unstored > 2*joined-20 {
		t.Error("too few or too many")
	}
}
