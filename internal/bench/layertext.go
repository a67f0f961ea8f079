package bench

import (
	"fmt"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// Shape is a layer's product over all ranks: [M, K] · [N, K]ᵀ.
type Shape struct {
	M int64 `json:"m"`
	N int64 `json:"n"`
	K int64 `json:"k"`
}

// String returns "MxNxK".
func (s Shape) String() string { return fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K) }

// mostExtent bounds M, N and K: beyond it nothing fits a device.
const mostExtent = 1 << 24

// ParseShape reads "MxNxK".
func ParseShape(text string) (Shape, error) {
	var s Shape
	words := strings.Split(text, "x")
	extents := []*int64{&s.M, &s.N, &s.K}
	if len(words) != len(extents) {
		return s, contest.Usagef("%q is no shape; write MxNxK: 8192x28672x8192", text)
	}
	for i, w := range words {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil || n < 1 || n > mostExtent {
			return s, contest.Usagef("%q is no shape: %q is no extent of 1 to %d; write MxNxK: 8192x28672x8192", text, w, mostExtent)
		}
		*extents[i] = n
	}
	return s, nil
}

// layerKind is a pair of a GEMM and communication.
type layerKind struct {
	name string
	// Types of the layer's tensors, as they are sharded.
	x, w, y string
	// partial says that the GEMM's result is a partial sum, which is reduced, and gathered that it is gathered;
	// otherwise its operand is gathered.
	partial, gathered bool
	// sample is the extent of one sample of y, and the axis it is cut from.
	sample string
	axis   int
	// trips is how often each byte of what moves is sent on its way, and moves
	// how many elements that are over all ranks.
	trips float64
	moves func(Shape) int64
	// scales says which elements of 8-bit operands share a scale: "tensor", "row" or "block"; operands are bf16 without.
	scales string
}

// FP8 are the forms of scales that layers are measured with.
var FP8 = []string{"tensor", "row", "block"}

// in is k with operands of f8e4m3, and scales as they say; k itself where they say nothing.
func (k *layerKind) in(scales string) *layerKind {
	if scales == "" {
		return k
	}
	scaled := *k
	scaled.scales = scales
	return &scaled
}

// size is how many bytes an element that moves has: operands that are gathered have 8 bits, sums and results 16.
func (k *layerKind) size() int64 {
	if k.scales != "" && !k.partial && !k.gathered {
		return 1
	}
	return 2
}

// product is a linear of %x and %w, by their values of 8 bits where they have them.
func (k *layerKind) product(x string) string {
	if k.scales == "" {
		return fmt.Sprintf("linear %%%s, %%w", x)
	}
	return fmt.Sprintf("linear %%%[1]s.q, %%w.q, %%%[1]s.s, %%w.s", x)
}

// quantize writes %x in 8 bits, of which block shares a scale.
func (k *layerKind) quantize(b *lineWriter, x, block string) {
	switch k.scales {
	case "":
		return
	case "tensor":
		block = ""
	case "row":
		block = ", block=1"
	}
	b.add("  %%%s.s = scales %%%[1]s%s", x, block)
	b.add("  %%%s.q = quantize %%%[1]s, %%%[1]s.s", x)
}

var (
	agGEMM = &layerKind{name: "ag-gemm", x: "bf16[M/tp, K]", w: "bf16[N/tp, K]", y: "bf16[M, N/tp]",
		sample: "bf16[1, N/tp]", axis: 0, trips: 1, moves: func(s Shape) int64 { return s.M * s.K }}
	gemmRS = &layerKind{name: "gemm-rs", x: "bf16[M, K/tp]", w: "bf16[N, K/tp]", y: "bf16[M/tp, N]", partial: true,
		sample: "bf16[M/tp, 1]", axis: 1, trips: 1, moves: func(s Shape) int64 { return s.M * s.N }}
	gemmAR = &layerKind{name: "gemm-ar", x: "bf16[M, K/tp]", w: "bf16[N, K/tp]", y: "bf16[M, N]", partial: true,
		sample: "bf16[M, 1]", axis: 1, trips: 2, moves: func(s Shape) int64 { return s.M * s.N }}
	gemmAG = &layerKind{name: "gemm-ag", x: "bf16[M/tp, K]", w: "bf16[N, K]", y: "bf16[M, N]", gathered: true,
		sample: "bf16[1, N]", axis: 0, trips: 1, moves: func(s Shape) int64 { return s.M * s.N }}
)

// inner is the rank of the matrices that a layer's operands are made from: x is
// a·bᵀ and w is c·dᵀ, rounded. What the caller uploads is small, then, and elements
// are close to normal numbers, as those that peers are timed with: data cost power,
// and so time.
const inner = 128

// layerText is a program whose text repeats the layer. The operands are made on
// the devices; then the GEMM runs alone, repeatedly, on all of them; then, after
// a barrier, the layer; then, after another, the GEMM alone again: a GPU slows down
// while it works, and what is compared with the layer is the mean of before and
// behind.
type layerText struct {
	text string
	// The first and last line, from 1, of the GEMMs alone, before and behind, of the
	// layers, and of the one in front of them.
	before, behind, layers, first [2]int32
	// timed are all lines that are timed, each part's first and last.
	timed [][2]int32
}

// textOf writes the program for repeats layers, and one in front of them that is not
// timed: links that had nothing to carry for some ms take 0.1 ms to wake. Each
// layer has an x of its own, so that nothing gathered serves two.
func (k *layerKind) textOf(s Shape, ranks, repeats int) layerText {
	var b lineWriter
	k.head(&b, s, ranks, 1+repeats)
	var t layerText
	t.before = k.alone(&b, "g")
	b.add("  barrier over=tp")
	t.first[0] = b.next()
	k.layer(&b, 0)
	t.first[1] = b.next() - 1
	t.layers[0] = b.next()
	for i := range repeats {
		k.layer(&b, 1+i)
	}
	t.layers[1] = b.next() - 1
	b.add("  barrier over=tp")
	t.behind = k.alone(&b, "h")
	for i, layer := range []int{0, repeats} {
		place := k.places(s)[i]
		b.add("  %%%s = slice %%y%d, axis=%d, %d..%d", sampleName(i), layer, k.axis, place, place+1)
	}
	b.add("  return %%%s, %%%s", sampleName(0), sampleName(1))
	b.add("}")
	t.text = strings.Join(b, "\n") + "\n"
	t.timed = [][2]int32{t.before, t.first, t.layers, t.behind}
	return t
}

// alone writes the GEMMs alone, and returns their first and last line.
func (k *layerKind) alone(b *lineWriter, name string) (lines [2]int32) {
	product, x := k.y, "whole"
	switch {
	case k.partial:
		product = "bf16[M, N] partial(tp, sum)"
	case k.gathered:
		product, x = "bf16[M/tp, N]", "x0"
	}
	lines[0] = b.next()
	for i := range layerRepeats {
		b.add("  %%%s%d: %s = %s", name, i, product, k.product(x))
	}
	lines[1] = b.next() - 1
	return lines
}

// head writes the signature and makes the operands.
func (k *layerKind) head(b *lineWriter, s Shape, ranks, operands int) {
	b.add("dim M = %d", s.M)
	b.add("dim N = %d", s.N)
	b.add("dim K = %d", s.K)
	b.add("mesh tp[%d]", ranks)
	b.add("func bench(%%a: bf16[%s, %d], %%aw: bf16[M, %d], %%b: bf16[%s, %d], %%c: bf16[%s, %d], %%d: bf16[%s, %d]) -> (%s, %s) {",
		rows(k.x), inner, inner, cols(k.x), inner, rows(k.w), inner, cols(k.w), inner, k.sample, k.sample)
	b.add("  %%w: %s = linear %%c, %%d", k.w)
	b.add("  %%whole: bf16[M, %s] = linear %%aw, %%b", cols(k.x))
	k.quantize(b, "w", ", block=(128, 128)")
	k.quantize(b, "whole", ", block=(1, 128)")
	for i := range operands {
		b.add("  %%x%d: %s = linear %%a, %%b", i, k.x)
		k.quantize(b, fmt.Sprintf("x%d", i), ", block=(1, 128)")
	}
}

// layer writes layer i.
func (k *layerKind) layer(b *lineWriter, i int) {
	if !k.partial && !k.gathered {
		b.add("  %%y%d = %s", i, k.product(fmt.Sprintf("x%d", i)))
		return
	}
	b.add("  %%p%d = %s", i, k.product(fmt.Sprintf("x%d", i)))
	b.add("  %%y%d: %s = reshard %%p%d", i, k.y, i)
}

// places returns the rows, or columns, of the first and the last layer's y that
// the program returns.
func (k *layerKind) places(s Shape) [2]int64 {
	if k.axis == 1 {
		return [2]int64{s.N / 3, s.N - 1}
	}
	return [2]int64{s.M / 3, s.M - 1}
}

func sampleName(i int) string { return fmt.Sprintf("s%d", i) }

// lineWriter collects lines.
type lineWriter []string

func (b *lineWriter) add(format string, args ...any) { *b = append(*b, fmt.Sprintf(format, args...)) }

// next returns the number, from 1, of the line added next.
func (b *lineWriter) next() int32 { return int32(len(*b)) + 1 }

// Rows and cols return the extents of a matrix type, as they stand in the text.
func rows(typ string) string { return extents(typ)[0] }
func cols(typ string) string { return extents(typ)[1] }

func extents(typ string) []string {
	return strings.SplitN(strings.TrimSuffix(strings.TrimPrefix(typ, "bf16["), "]"), ", ", 2)
}
