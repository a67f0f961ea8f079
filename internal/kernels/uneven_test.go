package kernels

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// unevenCounts returns random counts of n members, for operands of held rows and results of room rows.
func unevenCounts(rng *rand.Rand, op ir.Op, n int, held, room int64) [][]float64 {
	all, comes := make([][]float64, n), make([]int64, n)
	for i := range all {
		gives := int64(0)
		for j := range n {
			most := min(held-gives, room-comes[j])
			if op == ir.OpAllGatherV {
				most = min(held, room-comes[0])
			}
			c := rng.Int64N(max(most, 0) + 1)
			gives += c
			switch op {
			case ir.OpAllGatherV:
				comes[0] += c
			case ir.OpAllToAllV:
				comes[j] += c
			}
			all[i] = append(all[i], float64(c))
		}
		if op != ir.OpAllToAllV {
			all[i] = all[0]
		}
	}
	return all
}

var unevenOps = []ir.Op{ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV}

// TestUneven compares uneven collectives with the CPU machine, bit by bit, for every type and axis, and for rows of odd
// and of wide sizes.
func TestUneven(t *testing.T) {
	r := newTrial(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, dt := range types() {
		for _, op := range unevenOps {
			for _, n := range []int{1, 2, 3, 8} {
				for _, lead := range [][]int64{{}, {3}} {
					for _, inner := range [][]int64{{}, {3}, {8}, {2, 4}, {700}} {
						held, room := rng.Int64N(8), 1+rng.Int64N(9)
						shape := func(rows int64) []int64 { return append(append(append([]int64{}, lead...), rows), inner...) }
						k := device.Kernel{Op: device.UnevenMove{Op: op, Axis: len(lead)}}
						if op == ir.OpReduceScatterV {
							k.Op = device.UnevenReduce{Red: ir.Sum + ir.Red(rng.IntN(4)), Axis: len(lead)}
						}
						var ins []values
						for i := range n {
							x := noise(dt, shape(held)...)
							for e := range x.vals {
								if e%(i+2) == 0 {
									x.vals[e] = -x.vals[e]
								}
							}
							ins = append(ins, x)
						}
						for _, c := range unevenCounts(rng, op, n, held, room) {
							ins = append(ins, list(ir.I32, c...))
						}
						r.compare(k, layouts[0], 0, dt, shape(room), ins...)
					}
				}
			}
		}
	}
	r.run()
}

// TestUnevenFaults checks that counts that do not fit the operands are reported, and that the result is then zeros.
func TestUnevenFaults(t *testing.T) {
	b := newBench(t)
	for i, c := range []struct {
		op     ir.Op
		member int
		counts [2][]float64
		want   string
	}{
		{ir.OpAllToAllV, 0, [2][]float64{{1, 1}, {1, -1}}, "counts[1] of member 1 of the team is -1, with operands of 3 rows"},
		{ir.OpAllToAllV, 1, [2][]float64{{1 << 30, 1}, {1, 1}}, "counts[0] of member 0 of the team is 1073741824"},
		{ir.OpAllToAllV, 1, [2][]float64{{1, 1}, {2, 2}}, "the counts of member 1 of the team take 4 rows from an operand of 3"},
		{ir.OpAllToAllV, 0, [2][]float64{{3, 0}, {3, 0}}, "member 0 of the team gets 6 rows, and its result has room for 5"},
		{ir.OpAllGatherV, 0, [2][]float64{{1, 4}, {1, 4}}, "the counts of member 1 of the team take 4 rows"},
		{ir.OpAllGatherV, 1, [2][]float64{{3, 3}, {3, 3}}, "member 1 of the team gets 6 rows"},
		{ir.OpAllGatherV, 1, [2][]float64{{1, 2}, {1, 1}}, "counts[1] of member 0 of the team is 2, but another member has a different value"},
		{ir.OpReduceScatterV, 1, [2][]float64{{2, 2}, {2, 2}}, "the counts of member 0 of the team take 4 rows"},
	} {
		at := b.alloc(FaultBytes)
		for k := range FaultBytes {
			b.mem[int64(at)-memoryAt+int64(k)] = 0
		}
		p := Computation{Op: device.UnevenMove{Op: c.op, Member: c.member}, Out: b.room(ir.F32, layouts[0], 5, 2), Fault: at, Tag: uint64(i)}
		if c.op == ir.OpReduceScatterV {
			p.Op = device.UnevenReduce{Red: ir.Max, Member: c.member}
		}
		for range 2 {
			p.Ins = append(p.Ins, b.put(ir.F32, layouts[0], []float64{1, 2, 3, 4, 5, 6}, 3, 2))
		}
		for _, n := range c.counts {
			p.Ins = append(p.Ins, b.put(ir.I32, layouts[0], n, 2))
		}
		b.add(c.want, p, func() {
			f, ok := ReadFault(b.mem[int64(at)-memoryAt:])
			if !ok || f.Kind != FaultCounts || f.Tag != uint64(i) || !strings.Contains(f.String(), c.want) {
				t.Errorf("%v: %s, want %q", ok, f, c.want)
			}
			same(t, c.want, b.vals(p.Out), make([]float64, 10), 0)
		})
	}
	b.run()
}

// TestUnevenRefused checks that problems are refused if operands do not fit or are too large.
func TestUnevenRefused(t *testing.T) {
	x, n, out := op(ir.F32, 3, 2), op(ir.I32, 2), op(ir.F32, 5, 2)
	gaps := out
	gaps.Strides = []int64{4, 1}
	good := Computation{Op: device.UnevenMove{Op: ir.OpAllToAllV, Axis: 0}, Ins: []Operand{x, x, n, n}, Out: out}
	for want, change := range map[string]func(p *Computation){
		"3 operands for member 0": func(p *Computation) { p.Ins = p.Ins[:3] },
		"4 operands for member 2": func(p *Computation) { p.Op = device.UnevenMove{Op: ir.OpAllToAllV, Member: 2} },
		"axis 2":                  func(p *Computation) { p.Op = device.UnevenMove{Op: ir.OpAllToAllV, Axis: 2} },
		"unknown reduction 0":     func(p *Computation) { p.Op = device.UnevenReduce{} },
		"operand 1 is f32[4 2]":   func(p *Computation) { p.Ins[1] = op(ir.F32, 4, 2) },
		"operand 0 is f64[3 2]":   func(p *Computation) { p.Ins[0] = op(ir.F64, 3, 2) },
		"counts of member 1 have": func(p *Computation) { p.Ins[3] = op(ir.I64, 2) },
		"counts of member 0 have": func(p *Computation) { p.Ins[2] = op(ir.I32, 3) },
		"must be contiguous":      func(p *Computation) { p.Out = gaps },
		"65 members":              func(p *Computation) { p.Ins = make([]Operand, 130); fillWith(p.Ins, x, op(ir.I32, 65)) },
	} {
		p := good
		p.Ins = append([]Operand{}, good.Ins...)
		change(&p)
		if _, err := New(&fake{version: "1"}, nil).Steps(Target{Arch: "sm_90"}, p); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func fillWith(ins []Operand, x, n Operand) {
	for i := range ins {
		if ins[i] = x; i >= len(ins)/2 {
			ins[i] = n
		}
	}
}
