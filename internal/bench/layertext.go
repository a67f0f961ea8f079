package bench

import (
	"fmt"
	"strings"
)

// Shape is a layer's product over all ranks: [M, K] · [N, K]ᵀ.
type Shape struct {
	M int64 `json:"m"`
	N int64 `json:"n"`
	K int64 `json:"k"`
}

// String returns "MxNxK".
func (s Shape) String() string { return fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K) }

// ParseShape reads "MxNxK".
func ParseShape(text string) (Shape, error) {
	var s Shape
	var rest string
	n, _ := fmt.Sscanf(text+" .", "%dx%dx%d %s", &s.M, &s.N, &s.K, &rest)
	if n != 4 || rest != "." || s.M < 1 || s.N < 1 || s.K < 1 || max(s.M, s.N, s.K) > 1<<24 {
		return s, fmt.Errorf("%w: %q is no shape; write MxNxK: 8192x28672x8192", ErrUsage, text)
	}
	return s, nil
}

// layerKind is a pair of a GEMM and communication.
type layerKind struct {
	name string
	// Types of the layer's tensors, as they are sharded.
	x, w, y string
	// partial says that the GEMM's result is a partial sum, which is reduced;
	// otherwise its operand is gathered.
	partial bool
	// sample is the extent of one sample of y, and the axis it is cut from.
	sample string
	axis   int
	// trips is how often each byte of what moves is sent on its way, and moves
	// how many elements that are over all ranks.
	trips float64
	moves func(Shape) int64
}

var (
	agGEMM = &layerKind{name: "ag-gemm", x: "bf16[M/tp, K]", w: "bf16[N/tp, K]", y: "bf16[M, N/tp]",
		sample: "bf16[1, N/tp]", axis: 0, trips: 1, moves: func(s Shape) int64 { return s.M * s.K }}
	gemmRS = &layerKind{name: "gemm-rs", x: "bf16[M, K/tp]", w: "bf16[N, K/tp]", y: "bf16[M/tp, N]", partial: true,
		sample: "bf16[M/tp, 1]", axis: 1, trips: 1, moves: func(s Shape) int64 { return s.M * s.N }}
	gemmAR = &layerKind{name: "gemm-ar", x: "bf16[M, K/tp]", w: "bf16[N, K/tp]", y: "bf16[M, N]", partial: true,
		sample: "bf16[M, 1]", axis: 1, trips: 2, moves: func(s Shape) int64 { return s.M * s.N }}
)

// inner is the rank of the matrices that a layer's operands are made from: x is
// a·bᵀ and w is c·dᵀ, rounded. What the caller uploads is small, then.
const inner = 16

// layerText is a program whose text repeats the layer. The operands are made on
// the devices; then the GEMM runs alone, repeatedly, on all of them; then, after
// a barrier, the layer as often. The lines of both are returned, numbered from 1.
type layerText struct {
	text   string
	alone  [2]int32 // first and last line
	layers [2]int32
}

// textOf writes the program for repeats layers. Each has an x of its own, so
// that nothing gathered serves two.
func (k *layerKind) textOf(s Shape, ranks, repeats int) layerText {
	var t layerText
	var lines []string
	add := func(format string, args ...any) int32 {
		lines = append(lines, fmt.Sprintf(format, args...))
		return int32(len(lines))
	}
	add("dim M = %d", s.M)
	add("dim N = %d", s.N)
	add("dim K = %d", s.K)
	add("mesh tp[%d]", ranks)
	first := func(typ string) string { // the type's extents but the last
		dims := strings.TrimSuffix(strings.TrimPrefix(typ, "bf16["), "]")
		return dims[:strings.Index(dims, ",")]
	}
	last := func(typ string) string {
		dims := strings.TrimSuffix(strings.TrimPrefix(typ, "bf16["), "]")
		return dims[strings.Index(dims, ",")+2:]
	}
	add("func bench(%%a: bf16[%s, %d], %%aw: bf16[M, %d], %%b: bf16[%s, %d], %%c: bf16[%s, %d], %%d: bf16[%s, %d]) -> (%s, %s) {",
		first(k.x), inner, inner, last(k.x), inner, first(k.w), inner, last(k.w), inner, k.sample, k.sample)
	add("  %%w: %s = linear %%c, %%d", k.w)
	whole := "bf16[M, " + last(k.x) + "]"
	add("  %%whole: %s = linear %%aw, %%b", whole)
	for i := range repeats {
		add("  %%x%d: %s = linear %%a, %%b", i, k.x)
	}
	product := k.y
	if k.partial {
		product = "bf16[M, N] partial(tp, sum)"
	}
	for i := range repeats {
		t.alone[1] = add("  %%g%d: %s = linear %%whole, %%w", i, product)
	}
	t.alone[0] = t.alone[1] - int32(repeats) + 1
	add("  barrier over=tp")
	for i := range repeats {
		at := k.layer(i, add)
		if i == 0 {
			t.layers[0] = at[0]
		}
		t.layers[1] = at[1]
	}
	row, col := samplePlaces(s)
	places := [2]int64{row, s.M - 1}
	if k.axis == 1 {
		places = [2]int64{col, s.N - 1}
	}
	for i, layer := range []int{0, repeats - 1} {
		add("  %%s%d = slice %%y%d, axis=%d, %d..%d", i, layer, k.axis, places[i], places[i]+1)
	}
	add("  return %%s0, %%s1")
	add("}")
	t.text = strings.Join(lines, "\n") + "\n"
	return t
}

// layer adds layer i and returns its first and last line.
func (k *layerKind) layer(i int, add func(string, ...any) int32) [2]int32 {
	if !k.partial {
		at := add("  %%y%d = linear %%x%d, %%w", i, i)
		return [2]int32{at, at}
	}
	from := add("  %%p%d = linear %%x%d, %%w", i, i)
	return [2]int32{from, add("  %%y%d: %s = reshard %%p%d", i, k.y, i)}
}

// samplePlaces returns the row and column of the first sample.
func samplePlaces(s Shape) (row, col int64) { return s.M / 3, s.N / 3 }
