package eval

import (
	"fmt"
	"math"
	"testing"

	"hocket.example/hocket/ir"
)

// TestShardings evaluates functions of values over meshes of several sizes, and checks that layouts do not change the
// results.
func TestShardings(t *testing.T) {
	for name, fn := range map[string]string{
		"matmul": `(%a: f32[2, 4/dp, 8/tp], %b: f32[2, 8/tp, 4]) -> f32[2, 4/dp, 4/tp] {
  %y = matmul %a, %b
  return %y`,
		"matmul transposed": `(%a: f32[2, 8/tp, 4/dp], %b: f32[2, 4, 8/tp]) -> f32[2, 4/dp, 4] {
  %y = matmul %a, %b, ta=true, tb=true
  return %y`,
		"matmul of one matrix": `(%a: f32[2/dp, 4, 8], %b: f32[8/(dp,tp), 4]) -> f32[2/dp, 4, 4] {
  %y = matmul %a, %b
  return %y`,
		"sum and max": `(%a: f32[4/dp, 8/tp, 2], %b: f32[8/tp]) -> (f32[4/dp], f32[2], f32[8/tp, 2]) {
  %m = mul %a, %a
  %s = sum %m, axis=(1, 2)
  %x = max %a, axis=(0, 1)
  %z = sum %a, axis=0
  return %s, %x, %z`,
		"partial on its way": `(%a: f32[4, 8/(dp,tp)], %b: f32[4, 8/(tp,dp)]) -> (f32[4/dp, 4/tp], f32[4]) {
  %p = linear %a, %b
  %n = neg %p
  %q = sub %n, %p
  %t = transpose %q
  %r = reshape %t, shape=(16)
  %u = reshape %r, shape=(4, 4)
  %c = slice %u, axis=1, 1..3
  %s = sum %c, axis=1
  return %u, %s`,
		"two reductions": `(%a: f32[4, 8/(dp,tp)], %b: f32[4, 8/(dp,tp)]) -> f32[4/tp, 4] {
  %p = linear %a, %b
  %q = all_reduce %p, over=dp, op=sum
  %r = reduce_scatter %q, over=tp, op=sum, axis=0
  return %r`,
		"layouts by collectives": `(%a: f32[8/(dp,tp), 4]) -> f32[8, 4/tp] {
  %g = all_gather %a, over=tp
  %h: f32[8/(dp,tp), 4] = reshard %g
  %i = all_to_all %h, over=tp, split=1, concat=0
  %j = all_gather %i, over=dp
  return %j`,
		"bias after the reduction": `(%a: f32[4, 8/tp], %w: f32[4/dp, 8/tp], %b: f32[4]) -> f32[4, 4/dp] {
  %y = linear %a, %w, %b
  %z = add %y, %b
  return %z`,
		"contributions of a transposed": `(%a: f32[8/tp, 4], %b: f32[8/tp, 6]) -> f32[4, 6] {
  %p = matmul %a, %b, ta=true
  %l = copy %p
  %c = local %l
  %q: f32[4, 6] partial(tp, sum) = claim %c
  return %q`,
		"contributions of b transposed": `(%a: f32[4, 8/tp], %b: f32[6, 8/tp]) -> f32[4, 6] {
  %p = matmul %a, %b, tb=true
  %c = local %p
  %q: f32[4, 6] partial(tp, sum) = claim %c
  return %q`,
		"claimed contributions": `(%a: f32[4, 8/tp], %w: f32[4, 8/tp]) -> f32[4/tp, 4] {
  %b = alloc f32[4, 4]
  linear %a, %w into %b
  %p: f32[4, 4] partial(tp, sum) = claim %b
  %q = scale %p, by=3
  return %q`,
		"claimed and seen by others": `(%a: f32[8/tp]) -> f32[8/tp] {
  %b = alloc f32[8 * 1]
  let %rows = floordiv(8, size(tp))
  %mine = slice %b, axis=0, 0..%rows
  copy %a into %mine
  %c = alloc f32[floordiv(8, size(tp))]
  scale %a, by=2 into %c
  %v: f32[8/tp] = claim %c
  %w: f32[8] = reshard %v
  %x = relu %w
  return %x`,
		"integers": `(%a: i32[4, 8/tp], %w: i64[8/dp, 8]) -> (i32[4], i64[8, 8/tp]) {
  %s = sum %a, axis=1
  %p = matmul %w, %w, ta=true
  return %s, %p`,
		"quotients, minima, repeats": `(%a: f32[4/dp, 8/tp], %b: f32[8]) -> (f32[4/tp, 8], f32[8/tp], f32[2/dp, 4/tp, 8], f32[4, 8/tp, 2]) {
  %two: f32[8] = fill value=2
  %q = div %a, %two
  %m = min %a, axis=0
  %x: f32[2/dp, 4/tp, 8] = broadcast %b, shape=(2, 4, 8)
  %r = reshape %a, shape=(4, 8, 1)
  %y = broadcast %r, shape=(4, 8, 2)
  return %q, %m, %x, %y`,
		"repeated contributions": `(%a: f32[4, 8/(dp,tp)], %b: f32[1, 8/(dp,tp)]) -> (f32[2, 4, 3], f32[4/tp, 3]) {
  %p = linear %a, %b
  %x = broadcast %p, shape=(2, 4, 3)
  %i = broadcast %p, shape=(4, 3)
  return %x, %i`,
		"casts": `(%a: bf16[4, 8/tp]) -> (f64[4], i32[4, 8]) {
  %w: f64[4, 8/tp] = cast %a
  %s = sum %w, axis=1
  %i: i32[4, 8/tp] = cast %a
  return %s, %i`,
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, mesh := range [][2]int{{1, 1}, {2, 2}, {1, 4}, {2, 1}} {
				src := fmt.Sprintf("mesh dp[%d] tp[%d]\nfunc f%s\n}\n", mesh[0], mesh[1], fn)
				res := evaluate(t, src, ir.Binding{}, "ints:9")
				var got []string
				for _, o := range res.Outputs {
					if !o.Exact {
						t.Errorf("%v: %s is not certified exact", mesh, o.Name)
					}
					got = append(got, fmt.Sprint(o.Tensor, floats(o.Tensor)))
				}
				if want == nil {
					want = got
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("mesh %v:\n%v\nbut on one rank\n%v", mesh, got, want)
				}
			}
		})
	}
}

// TestMeans checks that a mean over a split dimension equals the mean of the ranks' means within the evaluator's bound.
func TestMeans(t *testing.T) {
	for _, dt := range []string{"f32", "bf16"} {
		for _, mesh := range [][2]int{{1, 1}, {2, 2}, {1, 4}, {2, 1}} {
			src := fmt.Sprintf(`mesh dp[%d] tp[%d]
func f(%%a: %s[4/dp, 8/tp, 3]) -> (%[3]s[3], %[3]s[8/tp, 3], %[3]s[4/tp, 8]) {
  %%x = mean %%a, axis=(0, 1)
  %%p = mean %%a, axis=(1, 0)
  %%q = all_reduce %%p, over=dp, op=avg
  %%r = all_reduce %%q, over=tp, op=avg
  %%y = mean %%a, axis=0
  %%z = mean %%a, axis=2
  %%d = sub %%x, %%x
  %%s = add %%d, %%r
  return %%s, %%y, %%z
}`, mesh[0], mesh[1], dt)
			b := bind(t, src, ir.Binding{})
			in := inputsFor(t, b, "rand:3")
			res, err := Run(t.Context(), b, in, Options{})
			if err != nil {
				t.Fatal(err)
			}
			a, sums := floats(in["a"]), make([]float64, 3)
			for i, v := range a {
				sums[i%3] += v / 32
			}
			for i, got := range floats(res.Outputs[0].Tensor) {
				if off := math.Abs(got - sums[i]); off > res.Outputs[0].Err[i] {
					t.Errorf("%s, mesh %v: mean %d is %v ±%v, want %v", dt, mesh, i, got, res.Outputs[0].Err[i],
						sums[i])
				}
			}
		}
	}
}

// TestPartialIsRounded checks that contributions in bf16 are rounded before they are added. Therefore sums above 256
// are not certified, even if bf16 represents them exactly.
func TestPartialIsRounded(t *testing.T) {
	const src = `mesh tp[4]
dim K = 2048
func f(%x: bf16[1, K/tp], %w: bf16[1, K/tp]) -> bf16[1, 1] {
  %y = linear %x, %w
  return %y
}`
	for k, exact := range map[int64]bool{4: true, 256: true, 260: false, 2048: false} {
		b := bind(t, src, ir.Binding{Dims: map[string]int64{"K": k}})
		in := inputsFor(t, b, "ints:1")
		for _, x := range in {
			for i := range x.Len() {
				x.SetFloat64(i, 1)
			}
		}
		res, err := Run(t.Context(), b, in, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if o := res.Outputs[0]; o.Exact != exact || exact && o.Tensor.Float64(0) != float64(k) {
			t.Errorf("K=%d: %v ±%v", k, o.Tensor.Float64(0), o.Err)
		}
	}
}
