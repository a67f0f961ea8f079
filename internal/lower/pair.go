package lower

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Pair describes a collective and the GEMMs that can run at the same time as it: the GEMMs that use the result of an
// all_gather, or the GEMMs that compute the operand of the collective.
type Pair struct {
	// Func is the name of the function and Value the name of the collective's result; together they identify the
	// pair. Pos is the position of the collective.
	Func, Value string
	Pos         ir.Pos
	// Comm is the operation of the collective: OpAllGather, OpReduceScatter or OpAllReduce. Axes are the mesh axes over
	// which the collective runs. Axis is the dimension that the collective gathers or scatters.
	Comm ir.Op
	Axes []string
	Axis int
	// AnyOrder reports that the collective may reduce in any order. Algorithm is the algorithm that the text of the
	// program selects, or empty.
	AnyOrder  bool
	Algorithm string
	// From and To are the types of the collective's operand and result.
	From, To *ir.Type
	// Rows is the dimension along which the operations' results are cut into pieces.
	Rows int
	// Ops are the operations that run piece by piece, including the GEMMs. Post are the operations that follow a
	// reduction and run piece by piece.
	Ops, Post []PairOp
	// Before reports that the collective is an all_gather and that Ops compute its operand.
	Before bool
	// Kept reports that operations outside the pair also use the whole result of the all_gather.
	Kept bool
	// Ahead reports that the pair is a gather whose blocks can be sent while the preceding pair is computed. Whole
	// reports that the GEMM is then computed with all blocks at once.
	Ahead, Whole bool
	// Undivided reports that, according to the text alone, the number of rows of an all-reduce is not a multiple of the
	// number of ranks. An exchange then uses ragged blocks (Strategy.Ragged).
	Undivided bool
	// Refused maps each kind of strategy that cannot be used to the reason.
	Refused map[StrategyKind]string
}

// PairOp describes one operation of a pair: its statement and the types of its operands and result. Kept reports that
// operations outside the pair use the result.
type PairOp struct {
	Stmt *ir.Stmt
	In   []*ir.Type
	Out  *ir.Type
	Kept bool
}

// GEMM reports whether the operation is a linear or matmul.
func (o *PairOp) GEMM() bool { return isGEMM(o.Stmt) }

// String names the operations and the collective in the order in which they run: "all_gather + linear ×2" or
// "linear + all_reduce + add".
func (p *Pair) String() string {
	var stmts []*ir.Stmt
	for _, o := range p.Ops {
		if o.GEMM() {
			stmts = append(stmts, o.Stmt)
		}
	}
	gemms := counted(stmts)
	if p.Comm == ir.OpAllGather && !p.Before {
		return p.Comm.String() + " + " + gemms
	}
	text := gemms + " + " + p.Comm.String()
	if len(p.Post) == 0 {
		return text
	}
	stmts = nil
	for _, o := range p.Post {
		stmts = append(stmts, o.Stmt)
	}
	return text + " + " + counted(stmts)
}

// counted lists the ops of statements with their numbers: "linear ×2, matmul".
func counted(stmts []*ir.Stmt) string {
	var words []string
	times := map[string]int{}
	for _, s := range stmts {
		if times[s.Op.String()]++; times[s.Op.String()] == 1 {
			words = append(words, s.Op.String())
		}
	}
	for i, w := range words {
		words[i] = repeatedWord(w, times[w])
	}
	return strings.Join(words, ", ")
}

// region holds a Pair and the statements that the overlap pass replaces.
type region struct {
	Pair
	comm *ir.Stmt
	// body holds the operations in text order, without the collective.
	body []*ir.Stmt
	// post holds the operations that follow a reduction. Each operation uses the result of the operation before it, and
	// only the result of the last one has other users.
	post []*ir.Stmt
	in   map[*ir.Stmt]bool // body, comm, post and with
	// with is the list of the gathers of scales. The blocks of scales are sent together with the blocks of the operand.
	with []*ir.Stmt
	// blocked reports that the collective gathers or scatters the dimension Rows. Each rank then has one block of the
	// rows, and a piece consists of the same rows of every block.
	blocked bool
	// across reports that pieces are not rows of the operands (see acrossAxis).
	across bool
	// other describes the same pair with pieces that are not rows; only the strategy exchange can use it.
	other *region
	// last is the last statement in the block that belongs to the region.
	last *ir.Stmt
	// choice and entry are the indices of the decision on this region in the list of choices and in the log. choice and
	// entry are set when the decision is made.
	choice, entry int
}

// gathers reports whether the operations use the result of the region's all_gather.
func (r *region) gathers() bool { return r.comm.Op == ir.OpAllGather && !r.Before }

// pairFinder finds the pairs in one block.
type pairFinder struct {
	*unit
	fn    *ir.Func
	users useIndex
	def   map[string]*ir.Stmt // maps each value that this block defines to its statement
	at    map[*ir.Stmt]int
	// carried holds the values that the loops around this block carry from one iteration to the next. They are dense.
	carried []ir.Name
	stmts   []*ir.Stmt
	// owned maps each statement in the region of a reduction that will be replaced to this region. shared does the same
	// for the reductions that remain sequential.
	owned, shared map[*ir.Stmt]*region
	// taken maps each statement of a region that has been replaced to the region. pending holds the values that these
	// regions compute, until the replacement is emitted; a region that is emitted earlier cannot use them.
	taken   map[*ir.Stmt]*region
	pending map[string]*ir.Stmt // maps a value to the collective of its region
	when    when                // how often the block runs, and on which ranks
}

// overMain reports whether s is a collective that may be part of a pair and whose values are on the main mesh.
func (f *pairFinder) overMain(s *ir.Stmt) bool {
	switch s.Op {
	case ir.OpAllGather, ir.OpReduceScatter, ir.OpAllReduce:
	default:
		return false
	}
	if !pure(s) || !f.isValue(s) {
		return false
	}
	return s.Op == ir.OpAllGather || s.Word("op", "") == ir.Sum.String()
}

// isValue reports whether s defines a value on the main mesh and all operands of s are on the main mesh.
func (f *pairFinder) isValue(s *ir.Stmt) bool {
	res := f.info.Results[s]
	return len(res) == 1 && plainValue(res[0]) && !slices.ContainsFunc(f.info.Operands[s], func(x *ir.Sym) bool { return !plainValue(x) })
}

func plainValue(s *ir.Sym) bool {
	return s != nil && s.Kind == ir.SymValue && s.Type != nil && s.Type.Mesh == ""
}

func (f *pairFinder) typeOf(s *ir.Stmt) *ir.Type { return f.info.Results[s][0].Type }

// newRegion returns a region that contains only the collective s.
func (f *pairFinder) newRegion(s *ir.Stmt) *region {
	r := &region{comm: s, in: map[*ir.Stmt]bool{s: true}, last: s}
	r.Func, r.Value, r.Pos = f.fn.Name, s.Results[0].Text, s.Pos
	r.Comm, r.Axes = s.Op, s.Over()
	r.From, r.To = f.info.Operands[s][0].Type, f.typeOf(s)
	r.AnyOrder, r.Algorithm = s.Word("order", "rank") == "any", s.Word("algorithm", "")
	if a := s.Attr("axis"); a != nil && a.Exprs[0].Kind == ir.ExprInt {
		r.Axis = int(a.Exprs[0].Val)
	}
	return r
}

// finish sets the fields of the Pair that the chooser reads.
func (f *pairFinder) finish(r *region) {
	r.Ops, r.Post = f.pairOps(r, r.body), f.pairOps(r, r.post)
	r.Refused = map[StrategyKind]string{}
	r.Kept = r.gathers() && f.usedOutside(r, r.comm)
	switch {
	case f.when.someRanks:
		r.Refused[Exchange] = "the pair is in a branch that not all ranks execute, but buffers that peers write must exist on all ranks"
	case r.Before && (!r.blocked || r.Rows > 0):
		r.Refused[Exchange] = "the gathered dimension is not the first, so a rank's block is not dense in the result"
	case r.comm.Op == ir.OpAllGather && !r.blocked:
		r.Refused[Exchange] = "the GEMM contracts the gathered dimension, so a single block determines no rows of the result"
	case r.comm.Op == ir.OpReduceScatter && !r.blocked:
		r.Refused[Exchange] = "the GEMM cannot compute the scattered blocks one by one"
	case r.comm.Op == ir.OpAllReduce && varies(r.To.Dims[r.Rows].Extent):
		r.Refused[Exchange] = fmt.Sprintf("the number of its rows, %s, differs between iterations, but the blocks must have the same size in all iterations",
			r.To.Dims[r.Rows].Extent)
	case r.comm.Op == ir.OpAllReduce:
		r.Undivided = f.undivided(r)
	}
}

// varies reports whether an extent depends on the variable of a loop.
func varies(e *ir.Expr) (found bool) {
	e.Walk(func(e *ir.Expr) { found = found || e.Kind == ir.ExprVar })
	return found
}

// usedOutside reports whether statements outside r use the result of s.
func (f *pairFinder) usedOutside(r *region, s *ir.Stmt) bool {
	return slices.ContainsFunc(f.users[s.Results[0].Text], func(u *ir.Stmt) bool { return !r.in[u] })
}

func (f *pairFinder) pairOps(r *region, stmts []*ir.Stmt) []PairOp {
	var out []PairOp
	for _, s := range stmts {
		op := PairOp{Stmt: s, Out: f.typeOf(s), Kept: f.usedOutside(r, s)}
		for _, x := range f.info.Operands[s] {
			op.In = append(op.In, x.Type)
		}
		out = append(out, op)
	}
	return out
}

// undivided reports whether the text shows that the number of rows is not a multiple of the number of ranks. If the
// text does not give a size as a number, undivided returns false, because divisibility then depends on the bound dims.
func (f *pairFinder) undivided(r *region) bool {
	sizes := literalSizes(f.prog)
	rows, err1 := r.To.LocalType().Dims[r.Rows].Extent.Eval(sizes)
	ranks, err2 := sizeOfAxes(r.Axes).Eval(sizes)
	return err1 == nil && err2 == nil && ranks != 0 && rows%ranks != 0
}

// hasGEMM reports whether the region contains a GEMM with which the communication can overlap.
func (r *region) hasGEMM() bool { return slices.ContainsFunc(r.body, isGEMM) }

// rowsCandidates returns the dimensions along which the results of the operations may be cut, best first. The first is
// the dimension that the collective gathers or scatters, if there is one; the outermost dimension follows.
func (r *region) rowsCandidates() []int {
	if r.comm.Op == ir.OpAllReduce || r.Axis == 0 {
		return []int{0}
	}
	return []int{r.Axis, 0}
}

func (r *region) cut(rows int) {
	r.Rows, r.blocked = rows, r.comm.Op != ir.OpAllReduce && rows == r.Axis
}

// operandsOf divides the operands of s into two lists. A piece of the result needs only the same rows of the operands
// in byRow, but all rows of the operands in whole. If s cannot be computed by rows of the dimension rows, ok is false.
func (f *pairFinder) operandsOf(s *ir.Stmt, rows int, across bool) (byRow, whole []string, ok bool) {
	if !pure(s) || s.Op.Info().Class != ir.ClassTensor || !f.isValue(s) {
		return nil, nil, false
	}
	dims := len(f.typeOf(s).Dims)
	for i, x := range f.info.Operands[s] {
		role := operandRole(s, i, rows, len(x.Type.Dims), dims)
		if across {
			_, role = acrossAxis(s, i, rows, len(x.Type.Dims), dims)
		}
		switch role {
		case unusable:
			return nil, nil, false
		case entire:
			whole = append(whole, s.Args[i].Name)
		case byRows:
			byRow = append(byRow, s.Args[i].Name)
		}
	}
	return byRow, whole, len(byRow) > 0
}

// dense reports whether a value's shards are certain to have no gaps, so that reshape can split it into blocks of rows.
func (f *pairFinder) dense(name string) bool {
	d := f.def[name]
	if d == nil {
		return slices.ContainsFunc(f.carried, func(c ir.Name) bool { return c.Text == name }) ||
			slices.ContainsFunc(f.fn.Params, func(p *ir.Param) bool { return p.Name == name })
	}
	if d.Op == ir.OpReshape {
		return f.dense(d.Args[0].Name)
	}
	return d.Op.Info().Class != ir.ClassView || d.Op == ir.OpClaim
}
