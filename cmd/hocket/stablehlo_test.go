package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestStableHLOCorpus runs programs that JAX printed, on ranks of the CPU. Results must equal those of JAX, and
// gradients those of torch in f64, within 1e-4 of the largest value: other programs round differently.
func TestStableHLOCorpus(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "shared", "corpus", "stablehlo")
	programs, err := filepath.Glob(filepath.Join(dir, "*.mlir"))
	if err != nil || len(programs) == 0 {
		t.Skip("there is no corpus beside the repository")
	}
	open := func(path string) *tensor.Safetensors {
		f, err := tensor.OpenSafetensors(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for _, path := range programs {
		name := strings.TrimSuffix(filepath.Base(path), ".mlir")
		values := filepath.Join(dir, strings.TrimSuffix(name, ".grad")+".safetensors")
		expected := open(filepath.Join(dir, name+".safetensors"))
		for _, n := range []string{"1", "2", "4"} {
			t.Run(name+"/"+n, func(t *testing.T) {
				saved := t.TempDir()
				out, errs, code := hocketHere("run", path, "-n", n, "--in", values, "--save", saved)
				if code != 0 || strings.Contains(out, "not proved") {
					t.Fatalf("exit %d\n%s%s", code, out, errs)
				}
				results := open(outputsFile(saved))
				for _, got := range results.Names() {
					from := got
					if !strings.HasSuffix(name, ".grad") && got == "out0" && len(results.Names()) == 1 {
						from = "out"
					}
					x, err := results.Read(got)
					if err != nil {
						t.Fatal(err)
					}
					y, err := expected.Read(from)
					if err != nil {
						t.Fatal(err)
					}
					if fmt.Sprint(x.Shape) != fmt.Sprint(y.Shape) {
						t.Fatalf("%s is %s, want %s", got, x, y)
					}
					if worst, most := apart(x, y); !(worst <= 1e-4*most) {
						t.Errorf("the largest error of %s is %g of the largest value %g", got, worst/most, most)
					}
				}
			})
		}
	}
}

// TestGradOfStableHLO compares the gradient of the imported mlp that hocket derives with the one that JAX derived of the
// sum of its results.
func TestGradOfStableHLO(t *testing.T) {
	corpus := filepath.Join("..", "..", "..", "shared", "corpus", "stablehlo")
	want, err := tensor.OpenSafetensors(filepath.Join(corpus, "mlp.grad.safetensors"))
	if err != nil {
		t.Skip("there is no corpus beside the repository")
	}
	defer want.Close()
	dir := t.TempDir()
	forward, gradient, ones := filepath.Join(dir, "f.hkt"), filepath.Join(dir, "g.hkt"), filepath.Join(dir, "ones.safetensors")
	seed, err := tensor.New(ir.F32, []int64{32, 64})
	if err != nil {
		t.Fatal(err)
	}
	for i := range seed.Len() {
		seed.SetFloat64(i, 1)
	}
	if err := tensor.WriteSafetensorsFile(ones, []tensor.Named{{Name: "dout0", Tensor: seed}}, nil); err != nil {
		t.Fatal(err)
	}
	run := []string{"run", gradient, "-n", "2", "--in", ones, "--save", dir}
	for i := range 3 {
		run = append(run, "--in", fmt.Sprintf("arg%d=%s#arg%[1]d", i, filepath.Join(corpus, "mlp.safetensors")))
	}
	for _, args := range [][]string{{"import", filepath.Join(corpus, "mlp.mlir"), "-o", forward},
		{"grad", forward, "-o", gradient}, run} {
		if out, errs, code := hocketHere(args...); code != 0 {
			t.Fatalf("%v: exit %d\n%s%s", args, code, out, errs)
		}
	}
	got, err := tensor.OpenSafetensors(outputsFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	for i := range 3 {
		x, err := got.Read(fmt.Sprintf("darg%d", i))
		if err != nil {
			t.Fatal(err)
		}
		y, err := want.Read(fmt.Sprintf("out%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if worst, most := apart(x, y); !(worst <= 1e-4*most) {
			t.Errorf("the largest error of the gradient of arg%d is %g of the largest value %g", i, worst/most, most)
		}
	}
}

// apart returns the largest difference between elements of two tensors of the same shape, and the largest magnitude in
// the second tensor.
func apart(x, y *tensor.Tensor) (worst, most float64) {
	if fmt.Sprint(x.Shape) != fmt.Sprint(y.Shape) {
		return math.Inf(1), 0
	}
	for i := range x.Len() {
		worst = math.Max(worst, math.Abs(x.Float64(i)-y.Float64(i)))
		most = math.Max(most, math.Abs(y.Float64(i)))
	}
	return worst, most
}

const sharded = `module @jit_f attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<2x2xf32> {jax.result_info = ""}) {
    %0 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [0] x [0] : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }
}
`

// TestStableHLOCommands checks that commands read StableHLO from files and standard input, and report the faults of
// invalid programs.
func TestStableHLOCommands(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("f.mlir", sharded)
	text, errs, code := hocketHere("import", good)
	if code != 0 || !strings.Contains(text, "dim P = 2\nmesh x[P]") || !strings.Contains(text, "%arg0: f32[4/x, 2]") {
		t.Errorf("import: exit %d\n%s%s", code, text, errs)
	}
	for _, args := range [][]string{{"check", good}, {"opt", good, "-n", "4"}, {"plan", good}, {"memory", good},
		{"run", good, "--compare", "-n", "4"}} {
		if out, errs, code := hocketHere(args...); code != 0 {
			t.Errorf("%v: exit %d\n%s%s", args, code, out, errs)
		}
	}
	for _, c := range []struct {
		text string
		code int
		says string
	}{
		{strings.Replace(sharded, "stablehlo.dot_general", "stablehlo.fft", 1), 1,
			"bad.mlir:4: stablehlo.fft: not supported"},
		{strings.Replace(sharded, "contracting_dims = [0] x [0]", "contracting_dims = [0] x [1]", 1), 2,
			"bad.mlir:4: stablehlo.dot_general: malformed"},
		{strings.Replace(sharded, "return %0 :", "return %1 :", 1), 2, "there is no %1"},
		{sharded[:len(sharded)/2], 2, "malformed StableHLO"},
		{strings.Replace(sharded, "4x2xf32", "?x2xf32", 1), 1, "tensor<?x2xf32>"},
	} {
		if _, errs, code := hocketHere("check", write("bad.mlir", c.text)); code != c.code ||
			!strings.Contains(errs, c.says) {
			t.Errorf("exit %d, want %d and %q; %s", code, c.code, c.says, errs)
		}
	}
}
