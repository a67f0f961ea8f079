package ir

import (
	"math"
	"strconv"
)

// Number is a numeric attribute of an operation. For integer element types the operation uses Int, which is exact.
// Whole reports whether Int is set.
type Number struct {
	Float float64
	Int   int64
	Whole bool
}

// Real returns the number f.
func Real(f float64) Number { return Number{Float: f} }

// Whole returns the integer n as a Number.
func Whole(n int64) Number { return Number{Float: float64(n), Int: n, Whole: true} }

// Reals returns the numbers fs as a list of Numbers.
func Reals(fs ...float64) []Number {
	list := make([]Number, len(fs))
	for i, f := range fs {
		list[i] = Real(f)
	}
	return list
}

// String returns the number in the form in which programs contain it.
func (n Number) String() string {
	if n.Whole {
		return strconv.FormatInt(n.Int, 10)
	}
	return strconv.FormatFloat(n.Float, 'g', -1, 64)
}

// For converts the number to type dt. It returns false if dt is an integer type that does not represent the number.
func (n Number) For(dt DType) (Number, bool) {
	switch {
	case n.Whole:
		n.Float = float64(n.Int)
	case dt.IsInt():
		if n.Float != math.Trunc(n.Float) || math.Abs(n.Float) > 1<<53 {
			return n, false
		}
		n.Int, n.Whole = int64(n.Float), true
	}
	if dt.Accum() == F32 {
		n.Float = float64(float32(n.Float))
	}
	return n, true
}

// Attrs holds the attributes of one operation on one rank, with every expression evaluated. Plans, devices and kernels
// use Attrs to describe computations.
type Attrs struct {
	// Numbers holds the values of the operation's numeric attributes, in the order of the operation's row in the Op table.
	Numbers []Number
	// Axes lists the dimensions that sum, max, min and mean reduce. For concat, softmax, argmax, index_copy and
	// reduce_slots Axes holds the dimension on which they operate.
	Axes []int
	// TA and TB report that matmul reads its first or second operand transposed.
	TA, TB bool
	// Causal reports that attention is causal: query i uses only the keys 0 to i + Tk - Tq, where Tq and Tk are the
	// numbers of queries and keys.
	Causal bool
	// FastAccum reports that a linear of 8-bit operands may add up a whole sum in the precision of tensor cores.
	FastAccum bool
	// SMs is the number of multiprocessors that a GEMM may use; 0 means all of the device.
	SMs int
	// First and Rows are set if the table operand of an embedding contains only a range of the rows of a larger
	// table. Rows is the number of rows of the larger table, and First the index of the operand's first row in it.
	// If the row of an id is not in the operand, the result is zero. An id outside 0 to Rows-1 is an error. For a
	// grouped_linear, First is the number of the expert to which the first weight belongs.
	First, Rows int64
}

// Number returns numeric attribute i, counted in the order of the operation's row in the Op table, or 0 if there is no
// such attribute.
func (a *Attrs) Number(i int) Number {
	if i < len(a.Numbers) {
		return a.Numbers[i]
	}
	return Number{}
}

// Numbers evaluates the numeric attributes of s, in the order of the operation's row in the Op table. Numbers calls
// eval to evaluate an expression. Absent attributes have their default values.
func (s *Stmt) Numbers(eval func(*Expr) (int64, error)) ([]Number, error) {
	var list []Number
	for _, spec := range s.Op.Info().Numbers() {
		n := Real(spec.Default)
		switch a := s.Attr(spec.Name); {
		case a == nil:
		case a.IsNum:
			n = Real(a.Num)
		default:
			v, err := eval(a.Exprs[0])
			if err != nil {
				return nil, err
			}
			n = Whole(v)
		}
		list = append(list, n)
	}
	return list, nil
}
