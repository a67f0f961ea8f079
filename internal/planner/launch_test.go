package planner

import (
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

const launches = `dim N = 600
mesh tp[4]

func f(%x: f32[N]) -> f32[N] {
  %y = alloc f32[N] zero
  for %i in 0..3 {
    %yi = chunk %y, axis=0, %i of 3
    launch "k.cu":fill(inout %yi, extent(%yi, 0), f32 0.5), grid=(2, 3), block=64, shared=8
    launch "k.cu":at(%x, into %yi, i64 %i * 5000000000), grid=1, block=32
  }
  return %y
}
`

// TestLaunches checks that a plan contains equal launches of different ranks and iterations once, and each kernel once.
func TestLaunches(t *testing.T) {
	info, ds := checker.Read("launches", launches)
	if len(ds) > 0 {
		t.Fatal(ds)
	}
	info.Prog.Files = map[string][]byte{"k.cu": []byte("text")}
	b, ds := ir.Bind(info, ir.Binding{})
	if len(ds) > 0 {
		t.Fatal(ds)
	}
	p, err := Plan(b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Validate(p); err != nil {
		t.Fatal(err)
	}
	if len(p.Kernels) != 2 || string(p.Kernels[1].Code) != "text" || len(p.Launches) != 4 {
		t.Fatalf("%d kernels, %d launches:\n%s", len(p.Kernels), len(p.Launches), p)
	}
	fill, last := p.Launches[0], p.Launches[3]
	if fill.Grid != [3]int64{2, 3, 1} || fill.Block != [3]int64{64, 1, 1} || fill.Shared != 8 || len(fill.Params) != 3 ||
		fill.Params[0] != (plan.LaunchParam{}) || int64(fill.Params[1].Bits) != 200 || math.Float64frombits(fill.Params[2].Bits) != 0.5 {
		t.Errorf("%+v", fill)
	}
	if x := last.Params; x[0].In != 0 || x[0].Out != -1 || x[1].In != -1 || x[1].Out != 0 || int64(x[2].Bits) != 10_000_000_000 {
		t.Errorf("%+v", last)
	}
	text := p.String()
	for _, want := range []string{
		"launch k.cu:fill(inout, i32 200, f32 0.5) grid=[2 3 1] block=[64 1 1] shared=8 %y f32[200] -> %y f32[200]",
		"launch k.cu:at(_, into, i64 10000000000) grid=[1 1 1] block=[32 1 1] shared=0 %x f32[600] -> %y+1600 f32[200]",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the plan lacks %q:\n%s", want, text)
		}
	}
	other := *p
	other.Kernels = append([]plan.Kernel{}, p.Kernels...)
	other.Kernels[1].Code = []byte("text of another")
	if p.Hash() == other.Hash() {
		t.Error("the kernel's text is not in the hash")
	}
	info.Prog.Files = nil
	if _, err := Plan(b, Options{}); err == nil || !strings.Contains(err.Error(), `the file "k.cu" was not read`) {
		t.Errorf("without its file: %v", err)
	}
}
