package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// multimemTypes lists the element types that NVLink switches can add.
var multimemTypes = []ir.DType{ir.BF16, ir.F16, ir.F32}

// everyMultimem returns an instance of the kernel for every type and unroll, aligned and not.
func everyMultimem() (all []code) {
	for i, dt := range multimemTypes {
		for off := range 2 {
			m := Multimem{AllReduce: AllReduce{DType: dt, Unroll: 1 << i, In: make([]nvlib.Ptr, 2+3*i), Out: make([]nvlib.Ptr, 2+3*i)}}
			m.In[0] = nvlib.Ptr(int64(off) * dt.Size())
			all = append(all, m.Meeting(0).launch().code)
		}
	}
	return all
}

// join allocates staging memory on every member, and an emulated multicast address for it.
func (b *teamBench) join(bytes int64) (parts []nvlib.Ptr, all nvlib.Ptr) {
	for range b.streams {
		parts = append(parts, b.alloc(bytes))
	}
	at := int64(1)<<50 + int64(len(b.joined))<<40
	b.joined = append(b.joined, joined{at, bytes, parts})
	return parts, nvlib.Ptr(at)
}

// multimemCase is an all_reduce whose sums emulated NVLink switches compute.
type multimemCase struct {
	dt              ir.DType
	unroll          int
	count           int64
	blocks, threads int
	odd, inPlace    bool
}

// addMultimem adds the launches of c on all members. It returns a function that checks that the results are equal on
// all members, and within the bounds of the reference for order=any.
func (b *teamBench) addMultimem(c multimemCase, rng *rand.Rand, data []nvlib.Ptr, all nvlib.Ptr, flags []nvlib.Ptr, flagHalf int64) func(seed int) {
	members := len(b.streams)
	m := Multimem{All: all, AllReduce: AllReduce{DType: c.dt, Unroll: c.unroll, Blocks: c.blocks, Threads: c.threads, Count: c.count,
		Share: ceil(ceil(c.count*c.dt.Size(), 16), int64(members)), Data: data, Flags: flags, FlagHalf: flagHalf, Slots: 2 * BlocksMost}}
	off := int64(0)
	if c.odd {
		off = 1
	}
	lay := layout{"", func(s []int64) ([]int64, int64) { return rowMajor(s), off }}
	var operands []float64
	var outs []Operand
	for range members {
		vals := make([]float64, c.count)
		for i := range vals {
			vals[i] = tensor.Round(c.dt, rng.NormFloat64()*math.Exp2(float64(rng.IntN(8))))
		}
		operands = append(operands, vals...)
		in := b.put(c.dt, lay, vals, c.count)
		out := in
		if !c.inPlace {
			out = b.room(c.dt, lay, c.count)
		}
		outs, m.In, m.Out = append(outs, out), append(m.In, in.Addr), append(m.Out, out.Addr)
	}
	for rank := range members {
		b.launch(rank, m.Meeting(rank))
	}
	want := b.summed(c.dt, members, operands)
	return func(seed int) {
		first := b.vals(outs[0])
		if v := eval.Compare(b.tensor(c.dt, first), want); v.Kind == eval.Differs {
			b.t.Fatalf("seed %d, %+v, %d members: %s", seed, c, members, v)
		}
		for rank, o := range outs {
			if !slices.Equal(b.vals(o), first) {
				b.t.Fatalf("seed %d, %+v: the results of member %d of %d differ from those of member 0", seed, c, rank, members)
			}
		}
	}
}

// summed returns the reference's sum, in any order, of the members' operands, which are consecutive in operands.
func (b *teamBench) summed(dt ir.DType, members int, operands []float64) *eval.Output {
	b.t.Helper()
	n := len(operands) / members
	prog, ds := ir.Parse("sum", fmt.Sprintf(`mesh tp[%d]
func f(%%x: %s[%d/tp]) -> %s[%d] {
  %%l = local %%x
  %%y = alloc %s[%d]
  all_reduce %%l into %%y, over=tp, op=sum, order=any
  return %%y
}
`, members, dt, members*n, dt, n, dt, n))
	if ds.HasErrors() {
		b.t.Fatal(ds)
	}
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		b.t.Fatal(ds)
	}
	bound, ds := ir.Bind(info, ir.Binding{})
	if ds.HasErrors() {
		b.t.Fatal(ds)
	}
	res, err := eval.Run(b.t.Context(), bound, map[string]*tensor.Tensor{"x": b.tensor(dt, operands)}, eval.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	return res.Outputs[0]
}

func (b *teamBench) tensor(dt ir.DType, vals []float64) *tensor.Tensor {
	b.t.Helper()
	x, err := tensor.New(dt, []int64{int64(len(vals))})
	if err != nil {
		b.t.Fatal(err)
	}
	for i, v := range vals {
		x.SetFloat64(int64(i), v)
	}
	return x
}

// TestMultimem runs all_reduces by emulated NVLink switches through the same memory, in random orders. The bench's
// switches add in an order that differs from that of the members.
func TestMultimem(t *testing.T) {
	ofTeams(t, []int{2, 3, TeamMost}, func(t *testing.T, members int, epoch uint32) {
		b := newTeamBench(t, members, epoch)
		rng := drawn(t, uint64(members), uint64(epoch))
		const most = 3000
		data, all := b.join(most*4 + int64(members)*16)
		half := int64(members) * 2 * BlocksMost * 4
		flags := b.halves(half, staleBefore(epoch))
		var checks []func(int)
		for i := range 12 {
			c := multimemCase{dt: multimemTypes[i%3], unroll: []int{1, 2, 4}[rng.IntN(3)], count: int64(1 + rng.IntN(most)), blocks: 1 + rng.IntN(3),
				threads: 32 * (1 + rng.IntN(2)), odd: rng.IntN(2) == 0, inPlace: rng.IntN(2) == 0}
			if i%4 == 0 {
				c.count = int64(1 + rng.IntN(9))
			}
			checks = append(checks, b.addMultimem(c, rng, data, all, flags, half))
		}
		b.runChecks(3, checks)
	})
}

// TestMultimemLate starts all members but one: they time out and report which member they waited for.
func TestMultimemLate(t *testing.T) {
	b := newTeamBench(t, 3, FirstEpoch)
	b.timeout = 3 * time.Microsecond
	data, all := b.join(4096)
	half := int64(3 * 2 * BlocksMost * 4)
	b.addMultimem(multimemCase{dt: ir.F32, unroll: 1, count: 200, blocks: 2, threads: 32}, rand.New(rand.NewPCG(1, 2)), data, all, b.halves(half, 0), half)
	b.runLate("multimem")
}
