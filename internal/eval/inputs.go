package eval

import (
	"fmt"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Inputs makes the inputs of a function as Run requires them: one global tensor for each parameter, filled as spec
// prescribes for the parameter's name.
func Inputs(b *ir.Bound, spec tensor.Spec) (map[string]*tensor.Tensor, error) {
	in := map[string]*tensor.Tensor{}
	for _, p := range b.Func.Params {
		shape, err := b.GlobalShape(p.Type, b.Env(0, nil))
		if err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
		x, err := tensor.New(p.Type.DType, shape)
		if err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
		if err := tensor.Fill(x, p.Name, spec); err != nil {
			return nil, err
		}
		in[p.Name] = x
	}
	return in, nil
}
