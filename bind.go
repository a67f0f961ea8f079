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

// ErrInput is wrapped by errors about the tensors that a run or a reference was given,
// those that receive results among them: names, types, shapes, and dims that the program
// cannot have which follow from them.
var ErrInput = blocks.ErrInput

// InputError is the ErrInput about one element of an integer parameter: an id of embedding, a position of index_copy, a
// length of attention or a count of an uneven collective. What a run is given in the host's memory, or in device
// tensors that were written or filled, is checked before the run begins, and nothing has changed; see its Begun.
type InputError = fault.InputError

// MismatchError is wrapped by what a run returns when ranks that should hold the
// same part of a result do not: mostly a wait that the program lacks, unless it is Proved.
type MismatchError = fault.MismatchError

// ErrDeadlock is wrapped by errors that say a run could not go on because every stream
// waited for another: the program is wrong, not the machine. What planning or a proof
// finds before anything runs is Diagnostics, of kind "deadlock".
var ErrDeadlock = device.ErrDeadlock

// Strategies lists what LowerOptions.Strategy and LoadOptions.Strategy accept; besides these
// there are chunked and exchange with a number of parts: "chunked(8)", "exchange(2)".
func Strategies() []string { return compile.Strategies }

// Passes lists what LowerOptions.StopAfter accepts, in the order passes run.
func Passes() []string { return compile.Passes() }

// Signature is what a binding makes of a program: the function, the number of
// ranks, the value of every dim that has one, and the parameters.
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
	// Rows, where embedding takes the elements of a parameter for ids, is how many rows its
	// smallest table has: ids are in 0..Rows. 0 elsewhere.
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

// elementsOf follows a value through what leaves its elements as they are to where they come from.
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

// idRows returns, of those parameters of f whose elements embedding and index_add take for ids, or take_along for indices, how many
// rows or elements the smallest of what they index has. known are the functions already looked at, the callers
// of f among them.
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
			if n, err := extent.Eval(env); err == nil { // else a loop's variable says so
				note(syms[0], n)
			}
		case ir.OpGroupedLinear: // counts that rows suffice for, whatever they are
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
