package ir

import (
	"math"
	"strconv"
)

// Number is a constant that an operation computes with. Integer types take Int, which is exact; Whole says that it is
// set.
type Number struct {
	Float float64
	Int   int64
	Whole bool
}

// Real returns the number f.
func Real(f float64) Number { return Number{Float: f} }

// Whole returns the integer n.
func Whole(n int64) Number { return Number{Float: float64(n), Int: n, Whole: true} }

// Reals lists the numbers fs.
func Reals(fs ...float64) []Number {
	list := make([]Number, len(fs))
	for i, f := range fs {
		list[i] = Real(f)
	}
	return list
}

// String returns the number as programs write it.
func (n Number) String() string {
	if n.Whole {
		return strconv.FormatInt(n.Int, 10)
	}
	return strconv.FormatFloat(n.Float, 'g', -1, 64)
}

// For returns the number as elements of type dt take it: false if dt is an integer type that cannot hold it.
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

// Attrs are the attributes of a computation on one rank, with a value for each expression of the program. Plans,
// devices and kernels all describe computations by them.
type Attrs struct {
	// Numbers are the values of the operation's numeric attributes, in the order of its row in the Op table.
	Numbers []Number
	// Axes are the dimensions that sum, max, min and mean reduce, or the one of concat, softmax, argmax, index_copy and
	// reduce_slots.
	Axes []int
	// TA and TB say that matmul reads that operand transposed.
	TA, TB bool
	// Causal says that query i of attention sees the keys up to i + Tk - Tq.
	Causal bool
	// SMs is the number of multiprocessors that a product is planned for; 0 means all of the device.
	SMs int
	// First and Rows say that the table of an embedding is the rows from First on of one of Rows rows. Ids of rows that
	// it lacks give zeros; ids outside 0..Rows are a fault. Likewise the weights of a grouped_linear are those of
	// experts from First on.
	First, Rows int64
}

// Number returns numeric attribute i of the operation's row; 0 if there is none.
func (a *Attrs) Number(i int) Number {
	if i < len(a.Numbers) {
		return a.Numbers[i]
	}
	return Number{}
}

// Numbers resolves the numeric attributes of s in the order of its row: eval gives the value of an expression,
// and attributes that are absent have their defaults.
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
