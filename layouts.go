package hocket

import (
	"context"
	"maps"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// Layout describes how a parameter or result is distributed over the ranks.
type Layout struct {
	Port
	// Inout reports that runs update the parameter, which is then also a result.
	Inout bool
	// Blocks lists the blocks of the ranks. A rank that is not in the list holds no part of the tensor.
	Blocks []Block
}

// Block describes the part of a tensor that one rank holds.
type Block struct {
	Rank      int
	Lo, Shape []int64 // position of the block's first element in the tensor; extents of the block
}

// Layouts returns the layouts of parameters and results in the order of the signature; inout parameters are last among
// the results. The argument dims sets dims. Other dims follow from shapes, which holds the shapes of parameters by
// name, as dims follow from tensors in Run. The remaining dims follow from the tensors that Bind and BindFrom have
// bound. Layouts plans the program if there is no plan for these dims.
func (m *Model) Layouts(ctx context.Context, dims map[string]int64, shapes map[string][]int64) (in, out []Layout,
	err error) {
	headers := maps.Clone(m.params.current().tensors)
	for name, shape := range shapes {
		headers[name] = &tensor.Tensor{Shape: shape}
	}
	b, err := m.fn.dimsOf(headers)
	if err != nil {
		return nil, nil, err
	}
	maps.Copy(b.Dims, dims)
	t, err := m.loader.acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer t.end()
	all, err := m.fn.unit.Dims(b.ir())
	if err != nil {
		return nil, nil, m.fn.blame(b, err)
	}
	p, err := t.plan(ctx, b, all)
	if err != nil {
		return nil, nil, m.fn.blame(b, err)
	}
	return layoutsOf(p.Inputs), layoutsOf(p.Outputs), nil
}

func layoutsOf(ios []plan.IO) (list []Layout) {
	for _, io := range plan.Held(ios) {
		l := Layout{Port: Port{Name: io.Name, DType: io.DType, Shape: slices.Clone(io.Shape)},
			Inout: io.Inout}
		for _, part := range io.Parts {
			l.Blocks = append(l.Blocks, Block{int(part.Ref.Rank), slices.Clone(part.Lo), slices.Clone(part.Ref.Shape)})
		}
		list = append(list, l)
	}
	return list
}
