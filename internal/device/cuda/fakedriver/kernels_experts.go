package fakedriver

import (
	"encoding/binary"
	"slices"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// goUneven computes one member's result of an uneven collective from the counts in memory.
func goUneven(p kernels.Computation, op ir.Op, axis, member int, fold func([]float64) float64) func() {
	n := len(p.Ins) / 2
	return func() {
		ins, out := readAll(p.Ins), NewArray(p.Out.Shape)
		counts := make([][]int64, n)
		for i, c := range ins[n:] {
			for _, v := range c.X {
				counts[i] = append(counts[i], int64(v))
			}
		}
		shares, err := device.Share(op, counts, member, p.Ins[0].Shape[axis], p.Out.Shape[axis])
		if err != nil {
			report(p, kernels.FaultCounts, int64(member)<<32, 0, 0)
			return
		}
		eachIndex(p.Out.Shape, func(i []int64) {
			row, v := i[axis], 0.0
			at := func(in Array, row int64) float64 {
				from := slices.Clone(i)
				from[axis] = row
				return *in.at(from...)
			}
			if op == ir.OpReduceScatterV && row < shares[0].Count {
				x := make([]float64, n)
				for j, s := range shares {
					x[j] = at(ins[j], s.Lo+row)
				}
				v = fold(x)
			}
			for j, s := range shares {
				if op == ir.OpReduceScatterV {
					break
				}
				if row >= 0 && row < s.Count {
					v = at(ins[j], s.Lo+row)
				}
				row -= s.Count
			}
			*out.at(i...) = v
		})
		out.Write(p.Out)
	}
}

// goEmbedding looks up rows of a table.
func goEmbedding(p kernels.Computation, op device.Embedding) func() {
	last := len(p.Out.Shape) - 1
	return func() {
		ids, table, out := Read(p.Ins[0]), Read(p.Ins[1]), NewArray(p.Out.Shape)
		eachIndex(p.Out.Shape, func(i []int64) {
			id, v := int64(*ids.at(i[:last]...)), 0.0
			switch row := id - op.First; {
			case id < 0 || id >= op.Rows:
				number := int64(0)
				for d, k := range i[:last] {
					number = number*p.Out.Shape[d] + k
				}
				report(p, kernels.FaultRange, id, op.Rows, number)
			case row >= 0 && row < table.shape[0]:
				v = *table.at(row, i[last])
			}
			*out.at(i...) = v
		})
		out.Write(p.Out)
	}
}

// goConcat concatenates operands.
func goConcat(p kernels.Computation, op device.Concat) func() {
	return func() {
		at, out := int64(0), NewArray(p.Out.Shape)
		for _, in := range readAll(p.Ins) {
			eachIndex(in.shape, func(i []int64) {
				to := slices.Clone(i)
				to[op.Axis] += at
				*out.at(to...) = *in.at(i...)
			})
			at += in.shape[op.Axis]
		}
		out.Write(p.Out)
	}
}

// report writes a fault to the fault record of p, unless the record already holds a fault.
func report(p kernels.Computation, kind kernels.FaultKind, x, y, z int64) {
	b := cabi.Bytes(uintptr(p.Fault), kernels.FaultBytes)
	if binary.LittleEndian.Uint64(b) != 0 {
		return
	}
	for i, v := range []uint64{uint64(kind) | 1, p.Tag, uint64(x), uint64(y), uint64(z)} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	ring(uintptr(p.Fault))
}

// ring sets the bell of a fault record: a word that makes the host read the record.
func ring(fault uintptr) {
	if bell := cabi.Load[uint64](fault + kernels.FaultBell); bell != 0 {
		cabi.StoreAtomic(uintptr(bell), 1)
	}
}
