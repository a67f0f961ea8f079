package cuda

import (
	"encoding/binary"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// goUneven gives a member of an uneven collective its result, from the counts
// that it finds.
func goUneven(p kernels.Problem) func() {
	n, axis := len(p.Ins)/2, p.Axes[0]
	fold := pointwise(kernels.Problem{Op: ir.OpAllReduce, Red: p.Red, Out: p.Out})
	return func() {
		counts := make([][]int64, n)
		for i, c := range p.Ins[n:] {
			for j := range int64(n) {
				counts[i] = append(counts[i], int64(load(elementOf(c, j), ir.I32)))
			}
		}
		shares, err := device.Share(p.Op, counts, p.Member, p.Ins[0].Shape[axis], p.Out.Shape[axis])
		if err != nil {
			report(p, 8, uint64(p.Member)<<32)
			return
		}
		eachIndex(p.Out.Shape, func(i []int64) {
			row, v := i[axis], 0.0
			at := func(in kernels.Operand, row int64) float64 {
				from := append([]int64{}, i...)
				from[axis] = row
				return load(elementOf(in, from...), in.DType)
			}
			if p.Op == ir.OpReduceScatterV && row < shares[0].Count {
				x := make([]float64, n)
				for j, s := range shares {
					x[j] = at(p.Ins[j], s.Lo+row)
				}
				v = fold(x)
			}
			for j, s := range shares {
				if p.Op == ir.OpReduceScatterV {
					break
				}
				if row >= 0 && row < s.Count {
					v = at(p.Ins[j], s.Lo+row)
				}
				row -= s.Count
			}
			store(elementOf(p.Out, i...), p.Out.DType, v)
		})
	}
}

// goEmbedding looks up rows of a table.
func goEmbedding(p kernels.Problem) func() {
	ids, table := p.Ins[0], p.Ins[1]
	last := len(p.Out.Shape) - 1
	return func() {
		eachIndex(p.Out.Shape, func(i []int64) {
			id, v := int64(load(elementOf(ids, i[:last]...), ids.DType)), 0.0
			switch row := id - p.First; {
			case id < 0 || id >= p.Rows:
				report(p, 6, uint64(id))
			case row >= 0 && row < table.Shape[0]:
				v = load(elementOf(table, row, i[last]), table.DType)
			}
			store(elementOf(p.Out, i...), p.Out.DType, v)
		})
	}
}

// goConcat puts operands one after another.
func goConcat(p kernels.Problem) func() {
	return func() {
		at := int64(0)
		for _, in := range p.Ins {
			eachIndex(in.Shape, func(i []int64) {
				v := load(elementOf(in, i...), in.DType)
				to := append([]int64{}, i...)
				to[p.Axes[0]] += at
				store(elementOf(p.Out, to...), p.Out.DType, v)
			})
			at += in.Shape[p.Axes[0]]
		}
	}
}

// report writes the fault of a problem, unless there is one.
func report(p kernels.Problem, kind, word uint64) {
	b := cabi.Bytes(uintptr(p.Fault), kernels.FaultBytes)
	if binary.LittleEndian.Uint64(b) != 0 {
		return
	}
	for i, v := range []uint64{kind | 1, p.Tag, word, 0, 0} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
}
