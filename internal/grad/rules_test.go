package grad_test

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/ir"
)

// ruleCases holds functions whose last statement is the operation that is tested. Parameters whose names begin with p
// are positive.
var ruleCases = []struct {
	name string
	ops  []ir.Op
	src  string
}{
	{"linear", []ir.Op{ir.OpLinear}, `func f(%x: f64[4/tp, 6], %w: f64[8/tp, 6], %b: f64[8/tp]) -> f64[4, 8/tp] {
  %y = linear %x, %w, %b
  return %y
}`},
	{"linear row", nil, `func f(%x: f64[2, 4/tp, 8], %w: f64[4, 8/tp], %b: f64[4]) -> f64[2, 4/tp, 4] {
  %y = linear %x, %w, %b
  return %y
}`},
	{"linear vector", nil, `func f(%x: f64[8], %w: f64[4, 8/tp], %b: f64[4]) -> f64[4] {
  %y = linear %x, %w, %b
  return %y
}`},
	{"matmul", []ir.Op{ir.OpMatmul}, `func f(%a: f64[4/tp, 3], %b: f64[3, 8/tp]) -> f64[4, 8/tp] {
  %y = matmul %a, %b
  return %y
}`},
	{"matmul ta", nil, `func f(%a: f64[2, 3, 4], %b: f64[2, 3, 4/tp]) -> f64[2, 4, 4/tp] {
  %y = matmul %a, %b, ta=true
  return %y
}`},
	{"matmul tb", nil, `func f(%a: f64[2, 3, 4], %b: f64[2, 5, 4/tp]) -> f64[2, 3, 5] {
  %y = matmul %a, %b, tb=true
  return %y
}`},
	{"matmul ta tb", nil, `func f(%a: f64[4/tp, 4, 3], %b: f64[4/tp, 5, 4]) -> f64[4/tp, 3, 5] {
  %y = matmul %a, %b, ta=true, tb=true
  return %y
}`},
	{"matmul one", nil, `func f(%a: f64[2, 4/tp, 3], %b: f64[5, 3]) -> f64[2, 4/tp, 5] {
  %y = matmul %a, %b, tb=true
  return %y
}`},
	{"matmul one ta", nil, `func f(%a: f64[2, 4, 3], %b: f64[5, 4]) -> f64[2, 3, 5] {
  %y = matmul %a, %b, ta=true, tb=true
  return %y
}`},
	{"cast", []ir.Op{ir.OpCast}, `func f(%x: f64[4/tp]) -> f64[4/tp] {
  %z: f64[4/tp] = cast %x
  return %z
}`},
	{"reshard", []ir.Op{ir.OpReshard}, `func f(%x: f64[4/tp, 4]) -> f64[4, 4/tp] {
  %y: f64[4, 4/tp] = reshard %x
  return %y
}`},
	{"all_reduce", []ir.Op{ir.OpAllReduce}, `func f(%x: f64[4, 8/tp], %w: f64[4, 8/tp]) -> f64[4, 4] {
  %y = linear %x, %w
  %z = all_reduce %y, over=tp, op=sum
  return %z
}`},
	{"reduce_scatter", []ir.Op{ir.OpReduceScatter}, `func f(%x: f64[4, 8/tp], %w: f64[4, 8/tp]) -> f64[4/tp, 4] {
  %y = linear %x, %w
  %z = reduce_scatter %y, over=tp, op=sum, axis=0
  return %z
}`},
	{"all_gather", []ir.Op{ir.OpAllGather}, `func f(%x: f64[4/tp, 4]) -> f64[4, 4] {
  %y = all_gather %x, over=tp, axis=0
  %z = mul %y, %y
  return %z
}`},
	{"all_to_all", []ir.Op{ir.OpAllToAll}, `func f(%x: f64[4/tp, 4]) -> f64[4, 4/tp] {
  %y = all_to_all %x, over=tp, split=1, concat=0
  %z = mul %y, %y
  return %z
}`},
	{"sum", []ir.Op{ir.OpSum}, `func f(%x: f64[4/tp, 3, 2]) -> f64[3] {
  %y = sum %x, axis=(0, 2)
  return %y
}`},
	{"sum to a scalar", nil, `func f(%x: f64[4/tp, 3]) -> f64[] {
  %s = mul %x, %x
  %y = sum %s, axis=(0, 1)
  return %y
}`},
	{"mean", []ir.Op{ir.OpMean}, `func f(%x: f64[4/tp, 3, 2]) -> f64[4/tp, 2] {
  %y = mean %x, axis=1
  return %y
}`},
	{"mean split", nil, `func f(%x: f64[4/tp, 3, 2]) -> f64[3, 2] {
  %y = mean %x, axis=0
  return %y
}`},
	{"max", []ir.Op{ir.OpMax}, `func f(%x: f64[4/tp, 3]) -> f64[3] {
  %y = max %x, axis=0
  return %y
}`},
	{"min", []ir.Op{ir.OpMin}, `func f(%x: f64[4/tp, 3]) -> f64[4/tp] {
  %y = min %x, axis=1
  return %y
}`},
	{"broadcast", []ir.Op{ir.OpExpand}, `func f(%x: f64[4/tp, 1, 2]) -> f64[3, 4/tp, 5, 2] {
  %y = broadcast %x, shape=(3, 4, 5, 2)
  return %y
}`},
	{"concat", []ir.Op{ir.OpConcat}, `func f(%a: f64[4/tp, 1], %b: f64[4/tp, 3]) -> f64[4/tp, 4] {
  %y = concat %a, %b, axis=1
  return %y
}`},
	{"slice", []ir.Op{ir.OpSlice}, `func f(%x: f64[5, 4/tp]) -> f64[2, 4/tp] {
  %y = slice %x, axis=0, 1..3
  return %y
}`},
	{"chunk", []ir.Op{ir.OpChunk}, `func f(%x: f64[5, 4/tp]) -> f64[1, 4/tp] {
  %y = chunk %x, axis=0, 2 of 3
  return %y
}`},
	{"select", []ir.Op{ir.OpSelect}, `func f(%x: f64[4/tp, 3, 2]) -> f64[4/tp, 2] {
  %y = select %x, axis=1, index=2
  return %y
}`},
	{"transpose", []ir.Op{ir.OpTranspose}, `func f(%x: f64[4/tp, 3, 2]) -> f64[2, 4/tp, 3] {
  %t = transpose %x
  %y = transpose %t, perm=(1, 0, 2)
  return %y
}`},
	{"reshape", []ir.Op{ir.OpReshape}, `func f(%x: f64[4/tp, 6]) -> f64[4/tp, 2, 3] {
  %y = reshape %x, shape=(4, 2, 3)
  return %y
}`},
	{"softmax", []ir.Op{ir.OpSoftmax}, `func f(%x: f64[3, 4/tp]) -> f64[3, 4/tp] {
  %y = softmax %x, axis=0
  return %y
}`},
	{"rms_norm", []ir.Op{ir.OpRMSNorm}, `func f(%x: f64[2, 4/tp, 6], %w: f64[6]) -> f64[2, 4/tp, 6] {
  %y = rms_norm %x, %w, eps=0.01
  return %y
}`},
	{"rms_norm vector", nil, `func f(%x: f64[6], %w: f64[6]) -> f64[6] {
  %y = rms_norm %x, %w
  return %y
}`},
	{"layer_norm", []ir.Op{ir.OpLayerNorm}, `func f(%x: f64[4/tp, 6], %w: f64[6], %b: f64[6]) -> f64[4/tp, 6] {
  %y = layer_norm %x, %w, %b
  return %y
}`},
	{"attention", []ir.Op{ir.OpAttention},
		`func f(%q: f64[3, 4/tp, 2], %k: f64[5, 4/tp, 2], %v: f64[5, 4/tp, 2]) -> f64[3, 4/tp, 2] {
  %y = attention %q, %k, %v
  return %y
}`},
	{"attention causal", nil, `func f(%q: f64[2, 3, 8/tp, 2], %k: f64[2, 4, 4/tp, 2], %v: f64[2, 4, 4/tp, 2]) -> f64[2, 3, 8/tp, 2] {
  %y = attention %q, %k, %v, causal=true, scale=0.5
  return %y
}`},
	{"attention one", nil, `func f(%q: f64[3, 4/tp, 2], %k: f64[3, 1, 2], %v: f64[3, 1, 2]) -> f64[3, 4/tp, 2] {
  %y = attention %q, %k, %v, causal=true
  return %y
}`},
	{"rope", []ir.Op{ir.OpRope}, `func f(%x: f64[3, 4/tp, 4], %at: i32[3]) -> f64[3, 4/tp, 4] {
  %y = rope %x, %at, theta=100
  return %y
}`},
	{"embedding", []ir.Op{ir.OpEmbedding}, `func f(%ids: i32[2, 3], %table: f64[8/tp, 2]) -> f64[2, 3, 2] {
  %y = embedding %ids, %table
  return %y
}`},
	{"index_add", []ir.Op{ir.OpIndexAdd}, `func f(%x: f64[2, 4/tp, 3], %ids: i32[2, 4], %w: i32[8/tp]) -> (f64[4/tp, 3], f64[4, 3]) {
  %one: i32[] = fill value=1
  %s = sub (minimum (relu %ids), (add %one, %one)), %one
  %y = index_add %x, %s, n=4
  %z: f64[4, 3] = index_add (reshape %x, shape=(8, 3)), %w, n=4
  return %y, %z
}`},
	{"index_add of nothing", nil, `func f(%x: f64[4/tp, 2]) -> f64[0, 2] {
  %s: i32[4] = fill value=-1
  %y = index_add %x, %s, n=0
  return %y
}`},
	{"tied embedding", nil, `func f(%ids: i32[3], %table: f64[8/tp, 2]) -> f64[3, 8/tp] {
  %y = embedding %ids, %table
  %z: f64[3, 8/tp] = linear %y, %table
  return %z
}`},
	{"embedding rows", nil, `func f(%ids: i32[4/tp], %table: f64[8, 2]) -> f64[4/tp, 2] {
  %y = embedding %ids, %table
  return %y
}`},
}

// elementwiseCases returns cases for each operation with a rule in its row of the Op table: one with operands of the
// same shape, and one in which the last operand is repeated.
func elementwiseCases() (list []string) {
	attrs := map[ir.Op]string{ir.OpScale: ", by=-1.5", ir.OpPow: ", by=2.5", ir.OpClamp: ", lo=-0.5, hi=0.5"}
	positive := map[ir.Op]bool{ir.OpLog: true, ir.OpSqrt: true, ir.OpRsqrt: true, ir.OpPow: true}
	for _, op := range ir.Ops() {
		info := op.Info()
		if info.Gradients == nil {
			continue
		}
		name := "x"
		if positive[op] {
			name = "p"
		}
		shapes := [][]string{{"4/tp, 3", "4/tp, 3", "4/tp, 3"}}
		if info.MaxArgs > 1 {
			shapes = append(shapes, []string{"4/tp, 3", "3", "3"}, []string{"4/tp, 3", "4, 3", ""})
		}
		for _, shape := range shapes {
			var params, args []string
			for i := range info.MaxArgs {
				params = append(params, fmt.Sprintf("%%%s%d: f64[%s]", name, i, shape[i]))
				args = append(args, fmt.Sprintf("%%%s%d", name, i))
			}
			list = append(list, fmt.Sprintf("func %s(%s) -> f64[4/tp, 3] {\n  %%y = %s %s%s\n  return %%y\n}",
				op, strings.Join(params, ", "), op, strings.Join(args, ", "), attrs[op]))
		}
	}
	return list
}

// TestRules compares the rule of every operation with central differences, on one rank and on four.
func TestRules(t *testing.T) {
	for _, c := range ruleCases {
		t.Run(c.name, func(t *testing.T) {
			away(t, "mesh tp[4]\n"+c.src, grad.Options{}, 1000)
			for _, n := range []int{1, 4} {
				agrees(t, fmt.Sprintf("mesh tp[%d]\n%s", n, c.src), hocket.GradientOptions{}, "sequential")
			}
		})
	}
	for _, src := range elementwiseCases() {
		name, _, _ := strings.Cut(strings.TrimPrefix(src, "func "), "(")
		t.Run(name, func(t *testing.T) {
			away(t, "mesh tp[4]\n"+src, grad.Options{}, 1000)
			agrees(t, "mesh tp[4]\n"+src, hocket.GradientOptions{}, "sequential")
		})
	}
}

// away compares gradients with differences, and requires that no element be near a kink.
func away(t *testing.T, src string, opts grad.Options, elements int) {
	t.Helper()
	if looked, kinks := differences(t, src, opts, 1, elements); looked == 0 || kinks > 0 {
		t.Errorf("%d of %d elements are near a kink", kinks, looked)
	}
}

// TestTiedTable checks that each rank adds only the gradients of its own rows of a table, also if the table is used
// twice.
func TestTiedTable(t *testing.T) {
	p, err := hocket.Parse("tied.hkt", `mesh tp[2]
func f(%ids: i32[6], %table: f32[64/tp, 8]) -> f32[6, 64/tp] {
  %y = embedding %ids, %table
  %z: f32[6, 64/tp] = linear %y, %table
  return %z
}
`)
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.Gradient(hocket.GradientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`%\S+: f32\[64/tp, 8\] = index_add`).MatchString(q.String()) {
		t.Errorf("index_add is not split by rows:\n%s", q)
	}
}

// TestConstantPower checks that the gradient of a power with the exponent 0 is 0 at 0, too.
func TestConstantPower(t *testing.T) {
	p, err := hocket.Parse("power.hkt", "func f(%x: f32[4]) -> f32[4] {\n  %y = pow %x, by=0\n  return %y\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.Gradient(hocket.GradientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := q.String(); !strings.Contains(text, "%dx: f32[4] = fill value=0") || strings.Contains(text, "by=-1") {
		t.Error(text)
	}
}

// TestSkippedRows checks that a row that index_add skips has a zero gradient, even if the gradients of other rows are
// infinite or NaN.
func TestSkippedRows(t *testing.T) {
	p, err := hocket.Parse("f.hkt", "func f(%x: f32[3, 1], %ids: i32[3]) -> f32[2, 1] {\n  %y = index_add %x, %ids, n=2\n  return %y\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	q, err := p.Gradient(hocket.GradientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(q, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*hocket.Tensor{}
	for name, vals := range map[string][]float64{"x": {1, 2, 3}, "ids": {-1, 0, 1}, "dy": {math.Inf(1), 5}} {
		dt, shape := ir.F32, []int64{int64(len(vals)), 1}
		if name == "ids" {
			dt, shape = ir.I32, shape[:1]
		}
		if in[name], err = hocket.FromFloats(dt, vals, shape...); err != nil {
			t.Fatal(err)
		}
	}
	rep, err := model.Run(t.Context(), hocket.Args{In: in})
	if err != nil {
		t.Fatal(err)
	}
	if got := rep.Out["dx"].Floats(); !slices.Equal(got, []float64{0, math.Inf(1), 5}) {
		t.Errorf("dx is %v, want 0, +Inf and 5", got)
	}
}
