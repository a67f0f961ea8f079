package repair

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// This file repairs deadlocks by changes of order only: it exchanges statements, or combines the sends and recvs of two
// ranks that send to each other into groups. Two statements are exchanged only if they share no names, and no memory
// that either of them writes. Therefore the program computes the same results; the verifier then proves whether the new
// order is correct.

// These constants limit the number of reordered programs that a repair plans and proves: at most maxTries programs, and
// fewer if the program's text is long.
const (
	maxTries  = 400
	triedText = 40_000 // maximum number of statements in all reordered programs together
)

// unlock repairs a program that cannot be planned, or for which a deadlock was found. A program that is proved without
// further edits is preferred.
func unlock(prog *ir.Program, funcName string, plans Planner) *Repaired {
	r := &reorderer{editor: editor{prog: prog, funcName: funcName}}
	statements := 1
	r.fn(prog).Body.Walk(func(*ir.Stmt) { statements++ })
	r.most = min(maxTries, triedText/statements)
	r.collect()
	if joined := r.joined(); joined != nil {
		j := &reorderer{editor: editor{prog: joined, funcName: funcName}, most: r.most}
		j.collect()
		r.out = append(r.out, j.out...)
	}
	var half []*Repaired
	for _, e := range r.out {
		next := attempt(prog, e, nil, plans)
		switch {
		case next == nil || stuck(next.Result):
		case next.Result.Verdict == verify.Proved:
			return next
		case len(half) < maxHalf:
			half = append(half, next)
		}
	}
	for _, h := range half {
		if done := complete(h, funcName, plans); done != nil {
			return done
		}
	}
	return nil
}

// maxHalf limits the number of reordered programs with other faults for which further edits are searched.
const maxHalf = 4

// attempt plans and checks an edited program. It returns nil if the program cannot be planned.
func attempt(prog *ir.Program, e edit, before []string, plans Planner) *Repaired {
	parsed, ds := ir.Parse(prog.File, e.program.String())
	if ds.HasErrors() {
		return nil
	}
	parsed.Files = prog.Files
	planned, p, err := plans(parsed)
	if err != nil {
		return nil
	}
	return &Repaired{Program: parsed, Edits: append(slices.Clone(before), e.says),
		Result: verify.Plan(p, verify.Options{Prog: planned})}
}

// stuck reports whether a result includes a deadlock.
func stuck(r *verify.Result) bool {
	return slices.ContainsFunc(r.Findings, func(f verify.Finding) bool { return f.Kind == verify.KindDeadlock })
}

// reorderer collects programs with a different order of statements. The programs with the smallest changes come first.
type reorderer struct {
	editor
	roots map[string]string // maps the name of a view to the name of the viewed tensor
	most  int               // limit on the number of programs
}

func (r *reorderer) collect() {
	r.roots = map[string]string{}
	body := r.fn(r.prog).Body
	body.Walk(func(s *ir.Stmt) {
		if s.Op.Info().Class == ir.ClassView && len(s.Results) == 1 && len(s.Args) > 0 {
			r.roots[s.Results[0].Text] = s.Args[0].Name
		}
	})
	all := blocks(body)
	for b, block := range all {
		r.groups(b, block)
	}
	longest := 0
	for _, block := range all {
		longest = max(longest, len(block.Stmts))
	}
	for far := 1; far < longest && len(r.out) < r.most; far++ {
		for b, block := range all {
			for i := range block.Stmts {
				r.move(b, block, i, i-far)
				if far > 1 {
					r.move(b, block, i, i+far) // moving a statement down by one equals moving the next one up by one
				}
			}
		}
	}
}

// joined returns the program in which adjacent on blocks of the same stream are merged. It returns nil if there are no
// such blocks.
func (r *reorderer) joined() *ir.Program {
	c, some := r.prog.Clone(), false
	for _, b := range blocks(r.fn(c).Body) {
		for i := len(b.Stmts) - 1; i > 0; i-- {
			x, y := b.Stmts[i-1], b.Stmts[i]
			if x.Op == ir.OpOn && y.Op == ir.OpOn && x.Args[0].String() == y.Args[0].String() {
				x.Body.Stmts = append(x.Body.Stmts, y.Body.Stmts...)
				b.Stmts = slices.Delete(b.Stmts, i, i+1)
				some = true
			}
		}
	}
	if !some {
		return nil
	}
	return c
}

// blocks lists a block and the blocks inside it, in the order of the text.
func blocks(b *ir.Block) []*ir.Block {
	if b == nil {
		return nil
	}
	out := []*ir.Block{b}
	for _, s := range b.Stmts {
		out = append(append(out, blocks(s.Body)...), blocks(s.Else)...)
	}
	return out
}

// change clones the program and changes block number n of the clone.
func (r *reorderer) change(n int, says string, do func(b *ir.Block)) {
	if len(r.out) >= r.most {
		return
	}
	c := r.prog.Clone()
	do(blocks(r.fn(c).Body)[n])
	r.out = append(r.out, edit{c, says})
}

// move adds the program in which statement i is moved to the position of statement j.
func (r *reorderer) move(n int, b *ir.Block, i, j int) {
	if j < 0 || j >= len(b.Stmts) || !movable(b.Stmts[i]) {
		return
	}
	step := 1
	if j < i {
		step = -1
	}
	for k := i; k != j; k += step {
		if !r.commute(b.Stmts[i], b.Stmts[k+step]) {
			return
		}
	}
	s := b.Stmts[i]
	word := "behind"
	if j < i {
		word = "before"
	}
	r.change(n, fmt.Sprintf("line %d (%s) %s line %d", s.Pos.Line, s.Op, word, b.Stmts[j].Pos.Line), func(b *ir.Block) {
		s := b.Stmts[i]
		b.Stmts = slices.Insert(slices.Delete(b.Stmts, i, i+1), j, s)
	})
}

// movable reports whether a statement, including all statements inside it, only orders streams or communicates.
func movable(s *ir.Stmt) bool {
	switch s.Op {
	case ir.OpOn, ir.OpIf, ir.OpFor:
		ok := len(s.Carry) == 0 && s.Streams == 0
		for _, b := range []*ir.Block{s.Body, s.Else} {
			if b != nil {
				for _, x := range b.Stmts {
					ok = ok && (movable(x) || x.Op == ir.OpLet || x.Op.Info().Class == ir.ClassView ||
						x.Op.Info().Class == ir.ClassTensor && x.Into != nil)
				}
			}
		}
		return ok
	}
	switch s.Op.Info().Class {
	case ir.ClassOrder, ir.ClassTransfer:
		return true
	case ir.ClassCollective:
		return s.Into != nil
	}
	return false
}

// root returns the name of the buffer or value that owns the memory of the given name.
func (r *reorderer) root(name string) string {
	for range len(r.roots) {
		of, ok := r.roots[name]
		if !ok {
			break
		}
		name = of
	}
	return name
}

// uses holds the names and memory that a statement, including the statements inside it, accesses.
type uses struct {
	names, defines map[string]bool
	reads, writes  map[string]bool
}

func (r *reorderer) usesOf(s *ir.Stmt) *uses {
	u := &uses{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	var visit func(s *ir.Stmt)
	visit = func(s *ir.Stmt) {
		for _, x := range s.Results {
			u.defines[x.Text] = true
		}
		for i, a := range s.Args {
			u.names[a.Name] = true
			switch class := s.Op.Info().Class; {
			case class == ir.ClassOrder || s.Op == ir.OpOn || class == ir.ClassView && s.Into == nil:
			case s.Op == ir.OpRecv && i == 0:
				u.writes[r.root(a.Name)] = true
			case s.Op == ir.OpLaunch:
				kind := s.Launch.Operand(i)
				if kind.Writes() {
					u.writes[r.root(a.Name)] = true
				}
				if kind.Reads() {
					u.reads[r.root(a.Name)] = true
				}
			default:
				u.reads[r.root(a.Name)] = true
			}
			note(a.Index, u.names)
		}
		if s.Into != nil {
			u.names[s.Into.Name] = true
			u.writes[r.root(s.Into.Name)] = true
			note(s.Into.Index, u.names)
		}
		for _, e := range s.Exprs {
			note(e, u.names)
		}
		if s.Peer != nil {
			note(s.Peer.Index, u.names)
		}
		for _, a := range s.Attrs {
			for _, e := range a.Exprs {
				note(e, u.names)
			}
		}
		for _, b := range []*ir.Block{s.Body, s.Else} {
			if b != nil {
				for _, x := range b.Stmts {
					visit(x)
				}
			}
		}
	}
	visit(s)
	return u
}

func note(e *ir.Expr, names map[string]bool) {
	if e == nil {
		return
	}
	e.Walk(func(x *ir.Expr) {
		if x.Kind == ir.ExprVar || x.Kind == ir.ExprExtent {
			names[x.Name] = true
		}
	})
}

// commute reports whether two adjacent statements may be exchanged without a change of names or memory accesses.
func (r *reorderer) commute(a, b *ir.Stmt) bool {
	if b.Op == ir.OpReturn || b.Op == ir.OpYield || a.Op == ir.OpReturn || b.Op == ir.OpFree || b.Op == ir.OpClaim {
		return false
	}
	x, y := r.usesOf(a), r.usesOf(b)
	return !meet(x.defines, y.names) && !meet(y.defines, x.names) && !meet(x.writes, y.writes) &&
		!meet(x.writes, y.reads) && !meet(y.writes, x.reads)
}

func meet(a, b map[string]bool) bool {
	for k := range a {
		if b[k] {
			return true
		}
	}
	return false
}

// groups adds programs in which adjacent sends and recvs form one group. Only views may be between the transfers. One
// program is added for each pair of adjacent transfers, and one for each maximal sequence of adjacent transfers.
func (r *reorderer) groups(n int, b *ir.Block) {
	transfer := func(s *ir.Stmt) bool { return s.Op == ir.OpSend || s.Op == ir.OpRecv || s.Op == ir.OpGroup }
	var run []int
	flush := func() {
		if len(run) > 2 {
			r.group(n, b, run)
		}
		for i := 1; i < len(run); i++ {
			r.group(n, b, run[i-1:i+1])
		}
		run = nil
	}
	for i, s := range b.Stmts {
		switch {
		case transfer(s):
			run = append(run, i)
		case s.Op == ir.OpLet || s.Op.Info().Class == ir.ClassView && s.Into == nil:
		default:
			flush()
		}
	}
	flush()
}

// group moves the statements at the given positions into one group. The statements that separated them are placed
// before the group.
func (r *reorderer) group(n int, b *ir.Block, at []int) {
	first, last := at[0], at[len(at)-1]
	says := fmt.Sprintf("lines %d to %d in one group", b.Stmts[first].Pos.Line, b.Stmts[last].Pos.Line)
	r.change(n, says, func(b *ir.Block) {
		var views, in []*ir.Stmt
		for i := first; i <= last; i++ {
			switch s := b.Stmts[i]; {
			case !slices.Contains(at, i):
				views = append(views, s)
			case s.Op == ir.OpGroup:
				in = append(in, s.Body.Stmts...)
			default:
				in = append(in, s)
			}
		}
		together := append(views, &ir.Stmt{Op: ir.OpGroup, Body: &ir.Block{Stmts: in}})
		b.Stmts = slices.Replace(b.Stmts, first, last+1, together...)
	})
}
