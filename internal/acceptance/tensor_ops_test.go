package acceptance_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// opPrograms use each op that has no separate acceptance case, on values whose layouts require communication, and on
// buffers. DT stands for an element type. The extents are divisible by the sizes of all meshes in TestTensorOps.
var opPrograms = map[string]string{
	"pointwise": `(%a: DT[8/dp, 8/tp], %b: DT[8/tp]) -> (DT[8/dp, 8], DT[8/tp, 8], DT[8, 8/(dp,tp)]) {
  %e = exp %a
  %s = silu %e
  %d = div %s, %e
  %p = mul %b, %b
  %q = add %p, %p
  %one: DT[8] = fill value=1
  %r = add %q, %one
  %i = rsqrt %r
  %m = mul %a, %i
  %g = silu %m
  return %d, %m, %g`,
	"reductions": `(%a: DT[8/dp, 8/tp, 3]) -> (DT[8/tp, 3], DT[3], DT[8/dp], DT[8/tp], DT[3]) {
  %i = min %a, axis=0
  %x = mean %a, axis=(0, 1)
  %y = mean %a, axis=(1, 2)
  %z = max %a, axis=(0, 2)
  %p = mean %a, axis=0
  %q = all_reduce %p, over=dp, op=avg
  %w = mean %q, axis=0
  return %i, %x, %y, %z, %w`,
	"shapes": `(%a: DT[4/dp, 1, 8/tp], %b: DT[4, 3, 8/(dp,tp)]) -> (DT[4/dp, 3, 8], DT[4, 11, 8/tp], DT[8/dp, 4, 1, 8/tp]) {
  %x = broadcast %a, shape=(4, 3, 8)
  %y = concat %b, %x, %b, %a, %a, axis=1
  %z: DT[8/dp, 4, 1, 8/tp] = broadcast %a, shape=(8, 4, 1, 8)
  return %x, %y, %z`,
	"rows": `(%a: DT[8/dp, 4, 8/tp], %w: DT[8/tp], %b: DT[8/(dp,tp)]) -> (DT[8/dp, 4, 8], DT[8/dp, 4/tp, 8], DT[8/dp, 4, 8/tp], DT[8, 4, 8/tp]) {
  %s = softmax %a
  %t = softmax %a, axis=0
  %r = rms_norm %a, %w
  %l = layer_norm %a, %w, %b, eps=0.01
  return %s, %l, %r, %t`,
	"one matrix for a batch": `(%a: DT[3, 4/dp, 8/tp], %b: DT[8/tp, 4], %c: DT[2, 3, 8/tp, 4/dp], %d: DT[8/dp, 8/tp]) -> (DT[3, 4/dp, 4], DT[2, 3, 4/dp, 8/tp], DT[3, 8/tp, 4]) {
  %x = matmul %a, %b
  %y = matmul %c, %d, ta=true, tb=true
  %t = matmul %a, %x, ta=true
  return %x, %y, %t`,
	"attention": `(%q: DT[2/dp, 4, 8/tp, 3], %k: DT[2, 6/dp, 4/tp, 3], %v: DT[2, 6, 4, 3], %one: DT[2, 6, 1, 3]) -> (DT[2/dp, 4, 8/tp, 3], DT[2/dp, 4, 8, 3], DT[2, 4, 8/tp, 3]) {
  %x = attention %q, %k, %v
  %y = attention %q, %k, %v, causal=true, scale=0.25
  %z = attention %q, %one, %one, causal=true
  return %x, %y, %z`,
	"windows": `(%q: DT[2/dp, 4, 8/tp, 3], %k: DT[2, 6/dp, 4/tp, 3], %n: i32[2/dp], %m: DT[2, 4/tp, 6/dp], %one: DT[4/dp, 6]) -> (DT[2/dp, 4, 8/tp, 3], DT[2/dp, 4, 8, 3], DT[2/dp, 4, 8/tp, 3], DT[2, 4, 8/tp, 3]) {
  %l = clamp %n, lo=4, hi=6
  %x = attention %q, %k, %k, causal=true, window=3
  %y = attention %q, %k, %k, %l, causal=true, window=2, softcap=0.5
  %z = attention %q, %k, %k, %l, %m, causal=true
  %u = attention %q, %k, %k, %one
  return %x, %y, %z, %u`,
	"rope": `(%x: DT[2/dp, 4, 8/tp, 8], %y: DT[4/(dp,tp), 1, 9], %at: i32[4/tp], %freqs: f32[4/tp]) -> (DT[2/dp, 4, 8/tp, 8], DT[4/dp, 1, 9], DT[2, 4, 8, 8]) {
  %a = rope %x, %at
  %b = rope %y, %at, %freqs, scale=0.5
  %c = rope %a, %at, %freqs
  return %a, %b, %c`,
	"embedding": `(%ids: i32[4/dp, 4], %more: i64[8/tp], %table: DT[8/tp, 4/dp], %rows: DT[8/(dp,tp), 3], %all: DT[8, 4]) -> (DT[4, 4/tp, 4], DT[8/(dp,tp), 3], DT[4/dp, 4, 4/tp]) {
  %x = embedding %ids, %table
  %y = embedding %more, %rows
  %z = embedding %ids, %all
  return %x, %y, %z`,
	"router": `(%x: DT[8/dp, 4, 8/tp], %ids: i32[8/dp, 8/tp]) -> (DT[8/dp, 4, 3], i32[8, 4, 3], i32[8/dp, 8/tp], i32[8/tp], DT[8/dp, 4, 3]) {
  %v = topk %x, k=3
  %i = argtopk %x, k=3
  %s = argsort %ids
  %n = bincount %ids, n=8
  %t = take_along %x, %i
  return %v, %i, %s, %n, %t`,
	"experts": `(%x: DT[16/dp, 8/tp], %c: DT[4, 8/tp, 8], %r: DT[4, 8, 8/tp], %e: DT[4/dp, 8, 8/tp], %ids: i32[16/tp]) -> (DT[16/dp, 8/tp], DT[16, 8], DT[16/tp, 8]) {
  %n = bincount %ids, n=4
  %a = grouped_linear %x, %c, %n
  %b = grouped_linear %a, %r, %n
  %z = grouped_linear %x, %e, %n
  return %a, %b, %z`,
	"indices": `(%a: DT[8/dp, 8/tp]) -> (DT[8/dp, 8/tp], DT[8/dp, 8], DT[8]) {
  %i: DT[8/dp, 8/tp] = iota
  %j: DT[8/tp, 8/dp] = iota axis=0, start=-3
  %x = add %a, %i
  %y = add %j, %a
  %l = alloc DT[8]
  iota into %l, start=2
  return %x, %y, %l`,
	"into buffers": `(%a: DT[8/dp, 8/tp], %ids: i32[8/dp], %table: DT[8/tp, 8]) -> (DT[8/dp, 8/tp], DT[8/dp, 8/tp], DT[8/(dp,tp), 8], DT[8/dp, 8]) {
  let %n = size(tp)
  %y = alloc DT[8/dp, 8/tp]
  %t = alloc DT[8/dp, 8/tp]
  exp %a into %t
  rsqrt %t into %t
  div %a, %t into %t
  silu %t into %y
  softmax %y, axis=1 into %t
  %c = alloc DT[16/dp, 8/tp]
  concat %t, %y into %c
  %z = alloc DT[8/dp, 8/tp]
  %pairs = reshape %c, shape=(2, floordiv(8, size(dp)), floordiv(8, size(tp)))
  reduce_slots %pairs, axis=0, 0..1 into %z
  reduce_slots %pairs, axis=0, 1..2 into %z, resume=true
  %e = alloc DT[8/dp, 8]
  embedding %ids, %table into %e, first=floordiv(8, size(tp)) * rank(tp), of=8
  %sum = alloc DT[8/dp, 8]
  all_reduce %e into %sum, over=tp, op=sum
  %mine = chunk %sum, axis=0, rank(tp) of %n
  %part = alloc DT[8/(dp,tp), 8]
  copy %mine into %part
  %g = alloc DT[8/dp, 8]
  %q3 = reshape %sum, shape=(floordiv(8, size(dp)), 2, 4)
  %g3 = reshape %g, shape=(floordiv(8, size(dp)), 2, 4)
  attention %q3, %q3, %q3 into %g3, causal=true
  return %y, %z, %part, %g`,
	"8-bit types": `(%a: DT[8/dp, 512/tp], %w: DT[16/tp, 512], %v: DT[16, 512/tp]) -> (f32[8/dp, 16/tp], f16[8, 16], f8e4m3[512, 8/dp], f8e5m2[16/dp, 512/tp], f32[]) {
  %sa = scales %a, block=1
  %qa = quantize %a, %sa
  %sw = scales %w
  %qw = quantize %w, %sw
  %y: f32[8/dp, 16/tp] = linear %qa, %qw, %sa, %sw
  %sb = scales %a, block=(1, 128)
  %qb = quantize %a, %sb
  %sv = scales %v, block=(128, 128)
  %qv = quantize %v, %sv
  %z: f16[8, 16] = linear %qb, %qv, %sb, %sv
  %t = transpose %qa
  %wide: DT[8/dp, 512/tp] = cast %qb
  %sn = scales %wide, max=57344
  %n: f8e5m2[8/dp, 512/tp] = cast %a
  %nn = concat %n, %n, axis=0
  return %y, %z, %t, %nn, %sn`,
}

// TestTensorOps runs each program on meshes of several shapes, concurrently and under schedules, and compares the
// results with those that the evaluator computes from the original text.
func TestTensorOps(t *testing.T) {
	meshes := [][2]int{{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 4}}
	for name, text := range opPrograms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, dt := range []ir.DType{ir.F32, ir.BF16, ir.F16, ir.F64} {
				for k, mesh := range meshes {
					if testing.Short() && (i+k)%4 != 0 {
						continue
					}
					src := fmt.Sprintf("mesh dp[%d] tp[%d]\nfunc f%s\n}\n", mesh[0], mesh[1],
						strings.ReplaceAll(text, "DT", dt.String()))
					runTensorOps(t, src)
				}
			}
		})
	}
}

// TestTensorOpsOnSubMesh places results of ops on two of four ranks.
func TestTensorOpsOnSubMesh(t *testing.T) {
	runTensorOps(t, `mesh tp[4]
mesh d[2] = {3 1}
func f(%ids: i32[6], %table: f32[8/d, 4] @d, %w: f32[4/tp], %q: f32[2, 4/tp, 4]) -> (f32[6, 4], f32[12, 4/tp], f32[2, 4/d, 4] @d) {
  %x = embedding %ids, %table
  %y = rms_norm %x, %w
  %z = softmax %y, axis=0
  %c = concat %z, %y
  %k: f32[2, 4/d, 4] @d = reshard %q
  %a = attention %k, %q, %k
  return %z, %c, %a
}`)
}

func runTensorOps(t *testing.T, src string) {
	t.Helper()
	ctx := context.Background()
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := hocket.Parse("ops.hkt", src)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{}}
	ports, err := model.Inputs(nil)
	if err != nil {
		t.Fatal(err)
	}
	for salt, port := range ports {
		x := ints(salt, 100, port.Shape...)
		for i := range x.v {
			if x.v[i] /= 64; port.DType.IsInt() {
				x.v[i] = float64(int(math.Abs(x.v[i]*64)) % 8) // valid ids
			}
		}
		if args.In[port.Name], err = hocket.FromFloats(port.DType, x.v, port.Shape...); err != nil {
			t.Fatal(err)
		}
	}
	bounded(t, src, args)
	ref, err := model.Reference(ctx, args)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	rep, err := model.Run(ctx, args)
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	if c := ref.Compare(rep); c.Err() != nil {
		t.Fatalf("%v\n%s", c.Err(), src)
	}
	err = model.Explore(ctx, []hocket.Args{args, args}, hocket.ExploreOptions{Schedules: 2},
		func(_ int64, reports []*hocket.Report) error {
			return ref.Compare(reports[1]).Err()
		})
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
}

// bounded checks that the evaluator has a finite error bound for every element; otherwise the
// comparison would find no errors.
func bounded(t *testing.T, src string, args hocket.Args) {
	t.Helper()
	prog, _ := ir.Parse("ops.hkt", src)
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	b, ds := ir.Bind(info, ir.Binding{})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	in := map[string]*tensor.Tensor{}
	for name, x := range args.In {
		in[name] = (*tensor.Tensor)(x)
	}
	res, err := eval.Run(context.Background(), b, in, eval.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range res.Outputs {
		for i, e := range o.Err {
			if y := o.Tensor.Float64(int64(i)); !(e <= 0.25*(1+math.Abs(y))) {
				t.Fatalf("element %d of %%%s is %v ±%v\n%s", i, o.Name, y, e, src)
			}
		}
	}
}

// TestSlotsSummedAsTheyArrive is a reduce-scatter written as explicit statements. The slots are added in rank order, in
// f32, each as soon as a peer has put its block there. The sum is rounded at the end.
func TestSlotsSummedAsTheyArrive(t *testing.T) {
	const src = `mesh tp[4]

// Sums the blocks that peers put into slots, in rank order, as they arrive.
func f(%x: bf16[16, 8/tp], %w: bf16[6, 8/tp]) -> bf16[16/tp, 6] {
  %s = stream
  %slots = alloc bf16[size(tp), 16/tp, 6] symmetric
  %here = counter[size(tp)]
  %acc = alloc f32[16/tp, 6] zero
  %y = alloc bf16[16/tp, 6]
  barrier over=tp
  on %s { wait main }
  for %i in 1..size(tp) {
    let %d = (rank(tp) + %i) mod size(tp)
    %rows = chunk %x, axis=0, %d of size(tp)
    %part = linear %rows, %w
    on %s {
      wait main
      %to = select %slots, axis=0, index=rank(tp)
      put %part into %to at tp[%d]
      signal %here[rank(tp)] at tp[%d]
    }
  }
  %own = select %slots, axis=0, index=rank(tp)
  %rows2 = chunk %x, axis=0, rank(tp) of size(tp)
  linear %rows2, %w into %own
  for %k in 0..size(tp) {
    if %k != rank(tp) {
      wait %here[%k] >= 1
    }
    reduce_slots %slots, axis=0, %k..%k + 1 into %acc, resume=true
  }
  cast %acc into %y
  wait %s
  return %y
}
`
	testCase{src: src, runs: []map[string]tens{
		{"x": ints(1, 9, 16, 8), "w": ints(2, 9, 6, 8)}, {"x": ints(3, 9, 16, 8), "w": ints(4, 9, 6, 8)},
	}, want: func(in map[string]tens) tens {
		out := linear(in["x"], in["w"], tens{})
		for i := range out.v {
			out.v[i] = tensor.Round(ir.BF16, out.v[i])
		}
		return out
	}}.check(t)
}
