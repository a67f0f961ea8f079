// Package repair finds the smallest edits that make a program pass the verifier.
package repair

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// Planner lowers, binds and plans a program. It returns the program that was planned; the sites of the plan refer to
// the text of that program.
type Planner func(*ir.Program) (*ir.Program, *plan.Plan, error)

// Repaired holds a program that was proved after edits.
type Repaired struct {
	Program *ir.Program
	// Edits has one line for each edit, which describes the edit and its place.
	Edits []string
	// Result is the verifier's result for the edited program.
	Result *verify.Result
}

// maxEdits limits the number of edits in a repair: one fork and one join for each of 32 streams. Each edit leaves fewer
// findings than before.
const maxEdits = 64

// Repair finds the smallest edits with which the program can be proved. For a deadlock or a mismatch, it changes the
// order of statements (reorder.go). For races, it inserts waits and barriers: it takes the first finding and tries the
// insertions that can order the two operations, the smallest first. It keeps an insertion with which the program is
// proved, or otherwise the one that leaves the fewest findings. Repair returns nil if it finds no edits. All statements
// of the program must have positions.
func Repair(prog *ir.Program, funcName string, plans Planner) *Repaired {
	planned, p, err := plans(prog)
	if err != nil {
		if !outOfOrder(err) {
			return nil
		}
		return unlock(prog, funcName, plans)
	}
	first := &Repaired{Program: prog, Result: verify.Plan(p, verify.Options{Prog: planned})}
	if stuck(first.Result) {
		return unlock(prog, funcName, plans)
	}
	return complete(first, funcName, plans)
}

// outOfOrder reports whether the planner's error is one that a different order of statements could remove.
func outOfOrder(err error) bool {
	ds, ok := err.(ir.Diagnostics)
	return ok && slices.ContainsFunc(ds, func(d *ir.Diagnostic) bool {
		return d.Kind == "deadlock" || d.Kind == "match" || d.Kind == "structure"
	})
}

// complete inserts waits and barriers until a program is proved. It returns nil if no insertions achieve this.
func complete(best *Repaired, funcName string, plans Planner) *Repaired {
	for range maxEdits {
		if best.Result.Verdict == verify.Proved {
			return best
		}
		next := improve(best, funcName, plans)
		if next == nil {
			return nil
		}
		best = next
	}
	return nil
}

// improve applies the single edit that leaves the fewest faults. It returns nil if no edit leaves fewer faults than
// before.
func improve(from *Repaired, funcName string, plans Planner) *Repaired {
	var best *Repaired
	least := faults(from.Result)
	for i := range from.Result.Findings {
		f := &from.Result.Findings[i]
		if f.Warning || len(f.Acts) < 2 {
			continue
		}
		for _, e := range edits(from, f, funcName) {
			next := attempt(from.Program, e, from.Edits, plans)
			if next == nil {
				continue
			}
			n := faults(next.Result)
			if n >= least {
				continue
			}
			if least, best = n, next; n == 0 && next.Result.Verdict == verify.Proved {
				return best
			}
		}
		if best != nil {
			return best
		}
	}
	return best
}

// faults returns the number of faulty places, including the places that the result only counts and does not list.
func faults(r *verify.Result) int {
	n := r.Unlisted
	for i := range r.Findings {
		if !r.Findings[i].Warning {
			n += max(r.Findings[i].Count, 1)
		}
	}
	return n
}

// edit holds an edited copy of a program, with a description of the edit.
type edit struct {
	program *ir.Program
	says    string
}

// edits lists the insertions that could order a finding's first act before its second.
func edits(from *Repaired, f *verify.Finding, funcName string) []edit {
	ed := &editor{prog: from.Program, funcName: funcName}
	p := from.Result.Plan
	a, b := &p.Cmds[f.Acts[0].Cmd], &p.Cmds[f.Acts[1].Cmd]
	posA, posB := p.Sites[a.Site].Pos, p.Sites[b.Site].Pos
	if a.Rank == b.Rank {
		if p.Main[a.Rank] == a.Stream || f.Acts[1].Run > f.Acts[0].Run {
			ed.forkBefore(posB)
		}
		if p.Main[b.Rank] == b.Stream || f.Acts[1].Run > f.Acts[0].Run {
			ed.joinAtEnd(posA)
		}
		ed.waitBefore(posB, posA)
	} else if f.Acts[0].Run == f.Acts[1].Run {
		ed.waitForSignal(p, f.Acts[0].Cmd, b, posB)
	}
	ed.barriers(posB, f.Acts[0].Run < f.Acts[1].Run)
	return ed.out
}

// editor collects the edits of one program.
type editor struct {
	prog     *ir.Program
	funcName string
	out      []edit
}

// step is one block on the path to a statement, and the index in the block at which the path continues.
type step struct {
	block *ir.Block
	at    int
	stmt  *ir.Stmt
}

// fn returns the function of p that is checked.
func (e *editor) fn(p *ir.Program) *ir.Func {
	if f := p.Func(e.funcName); f != nil {
		return f
	}
	return p.Funcs[len(p.Funcs)-1]
}

// way returns the path of blocks to the statement at pos, outermost block first.
func (e *editor) way(p *ir.Program, pos ir.Pos) []step {
	var find func(b *ir.Block) []step
	find = func(b *ir.Block) []step {
		if b == nil {
			return nil
		}
		for i, s := range b.Stmts {
			here := step{b, i, s}
			if s.Pos == pos {
				return []step{here}
			}
			for _, inner := range []*ir.Block{s.Body, s.Else} {
				if w := find(inner); w != nil {
					return append([]step{here}, w...)
				}
			}
		}
		return nil
	}
	for _, f := range p.Funcs {
		if w := find(f.Body); w != nil {
			return w
		}
	}
	return nil
}

// insert clones the program and inserts statements on the path to pos. The argument where is a function that returns
// the block and the index at which they are inserted.
func (e *editor) insert(pos ir.Pos, where func(way []step) (*ir.Block, int), says string, stmts ...*ir.Stmt) {
	c := e.prog.Clone()
	way := e.way(c, pos)
	if way == nil {
		return
	}
	block, at := where(way)
	if block == nil {
		return
	}
	block.Stmts = slices.Insert(block.Stmts, at, stmts...)
	e.out = append(e.out, edit{c, says})
}

// onOf returns the stream to which the statement at the end of a path is issued, or nil for main.
func onOf(way []step) *ir.Place {
	for i := len(way) - 2; i >= 0; i-- {
		if s := way[i].stmt; s.Op == ir.OpOn {
			if s.Args[0].Main {
				return nil
			}
			return &s.Args[0]
		}
	}
	return nil
}

// outermostLoop returns the index of the outermost loop in a path, or -1 if the path has no loop.
func outermostLoop(way []step) int {
	return slices.IndexFunc(way[:len(way)-1], func(s step) bool { return s.stmt.Op == ir.OpFor })
}

// declared returns the number of elements of a stream array. It returns nil for a single stream, and for a stream that
// the program's text does not declare.
func (e *editor) declared(name string) *ir.Expr {
	var n *ir.Expr
	for _, f := range e.prog.Funcs {
		f.Body.Walk(func(s *ir.Stmt) {
			if s.Op == ir.OpStream && s.Results[0].Text == name {
				n = s.Count
			}
		})
	}
	return n
}

func wait(p ir.Place) *ir.Stmt { return &ir.Stmt{Op: ir.OpWait, Args: []ir.Place{p}} }

func on(p ir.Place, s *ir.Stmt) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpOn, Args: []ir.Place{p}, Body: &ir.Block{Stmts: []*ir.Stmt{s}}}
}

// each returns a loop that executes the statement that body returns for every element of a stream array.
func (e *editor) each(name string, count *ir.Expr, body func(p ir.Place) *ir.Stmt) *ir.Stmt {
	v := e.fresh("k")
	s := body(ir.At(name, ir.Var(v)))
	return &ir.Stmt{Op: ir.OpFor, Results: []ir.Name{{Text: v}}, Exprs: []*ir.Expr{ir.Int(0), count}, Body: &ir.Block{Stmts: []*ir.Stmt{s}}}
}

// fresh returns a name that the program does not use.
func (e *editor) fresh(name string) string {
	used := map[string]bool{}
	for _, f := range e.prog.Funcs {
		for _, p := range f.Params {
			used[p.Name] = true
		}
		f.Body.Walk(func(s *ir.Stmt) {
			for _, r := range s.Results {
				used[r.Text] = true
			}
		})
	}
	for i := 0; ; i++ {
		if n := fmt.Sprintf("%s%d", name, i); !used[n] {
			return n
		}
	}
}

// forkBefore proposes edits that make the stream of the statement at pos wait for main: before the outermost loop
// around the statement, at the start of each on block around it, and directly before the statement.
func (e *editor) forkBefore(pos ir.Pos) {
	way := e.way(e.prog, pos)
	if way == nil {
		return
	}
	stream := onOf(way)
	if stream == nil {
		return
	}
	fork := func(p ir.Place) *ir.Stmt { return on(p, wait(ir.Main())) }
	if loop := outermostLoop(way); loop >= 0 {
		before := func(w []step) (*ir.Block, int) { return w[loop].block, w[loop].at }
		if n := e.declared(stream.Name); n != nil && stream.Index != nil {
			e.insert(pos, before, fmt.Sprintf("fork: all streams of %%%s wait for main before the loop at line %d", stream.Name, way[loop].stmt.Pos.Line), e.each(stream.Name, n, fork))
		} else {
			e.insert(pos, before, fmt.Sprintf("fork: %s waits for main before the loop at line %d", stream, way[loop].stmt.Pos.Line), fork(*stream))
		}
	}
	for i, s := range way {
		if s.stmt.Op == ir.OpOn {
			e.insert(pos, func(w []step) (*ir.Block, int) { return w[i].stmt.Body, 0 },
				fmt.Sprintf("fork: wait main at the start of the on block at line %d", s.stmt.Pos.Line), wait(ir.Main()))
		}
	}
	e.insert(pos, innermost, fmt.Sprintf("fork: wait main before line %d", pos.Line), wait(ir.Main()))
}

func innermost(way []step) (*ir.Block, int) {
	last := way[len(way)-1]
	return last.block, last.at
}

// beforeClaim returns a position before claims. If claims define values that the statement at the end of the path uses,
// it returns the position before the first of these claims in the text; otherwise it returns no block. The position
// matters because a value has the contents that its buffer had at the claim, although a plan has no command for a
// claim.
func beforeClaim(way []step) (block *ir.Block, at int) {
	used := map[string]bool{}
	use := func(s *ir.Stmt) {
		for _, a := range s.Args {
			used[a.Name] = true
		}
	}
	use(way[len(way)-1].stmt)
	for i := len(way) - 1; i >= 0; i-- {
		for k := way[i].at - 1; k >= 0; k-- {
			s := way[i].block.Stmts[k]
			switch {
			case s.Op.Info().Class != ir.ClassView || len(s.Results) == 0 || !used[s.Results[0].Text]:
			case s.Op == ir.OpClaim:
				block, at = way[i].block, k
			default:
				use(s)
			}
		}
	}
	return block, at
}

// before proposes two edits. The first edit inserts statement s before a claim on which the statement at pos depends.
// The second edit inserts s directly before the statement at pos. The argument what describes s in the text of the
// edits.
func (e *editor) before(pos ir.Pos, what string, s *ir.Stmt) {
	way := e.way(e.prog, pos)
	if way == nil {
		return
	}
	if b, at := beforeClaim(way); b != nil {
		e.insert(pos, beforeClaim, fmt.Sprintf("%s before line %d", what, b.Stmts[at].Pos.Line), s)
	}
	e.insert(pos, innermost, fmt.Sprintf("%s before line %d", what, pos.Line), s)
}

// joinAtEnd proposes an edit that makes main wait, before the function returns, for the stream of the statement at pos.
func (e *editor) joinAtEnd(pos ir.Pos) {
	way := e.way(e.prog, pos)
	if way == nil {
		return
	}
	stream := onOf(way)
	if stream == nil {
		return
	}
	join := wait(*stream)
	if n := e.declared(stream.Name); n != nil && stream.Index != nil {
		join = e.each(stream.Name, n, wait)
	}
	end := func(w []step) (*ir.Block, int) {
		b := w[0].block
		at := len(b.Stmts)
		if at > 0 && b.Stmts[at-1].Op == ir.OpReturn {
			at--
		}
		return b, at
	}
	says := fmt.Sprintf("join: main waits for %%%s at the end", stream.Name)
	if b, at := end(way); at < len(b.Stmts) {
		e.insert(pos, func(w []step) (*ir.Block, int) {
			b, at := end(w)
			return beforeClaim([]step{{b, at, b.Stmts[at]}})
		}, says, join)
	}
	e.insert(pos, end, says, join)
}

// waitBefore proposes edits that make the stream of the statement at pos wait for the stream of the statement at
// position of.
func (e *editor) waitBefore(pos, of ir.Pos) {
	way := e.way(e.prog, of)
	if way == nil || e.way(e.prog, pos) == nil {
		return
	}
	stream := onOf(way)
	s := wait(ir.Main())
	if stream != nil {
		s = wait(*stream)
		e.before(pos, fmt.Sprintf("wait %s", stream), s)
		n := e.declared(stream.Name)
		if n == nil || stream.Index == nil {
			return
		}
		s = e.each(stream.Name, n, wait)
	}
	e.before(pos, "a wait", s)
}

// waitForSignal proposes edits that make the stream of the statement at pos wait for the signal after command a, if
// that signal raises a counter of b's rank. Each loop variable and let in scope at pos is tried as the index of the counter
// element.
func (e *editor) waitForSignal(p *plan.Plan, a int32, b *plan.Cmd, pos ir.Pos) {
	way := e.way(e.prog, pos)
	if way == nil {
		return
	}
	for i := a + 1; int(i) < len(p.Cmds); i++ {
		c := &p.Cmds[i]
		if c.Kind != plan.Signal || c.Stream != p.Cmds[a].Stream || c.Peer != b.Rank {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(p.Counters[c.Counter].Name, "%"), "@")
		indices := []*ir.Expr{nil}
		if p.Counters[c.Counter].Len > 1 {
			indices = inScope(way)
		}
		for _, ix := range indices {
			place := ir.Place{Name: name, Index: ix}
			w := &ir.Stmt{Op: ir.OpWait, Args: []ir.Place{place}, Exprs: []*ir.Expr{ir.Int(1)}}
			e.before(pos, fmt.Sprintf("wait %s >= 1", place.String()), w)
		}
		if n := p.Counters[c.Counter].Len; n > 1 {
			e.before(pos, fmt.Sprintf("waits for the other ranks' %%%s", name), e.others(name, int64(n)))
		}
		return
	}
}

// others returns a loop that waits for all elements of a counter except the rank's own.
func (e *editor) others(name string, n int64) *ir.Stmt {
	return e.each(name, ir.Int(n), func(p ir.Place) *ir.Stmt {
		w := wait(p)
		w.Exprs = []*ir.Expr{ir.Int(1)}
		return &ir.Stmt{Op: ir.OpIf, Exprs: []*ir.Expr{p.Index, ir.Rank(e.axes()[0])}, Cmp: ir.NE, Body: &ir.Block{Stmts: []*ir.Stmt{w}}}
	})
}

// inScope returns the loop variables and lets that are visible at the end of a path, innermost first.
func inScope(way []step) []*ir.Expr {
	var out []*ir.Expr
	for i := len(way) - 1; i >= 0; i-- {
		for k := way[i].at - 1; k >= 0; k-- {
			if s := way[i].block.Stmts[k]; s.Op == ir.OpLet {
				out = append(out, ir.Var(s.Results[0].Text))
			}
		}
		if s := way[i].stmt; s.Op == ir.OpFor {
			out = append(out, ir.Var(s.Results[0].Text))
		}
	}
	return out
}

// barriers proposes a barrier over all ranks at the start of the function, and another directly before the statement at
// pos. If startFirst is set, the first proposal is preferred.
func (e *editor) barriers(pos ir.Pos, startFirst bool) {
	barrier := func() *ir.Stmt {
		return &ir.Stmt{Op: ir.OpBarrier, Attrs: []ir.Attr{ir.Over(e.axes()...)}}
	}
	c := e.prog.Clone()
	body := e.fn(c).Body
	at := 0
	for at < len(body.Stmts) && body.Stmts[at].Op.Info().Class == ir.ClassMemory {
		at++
	}
	body.Stmts = slices.Insert(body.Stmts, at, barrier())
	start := edit{c, "a barrier at the start"}
	if startFirst {
		e.out = append(e.out, start)
	}
	e.before(pos, "a barrier", barrier())
	if !startFirst {
		e.out = append(e.out, start)
	}
}

// axes returns the names of the main mesh's axes, or world if there is no main mesh.
func (e *editor) axes() []string {
	for _, m := range e.prog.Meshes {
		if !m.HasDevices {
			var names []string
			for _, a := range m.Axes {
				names = append(names, a.Name)
			}
			return names
		}
	}
	return []string{ir.WorldAxis}
}
