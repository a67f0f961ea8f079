package cpu

import (
	"fmt"
	"math"

	"hocket.example/hocket/ir"
)

const (
	// block is the elements computed at a time: with three operands of 8 bytes
	// they stay in a first-level cache of 48 KiB.
	block = 2048
	// grain is the elements that one helper computes at a time.
	grain = 16 * block
)

// mapper computes a block of results from blocks of operands; out may be one of them.
type mapper[A accum] func(out []A, ins [][]A)

func makeElementwise(k *kernel) (loops, error) {
	args := map[ir.Op]int{ir.OpFill: 0, ir.OpAdd: 2, ir.OpSub: 2, ir.OpMul: 2, ir.OpDiv: 2}
	n, ok := args[k.Op]
	if !ok {
		n = 1
	}
	if err := k.count(n, n); err != nil {
		return nil, err
	}
	if err := k.alike(true); err != nil {
		return nil, err
	}
	if k.out.dt.IsInt() {
		return makeIntegers(k)
	}
	return byAccum(k.out.dt,
		mapLoops(floatMapper[float32](k), encode[float32]),
		mapLoops(floatMapper[float64](k), encode[float64]), nil), nil
}

func makeIntegers(k *kernel) (loops, error) {
	if k.Op == ir.OpDiv || functions[k.Op] {
		return nil, fmt.Errorf("%s has no meaning for %s", k.Op, k.out.dt)
	}
	v := k.Int
	if needs := k.Op == ir.OpScale || k.Op == ir.OpFill; needs && !k.HasInt {
		if k.Value != math.Trunc(k.Value) || math.Abs(k.Value) > 1<<53 {
			return nil, fmt.Errorf("%v is no %s", k.Value, k.out.dt)
		}
		v = int64(k.Value)
	}
	return mapLoops(commonMapper(k.Op, v), encode[int64]), nil
}

func floatMapper[A float32 | float64](k *kernel) mapper[A] {
	switch k.Op {
	case ir.OpGelu:
		return each(gelu[A])
	case ir.OpSilu:
		return each(func(x A) A { return A(float64(x) / (1 + math.Exp(-float64(x)))) })
	case ir.OpExp:
		return each(func(x A) A { return A(math.Exp(float64(x))) })
	case ir.OpRsqrt:
		return each(func(x A) A { return A(1 / math.Sqrt(float64(x))) })
	case ir.OpDiv:
		return quotients
	}
	v := A(k.Value)
	if k.HasInt {
		v = A(k.Int)
	}
	return commonMapper(k.Op, v)
}

// functions are the ops of one operand that are computed in float64.
var functions = map[ir.Op]bool{ir.OpGelu: true, ir.OpSilu: true, ir.OpExp: true, ir.OpRsqrt: true}

// each applies f to every element.
func each[A accum](f func(A) A) mapper[A] {
	return func(out []A, ins [][]A) {
		for i, x := range ins[0][:len(out)] {
			out[i] = f(x)
		}
	}
}

func quotients[A float32 | float64](out []A, ins [][]A) {
	a, b := ins[0][:len(out)], ins[1][:len(out)]
	for i := range out {
		out[i] = a[i] / b[i]
	}
}

// gelu is x·Φ(x) = x/2·erfc(-x/√2), which unlike 1+erf keeps the digits of the
// lower tail.
func gelu[A float32 | float64](x A) A {
	v := float64(x)
	return A(v / 2 * math.Erfc(-v/math.Sqrt2))
}

// commonMapper returns the loop of op with constant v.
func commonMapper[A accum](op ir.Op, v A) mapper[A] {
	switch op {
	case ir.OpAdd:
		return func(out []A, ins [][]A) {
			a, b := ins[0][:len(out)], ins[1][:len(out)]
			for i := range out {
				out[i] = a[i] + b[i]
			}
		}
	case ir.OpSub:
		return func(out []A, ins [][]A) {
			a, b := ins[0][:len(out)], ins[1][:len(out)]
			for i := range out {
				out[i] = a[i] - b[i]
			}
		}
	case ir.OpMul:
		return func(out []A, ins [][]A) {
			a, b := ins[0][:len(out)], ins[1][:len(out)]
			for i := range out {
				out[i] = a[i] * b[i]
			}
		}
	case ir.OpNeg:
		return func(out []A, ins [][]A) {
			for i, x := range ins[0][:len(out)] {
				out[i] = -x
			}
		}
	case ir.OpScale:
		return func(out []A, ins [][]A) {
			for i, x := range ins[0][:len(out)] {
				out[i] = x * v
			}
		}
	case ir.OpRelu: // max keeps NaN
		return func(out []A, ins [][]A) {
			for i, x := range ins[0][:len(out)] {
				out[i] = max(x, 0)
			}
		}
	default: // fill
		return func(out []A, _ [][]A) {
			for i := range out {
				out[i] = v
			}
		}
	}
}

// makeCast converts between any two element types: floats round once, to
// nearest even; towards an integer type values saturate and NaN gives 0.
func makeCast(k *kernel) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if in := k.ins[0]; in.n != k.out.n || len(in.shape) != len(k.out.shape) {
		return nil, fmt.Errorf("operand has shape %v, the result %v", in.shape, k.out.shape)
	}
	return byAccum(k.ins[0].dt,
		mapLoops(same[float32], convert[float32]),
		mapLoops(same[float64], convert[float64]),
		mapLoops(same[int64], convert[int64])), nil
}

func same[A accum](out []A, ins [][]A) { copy(out, ins[0]) }

// mapLoops runs f over all elements.
func mapLoops[A accum](f mapper[A], encode func([]byte, []A, ir.DType)) loops {
	return func(k *kernel) {
		k.w.m.workers.each((k.out.n+grain-1)/grain, &k.w.ended, func(i int64) {
			mapRange(k, f, encode, i*grain, min((i+1)*grain, k.out.n))
		})
	}
}

// mapRange computes elements [lo, hi).
func mapRange[A accum](k *kernel, f mapper[A], encode func([]byte, []A, ir.DType), lo, hi int64) {
	wr := newWriter[A](k.out, block)
	wr.encode = encode
	defer wr.close()
	rds := make([]*reader[A], len(k.ins))
	for i, in := range k.ins {
		rds[i] = newReader[A](in, block)
		defer rds[i].close()
	}
	ins := make([][]A, len(rds))
	for ; lo < hi; lo += block {
		n := min(block, hi-lo)
		for i, rd := range rds {
			ins[i] = rd.load(lo, n)
		}
		out := wr.room(lo, n)
		f(out, ins)
		wr.flush(lo, out)
	}
}
