package hocket

import (
	"errors"
	"fmt"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/contents"
	"hocket.example/hocket/ir"
)

// ErrInput is wrapped by errors about the tensors that a run or a reference reads and those that receive its results.
// Such a tensor has a wrong name, type or shape, or its shape implies dims that the program cannot have.
var ErrInput = blocks.ErrInput

// InputError is an ErrInput about one element of an integer parameter: an id of embedding, a position of index_copy, a
// length of attention or a count of an uneven collective. Elements of host tensors are checked before the run begins,
// and so are elements of device tensors that Write or Fill has set; such an error leaves every tensor unchanged.
// InputError.Begun reports whether the run had begun when the element was found. The other fields are Param, Index,
// Value, the bounds Low and High, Why, Rank, Where and Run: see package fault.
type InputError = fault.InputError

// RunError is the error of a run that failed after it had begun. Its fields are Rank, Stream and Statement, as far as
// they are known, Message, and the cause Err: see package fault.
type RunError = fault.RunError

// MismatchError is wrapped by the error of a run whose ranks hold different values for a part of a result that must be
// the same on all of them. The usual cause is a missing wait in the program, unless the plan is Proved. Its fields are
// Output, RankA, RankB, Index, ValueA, ValueB, Count and Proved: see package fault.
type MismatchError = fault.MismatchError

// ErrDeadlock is wrapped by the error of a run that could not continue because every stream waited for another stream.
// The fault is in the program, not in the machine. A deadlock that planning or a proof finds before the run is reported
// as Diagnostics of kind "deadlock".
var ErrDeadlock = device.ErrDeadlock

// Strategies lists the strategies that LowerOptions.Strategy and LoadOptions.Strategy accept. The strategies chunked
// and exchange also accept a number of chunks in parentheses: "chunked(8)", "exchange(2)".
func Strategies() []string { return compile.Strategies }

// Passes lists the names that LowerOptions.StopAfter accepts, in the order in which the passes run.
func Passes() []string { return compile.Passes() }

// Signature describes a program under a binding: the function, the number of ranks, the dims that have values, and the
// parameters.
type Signature struct {
	Func  string
	Ranks int
	Dims  map[string]int64
	In    []Port
}

// Bind checks that a binding fits the program, and returns the program's signature under that binding. Its error is
// Diagnostics.
func (p *Program) Bind(b Binding) (*Signature, error) {
	if p.none() {
		return nil, errNoProgram
	}
	bound, ds := ir.Bind(p.info, b.ir())
	if err := ds.Err(); err != nil {
		return nil, err
	}
	ports, err := portsOf(bound, bound.Func)
	if err != nil {
		return nil, err
	}
	return &Signature{Func: bound.Func.Name, Ranks: bound.Ranks, Dims: bound.Dims, In: ports}, nil
}

// Port describes a parameter or result of a model.
type Port struct {
	Name  string
	DType ir.DType
	Shape []int64
	// Below is the exclusive upper bound of the values of an integer parameter that the program uses as ids, indices,
	// positions, lengths or counts: every value from 0 to Below-1 is valid, and so is -1 as a position, which skips a
	// row. Below is 0 for parameters that are not such integers.
	Below int64
	// Ascending reports that index_copy uses the parameter as positions. The values along its last dimension, except -1,
	// must then differ from each other, and RandomInputs makes each one greater by 1 than the one before it.
	Ascending bool
}

// portsOf returns the parameters of f, with their global shapes.
func portsOf(bound *ir.Bound, f *ir.Func) ([]Port, error) {
	var ports []Port
	var errs []error
	accepted := contents.Accepted(bound, f)
	for _, p := range f.Params {
		shape, err := bound.GlobalShape(p.Type, bound.Env(0, nil))
		if err != nil {
			errs = append(errs, fmt.Errorf("%%%s: %w", p.Name, err))
		}
		v := accepted[p.Name]
		ports = append(ports, Port{Name: p.Name, DType: p.Type.DType, Shape: shape, Below: v.Below, Ascending: v.Ascending})
	}
	return ports, errors.Join(errs...)
}
