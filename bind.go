package hocket

import (
	"errors"
	"fmt"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/ir"
)

// ErrInput is wrapped by errors about the tensors that a run or a reference reads and those that receive its results.
// Such a tensor has a wrong name, type or shape, or its shape implies dims that the program cannot have.
var ErrInput = blocks.ErrInput

// InputError is an ErrInput about one element of an integer parameter: an id of embedding, a position of index_copy, a
// length of attention or a count of an uneven collective. Elements of host tensors are checked before the run begins,
// and so are elements of device tensors that Write or Fill has set; such an error leaves every tensor unchanged.
// InputError.Begun reports whether the run had begun when the element was found.
type InputError = fault.InputError

// RunError is the error of a run that failed after it had begun. It names the rank, stream and statement if they are
// known.
type RunError = fault.RunError

// MismatchError is wrapped by the error of a run whose ranks hold different values for a part of a result that must be
// the same on all of them. The usual cause is a missing wait in the program, unless the plan is Proved.
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

// Signature describes a program under a binding: the function, the number of ranks, the value of every dim that has a
// value, and the parameters.
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
	// positions, lengths or counts: every value from 0 to Below-1 is valid. It is 0 for all other parameters.
	Below int64
	// Ascending reports that index_copy uses the parameter as positions. The values along its last dimension must then
	// differ from each other, and RandomInputs makes each one greater by 1 than the one before it.
	Ascending bool
}

// portsOf returns the parameters of f, with their global shapes.
func portsOf(bound *ir.Bound, f *ir.Func) ([]Port, error) {
	var ports []Port
	var errs []error
	values := valuesOf(bound, f, map[*ir.Func]map[string]values{})
	for _, p := range f.Params {
		shape, err := bound.GlobalShape(p.Type, bound.Env(0, nil))
		if err != nil {
			errs = append(errs, fmt.Errorf("%%%s: %w", p.Name, err))
		}
		v := values[p.Name]
		ports = append(ports, Port{Name: p.Name, DType: p.Type.DType, Shape: shape, Below: v.below, Ascending: v.ascending})
	}
	return ports, errors.Join(errs...)
}

// elementsOf follows a value back through the ops that do not change its elements, and returns the first value in that
// chain.
func elementsOf(info *ir.Info, sym *ir.Sym) *ir.Sym {
	for sym = sym.Root(); sym.Def != nil; sym = sym.Root() {
		switch class := sym.Def.Op.Info().Class; {
		case class == ir.ClassView, sym.Def.Op == ir.OpCopy, sym.Def.Op == ir.OpReshard:
		default:
			return sym
		}
		syms := info.Operands[sym.Def]
		if len(syms) == 0 || syms[0] == nil {
			return sym
		}
		sym = syms[0]
	}
	return sym
}

// values describes the integers that a program accepts as elements of a parameter (see Port).
type values struct {
	below     int64
	ascending bool
}

// valuesOf returns the parameters of f that the program uses as ids, indices, positions, lengths or counts, and for
// each the values that all these uses accept. known holds the functions that have already been visited, among them the
// callers of f.
func valuesOf(bound *ir.Bound, f *ir.Func, known map[*ir.Func]map[string]values) map[string]values {
	if found, ok := known[f]; ok {
		return found
	}
	found := map[string]values{}
	known[f] = found
	add := func(sym *ir.Sym, v values) {
		root := elementsOf(bound.Info, sym)
		if root.Param == nil || v.below <= 0 {
			return
		}
		if old := found[root.Name]; old.below > 0 {
			v.below, v.ascending = min(v.below, old.below), v.ascending || old.ascending
		}
		found[root.Name] = v
	}
	note := func(sym *ir.Sym, n int64) { add(sym, values{below: n}) }
	env := bound.Env(0, nil)
	f.Body.Walk(func(s *ir.Stmt) {
		syms := bound.Info.Operands[s]
		switch s.Op {
		case ir.OpEmbedding:
			extent := syms[1].Type.Dims[0].Extent
			if of := s.Attr("of"); of != nil {
				extent = of.Exprs[0]
			}
			if n, err := extent.Eval(env); err == nil { // the extent may depend on a loop variable
				note(syms[0], n)
			}
		case ir.OpGroupedLinear: // with this limit, the sum of the counts cannot exceed the number of rows
			rows, err := syms[0].Type.Dims[0].Extent.Eval(env)
			experts, err2 := syms[1].Type.Dims[0].Extent.Eval(env)
			if err == nil && err2 == nil && experts > 0 {
				note(syms[2], rows/experts+1)
			}
		case ir.OpIndexAdd:
			if n, err := s.Attr("n").Exprs[0].Eval(env); err == nil {
				note(syms[1], n)
			}
		case ir.OpAttention, ir.OpAttentionLSE: // a length is a number of keys, so it may equal the extent
			at := 3
			if s.Op == ir.OpAttentionLSE {
				at = 2
			}
			if len(syms) > at && syms[at].Type.DType.IsInt() {
				dims := syms[1].Type.Dims
				if n, err := dims[len(dims)-3].Extent.Eval(env); err == nil {
					note(syms[at], n+1)
				}
			}
		case ir.OpIndexCopy:
			axis := int64(0)
			if a := s.Attr("axis"); a != nil {
				axis, _ = a.Exprs[0].Eval(env)
			}
			dims := bound.Info.Into[s].Type.Dims
			if axis < 0 {
				axis += int64(len(dims))
			}
			if n, err := dims[axis].Extent.Eval(env); err == nil {
				add(syms[1], values{below: n, ascending: true})
			}
		case ir.OpTakeAlong:
			dims := syms[0].Type.Dims
			if n, err := dims[len(dims)-1].Extent.Eval(env); err == nil {
				note(syms[1], n)
			}
		case ir.OpCall:
			g := bound.Info.Prog.Func(s.Callee.Text)
			if g == nil {
				return
			}
			inner := valuesOf(bound, g, known)
			for i, p := range g.Params {
				if i < len(syms) {
					add(syms[i], inner[p.Name])
				}
			}
		}
	})
	return found
}
