package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// groupedTile is the number of rows, and of columns, of a tile that one thread block computes.
const groupedTile = 64

// grouped plans the product x[T, K]·w[E, N, K]ᵀ. Groups of rows of x, whose sizes are in counts[E], are multiplied by
// the weights of one expert each. The number of tiles depends on the counts, which only the kernel reads, so the grid
// has enough blocks for the largest possible number.
func grouped(j *job, op device.GroupedLinear) ([]launch, error) {
	if err := device.CheckGrouped(op, j.Out.Shape, j.shapes()); err != nil {
		return nil, err
	}
	x, w, counts := j.Ins[0], j.Ins[1], j.Ins[2]
	if x.DType != j.Out.DType || w.DType != j.Out.DType || !counts.DType.IsInt() {
		return nil, fmt.Errorf("cannot compute grouped linear of types %s and %s with counts of type %s into type %s",
			x.DType, w.DType, counts.DType, j.Out.DType)
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	cols := ceil(w.Shape[1], groupedTile)
	// Each expert, and the rows that belong to no expert, may have one tile that is not full.
	grid, err := exactGrid((ceil(x.Shape[0], groupedTile) + counts.Shape[0] + 1) * cols)
	if err != nil {
		return nil, err
	}
	var args words
	args.addr(j.Out.Addr, x.Addr, w.Addr, counts.Addr, j.fault)
	args.bits(j.tag)
	args.ints(truth(counts.DType == ir.I64), counts.Strides[0])
	args.ints(x.Shape[0], w.Shape[1], w.Shape[2], counts.Shape[0], op.First, w.Shape[0], cols)
	args.ints(j.Out.Strides...)
	args.ints(x.Strides...)
	args.ints(w.Strides...)
	dt := ctype(j.Out.DType)
	return []launch{{blocks: grid, args: args, code: code{files: []string{"sync", "gemm", "grouped"},
		symbol: symbol("grouped", dt), args: "GroupedArgs", body: "grouped<" + dt + ">"}}}, nil
}
