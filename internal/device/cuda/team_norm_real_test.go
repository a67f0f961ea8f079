package cuda

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// tails is a program that contains the ends of N tensor-parallel layers in sequence: an all_reduce, a residual, and a
// norm.
const tails = `dim P = 2
dim T = 1
dim H = 8192
dim N = 32
mesh tp[P]
func tails(%h: bf16[P * T/tp, H], %x: bf16[T, H], %w: bf16[H]) -> (bf16[T, H], bf16[T, H]) {
  %hl = local %h
  %part = alloc bf16[T, H]
  %sum = alloc bf16[T, H]
  %r = alloc bf16[T, H]
  %a = alloc bf16[T, H]
  copy %x into %r
  copy %hl into %a
  for %i in 0..N {
    // mul %a, %hl into %part
    all_reduce %part into %sum, over=tp, op=sum
    add %r, %sum into %r
    rms_norm %r, %w into %a
  }
  return %r, %a
}
`

// tailsPlan returns a plan of the program tails and a random input. If bare is set, there are no products between the
// layers.
func tailsPlan(t *testing.T, bare bool, dims map[string]int64) (*plan.Plan, map[string]*tensor.Tensor) {
	t.Helper()
	text := strings.Replace(tails, "// mul", "mul", 1)
	if bare {
		text = strings.Replace(tails, "all_reduce %part", "all_reduce %a", 1)
	}
	p := planOf(t, text, dims)
	in := map[string]*tensor.Tensor{}
	for i := range p.Inputs {
		x, err := tensor.New(p.Inputs[i].DType, p.Inputs[i].Shape)
		if err == nil {
			err = tensor.Fill(x, p.Inputs[i].Name, tensor.Spec{Kind: tensor.SpecRand, Seed: 5})
		}
		if err != nil {
			t.Fatal(err)
		}
		in[p.Inputs[i].Name] = x
	}
	return p, in
}

// loadTails loads a plan of the program tails, and returns the program and the result of one run.
func loadTails(t *testing.T, m *machine, p *plan.Plan, in map[string]*tensor.Tensor, o exec.Options) (*exec.Program, *exec.Result) {
	t.Helper()
	prog, err := exec.Load(t.Context(), m, p, o)
	if err != nil {
		t.Fatal(err)
	}
	var rs []*exec.Result
	for range 2 { // the second run replays the graph, if there is one
		if rs, err = prog.RunBatch(t.Context(), exec.Inputs([]map[string]*tensor.Tensor{in, in}), nil); err != nil {
			t.Fatal(err)
		}
	}
	return prog, rs[1]
}

func sameBits(t *testing.T, what string, got, want *exec.Result) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want.Outputs)) {
		if !bytes.Equal(got.Outputs[k].Data, want.Outputs[k].Data) {
			t.Errorf("%s: %s differs", what, k)
		}
	}
}

func joined(r *exec.Result) (n int) {
	for _, a := range r.Algorithms {
		if a == "lamport-norm" {
			n++
		}
	}
	return n
}

// TestRealTails checks that the program tails has the same bits with one launch and with three launches for the end of
// each layer: with a graph, without, and with a trace.
func TestRealTails(t *testing.T) {
	m := real(t, Options{})
	ranks := min(len(m.sys.GPUs), 4)
	if ranks == 1 {
		ranks = 2
		m = real(t, Options{RanksPerGPU: 2})
	}
	launches, most := 0, mostRows(ranks, 256)
	for _, c := range []struct {
		rows int64
		bare bool
		Want int
	}{{1, false, 6}, {2, true, 6}, {most, false, 6}, {most + 1, false, 0}} {
		p, in := tailsPlan(t, c.bare, map[string]int64{"P": int64(ranks), "T": c.rows, "H": 2048, "N": 6})
		apart, three := loadTails(t, m, p, in, exec.Options{Options: image.Options{NoChains: true}})
		if joined(three) != 0 {
			t.Errorf("%d rows: %d sums were fused, want none", c.rows, joined(three))
		}
		for _, o := range []struct {
			name string
			exec.Options
			Want int
		}{{"eager", exec.Options{}, c.Want}, {"graph", exec.Options{Graph: true}, c.Want}, {"traced", exec.Options{Trace: true}, c.Want}, {"asked for", exec.Options{Options: image.Options{Algorithm: three.Algorithms[0]}}, 0}} {
			prog, one := loadTails(t, m, p, in, o.Options)
			if joined(one) != o.Want {
				t.Errorf("%d rows, %s: %d sums were fused with add and norm, want %d: %v", c.rows, o.name, joined(one), o.Want, one.Algorithms)
			}
			sameBits(t, fmt.Sprintf("%d rows, %s", c.rows, o.name), one, three)
			launches += ranks * joined(one)
			if err := prog.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := apart.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d ranks: %d fused launches of a sum, an add and a norm", ranks, launches)
}

// TestSweepTails times the program tails with a graph, with one launch and with three for the end of each layer. The
// time of 512 layers is the difference between the fastest runs of 544 and of 32 layers.
func TestSweepTails(t *testing.T) {
	worlds, each := sweepRanks(t, 20)
	for _, ranks := range worlds {
		until := time.Now().Add(each)
		m := real(t, Options{})
		devicetest.NeedGPUs(t, len(m.sys.GPUs), ranks, nil)
		for _, rows := range []int64{1, 4, 16} {
			var line strings.Builder
			for _, apart := range []bool{false, true} {
				one := func(layers int64) (*exec.Program, *exec.Result, map[string]*tensor.Tensor) {
					p, in := tailsPlan(t, true, map[string]int64{"P": int64(ranks), "T": rows, "N": layers})
					prog, r := loadTails(t, m, p, in, exec.Options{Options: image.Options{NoChains: apart}, Graph: true})
					return prog, r, in
				}
				short, _, in := one(32)
				long, r, _ := one(32 * 17)
				var least [2]float64
				for range 15 {
					for i, prog := range []*exec.Program{short, long} {
						began := time.Now()
						if _, err := prog.RunBatch(t.Context(), exec.Inputs([]map[string]*tensor.Tensor{in}), nil); err != nil {
							t.Fatal(err)
						}
						if us := float64(time.Since(began).Nanoseconds()) / 1e3; least[i] == 0 || us < least[i] {
							least[i] = us
						}
					}
				}
				fmt.Fprintf(&line, "  %7.2f µs by %s", (least[1]-least[0])/16, r.Algorithms[0])
				for _, p := range []*exec.Program{short, long} {
					if err := p.Close(); err != nil {
						t.Error(err)
					}
				}
			}
			fmt.Printf("32 layers' ends of %2d x 8192 bf16, %d ranks:%s\n", rows, ranks, line.String())
			if time.Now().After(until) {
				fmt.Println("out of time")
				break
			}
		}
	}
}

// TestSweepNorm times an all_reduce with add and rms_norm as one launch, as two and as three, in graphs, and compares
// the bits of the results.
func TestSweepNorm(t *testing.T) {
	worlds, each := sweepRanks(t, 20)
	for _, ranks := range worlds {
		until := time.Now().Add(each)
		m := real(t, Options{TeamTimeout: 2 * time.Second, Graphs: formOne})
		devicetest.NeedGPUs(t, len(m.sys.GPUs), ranks, nil)
		w, err := m.Open(t.Context(), ranks)
		if err != nil {
			t.Fatal(err)
		}
		s := &reduceSweeper{T: t, w: w.(*world), ranks: ranks}
		n := newNormSweep(s)
		fmt.Printf("%d ranks; µs of the sum alone, of three launches, of two, and of one\n", ranks)
		for _, c := range normSweepSizes {
			n.foresee(c[0], c[1])
		}
		for _, c := range normSweepSizes {
			n.time(c[0], c[1])
			if time.Now().After(until) {
				fmt.Println("out of time")
				break
			}
		}
		s.must(w.Close())
	}
}

// normSweepSizes lists the measured numbers of rows and widths.
var normSweepSizes = func() (list [][2]int64) {
	for _, rows := range []int64{64, 128, 256, 1, 32, 512, 1024, 2048, 4096} {
		list = append(list, [2]int64{rows, 8192})
	}
	for _, rows := range []int64{64, 256, 1024, 4096} {
		for _, width := range []int64{4096, 2048, 1024} {
			list = append(list, [2]int64{rows, width})
		}
	}
	return append(list, [2]int64{1, 16384}, [2]int64{32, 16384}, [2]int64{512, 16384}, [2]int64{2048, 16384})
}()

// normSlot is the number of bytes reserved for each operand and result.
const normSlot = 64 << 20

// normSweep is a team that is measured, with operands of up to normSlot bytes.
type normSweep struct {
	*reduceSweeper
	members []device.Member
	mem     []device.Memory
	own     *team
	many    int // number of launches in a measured chain
}

func newNormSweep(s *reduceSweeper) *normSweep {
	n := &normSweep{reduceSweeper: s}
	for r := range s.ranks {
		st, err := s.w.Device(r).NewStream(device.StreamOptions{Name: "main"})
		s.must(err)
		s.streams = append(s.streams, st)
		n.members = append(n.members, device.Member{Rank: r, Stream: st})
		mem, err := s.w.Device(r).Alloc(8*normSlot, device.Shared)
		s.must(err)
		n.mem = append(n.mem, mem)
		x, err := tensor.New(ir.BF16, []int64{4<<20 + 8})
		s.must(err)
		s.must(tensor.Fill(x, "x", tensor.Spec{Kind: tensor.SpecRand, Seed: uint64(r)}))
		for at := int64(0); at < 3*normSlot; at += int64(len(x.Data)) { // later slots are overwritten
			s.must(st.Upload(device.View{Mem: mem, Off: at, DType: ir.BF16, Shape: x.Shape, Strides: []int64{1}}, x.Data))
		}
	}
	s.must(s.w.Sync(s.Context()))
	var err error
	s.team, err = s.w.OpenTeam(n.members)
	s.must(err)
	n.own = s.team.(*team)
	return n
}

// at returns a tensor in the k-th of eight slots of a rank's memory.
func (n *normSweep) at(rank int, k int64, shape ...int64) device.View {
	return device.View{Mem: n.mem[rank], Off: k * normSlot, DType: ir.BF16, Shape: shape, Strides: strided.RowMajor(shape)}
}

// norm returns an all_reduce with add and rms_norm on n's operands.
func (n *normSweep) norm(rows, width int64) *device.Norm {
	norm := &device.Norm{Eps: 1e-5}
	for r := range n.ranks {
		at := func(k int64) device.View { return n.at(r, k, rows, width) }
		norm.Parts = append(norm.Parts, device.NormPart{In: at(0), Residual: at(1), Weight: n.at(r, 2, width), Sum: at(3), Out: at(4)})
	}
	return norm
}

// foresee compiles ahead the kernels for one size.
func (n *normSweep) foresee(rows, width int64) {
	norm := n.norm(rows, width)
	all, err := n.own.norms(norm.Parts)
	n.must(err)
	n.own.compileAhead(coll.PlanNorm(n.own, norm, all))
}

// time measures one size.
func (n *normSweep) time(rows, width int64) {
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	norm := n.norm(rows, width)
	n.many = 100
	if rows*width > 4<<20 {
		n.many = 20
	}
	var add, normed []device.Launch
	for r, part := range norm.Parts {
		at := func(k int64) device.View { return n.at(r, k, rows, width) }
		c.Parts = append(c.Parts, device.Part{In: part.In, Out: at(5), Reads: true, Writes: true})
		one, err := n.w.Device(r).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{part.Residual, at(5)}, Outs: []device.View{at(6)}})
		n.must(err)
		other, err := n.w.Device(r).Prepare(device.Kernel{Op: device.RMSNorm{Eps: norm.Eps}, Ins: []device.View{at(6), part.Weight}, Outs: []device.View{at(7)}})
		n.must(err)
		add, normed = append(add, one), append(normed, other)
	}
	sum, by := n.fastest(c)
	alone, three := n.chained(sum), n.chained(sum, add, normed)
	all, err := n.own.norms(norm.Parts)
	n.must(err)
	one := n.chained(n.launches(norm, all))
	behind := &device.Norm{Eps: norm.Eps, Reduced: true}
	for r := range norm.Parts {
		at := func(k int64) device.View { return n.at(r, k, rows, width) }
		behind.Parts = append(behind.Parts, device.NormPart{In: at(5), Residual: at(1), Weight: n.at(r, 2, width),
			Sum: at(6), Out: at(7)})
	}
	all, err = n.own.norms(behind.Parts)
	n.must(err)
	n.compare(rows * width)
	two := n.chained(sum, n.launches(behind, all))
	n.compare(rows * width)
	fmt.Printf("%4d x %5d  %7.1f KiB  %s %6.2f  three %6.2f  two %6.2f  one %6.2f\n", rows, width,
		float64(2*rows*width)/1024, by, alone, three, two, one)
}

// launches prepares fused launches without regard to the size limit.
func (n *normSweep) launches(norm *device.Norm, all []coll.NormPart) (one []device.Launch) {
	defer n.w.guard.Exclusive()()
	steps, err := n.own.carryOut(coll.PlanNorm(n.own, norm, all))
	n.must(err)
	for r, m := range n.own.members {
		one = append(one, &launch{dev: m.dev, name: "norm", steps: steps[r], member: m, id: -1})
	}
	return one
}

// fastest prepares launches of the all_reduce alone, by the first algorithm of the tuned table.
func (n *normSweep) fastest(c *device.Collective) ([]device.Launch, string) {
	table := comm.Shipped()
	for _, tune := range table.Best(&comm.Instance{Collective: *c}) {
		if n.team.Supports(tune, c) == nil && tune.Algo != ncclName {
			l, err := n.team.Prepare(tune, c)
			n.must(err)
			return l, tune.Algo
		}
	}
	n.Fatal("no algorithm takes it")
	return nil, ""
}

// chained returns the time of launches of all members, which run one after another.
func (n *normSweep) chained(lists ...[]device.Launch) float64 {
	us, err := n.chain(n.many, func() error {
		for _, list := range lists {
			for r, l := range list {
				n.must(n.streams[r].Launch(l))
			}
		}
		return nil
	})
	n.must(err)
	return us
}

// compare compares the results of the fused launch with the last results of the separate launches.
func (n *normSweep) compare(count int64) {
	for r := range n.ranks {
		for _, k := range []int64{3, 4} {
			got, want := make([]byte, 2*count), make([]byte, 2*count)
			n.must(n.streams[r].Download(got, n.at(r, k, count)))
			n.must(n.streams[r].Download(want, n.at(r, k+3, count)))
			n.must(n.w.Sync(n.Context()))
			if !bytes.Equal(got, want) {
				n.Errorf("rank %d: result %d differs", r, k)
			}
		}
	}
}
