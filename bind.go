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

// ErrInput is wrapped by errors about the tensors given to a run or a reference, and about those that receive
// results: wrong names, types or shapes, and shapes whose dims the program cannot have.
var ErrInput = blocks.ErrInput

// InputError is the ErrInput about one element of an integer parameter: an id of embedding, a position of index_copy,
// a length of attention or a count of an uneven collective. Elements of host tensors, and of device tensors that were
// written or filled, are checked before the run begins; such an error leaves everything unchanged. InputError.Begun
// reports whether the run had begun.
type InputError = fault.InputError

// MismatchError is wrapped by the error of a run whose ranks disagree about a part of a result that they should all
// hold. The usual cause is a missing wait in the program, unless the plan is Proved.
type MismatchError = fault.MismatchError

// ErrDeadlock is wrapped by the error of a run that could not continue because every stream waited for another. The
// fault is in the program, not in the machine. A deadlock that planning or a proof finds before anything runs is
// reported as Diagnostics, of kind "deadlock".
var ErrDeadlock = device.ErrDeadlock

// Strategies lists the strategies that LowerOptions.Strategy and LoadOptions.Strategy accept. In addition, chunked
// and exchange accept a number of parts: "chunked(8)", "exchange(2)".
func Strategies() []string { return compile.Strategies }

// Passes lists the names that LowerOptions.StopAfter accepts, in the order in which the passes run.
func Passes() []string { return compile.Passes() }

// Signature describes a program under a binding: the function, the number of ranks, the value of every dim that has
// one, and the parameters.
type Signature struct {
	Func  string
	Ranks int
	Dims  map[string]int64
	In    []Port
}

// Bind checks that a binding fits the program. Its error is Diagnostics.
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

// Port is a parameter or result of a model.
type Port struct {
	Name  string
	DType ir.DType
	Shape []int64
	// Rows is set for a parameter whose elements embedding and index_add take as ids. It is the number of rows of the
	// smallest table.
	// Ids are in 0..Rows. It is 0 for other parameters.
	Rows int64
}

// portsOf returns f's parameters with their global shapes.
func portsOf(bound *ir.Bound, f *ir.Func) ([]Port, error) {
	var ports []Port
	var errs []error
	rows := idRows(bound, f, map[*ir.Func]map[string]int64{})
	for _, p := range f.Params {
		shape, err := bound.GlobalShape(p.Type, bound.Env(0, nil))
		if err != nil {
			errs = append(errs, fmt.Errorf("%%%s: %w", p.Name, err))
		}
		ports = append(ports, Port{Name: p.Name, DType: p.Type.DType, Shape: shape, Rows: rows[p.Name]})
	}
	return ports, errors.Join(errs...)
}

// elementsOf follows a value back through ops that keep its elements, to the value they come from.
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

// idRows returns the parameters of f whose elements embedding takes as ids, or take_along as indices, each with the
// number of rows or elements of the smallest tensor that they index. known are the functions already visited, among
// them the callers of f.
func idRows(bound *ir.Bound, f *ir.Func, known map[*ir.Func]map[string]int64) map[string]int64 {
	if rows, ok := known[f]; ok {
		return rows
	}
	rows := map[string]int64{}
	known[f] = rows
	note := func(sym *ir.Sym, n int64) {
		if root := elementsOf(bound.Info, sym); root.Param != nil && n > 0 &&
			(rows[root.Name] == 0 || n < rows[root.Name]) {
			rows[root.Name] = n
		}
	}
	env := bound.Env(0, nil)
	f.Body.Walk(func(s *ir.Stmt) {
		syms := bound.Info.Operands[s]
		switch s.Op {
		case ir.OpEmbedding:
			extent := syms[1].Type.Dims[0].Extent
			if of := s.Attr("of"); of != nil {
				extent = of.Exprs[0]
			}
			if n, err := extent.Eval(env); err == nil { // it may depend on a loop variable
				note(syms[0], n)
			}
		case ir.OpGroupedLinear: // no count may exceed an even share of the rows
			rows, err := syms[0].Type.Dims[0].Extent.Eval(env)
			experts, err2 := syms[1].Type.Dims[0].Extent.Eval(env)
			if err == nil && err2 == nil && experts > 0 {
				note(syms[2], rows/experts+1)
			}
		case ir.OpIndexAdd:
			if n, err := s.Attr("n").Exprs[0].Eval(env); err == nil {
				note(syms[1], n)
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
			inner := idRows(bound, g, known)
			for i, p := range g.Params {
				if n := inner[p.Name]; n > 0 && i < len(syms) {
					note(syms[i], n)
				}
			}
		}
	})
	return rows
}
