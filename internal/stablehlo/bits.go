package stablehlo

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// This file computes operations on known integers. Integers overflow as their width requires, and operations on their
// bits are supported.

// exact is the limit below which elements of a graph represent all integers exactly.
const exact = 1 << 53

// width returns the number of bits of an integer type, and whether the type is signed.
func (t typ) width() (bits int, signed bool) {
	name := t.narrow
	if name == "" {
		name = map[graph.DType]string{graph.I32: "i32", graph.I64: "i64", graph.Bool: "ui1"}[t.dt]
	}
	n, err := strconv.Atoi(strings.TrimLeft(name, "ui"))
	if err != nil {
		return 0, false
	}
	return n, name[0] == 'i'
}

// wrap returns the number of type t that has the low bits of x.
func (t typ) wrap(x int64) int64 {
	n, signed := t.width()
	shift := 64 - n
	if signed {
		return x << shift >> shift
	}
	return int64(uint64(x) << shift >> shift)
}

// whole applies an integer function element by element if all operands are known. If they are not, ok is false.
func (b *arithmetic) whole(t typ, f func(x []int64) int64, in ...tens) (y tens, ok bool) {
	var lists []*graph.Tensor
	shape := []int64{}
	for _, x := range in {
		if n, _ := x.t.width(); n == 0 || x.lifted || len(x.v.Shape) > 0 && len(shape) > 0 &&
			!slices.Equal(x.v.Shape, shape) {
			return tens{}, false
		}
		list := b.known(x)
		if list == nil {
			return tens{}, false
		}
		if len(x.v.Shape) > 0 {
			shape = x.v.Shape
		}
		lists = append(lists, list)
	}
	out := graph.NewTensor(t.dt, shape)
	args := make([]int64, len(in))
	b.spend(int64(len(out.Elems)))
	for i := range out.Elems {
		for k, list := range lists {
			e := list.Elems[min(i, len(list.Elems)-1)]
			if math.Abs(e) >= exact {
				b.refuse("an operand or result beyond 2⁵³")
			}
			args[k] = int64(e)
		}
		n := t.wrap(f(args))
		if n >= exact || n <= -exact {
			b.refuse("an operand or result beyond 2⁵³")
		}
		out.Elems[i] = float64(n)
	}
	return tens{v: b.g.Constant("", out), t: typ{dt: t.dt, shape: in[0].t.shape, narrow: t.narrow}}, true
}

// wholeOps holds the operations on known integers.
var wholeOps = map[string]func(t typ, x []int64) int64{
	"add":      func(_ typ, x []int64) int64 { return x[0] + x[1] },
	"subtract": func(_ typ, x []int64) int64 { return x[0] - x[1] },
	"multiply": func(_ typ, x []int64) int64 { return x[0] * x[1] },
	"negate":   func(_ typ, x []int64) int64 { return -x[0] },
	"and":      func(_ typ, x []int64) int64 { return x[0] & x[1] },
	"or":       func(_ typ, x []int64) int64 { return x[0] | x[1] },
	"xor":      func(_ typ, x []int64) int64 { return x[0] ^ x[1] },
	"not":      func(_ typ, x []int64) int64 { return ^x[0] },
	"shift_left": func(t typ, x []int64) int64 {
		if n, _ := t.width(); x[1] < 0 || x[1] >= int64(n) {
			return 0
		}
		return x[0] << x[1]
	},
	"shift_right_arithmetic": func(t typ, x []int64) int64 {
		n, _ := t.width()
		signed := typ{narrow: "i" + strconv.Itoa(n)}.wrap(x[0])
		if x[1] < 0 || x[1] >= int64(n) {
			return signed >> 63
		}
		return signed >> x[1]
	},
	"shift_right_logical": func(t typ, x []int64) int64 {
		n, _ := t.width()
		if x[1] < 0 || x[1] >= int64(n) {
			return 0
		}
		return int64(uint64(x[0]) << (64 - n) >> (64 - n) >> x[1])
	},
	"popcnt": func(t typ, x []int64) int64 {
		n, _ := t.width()
		return int64(bits.OnesCount64(uint64(x[0]) << (64 - n)))
	},
	"count_leading_zeros": func(t typ, x []int64) int64 {
		n, _ := t.width()
		return int64(min(bits.LeadingZeros64(uint64(x[0])<<(64-n)), n))
	},
}

// wholeNumbers computes an operation on known integers.
func (b *arithmetic) wholeNumbers(name string, in []tens) (tens, bool) {
	f := wholeOps[name]
	if f == nil || len(in) == 0 || len(in) > 2 || in[0].t.dt.IsFloat() || in[0].t.dt == graph.Bool ||
		len(b.op.types) != 1 {
		return tens{}, false
	}
	unary := name == "negate" || name == "not" || name == "popcnt" || name == "count_leading_zeros"
	if unary != (len(in) == 1) || len(in) == 2 &&
		(in[0].t.dt != in[1].t.dt || !slices.Equal(in[0].t.shape, in[1].t.shape)) {
		return tens{}, false
	}
	t := b.op.types[0]
	return b.whole(t, func(x []int64) int64 { return f(t, x) }, in...)
}

// bitcast reinterprets the bits of known numbers as another type of the same width.
func (b *arithmetic) bitcast(in []tens) tens {
	x, t := in[0], b.result()
	size := map[graph.DType]int{graph.BF16: 16, graph.F32: 32, graph.F64: 64}
	width := func(t typ) int {
		if n := size[t.dt]; n > 0 {
			return n
		}
		n, _ := t.width()
		return n
	}
	if width(x.t) != width(t) || !slices.Equal(x.t.shape, t.shape) {
		b.refuse("from %s to %s, which has another width", x.t, t)
	}
	if x.t.dt == t.dt {
		return b.retyped(x, t)
	}
	list := b.known(x)
	if list == nil || width(t) == 64 {
		b.refuse("an operand of type %s that depends on the input or is wider than 32 bits", x.t)
	}
	out := graph.NewTensor(t.dt, list.Shape)
	b.spend(int64(len(out.Elems)))
	for i, e := range list.Elems {
		u := uint64(int64(e))
		switch x.t.dt {
		case graph.F32:
			u = uint64(math.Float32bits(float32(e)))
		case graph.BF16:
			u = uint64(math.Float32bits(float32(e)) >> 16)
		}
		if t.dt.IsFloat() {
			out.Elems[i] = ofBits(t.dt, u)
		} else {
			out.Elems[i] = float64(t.wrap(int64(u)))
		}
	}
	return tens{v: b.g.Constant("", out), t: t}
}
