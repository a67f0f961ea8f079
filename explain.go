package hocket

import "hocket.example/hocket/internal/compile"

// Explanation says what lowering made of a function for given dims: every
// change of layout with its reason and bytes, every pair of communication and
// GEMM with its strategies and their predicted times, the predicted timeline.
type Explanation = compile.Explanation

// PairReport is one pair of an Explanation.
type PairReport = compile.PairReport

// Estimate is what a strategy is predicted to take for a pair.
type Estimate = compile.Estimate

// Reshard is one change of layout of an Explanation.
type Reshard = compile.Reshard

// Explain lowers p for opts.Binding and explains the result, with predictions
// for opts.Machine. It plans nothing that grows with the number of ranks,
// unless the program is explicit already.
func (p *Program) Explain(opts LowerOptions) (*Explanation, error) {
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Machine: opts.Machine, Nodes: opts.Nodes})
	if err != nil {
		return nil, err
	}
	return u.Explain(opts.Binding.ir())
}

// Machines lists the machines that LowerOptions.Machine names without a file.
func Machines() []string { return compile.Machines() }

// CheckMachine reports a LowerOptions.Machine that there is not, or a file that
// describes none.
func CheckMachine(name string) error { return compile.CheckMachine(name) }

// Overlapped is a pair of communication and GEMM that a strategy overlaps; its String is a
// line for people.
type Overlapped = compile.Overlapped

// Overlapped lists the pairs that the model's strategy overlaps for the given dims.
func (m *Model) Overlapped(dims map[string]int64) ([]Overlapped, error) {
	return m.unit.Overlapped(m.merge(dims).ir())
}
