package kernels

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/ir"
)

// functor is the C++ type of an elementwise operation in the sources.
type functor struct {
	name   string
	text   string   // the type's definition; empty if a source file contains the definition
	values []uint64 // its constants
}

// functorOf returns the functor of op for elements of type dt.
func functorOf(op ir.Op, numbers []ir.Number, operands int, dt ir.DType) (functor, error) {
	row, ok := pointwise.Of(op)
	info := op.Info()
	switch {
	case !ok:
		return functor{}, fmt.Errorf("%w: %s is not elementwise", device.ErrUnsupported, op)
	case operands != info.MinArgs:
		return functor{}, fmt.Errorf("the operation has %d operands, but needs %d", operands, info.MinArgs)
	case info.Floats && dt.IsInt():
		return functor{}, fmt.Errorf("the operation is not defined for %s", dt)
	}
	f := functor{name: "Op_" + op.String()}
	of, result := "A", row.CUDA
	if row.Function {
		of, result = fnType(dt), "(A)("+row.CUDA+")"
		f.name += "_" + of
	}
	var names strings.Builder
	for i := range operands {
		fmt.Fprintf(&names, "const M %c = (M)x[%d]; ", 'a'+i, i)
	}
	for i, spec := range info.Numbers() {
		if i >= len(numbers) {
			return functor{}, fmt.Errorf("%s= is missing", spec.Name)
		}
		bits, err := constant(numbers[i], dt)
		if err != nil {
			return functor{}, err
		}
		f.values = append(f.values, bits)
		fmt.Fprintf(&names, "const M %s = (M)n[%d]; ", spec.Name, i)
	}
	f.text = fmt.Sprintf("struct %s : Finish { "+
		"template <class A> DEV A of(const A* x, const A* n) { typedef %s M; %sreturn %s; } };\n",
		f.name, of, names.String(), result)
	return f, nil
}

// constant returns a number as the 64 bits that the sources expect: an int64 for integers, and otherwise the bits of a
// float64 whose value the accumulator can represent.
func constant(n ir.Number, dt ir.DType) (uint64, error) {
	v, ok := n.For(dt)
	if !ok {
		return 0, fmt.Errorf("%v is not a value of %s", n.Float, dt)
	}
	if dt.IsInt() {
		return uint64(v.Int), nil
	}
	return math.Float64bits(v.Float), nil
}

func elementwise(j *job, op device.Elementwise) ([]launch, error) {
	if _, ok := pointwise.Of(op.Op); !ok {
		return nil, errNoKernel
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	f, err := functorOf(op.Op, op.Numbers, len(j.Ins), j.Out.DType)
	if err != nil {
		return nil, err
	}
	m := mapping{label: op.Op.String(), functor: f, to: ctype(j.Out.DType), from: ctype(j.Out.DType)}
	return m.launches(j.Out, j.Ins)
}

func cast(j *job) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	from, to := j.Ins[0].DType, j.Out.DType
	if from == to {
		return moved(j.Out, j.Ins[0])
	}
	m := mapping{label: "cast", functor: functor{name: "OpCast"}, to: ctype(to), from: ctype(from)}
	return m.launches(j.Out, j.Ins)
}

// mapping describes an instance of the template map, which applies an operation to each element.
type mapping struct {
	label    string // part of the kernel's name
	functor  functor
	to, from string // element types, in the sources, of the result and of the operands
	first    string // element type of the first operand; empty if it is the same as from
}

func (m mapping) launches(out Operand, ins []Operand) ([]launch, error) {
	strides := [][]int64{out.Strides}
	for i, in := range ins {
		if !slices.Equal(in.Shape, out.Shape) {
			return nil, fmt.Errorf("operand %d has shape %v, but the result has shape %v", i, in.Shape, out.Shape)
		}
		strides = append(strides, in.Strides)
	}
	if out.elements() == 0 {
		return nil, nil
	}
	axes := shared(out.Shape, strides...)
	if len(axes) == 0 { // a single element
		axes = []axis{{1, slices.Repeat([]int64{1}, len(strides))}}
	}
	return m.over(axes, append([]Operand{out}, ins...))
}

// headLeast is a number of elements of a one-dimensional tensor: from it on, a second launch is worthwhile for the last
// elements, for which wide accesses are impossible.
const headLeast = 1 << 12

// over returns launches that apply the mapping over the given axes; the first of all is the result.
func (m mapping) over(axes []axis, all []Operand) ([]launch, error) {
	return headAndTail(axes, all, m.launch)
}

// headAndTail returns a launch over the given axes, with the widest accesses that are possible. If there is only one
// dimension, and it is long, the last elements, for which such accesses are impossible, get a second launch.
func headAndTail(axes []axis, all []Operand, one func(axes []axis, all []Operand, v int64) (launch, error)) ([]launch, error) {
	v := width(axes, all)
	n := axes[0].n / 16 * 16
	head := []axis{{n, axes[0].s}}
	if len(axes) > 1 || v > 1 || axes[0].n < headLeast || width(head, all) == 1 {
		l, err := one(axes, all, v)
		return []launch{l}, err
	}
	first, err := one(head, all, width(head, all))
	tail := axis{axes[0].n - n, axes[0].s}
	if err != nil || tail.n == 0 {
		return []launch{first}, err
	}
	rest := slices.Clone(all)
	for o := range rest {
		rest[o].Addr += nvlib.Ptr(n * tail.s[o] * rest[o].DType.Size())
	}
	second, err := one([]axis{tail}, rest, 1)
	return []launch{first, second}, err
}

// pieces divides the extent of the last axis by v, so that it counts pieces of v elements. It returns the axes and the
// total number of pieces.
func pieces(axes []axis, v int64) ([]axis, int64) {
	axes = slices.Clone(axes)
	axes[len(axes)-1].n /= v
	total := int64(1)
	for _, a := range axes {
		total *= a.n
	}
	return axes, total
}

// constants is the largest number of constants of an elementwise operation: CONSTANTS in map.cuh.
const constants = 2

func (m mapping) launch(axes []axis, all []Operand, v int64) (launch, error) {
	axes, err := padded(axes, len(all))
	if err != nil {
		return launch{}, err
	}
	n, rank := len(all)-1, len(axes)
	axes, total := pieces(axes, v)
	index := indexType(total)
	var args words
	for _, o := range all {
		args.addr(o.Addr)
	}
	if n == 0 {
		args.addr(0)
	}
	for i := range constants {
		if i < len(m.functor.values) {
			args.bits(m.functor.values[i])
		} else {
			args.bits(0)
		}
	}
	args.ints(total)
	args.ints(extents(axes)...)
	for o := range max(2, len(all)) {
		if o >= len(all) {
			args.ints(make([]int64, rank)...)
			continue
		}
		args.ints(column(axes, o)...)
	}
	if len(args)*8 > argsMost {
		return launch{}, tooLongError{len(args) * 8}
	}
	c := code{
		files:  []string{"map"},
		symbol: symbol(m.label, m.first+m.from, m.to, fmt.Sprintf("r%dv%d%s%s", rank, v, denseMark(axes), index)),
		args:   fmt.Sprintf("MapArgs<%d, %d>", n, rank),
		body:   fmt.Sprintf("map<%s, %s, %s, %s, %d, %d, %d, %t, %s>", m.functor.name, m.to, cmp.Or(m.first, m.from), m.from, n, rank, v, dense(axes), index),
	}
	if m.functor.text != "" {
		c.functors = []string{m.functor.text}
	}
	return launch{code: c, blocks: blocksFor(total), args: args}, nil
}

// dense reports whether the elements of every operand are contiguous along the last axis, so that kernels need not
// check it.
func dense(axes []axis) bool {
	return !slices.ContainsFunc(axes[len(axes)-1].s, func(s int64) bool { return s != 1 })
}

func denseMark(axes []axis) string {
	if dense(axes) {
		return "d"
	}
	return ""
}

// indexType returns the name of the type that can count the given number of pieces.
func indexType(total int64) string {
	if total > 1<<31-1 {
		return "u64"
	}
	return "u32"
}

// symbol returns the name of a kernel, which profilers show, from its parts.
func symbol(parts ...string) string { return "hocket_" + strings.Join(parts, "_") }

// blocksFor returns the number of thread blocks for one thread per item, up to a limit.
func blocksFor(n int64) uint32 { return uint32(min(ceil(n, threads), 1<<22)) }

// width returns the number of elements along the last axis that one access moves. It is the number of elements of the
// largest type that fit into 16 bytes, or fewer if some operand's pieces are not aligned. An operand other than the
// result may repeat one element along the last axis.
func width(axes []axis, all []Operand) int64 {
	if len(axes) == 0 {
		return 1
	}
	last := axes[len(axes)-1]
	v := int64(16)
	for o, x := range all {
		v = min(v, 16/x.DType.Size())
		if s := last.s[o]; s != 1 && (s != 0 || o == 0) {
			return 1
		}
	}
	// Wide pieces of many operands would not fit into the registers.
	for v > 1 && v*int64(len(all)-1) > 128 {
		v /= 2
	}
	for ; v > 1; v /= 2 {
		if last.n%v == 0 && aligned(axes, all, v) {
			return v
		}
	}
	return 1
}

// aligned reports whether pieces of v elements begin at multiples of their size.
func aligned(axes []axis, all []Operand, v int64) bool {
	last := len(axes) - 1
	for o, x := range all {
		if axes[last].s[o] == 0 {
			continue
		}
		if uint64(x.Addr)%uint64(v*x.DType.Size()) != 0 {
			return false
		}
		for _, a := range axes[:last] {
			if a.s[o]%v != 0 {
				return false
			}
		}
	}
	return true
}
