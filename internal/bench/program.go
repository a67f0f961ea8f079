package bench

import (
	"fmt"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// build parses and plans a program. The machine m affects the strategy auto; if it is nil, the strategy is for the
// CPU machine.
func build(m device.Machine, text, strategy string, ranks int) (*plan.Plan, error) {
	info, ds := checker.Read("bench", text)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	u, err := compile.Build(info, compile.Options{Strategy: strategy, Device: m})
	if err != nil {
		return nil, err
	}
	return u.Plan(ir.Binding{Ranks: ranks})
}

// randomInputs returns a tensor for every parameter, with elements uniform in [-1, 1).
func randomInputs(p *plan.Plan) (map[string]*tensor.Tensor, error) {
	out := map[string]*tensor.Tensor{}
	for _, in := range p.Inputs {
		if len(in.Parts) == 0 {
			return nil, fmt.Errorf("the parameter %%%s has no block on any rank", in.Name)
		}
		t, err := tensor.New(in.Parts[0].Ref.DType, in.Shape)
		if err != nil {
			return nil, err
		}
		if err := tensor.Fill(t, in.Name, tensor.Spec{Kind: tensor.SpecRand, Seed: 1}); err != nil {
			return nil, err
		}
		out[in.Name] = t
	}
	return out, nil
}
