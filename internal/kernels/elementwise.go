package kernels

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// pointwise is an elementwise operation in the sources.
type pointwise struct {
	functor  string
	operands int
	function bool // a function template of the type it is computed in
	noInts   bool
	constant bool
}

var pointwises = map[ir.Op]pointwise{
	ir.OpAdd:   {functor: "OpAdd", operands: 2},
	ir.OpSub:   {functor: "OpSub", operands: 2},
	ir.OpMul:   {functor: "OpMul", operands: 2},
	ir.OpDiv:   {functor: "OpDiv", operands: 2, noInts: true},
	ir.OpNeg:   {functor: "OpNeg", operands: 1},
	ir.OpScale: {functor: "OpScale", operands: 1, constant: true},
	ir.OpRelu:  {functor: "OpRelu", operands: 1},
	ir.OpGelu:  {functor: "OpGelu", operands: 1, function: true, noInts: true},
	ir.OpSilu:  {functor: "OpSilu", operands: 1, function: true, noInts: true},
	ir.OpExp:   {functor: "OpExp", operands: 1, function: true, noInts: true},
	ir.OpRsqrt: {functor: "OpRsqrt", operands: 1, function: true, noInts: true},
	ir.OpFill:  {functor: "OpFill", constant: true},
}

func elementwise(j *job) ([]launch, error) {
	p := pointwises[j.Op]
	if err := j.count(p.operands, p.operands); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	if p.noInts {
		if err := j.floats(); err != nil {
			return nil, err
		}
	}
	functor := p.functor
	if p.function {
		functor = fmt.Sprintf("%s<%s>", functor, fnType(j.Out.DType))
	}
	var value uint64
	if p.constant {
		var err error
		if value, err = j.constant(); err != nil {
			return nil, err
		}
	}
	m := mapping{label: j.Op.String(), functor: functor, to: ctype(j.Out.DType), from: ctype(j.Out.DType), value: value}
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
	m := mapping{label: "cast", functor: "OpCast", to: ctype(to), from: ctype(from)}
	return m.launches(j.Out, j.Ins)
}

// mapping is an instance of the template map.
type mapping struct {
	label    string // for the symbol
	functor  string
	to, from string // element types in sources
	first    string // that of the first operand; empty: from
	value    uint64
}

func (m mapping) launches(out Operand, ins []Operand) ([]launch, error) {
	strides := [][]int64{out.Strides}
	for i, in := range ins {
		if !slices.Equal(in.Shape, out.Shape) {
			return nil, fmt.Errorf("operand %d has shape %v, the result %v", i, in.Shape, out.Shape)
		}
		strides = append(strides, in.Strides)
	}
	if out.elements() == 0 {
		return nil, nil
	}
	axes := shared(out.Shape, strides...)
	if len(axes) == 0 { // one element
		axes = []axis{{1, slices.Repeat([]int64{1}, len(strides))}}
	}
	return m.over(axes, append([]Operand{out}, ins...))
}

// headLeast is how many elements of one dimension are worth a launch of their
// own when the rest does not fit wide accesses.
const headLeast = 1 << 12

// over maps operands, the result first, over axes.
func (m mapping) over(axes []axis, all []Operand) ([]launch, error) {
	return headAndTail(axes, all, m.launch)
}

// headAndTail makes one launch over axes, by the widest accesses that fit; of one
// long dimension what wide accesses do not fit becomes a second launch.
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

// pieces has the last axis count pieces of v elements, and returns how many there
// are in all.
func pieces(axes []axis, v int64) ([]axis, int64) {
	axes = slices.Clone(axes)
	axes[len(axes)-1].n /= v
	total := int64(1)
	for _, a := range axes {
		total *= a.n
	}
	return axes, total
}

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
	args.bits(m.value)
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
		body:   fmt.Sprintf("map<%s, %s, %s, %s, %d, %d, %d, %t, %s>", m.functor, m.to, cmp.Or(m.first, m.from), m.from, n, rank, v, dense(axes), index),
	}
	return launch{code: c, blocks: blocksFor(total), args: args}, nil
}

// dense reports whether every operand's elements follow each other along the last
// axis: then kernels need not look.
func dense(axes []axis) bool {
	return !slices.ContainsFunc(axes[len(axes)-1].s, func(s int64) bool { return s != 1 })
}

func denseMark(axes []axis) string {
	if dense(axes) {
		return "d"
	}
	return ""
}

// indexType is the type that counts pieces.
func indexType(total int64) string {
	if total > 1<<31-1 {
		return "u64"
	}
	return "u32"
}

// symbol joins the parts of a kernel's name, as profilers show it.
func symbol(parts ...string) string { return "hocket_" + strings.Join(parts, "_") }

// blocksFor gives each of n items a thread, up to what a grid holds well.
func blocksFor(n int64) uint32 { return uint32(min(ceil(n, threads), 1<<22)) }

// width is the elements of the last axis that move as one access: as many as 16
// bytes hold of the widest type, if every operand's pieces are aligned. An
// operand may repeat one element along the last axis, the result may not.
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
	// Many operands of wide pieces would not fit in registers.
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
