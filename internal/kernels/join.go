package kernels

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// joining describes a reduction of several operands, element by element, in the order of the operands. The first
// operand may have another type than the others; all types have the same accumulator type.
type joining struct {
	j     *job
	red   ir.Red
	out   Operand
	ins   []Operand
	count int64 // total number of operands, by which avg divides
}

// join plans the reduction of all operands, element by element.
func join(j *job, op device.ReduceOperands) ([]launch, error) {
	if op.Red == ir.NoRed || op.Red > ir.Avg {
		return nil, fmt.Errorf("unknown reduction %d", op.Red)
	}
	if err := j.count(1, math.MaxInt32); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	for i, in := range j.Ins {
		if !slices.Equal(in.Shape, j.Out.Shape) {
			return nil, fmt.Errorf("operand %d has shape %v, but the result has shape %v", i, in.Shape, j.Out.Shape)
		}
	}
	return joining{j: j, red: op.Red, out: j.Out, ins: j.Ins, count: int64(len(j.Ins))}.launches()
}

// slots plans the sum of an operand along an axis. The second operand, if there is one, is the initial value of the
// sum. The result has the operand's type or its accumulator's type.
func slots(j *job, op device.ReduceSlots) ([]launch, error) {
	if err := j.count(1, 2); err != nil {
		return nil, err
	}
	x := j.Ins[0]
	if j.Out.DType != x.DType && j.Out.DType != x.DType.Accum() {
		return nil, fmt.Errorf("cannot add slices of type %s into type %s", x.DType, j.Out.DType)
	}
	d := op.Axis
	if err := device.AxisIn(d, len(x.Shape)); err != nil {
		return nil, err
	}
	if shape := slices.Delete(slices.Clone(x.Shape), d, d+1); !slices.Equal(shape, j.Out.Shape) {
		return nil, fmt.Errorf("cannot add the slices of shape %v along axis %d into shape %v", x.Shape, d, j.Out.Shape)
	}
	ins := slices.Clone(j.Ins[1:])
	if len(ins) == 1 && (ins[0].DType != j.Out.DType || !slices.Equal(ins[0].Shape, j.Out.Shape)) {
		return nil, fmt.Errorf("the sum continues from %s%v, but the result is %s%v", ins[0].DType, ins[0].Shape,
			j.Out.DType, j.Out.Shape)
	}
	for i := range x.Shape[d] {
		ins = append(ins, x.without(d, i))
	}
	if len(ins) == 0 {
		return elementwise(&job{operands: operands{Out: j.Out}}, device.Zeros())
	}
	return joining{j: j, red: ir.Sum, out: j.Out, ins: ins}.launches()
}

// joinMost is the largest number of operands that one launch folds.
const joinMost = 64

// launches plans a launch for each joinMost operands. The result of a launch, in the accumulator's type, is the first
// operand of the next one.
func (f joining) launches() ([]launch, error) {
	if f.out.elements() == 0 {
		return nil, nil
	}
	var all []launch
	for len(f.ins) > joinMost {
		acc := Operand{DType: f.out.DType.Accum(), Shape: f.out.Shape}
		at, err := f.j.scratch(acc.elements()*acc.DType.Size(), false)
		if err != nil {
			return nil, err
		}
		part := f
		part.out, part.ins, part.count = acc.dense(at), f.ins[:joinMost], 0
		l, err := part.fold()
		if err != nil {
			return nil, err
		}
		all = append(all, l...)
		f.ins = append([]Operand{part.out}, f.ins[joinMost:]...)
	}
	l, err := f.fold()
	return append(all, l...), err
}

// fold plans one launch. If the operands have more strides than fit into the launch's argument, operands and result are
// copied to and from dense memory.
func (f joining) fold() ([]launch, error) {
	l, err := f.mapping().launches(f.out, f.ins)
	if !tooLong(err) {
		return l, err
	}
	var before []launch
	ins := make([]Operand, len(f.ins))
	for i, in := range f.ins {
		if ins[i], err = f.aside(in); err != nil {
			return nil, err
		}
		l, err := moved(ins[i], in)
		if err != nil {
			return nil, err
		}
		before = append(before, l...)
	}
	out, err := f.aside(f.out)
	if err != nil {
		return nil, err
	}
	if l, err = f.mapping().launches(out, ins); err != nil {
		return nil, err
	}
	after, err := moved(f.out, out)
	return slices.Concat(before, l, after), err
}

// aside returns an operand in scratch memory: a dense tensor with the shape and the type of o.
func (f joining) aside(o Operand) (Operand, error) {
	at, err := f.j.scratch(o.elements()*o.DType.Size(), false)
	return o.dense(at), err
}

// mapping returns the template instance for the operands. For avg, only the last launch divides.
func (f joining) mapping() mapping {
	n := len(f.ins)
	m := mapping{to: ctype(f.out.DType), from: ctype(f.ins[n-1].DType)}
	if first := ctype(f.ins[0].DType); first != m.from {
		m.first = first
	}
	red := f.red
	if red == ir.Avg && f.count == 0 {
		red = ir.Sum
	}
	m.label = fmt.Sprintf("join_%s%d", red, n)
	switch red {
	case ir.Max:
		m.functor.name = fmt.Sprintf("OpFold<FoldMax, %d>", n)
	case ir.Min:
		m.functor.name = fmt.Sprintf("OpFold<FoldMin, %d>", n)
	case ir.Avg:
		m.functor.name = fmt.Sprintf("OpAvg<%d>", n)
		count := math.Float64bits(float64(f.count))
		if f.out.DType.IsInt() {
			count = uint64(f.count)
		}
		m.functor.values = []uint64{count}
	default:
		m.functor.name = fmt.Sprintf("OpFold<FoldSum, %d>", n)
	}
	return m
}

// argsMost is the size in bytes of a kernel's arguments that every CUDA device supports.
const argsMost = 4096

// tooLongError reports that the strides of the operands do not fit into argsMost bytes.
type tooLongError struct{ bytes int }

func (e tooLongError) Error() string {
	return fmt.Sprintf("%v: the kernel needs %d bytes of arguments; at most %d are possible", device.ErrUnsupported,
		e.bytes, argsMost)
}

func (e tooLongError) Unwrap() error { return device.ErrUnsupported }

func tooLong(err error) bool {
	_, is := err.(tooLongError)
	return is
}
