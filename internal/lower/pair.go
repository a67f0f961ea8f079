package lower

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Pair is a collective and the GEMMs that can run at the same time: those that need the result of an all_gather, or
// those that compute the operand of the collective.
type Pair struct {
	// Func is the function, Value the collective's result: together they name
	// the pair. Pos is the collective's.
	Func, Value string
	Pos         ir.Pos
	// Comm is OpAllGather, OpReduceScatter or OpAllReduce, over Axes; Axis is
	// the dimension that is gathered or scattered.
	Comm ir.Op
	Axes []string
	Axis int
	// AnyOrder: it may reduce in any order. Algorithm is the one that is pinned.
	AnyOrder  bool
	Algorithm string
	// From and To are the types of the collective's operand and result.
	From, To *ir.Type
	// Rows is the dimension of the operations' results that is cut.
	Rows int
	// Ops are the operations that run piece by piece, GEMMs among them; Post those that run piece by piece after a
	// reduction.
	Ops, Post []PairOp
	// Before: it is a gather of what Ops make.
	Before bool
	// Ahead: the pair is a gather whose blocks can leave while the pair before is computed. Whole: the GEMM is then
	// computed with all blocks at once.
	Ahead, Whole bool
	// Undivided: by the text alone, an all-reduce's rows do not divide over the ranks, and an exchange is ragged.
	Undivided bool
	// Refused says, for each kind of strategy that cannot be used, why.
	Refused map[StrategyKind]string
}

// PairOp is one operation of a pair: the types of its operands and result.
type PairOp struct {
	Stmt *ir.Stmt
	In   []*ir.Type
	Out  *ir.Type
}

// GEMM reports whether the operation is a linear or matmul.
func (o *PairOp) GEMM() bool { return isGEMM(o.Stmt) }

// String names the pair's parts in the order they run: "all_gather + linear ×2",
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

// counted names statements: "linear ×2, matmul".
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

// region is a pair as the pass needs it.
type region struct {
	Pair
	comm *ir.Stmt
	// body holds the operations, in text order, the collective not among them.
	body []*ir.Stmt
	// post holds the operations that follow a reduction, each on the result of the one before. Only the last one's
	// result is used elsewhere.
	post []*ir.Stmt
	in   map[*ir.Stmt]bool // body, comm, post and with
	// with holds gathers of scales, whose blocks are sent with those of the operand.
	with []*ir.Stmt
	// blocked is set if the collective gathers or scatters the dimension Rows: each rank has a block of its rows, and
	// a piece is the same rows of every block.
	blocked bool
	// across is set if pieces are not rows of the operands (acrossAxis).
	across bool
	// other is the same pair with such pieces, which only exchange can use.
	other *region
	// last is the last statement of the block that the region reaches.
	last *ir.Stmt
	// choice and entry are the positions of the decision among the choices and in the log, once it is made.
	choice, entry int
}

// gathers reports whether the operations need what the collective brings.
func (r *region) gathers() bool { return r.comm.Op == ir.OpAllGather && !r.Before }

// pairFinder looks for pairs in one block.
type pairFinder struct {
	*unit
	fn    *ir.Func
	users useIndex
	def   map[string]*ir.Stmt // of values defined in this block
	at    map[*ir.Stmt]int
	// carried are the values that loops around this block carry, which are dense.
	carried []ir.Name
	stmts   []*ir.Stmt
	// owned are the statements of reductions' regions that will be replaced,
	// shared those of reductions that are left sequential.
	owned, shared map[*ir.Stmt]*region
	// taken are the statements of regions that have been replaced, and pending the values that these compute, until
	// the walk has reached them. A region that is emitted before cannot use these values.
	taken   map[*ir.Stmt]*region
	pending map[string]*ir.Stmt // with the collective of their region
	when    when                // the block runs
}

// overMain reports whether s is a collective on values of the main mesh that a
// pair may be made of.
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

// isValue reports whether s makes a value of the main mesh from such values.
func (f *pairFinder) isValue(s *ir.Stmt) bool {
	res := f.info.Results[s]
	return len(res) == 1 && plainValue(res[0]) && !slices.ContainsFunc(f.info.Operands[s], func(x *ir.Sym) bool { return !plainValue(x) })
}

func plainValue(s *ir.Sym) bool {
	return s != nil && s.Kind == ir.SymValue && s.Type != nil && s.Type.Mesh == ""
}

func (f *pairFinder) typeOf(s *ir.Stmt) *ir.Type { return f.info.Results[s][0].Type }

// newRegion starts a region at its collective.
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

// finish fills in what the chooser sees.
func (f *pairFinder) finish(r *region) {
	r.Ops, r.Post = f.pairOps(r.body), f.pairOps(r.post)
	r.Refused = map[StrategyKind]string{}
	switch {
	case f.when.someRanks:
		r.Refused[Exchange] = "it is in a branch that not all ranks take, and buffers that peers write must exist on all ranks"
	case r.Before && (!r.blocked || r.Rows > 0):
		r.Refused[Exchange] = "the gathered dimension is not the outermost: a rank's block is not dense in the result"
	case r.comm.Op == ir.OpAllGather && !r.blocked:
		r.Refused[Exchange] = "the gathered dimension is contracted: a block alone gives no rows of the result"
	case r.comm.Op == ir.OpReduceScatter && !r.blocked:
		r.Refused[Exchange] = "the scattered blocks cannot be computed one at a time"
	case r.comm.Op == ir.OpAllReduce && varies(r.To.Dims[r.Rows].Extent):
		r.Refused[Exchange] = fmt.Sprintf("its %s rows differ between iterations, and blocks of them are of one size",
			r.To.Dims[r.Rows].Extent)
	case r.comm.Op == ir.OpAllReduce:
		r.Undivided = f.undivided(r)
	}
}

// varies reports whether an extent depends on a loop's variable.
func varies(e *ir.Expr) (found bool) {
	e.Walk(func(e *ir.Expr) { found = found || e.Kind == ir.ExprVar })
	return found
}

func (f *pairFinder) pairOps(stmts []*ir.Stmt) []PairOp {
	var out []PairOp
	for _, s := range stmts {
		op := PairOp{Stmt: s, Out: f.typeOf(s)}
		for _, x := range f.info.Operands[s] {
			op.In = append(op.In, x.Type)
		}
		out = append(out, op)
	}
	return out
}

// undivided reports whether whole rows do not divide over the ranks, where the text
// already shows it; elsewhere the dims will.
func (f *pairFinder) undivided(r *region) bool {
	sizes := literalSizes(f.prog)
	rows, err1 := r.To.LocalType().Dims[r.Rows].Extent.Eval(sizes)
	ranks, err2 := sizeOfAxes(r.Axes).Eval(sizes)
	return err1 == nil && err2 == nil && ranks != 0 && rows%ranks != 0
}

// hasGEMM reports whether there is anything to hide communication under.
func (r *region) hasGEMM() bool { return slices.ContainsFunc(r.body, isGEMM) }

// rowsCandidates returns the dimensions that may be cut, best first: the one
// the collective gathers or scatters, else the outermost.
func (r *region) rowsCandidates() []int {
	if r.comm.Op == ir.OpAllReduce || r.Axis == 0 {
		return []int{0}
	}
	return []int{r.Axis, 0}
}

func (r *region) cut(rows int) {
	r.Rows, r.blocked = rows, r.comm.Op != ir.OpAllReduce && rows == r.Axis
}

// operandsOf splits what s needs into the operands of which it needs the same
// rows and those it needs entire. ok is false where s cannot be computed by
// rows of dimension rows.
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

// dense reports whether a value's shards are certain to have no gaps, so that reshape can separate blocks of rows.
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
