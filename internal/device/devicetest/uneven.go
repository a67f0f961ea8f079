package devicetest

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// unevenCases lists counts of two members whose operands have 3 rows of 2 elements, and the rows that member 1 receives
// from member 0 and from member 1.
var unevenCases = []struct {
	op     ir.Op
	counts [2][2]float64
	rows   [2][]int64
}{
	{ir.OpAllGatherV, [2][2]float64{{2, 3}, {2, 3}}, [2][]int64{{0, 1}, {0, 1, 2}}},
	{ir.OpAllGatherV, [2][2]float64{{0, 1}, {0, 1}}, [2][]int64{{}, {0}}},
	{ir.OpAllToAllV, [2][2]float64{{1, 2}, {0, 3}}, [2][]int64{{1, 2}, {0, 1, 2}}},
	{ir.OpAllToAllV, [2][2]float64{{3, 0}, {2, 1}}, [2][]int64{{}, {2}}},
	{ir.OpReduceScatterV, [2][2]float64{{1, 2}, {1, 2}}, [2][]int64{{1, 2}, {1, 2}}},
	{ir.OpReduceScatterV, [2][2]float64{{3, 0}, {3, 0}}, [2][]int64{{}, {}}},
}

// uneven returns the operands of member 1's part, which are on two ranks if there are two.
func (r *rig) uneven(op ir.Op, dt ir.DType) (k device.Kernel, ins [2]host) {
	r.Helper()
	for i := range ins {
		ins[i] = random(seeded(op, dt, i), dt, 3, 2)
		k.Ins = append(k.Ins, r.put(i%r.w.Ranks(), ins[i]))
	}
	for i := range ins {
		k.Ins = append(k.Ins, r.empty(i%r.w.Ranks(), ir.I32, 2))
	}
	k.Op, k.Outs = device.UnevenMove{Op: op, Axis: 0, Member: 1}, []device.View{r.empty(0, dt, 5, 2)}
	if op == ir.OpReduceScatterV {
		k.Op = device.UnevenReduce{Red: ir.Sum, Axis: 0, Member: 1}
	}
	return k, ins
}

// count uploads the members' counts.
func (r *rig) count(k device.Kernel, counts [2][2]float64) {
	r.Helper()
	for i, c := range counts {
		r.must(r.mainOf(i%r.w.Ranks()).Upload(k.Ins[2+i], given(ir.I32, []int64{2}, c[:]...).bytes()))
	}
	r.sync()
}

// testUneven launches one kernel of each uneven collective several times, and changes the counts between the launches.
// The kernel must use the counts at the time of each launch.
func testUneven(r *rig) {
	r.open(r.some(2))
	for _, dt := range r.dtypes() {
		for _, op := range []ir.Op{ir.OpAllGatherV, ir.OpAllToAllV, ir.OpReduceScatterV} {
			k, ins := r.uneven(op, dt)
			l, err := r.w.Device(0).Prepare(k)
			if errors.Is(err, device.ErrUnsupported) {
				r.Skip(err)
			}
			r.must(err)
			for _, c := range unevenCases {
				if c.op != op {
					continue
				}
				r.count(k, c.counts)
				r.must(r.mainOf(0).Launch(l))
				r.near(fmt.Sprintf("%s of %s by %v", op, dt, c.counts), r.contents(0, k.Outs[0]), unevenWant(op, dt, ins, c.rows), nil)
			}
			l.Release()
		}
	}
}

func unevenWant(op ir.Op, dt ir.DType, ins [2]host, rows [2][]int64) []float64 {
	var want []float64
	for i, of := range rows {
		for j, row := range of {
			for e := range int64(2) {
				v := ins[i].vals[2*row+e]
				switch at := 2*j + int(e); {
				case op == ir.OpReduceScatterV && i == 1:
					want[at] = tensor.Round(dt, want[at]+v)
				default:
					want = append(want, v)
				}
			}
		}
	}
	return append(want, make([]float64, 10-len(want))...)
}

var misfits = [][2][2]float64{{{1, 1}, {-1, 1}}, {{1, 1 << 30}, {0, 0}}, {{2, 2}, {0, 0}}, {{0, 3}, {0, 3}}}

// testBadCounts checks that the kernel reports counts that do not fit as a fault, on the rank whose kernel reads them
// and with the enclosing mark.
func testBadCounts(r *rig) {
	for _, c := range misfits {
		r.open(r.some(2))
		k, _ := r.uneven(ir.OpAllToAllV, ir.F32)
		r.count(k, c)
		s := r.mainOf(0)
		r.must(s.Begin(7))
		r.launch(s, 0, k)
		err := s.End(7) // the method returns the error itself if the kernel has already failed
		if err == nil {
			err = r.syncs()
		}
		r.isFault(fmt.Sprint("counts ", c), err)
		_ = r.w.Close()
	}
}

// testBadCountsInGraph is testBadCounts for a graph that has run successfully before.
func testBadCountsInGraph(r *rig) {
	r.open(r.some(2))
	g := r.capturer()
	k, _ := r.uneven(ir.OpAllToAllV, ir.F32)
	l, err := r.w.Device(0).Prepare(k)
	r.must(err)
	r.count(k, [2][2]float64{{1, 1}, {1, 1}})
	s := r.mainOf(0)
	r.must(s.Launch(l))
	r.sync()
	graph, err := g.Capture(func() error { return errors.Join(s.Begin(7), s.Launch(l), s.End(7)) })
	r.must(err)
	r.must(graph.Launch(r.Context()))
	r.sync()
	r.count(k, misfits[0])
	r.must(graph.Launch(r.Context()))
	r.isFault("counts in a graph", r.syncs())
}

func (r *rig) isFault(what string, err error) {
	r.Helper()
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 0 || fault.ID != 7 {
		r.Errorf("%s: %v (%+v)", what, err, fault)
	}
}
