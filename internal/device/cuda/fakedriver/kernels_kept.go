package fakedriver

import (
	"cmp"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// goLengths returns, for each query, how many of the keys are valid.
func goLengths(p kernels.Computation, queries []int64, keys int64) Array {
	out := NewArray(queries)
	for i := range out.X {
		out.X[i] = float64(keys)
	}
	if len(p.Ins) < 4 || !p.Ins[3].DType.IsInt() {
		return out
	}
	given := Read(p.Ins[3])
	for i, n := range given.X {
		if n < 0 || n > float64(keys) {
			report(p, kernels.FaultLength, int64(n), keys, int64(i))
			n = 0
		}
		per := len(out.X) / len(given.X)
		for j := range per {
			out.X[i*per+j] = n
		}
	}
	return out
}

// goIndexCopy copies rows to the positions in an operand, unless a position is out of range.
func goIndexCopy(p kernels.Computation, op device.IndexCopy) func() {
	return func() { keepRows(p, Read(p.Ins[0]), Read(p.Ins[1]), op.Axis) }
}

// keepRows copies rows along an axis to positions of the result, unless a position is out of range.
func keepRows(p kernels.Computation, rows, at Array, axis int) {
	out := Read(p.Out)
	count, room := int(rows.shape[axis]), out.shape[axis]
	for i, x := range at.X {
		if x < -1 || x >= float64(room) {
			report(p, kernels.FaultPosition, int64(x), room, int64(i))
			return
		}
		if before := at.X[i/count*count : i]; x >= 0 && slices.Contains(before, x) {
			report(p, kernels.FaultTwice, int64(x), room, int64(i))
			return
		}
	}
	k, groups := 0, int64(0)
	eachIndex(rows.shape, func(i []int64) {
		groups = 0
		for d := range axis {
			groups = groups*rows.shape[d] + i[d]
		}
		if to := int64(at.X[int(groups*int64(count)+i[axis])%len(at.X)]); to >= 0 {
			j := slices.Clone(i)
			j[axis] = to
			*out.at(j...) = rows.X[k]
		}
		k++
	})
	out.Write(p.Out)
}

// goRope rotates the pairs of features of each token.
func goRope(p kernels.Computation, op device.Rope) func() {
	return func() { rotated(p.Ins, op).Write(p.Out) }
}

// rotated returns the rope of the given operands.
func rotated(ins []kernels.Operand, op device.Rope) Array {
	shape, n := ins[0].Shape, len(ins[0].Shape)
	dh := shape[n-1]
	x, at, out := Read(ins[0]), Read(ins[1]), NewArray(shape)
	freqs, row := op.Frequencies(dh), int(dh*shape[n-2])
	if len(ins) == 3 {
		freqs = Read(ins[2]).X
	}
	half, scale := len(freqs), cmp.Or(op.Scale, 1)
	for i := range out.X {
		head, d := i-i%int(dh), i%int(dh)
		if d >= 2*half {
			out.X[i] = x.X[i]
			continue
		}
		s, c := math.Sincos(at.X[i/row%len(at.X)] * freqs[d%half])
		a, b := x.X[head+d%half], x.X[head+d%half+half]
		if out.X[i] = scale * (a*c - b*s); d >= half {
			out.X[i] = scale * (b*c + a*s)
		}
	}
	return out
}

// goRopes computes the parts one after another, from copies of all operands.
func goRopes(p kernels.Computation, op device.Ropes) func() {
	return func() {
		n := len(op.Parts)
		outs, rest := append(slices.Clone(p.Stored), p.Out), p.Ins[n:]
		var at Array
		if op.Keeps() {
			at, rest = Read(rest[len(rest)-1]), rest[:len(rest)-1]
		}
		results := readAll(p.Ins[:n])
		for i, part := range op.Parts {
			if part.Rotates {
				results[i] = rotated(append([]kernels.Operand{p.Ins[i]}, rest...), op.Rope)
			}
		}
		for i, part := range op.Parts {
			if part.Keeps {
				kept := p
				kept.Out = outs[i]
				keepRows(kept, results[i], at, len(outs[i].Shape)-3)
			} else {
				results[i].Write(outs[i])
			}
		}
	}
}

// goArgmax computes the first index of the largest element.
func goArgmax(p kernels.Computation, op device.Argmax) func() {
	return func() {
		in, out, best, axis := Read(p.Ins[0]), NewArray(p.Out.Shape), NewArray(p.Out.Shape), op.Axis
		k := 0
		eachIndex(in.shape, func(i []int64) {
			rest := slices.Delete(slices.Clone(i), axis, axis+1)
			if v := best.at(rest...); i[axis] == 0 || in.X[k] > *v {
				*v, *out.at(rest...) = in.X[k], float64(i[axis])
			}
			k++
		})
		out.Write(p.Out)
	}
}
