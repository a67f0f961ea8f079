package lower

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// TestLoweredMeansTheSame evaluates every function of the golden files before
// and after lowering, with the main mesh's sizes made dims, on 1 to 8 ranks
// and for several extents.
func TestLoweredMeansTheSame(t *testing.T) {
	grids := [][2]int64{{1, 1}, {2, 1}, {1, 3}, {2, 2}, {5, 1}, {3, 2}, {1, 7}, {2, 4}}
	for _, file := range []string{"mlp", "linear_bias", "one_liners", "mesh2d", "blocks"} {
		source := openMesh(t, file)
		for _, g := range grids {
			for _, rows := range []int64{1, 3} {
				compareFuncs(t, source, g, rows)
			}
		}
	}
	for _, file := range []string{"submesh", "main_submesh"} {
		compareFuncs(t, goldenSource(t, file), [2]int64{4, 1}, 3)
	}
}

func goldenSource(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	source, _, _ := strings.Cut(string(data), section)
	return source
}

var axisSize = regexp.MustCompile(`\b(dp|tp)\[\d+\]`)

// openMesh reads a golden file and replaces the sizes of its main mesh by the dims A and B, which a test can bind.
func openMesh(t *testing.T, name string) string {
	t.Helper()
	source := axisSize.ReplaceAllStringFunc(goldenSource(t, name), func(s string) string {
		return map[string]string{"dp": "dp[A]", "tp": "tp[B]"}[s[:2]]
	})
	return "dim A\ndim B\n" + source
}

// compareFuncs evaluates each function of source on a grid of A × B ranks; all
// other dims are rows times the number of ranks.
func compareFuncs(t *testing.T, source string, grid [2]int64, rows int64) {
	t.Helper()
	p := parse(t, source)
	res, err := Run(p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(source, "dp[A]") {
		grid = [2]int64{1, grid[0] * grid[1]}
	}
	for _, f := range p.Funcs {
		before := evaluate(t, p, f.Name, grid, rows)
		after := evaluate(t, res.Program, f.Name, grid, rows)
		for i := range before.Outputs {
			a, b := before.Outputs[i], after.Outputs[i]
			if !bytes.Equal(a.Tensor.Data, b.Tensor.Data) || a.Exact != b.Exact {
				t.Errorf("%s on %v ranks, %d rows: result %d differs\n%v\n%v", f.Name, grid, rows, i, a.Tensor,
					b.Tensor)
			}
		}
	}
}

func evaluate(t *testing.T, p *ir.Program, name string, grid [2]int64, rows int64) *eval.Result {
	t.Helper()
	info, ds := checker.Check(p)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	b := ir.Binding{Func: name, Dims: map[string]int64{}}
	for d := range info.Dims {
		switch d {
		case "A":
			b.Dims[d] = grid[0]
		case "B", "W":
			b.Dims[d] = grid[1]
		default:
			b.Dims[d] = rows * grid[0] * grid[1]
		}
	}
	bound, ds := ir.Bind(info, b)
	if ds.HasErrors() {
		t.Fatalf("%s on %v: %v", name, grid, ds)
	}
	in, err := eval.Inputs(bound, tensor.Spec{Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	out, err := eval.Run(context.Background(), bound, in, eval.Options{})
	if err != nil {
		t.Fatal(fmt.Errorf("%s on %v: %w\n%s", name, grid, err, p))
	}
	return out
}
