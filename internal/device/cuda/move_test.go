package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/compute"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// blocksAsked is a kernel library that records how many thread blocks are requested for copies.
type blocksAsked struct {
	*fakedriver.GPU
	blocks []int
}

func (l *blocksAsked) Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	if move, ok := p.(kernels.Transfer); ok {
		l.blocks = append(l.blocks, move.Blocks)
	}
	return l.GPU.Steps(t, p)
}

// TestMoveRefused checks that a copy by a kernel returns ErrUnsupported if the kernel cannot access both views, or if
// the views have gaps or overlap, so that the caller copies in another way.
func TestMoveRefused(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.Reach.Apart = all
	w, _ := streamed(t, newMachine(system(f), Options{Kernels: f}), 2, "s")
	must := mustOf(t)
	var mems [2]device.Memory
	for r := range mems {
		var err error
		mems[r], err = w.Device(r).Alloc(8192, device.Shared)
		must(err)
	}
	a, b, far := words(mems[0], 0, 100), words(mems[0], 4096, 100), words(mems[1], 0, 100)
	gaps := a
	gaps.Strides = []int64{2}
	for name, v := range map[string][2]device.View{"apart": {far, a}, "from apart": {a, far}, "gaps": {b, gaps}, "shifted": {words(mems[0], 4, 100), a}} {
		if _, err := w.Device(0).PrepareMove(v[0], v[1], 1); !errors.Is(err, device.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l, err := w.Device(0).PrepareMove(b, a, 1); err != nil || len(l.(*launch).steps) != 1 {
		t.Errorf("disjoint views in one buffer: %v", err)
	}
	must(w.Close())
}

// TestEngines checks that puts and gets use the requested engine, directly and in graphs, with the same result. The
// engine is a kernel with a number of thread blocks, or a copy engine. GPUs without peer access, which kernels cannot
// access, always use copy engines.
func TestEngines(t *testing.T) {
	const text = `
mesh tp[2]
func f(%x: f32[2/tp, 5]) -> f32[2, 5] {
  %y: f32[2, 5] = all_gather %x, over=tp
  return %y
}
func g(%x: f32[2/tp, 5]) -> f32[2, 5] refines f {
  %c = counter
  %all = alloc f32[2, 5] symmetric
  %own = chunk %all, axis=0, rank(tp) of 2
  let %d = 1 - rank(tp)
  barrier over=tp
  copy %x into %own
  put %x into %own at tp[%d]PUT
  signal %c at tp[%d]
  wait %c >= 1
  %y = alloc f32[2, 5]
  get %all at tp[%d] into %yGET
  return %y
}
`
	copies := map[bool]int{} // number of copies by copy engines if no engine is requested
	for _, c := range []struct {
		put, get string
		blocks   []int // number of thread blocks of each kernel, of both ranks
		apart    bool
	}{
		{"", "", nil, false},
		{", engine=ce", ", engine=auto", nil, false},
		{", engine=sm", ", engine=ce", []int{compute.MoveBlocks, compute.MoveBlocks}, false},
		{"", ", engine=sm, ctas=3", []int{3, 3}, false},
		{", engine=sm, ctas=7", ", engine=sm, ctas=1 + size(tp)", []int{3, 3, 7, 7}, false},
		{", engine=sm, ctas=7", ", engine=sm", nil, true},
	} {
		for _, graph := range []bool{false, true} {
			t.Run(fmt.Sprintf("put%s, get%s, apart %v, graph %v", c.put, c.get, c.apart, graph), func(t *testing.T) {
				must := mustOf(t)
				lib := &blocksAsked{GPU: fakedriver.New(t, 2)}
				if c.apart {
					lib.Reach.Apart = all
				}
				m := newMachine(system(lib.GPU), Options{Kernels: lib})
				unit := unitOf(t, "engines.hkt", strings.NewReplacer("PUT", c.put, "GET", c.get).Replace(text), "")
				bound, err := unit.Reference(ir.Binding{})
				must(err)
				p, err := unit.Plan(ir.Binding{})
				must(err)
				loaded, err := exec.Load(t.Context(), m, p, exec.Options{Graph: graph})
				must(err)
				slices.Sort(lib.blocks)
				if !slices.Equal(lib.blocks, c.blocks) {
					t.Errorf("kernels of %v blocks, want %v", lib.blocks, c.blocks)
				}
				in, err := eval.Inputs(bound, tensor.Spec{Seed: 3})
				must(err)
				want, err := eval.Run(t.Context(), bound, in, eval.Options{})
				must(err)
				clear(lib.Called)
				for range 3 {
					got, err := loaded.Run(t.Context(), in)
					must(err)
					if v := eval.Compare(got.Outputs[p.Outputs[0].Name], want.Outputs[0]); v.Kind == eval.Differs {
						t.Error(v)
					}
				}
				must(loaded.Close())
				n := lib.Called["cuMemcpyAsync"]
				if c.put == "" && c.get == "" {
					copies[graph] = n
				}
				switch less := copies[graph] - n; {
				case c.apart:
				case !graph && less != 3*len(c.blocks), graph && (less > 0) != (len(c.blocks) > 0), graph && less%max(1, len(c.blocks)) != 0:
					t.Errorf("%d copies by copy engines, %d fewer than by default; want 3 fewer for each of %d kernels", n, less, len(c.blocks))
				}
			})
		}
	}
}
