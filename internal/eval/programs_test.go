package eval

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestExamples evaluates each function in the examples that refines another function, and requires both to return the
// same results.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.hkt")
	if err != nil || len(files) == 0 {
		t.Skip("no examples here")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p, ds := ir.Parse(file, string(text))
		if ds.HasErrors() {
			t.Fatal(ds.String())
		}
		for _, f := range p.Funcs {
			if f.Refines.Text == "" {
				continue
			}
			t.Run(filepath.Base(file)+"/"+f.Name, func(t *testing.T) {
				for _, spec := range []string{"ints:3", "rand:3"} {
					want := evaluate(t, string(text), ir.Binding{Func: f.Refines.Text}, spec)
					got := evaluate(t, string(text), ir.Binding{Func: f.Name}, spec)
					for i, w := range want.Outputs {
						if v := Compare(got.Outputs[i].Tensor, w.Widened(got.Outputs[i])); v.Kind == Differs {
							t.Errorf("%s, %s: %v", spec, w.Name, v)
						}
					}
				}
			})
		}
	}
}

const rowParallel = `
dim T = 24
dim K = 64
dim N = 16
dim C = 5
dim R = 2
mesh tp[R]

func row_parallel(%x: bf16[T, K/tp], %w: bf16[N, K/tp]) -> bf16[T, N] {
  %y = linear %x, %w
  return %y
}

func row_parallel_chunked(%x: bf16[T, K/tp], %w: bf16[N, K/tp]) -> bf16[T, N] refines row_parallel {
  %s = stream[2]
  %y = alloc bf16[T, N]
  for %j in 0..2 {
    on %s[%j] { wait main }
  }
  for %i in 0..C {
    on %s[%i mod 2] {
      %xi = chunk %x, axis=0, %i of C
      %yi = chunk %y, axis=0, %i of C
      %p = alloc bf16[extent(%xi, 0), N]
      linear %xi, %w into %p
      all_reduce %p into %yi, over=tp, op=sum
    }
  }
  for %j in 0..2 { wait %s[%j] }
  return %y
}
`

// TestRowParallel compares results with a direct computation, for several numbers of ranks and shapes.
func TestRowParallel(t *testing.T) {
	for _, c := range []struct{ ranks, t, k, n, c int64 }{{1, 3, 5, 2, 2}, {2, 24, 64, 16, 5}, {3, 7, 9, 1, 3},
		{4, 1, 4, 3, 4}, {2, 0, 4, 3, 2}} {
		dims := map[string]int64{"T": c.t, "K": c.k, "N": c.n, "C": c.c}
		for _, fn := range []string{"row_parallel", "row_parallel_chunked"} {
			for _, spec := range []string{"ints:7", "rand:7"} {
				b := bind(t, rowParallel, ir.Binding{Func: fn, Ranks: int(c.ranks), Dims: dims})
				in := inputsFor(t, b, spec)
				res, err := Run(context.Background(), b, in, Options{})
				if err != nil {
					t.Fatal(err)
				}
				out := res.Outputs[0]
				if out.Name != "y" || spec == "ints:7" && !out.Exact {
					t.Errorf("%s %v: output %s, exact %v", fn, c, out.Name, out.Exact)
				}
				x, w := floats(in["x"]), floats(in["w"])
				for i := range c.t {
					for j := range c.n {
						y := 0.0
						for k := range c.k {
							y += x[i*c.k+k] * w[j*c.k+k]
						}
						at := i*c.n + j
						if off := out.Tensor.Float64(at) - y; off > out.Err[at] || -off > out.Err[at] {
							t.Fatalf("%s %s %v: element %d is %v, want %v ±%v", fn, spec, c, at, out.Tensor.Float64(at),
								y, out.Err[at])
						}
					}
				}
			}
		}
	}
}

// TestMLP evaluates a sharded layer that uses only values, for every number of ranks.
func TestMLP(t *testing.T) {
	const src = `
dim T = 8
dim H = 6
dim F = 12
dim R = 2
mesh tp[R]
func mlp(%x: f32[T/tp, H], %w1: f32[F/tp, H], %b1: f32[F/tp], %w2: f32[H, F/tp], %b2: f32[H]) -> f32[T/tp, H] {
  %h = linear %x, %w1, %b1
  %g = relu %h
  %y = linear %g, %w2, %b2
  return %y
}`
	var first []float64
	for _, ranks := range []int{1, 2, 4} {
		res := evaluate(t, src, ir.Binding{Ranks: ranks}, "ints:5")
		if !res.Outputs[0].Exact {
			t.Errorf("%d ranks: not exact", ranks)
		}
		if first == nil {
			first = mlpByHand(t, bind(t, src, ir.Binding{Ranks: ranks}))
		}
		demand(t, res, first...)
	}
}

func mlpByHand(t *testing.T, b *ir.Bound) []float64 {
	in := inputsFor(t, b, "ints:5")
	x, w1, b1, w2, b2 := floats(in["x"]), floats(in["w1"]), floats(in["b1"]), floats(in["w2"]), floats(in["b2"])
	const T, H, F = 8, 6, 12
	var out []float64
	for i := range T {
		for o := range H {
			y := b2[o]
			for f := range F {
				h := b1[f]
				for k := range H {
					h += x[i*H+k] * w1[f*H+k]
				}
				y += max(h, 0) * w2[o*F+f]
			}
			out = append(out, y)
		}
	}
	return out
}

// TestCollectives compares every collective on local memory with a table of results.
func TestCollectives(t *testing.T) {
	// Rank r of 2 holds x[r]: rank 0 has 1 2 3 4, rank 1 has 10 20 30 40.
	for _, c := range []struct {
		name, local, stmt, result string
		want                      []float64
	}{
		{"all_reduce", "[4]", "all_reduce %x into %y, over=tp, op=sum", "[4]", []float64{11, 22, 33, 44}},
		{"max", "[4]", "all_reduce %x into %y, over=tp, op=max", "[4]", []float64{10, 20, 30, 40}},
		{"min", "[4]", "all_reduce %x into %y, over=tp, op=min", "[4]", []float64{1, 2, 3, 4}},
		{"avg", "[4]", "all_reduce %x into %y, over=tp, op=avg", "[4]", []float64{5.5, 11, 16.5, 22}},
		{"all_gather", "[8]", "all_gather %x into %y, over=tp", "[8]", []float64{1, 2, 3, 4, 10, 20, 30, 40}},
		{"reduce_scatter", "[2]", "reduce_scatter %x into %y, over=tp, op=sum", "[4/tp]", []float64{11, 22, 33, 44}},
		{"all_to_all", "[4]", "all_to_all %x into %y, over=tp", "[8/tp]", []float64{1, 2, 10, 20, 3, 4, 30, 40}},
		{"broadcast", "[4]", "broadcast %x into %y, over=tp, root=1", "[4]", []float64{10, 20, 30, 40}},
		{"scatter", "[2]", "scatter %x into %y, over=tp, root=1", "[4/tp]", []float64{10, 20, 30, 40}},
		{"permute", "[4]", "permute %x into %y, over=tp, to=(rank(tp) + 1) mod 2, from=(rank(tp) + 1) mod 2", "[8/tp]",
			[]float64{10, 20, 30, 40, 1, 2, 3, 4}},
		{"reduce", "[4]", "fill value=0 into %y\n  reduce %x into %y, over=tp, op=sum, root=1", "[8/tp]",
			[]float64{0, 0, 0, 0, 11, 22, 33, 44}},
		{"gather", "[8]", "fill value=0 into %y\n  gather %x into %y, over=tp, root=0", "[16/tp]",
			[]float64{1, 2, 3, 4, 10, 20, 30, 40, 0, 0, 0, 0, 0, 0, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := fmt.Sprintf("mesh tp[2]\nfunc f(%%x: f32[8/tp]) -> f32%s {\n  %%y = alloc f32%s\n  %s\n  return %%y\n}\n", c.result, c.local, c.stmt)
			b := bind(t, src, ir.Binding{})
			x := tensorOf(t, ir.F32, []int64{8}, 1, 2, 3, 4, 10, 20, 30, 40)
			res, err := Run(context.Background(), b, map[string]*tensor.Tensor{"x": x}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			demand(t, res, c.want...)
			if !res.Outputs[0].Exact {
				t.Errorf("not certified exact: %v", res.Outputs[0].Err)
			}
		})
	}
}

// TestSameMeaning evaluates small programs that move their input but must return it unchanged.
func TestSameMeaning(t *testing.T) {
	for name, body := range map[string]string{
		"put around a ring": `
  %b = alloc f32[2, 3] symmetric
  %c = counter
  put %x into %b at tp[(rank(tp) + 1) mod 4]
  signal %c at tp[(rank(tp) + 1) mod 4]
  wait %c >= 1
  %y = alloc f32[2, 3]
  %d = alloc f32[2, 3] symmetric
  copy %b into %d
  barrier over=tp
  get %d at tp[(rank(tp) + 1) mod 4] into %y
  return %y`,
		"send and recv in a group": `
  %y = alloc f32[2, 3]
  %z = alloc f32[2, 3]
  group {
    send %x to tp[(rank(tp) + 1) mod 4]
    recv %z from tp[(rank(tp) + 3) mod 4]
  }
  group {
    recv %y from tp[(rank(tp) + 1) mod 4]
    send %z to tp[(rank(tp) + 3) mod 4]
  }
  return %y`,
		"transposed, reshaped, selected": `
  %t = transpose %x
  %u = alloc f32[3, 2]
  copy %t into %u
  %r = reshape %u, shape=(6)
  %y = alloc f32[2, 3]
  for %i in 0..3 {
    for %j in 0..2 {
      %from = slice %r, axis=0, %i * 2 + %j..%i * 2 + %j + 1
      %row = select %y, axis=0, index=%j
      %to = slice %row, axis=0, %i..%i + 1
      copy %from into %to
    }
  }
  return %y`,
		"whole and back": `
  %g: f32[8, 3] = reshard %x
  %y: f32[8/tp, 3] = reshard %g
  %h = all_gather %y, over=tp
  return %h`,
		"stream loop": `
  %y = alloc f32[2, 3]
  %z = alloc f32[2, 3]
  copy %x into %z
  for %i in 0..2 stream(2) {
    %from = chunk %z, axis=0, %i of 2
    %to = chunk %y, axis=0, %i of 2
    copy %from into %to
  }
  return %y`,
		"event": `
  %s = stream
  %e = event[2]
  %y = alloc f32[2, 3]
  record %e[1]
  on %s {
    wait %e[1]
    copy %x into %y
    record %e[0]
  }
  wait %e[0]
  return %y`,
		"counted from another stream": `
  %s = stream
  %c = counter[2]
  %y = alloc f32[2, 3]
  on %s {
    wait main
    wait %c[1] >= 2
    copy %x into %y
  }
  signal %c[1] at tp[rank(tp)]
  signal %c[1] at tp[rank(tp)]
  wait %s
  return %y`,
		"called twice": `
  %a = call twice %x
  %b = call half %a
  return %b`,
		"neg twice in halves": `
  %y = alloc f32[2, 3]
  copy %x into %y
  for %i in 0..2 { neg %y into %y }
  if rank(tp) mod 2 == 0 { neg %y into %y } else { scale %y, by=-1 into %y }
  neg %y into %y
  return %y`,
	} {
		t.Run(name, func(t *testing.T) {
			src := `mesh tp[4]
func twice(%x: f32[8/tp, 3]) -> f32[8/tp, 3] {
  %y = alloc f32[2, 3]
  add %x, %x into %y
  return %y
}
func half(%x: f32[8/tp, 3]) -> f32[8/tp, 3] {
  %y = scale %x, by=0.5
  return %y
}
func f(%x: f32[8/tp, 3]) -> f32[8/tp, 3] {` + body + "\n}\n"
			b := bind(t, src, ir.Binding{})
			in := inputsFor(t, b, "arange")
			res, err := Run(context.Background(), b, in, Options{})
			if err != nil {
				t.Fatal(err)
			}
			demand(t, res, floats(in["x"])...)
		})
	}
}

// TestPartial tests a partial sum: a rank's own contribution to it, and the operations that may be applied to
// contributions.
func TestPartial(t *testing.T) {
	const src = `mesh tp[2]
func f(%x: f32[2, 4/tp], %w: f32[1, 4/tp]) -> f32[2, 1] {
  %p: f32[2, 1] partial(tp, sum) = linear %x, %w
  %n = neg %p
  %q = scale %n, by=-2
  %s = sub %q, %p
  %y = alloc f32[2, 1]
  all_reduce %s into %y, over=tp, op=sum
  return %y
}
func g(%x: f32[2, 4/tp], %w: f32[1, 4/tp]) -> f32[2/tp, 1] {
  %p: f32[2, 1] partial(tp, sum) = linear %x, %w
  %y = alloc f32[1, 1]
  %z = alloc f32[2, 1]
  copy %p into %z
  %part = select %z, axis=0, index=rank(tp)
  %two = reshape %part, shape=(1, 1)
  copy %two into %y
  return %y
}
func h(%x: f32[2, 4/tp], %w: f32[1, 4/tp]) -> f32[2] {
  %m = max %x, axis=1
  return %m
}`
	in := map[string]*tensor.Tensor{
		"x": tensorOf(t, ir.F32, []int64{2, 4}, 1, 2, 3, 4, 8, 7, 6, 5),
		"w": tensorOf(t, ir.F32, []int64{1, 4}, 1, 10, 100, 1000)}
	for fn, want := range map[string][]float64{"f": {4321, 5678}, "g": {21, 5600}, "h": {4, 8}} {
		res, err := Run(context.Background(), bind(t, src, ir.Binding{Func: fn}), in, Options{})
		if err != nil {
			t.Fatal(err)
		}
		demand(t, res, want...)
	}
}

// TestSubMesh places values on sub-meshes. The ranks outside of a sub-mesh hold no part of its values.
func TestSubMesh(t *testing.T) {
	const src = `
mesh world4[4]
mesh a[2] = {0 2}
mesh b[2] = {1 3}
func f(%x: f32[4/a] @a) -> f32[4/b] @b {
  %y = relu %x
  %z: f32[4/b] @b = reshard %y
  return %z
}`
	b := bind(t, src, ir.Binding{})
	in := map[string]*tensor.Tensor{"x": tensorOf(t, ir.F32, []int64{4}, 1, -2, 3, -4)}
	res, err := Run(context.Background(), b, in, Options{})
	if err != nil {
		t.Fatal(err)
	}
	demand(t, res, 1, 0, 3, 0)
}

// TestInout writes a parameter in place, and reads it after the results.
func TestInout(t *testing.T) {
	const src = `mesh tp[2]
func f(%x: inout i32[4/tp], %y: i32[4/tp]) -> i32[4/tp] {
  %old = alloc i32[2]
  copy %x into %old
  mul %x, %y into %x
  return %old
}`
	in := map[string]*tensor.Tensor{
		"x": tensorOf(t, ir.I32, []int64{4}, 1, 2, 3, 1<<30),
		"y": tensorOf(t, ir.I32, []int64{4}, 5, 6, 7, 4)}
	res, err := Run(context.Background(), bind(t, src, ir.Binding{}), in, Options{})
	if err != nil {
		t.Fatal(err)
	}
	demand(t, res, 1, 2, 3, 1<<30)
	x := res.Output("x")
	if x == nil || !x.Exact {
		t.Fatal("no exact output x")
	}
	if got := fmt.Sprint(floats(x.Tensor)); got != "[5 12 21 0]" {
		t.Errorf("x is %s: i32 wraps", got)
	}
}

// TestCallsResultsStayThere checks that the results of a called function are not returned by a caller that returns
// nothing.
func TestCallsResultsStayThere(t *testing.T) {
	const src = `func twice(%x: i32[2]) -> i32[2] {
  %y = add %x, %x
  return %y
}
func f(%x: i32[2], %acc: inout i32[2]) {
  %y = call twice %x
  add %acc, %y into %acc
}`
	in := map[string]*tensor.Tensor{
		"x":   tensorOf(t, ir.I32, []int64{2}, 1, 2),
		"acc": tensorOf(t, ir.I32, []int64{2}, 10, 20)}
	res, err := Run(context.Background(), bind(t, src, ir.Binding{}), in, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Outputs) != 1 || res.Outputs[0].Name != "acc" {
		t.Fatalf("outputs: %+v", res.Outputs)
	}
	demand(t, res, 12, 24)
}

func BenchmarkLinear(b *testing.B) {
	const src = `func f(%x: bf16[256, 128], %w: bf16[512, 128]) -> bf16[256, 512] {
  %y = linear %x, %w
  return %y
}`
	bound := bind(b, src, ir.Binding{})
	in := inputsFor(b, bound, "rand:1")
	for b.Loop() {
		if _, err := Run(context.Background(), bound, in, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
