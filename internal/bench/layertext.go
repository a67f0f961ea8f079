package bench

import (
	"fmt"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// Shape is the shape of a layer's GEMM over all ranks: [M, K] · [N, K]ᵀ.
type Shape struct {
	M int64 `json:"m"`
	N int64 `json:"n"`
	K int64 `json:"k"`
}

// String returns "MxNxK".
func (s Shape) String() string { return fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K) }

// mostExtent is the largest value of M, N and K; larger ones fit on no device.
const mostExtent = 1 << 24

// ParseShape reads "MxNxK".
func ParseShape(text string) (Shape, error) {
	var s Shape
	words := strings.Split(text, "x")
	extents := []*int64{&s.M, &s.N, &s.K}
	if len(words) != len(extents) {
		return s, contest.Usagef("%q is not a shape: write MxNxK, for example 8192x28672x8192", text)
	}
	for i, w := range words {
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil || n < 1 || n > mostExtent {
			return s, contest.Usagef("%q is not a shape: %q is not an extent from 1 to %d; write MxNxK, for "+
				"example 8192x28672x8192", text, w, mostExtent)
		}
		*extents[i] = n
	}
	return s, nil
}

// layerKind is a kind of layer: a GEMM with a collective.
type layerKind struct {
	name string
	// x, w and y are the sharded types of the layer's operands x and w and its result y in the program.
	x, w, y string
	// partial reports that the result of the GEMM is a partial sum, which is reduced over ranks. gathered reports
	// that the result of the GEMM is gathered. If both are false, the operand of the GEMM is gathered.
	partial, gathered bool
	// sample is the shape of one sampled slice of the result y, and axis is the axis to which the slice is
	// perpendicular.
	sample string
	axis   int
	// trips is the number of times that each communicated byte is sent. moves is a function that returns the number of
	// communicated elements, summed over all ranks.
	trips float64
	moves func(Shape) int64
	// scales selects which elements of 8-bit operands share a scale: "tensor", "row" or "block". If scales is empty,
	// operands are bf16. fast reports that products are summed with fast_accum=true.
	scales string
	fast   bool
}

// FP8 lists the kinds of scales with which layers can be measured. "-fast" stands for fast_accum=true.
var FP8 = []string{"tensor", "row", "block", "tensor" + fastSums, "row" + fastSums}

const fastSums = "-fast"

// The method in returns a copy of k with operands of type f8e4m3 and the given kind of scales. If scales is empty, it
// returns k itself.
func (k *layerKind) in(scales string) *layerKind {
	if scales == "" {
		return k
	}
	scaled := *k
	scaled.scales, scaled.fast = strings.CutSuffix(scales, fastSums)
	return &scaled
}

// layerDType returns the type of a layer's operands as --dtype names it.
func layerDType(scales string) string {
	if scales == "" {
		return "bf16"
	}
	return "fp8-" + scales
}

// size returns the number of bytes of an element that is communicated. With scales, gathered operands have 8 bits,
// and sums and results 16.
func (k *layerKind) size() int64 {
	if k.scales != "" && !k.partial && !k.gathered {
		return 1
	}
	return 2
}

// product returns the text of the statement that computes the linear of %x and %w. If the layer has scales, it is
// of 8-bit elements.
func (k *layerKind) product(x string) string {
	if k.scales == "" {
		return fmt.Sprintf("linear %%%s, %%w", x)
	}
	text := fmt.Sprintf("linear %%%[1]s.q, %%w.q, %%%[1]s.s, %%w.s", x)
	if k.fast {
		text += ", fast_accum=true"
	}
	return text
}

// quantize writes statements that convert %x to 8-bit elements. The elements of a block share a scale.
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

// inner is the inner dimension of the matrix products from which the operands are computed: x is a·bᵀ and w is c·dᵀ,
// both rounded. The caller therefore uploads little data. The elements have nearly a normal distribution, as in the
// measurements of other programs. The data matter because they affect the power consumption, and thus the clock rate
// and the time.
const inner = 128

// layerText is the text of a program that repeats a layer. The program computes the operands on the devices. The
// program then runs the GEMM alone several times on all ranks, the layers after a barrier, and the GEMM alone again
// after another barrier. GPUs become slower under load, so the time of a layer is compared with the mean of the times
// of both GEMMs.
type layerText struct {
	text string
	// Each of these is the first and the last line, counted from 1, of a part of the text: the GEMMs before and after
	// the layers, the timed layers, and the untimed layer before these.
	before, behind, layers, first [2]int32
	// timed lists the first and the last line of each timed part.
	timed [][2]int32
}

// textOf writes the program. The program repeats the timed layer as often as the argument repeats says. One untimed
// layer precedes the timed ones, because links that were idle for some milliseconds take 0.1 ms to wake up. Each layer
// has a separate x, so that no layer can reuse gathered data.
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

// alone writes the statements of the GEMMs without communication, and returns their first and last line.
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

// head writes the signature, and the statements that compute the operands.
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

// places returns the indices of two rows or columns of y: the one that the program returns of the first layer, and the
// one that it returns of the last layer.
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

// next returns the number, counted from 1, of the line that the next call of add writes.
func (b *lineWriter) next() int32 { return int32(len(*b)) + 1 }

// rows and cols return the extents of a matrix type, as text.
func rows(typ string) string { return extents(typ)[0] }
func cols(typ string) string { return extents(typ)[1] }

func extents(typ string) []string {
	return strings.SplitN(strings.TrimSuffix(strings.TrimPrefix(typ, "bf16["), "]"), ", ", 2)
}
