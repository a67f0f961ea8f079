package nvfuser

import (
	"strconv"

	"hocket.example/hocket/ir"
)

// block is a block of the program being made. Its definitions (buffers, views, lets) are directly in the block, so
// that they are visible to its end. Work on a stream other than the block's follows in an on statement.
type block struct {
	parent *block
	out    *ir.Block
	// base is the stream that statements of out run on.
	base streamRef
	// group is out's last statement where that is an open on; key is its stream.
	group *ir.Stmt
	key   string
	// guard is the last statement's if on ranks, where that can take more.
	guard    *ir.Stmt
	guardKey string

	// names are those defined in the block, inner those in blocks within it.
	names, inner map[string]bool
	binds        map[string]*binding
	lets         map[string]string // the names of indices' lets
	// pushed counts detours to this block while an inner one is being filled.
	pushed int
	depth  int
}

func newBlock(parent *block, out *ir.Block, base streamRef) *block {
	b := &block{parent: parent, out: out, base: base, names: map[string]bool{}, inner: map[string]bool{}, binds: map[string]*binding{}, lets: map[string]string{}}
	if parent != nil {
		b.depth = parent.depth + 1
	}
	return b
}

// output names what the program declares, and knows where in it what comes next goes.
type output struct {
	r        *reader
	d        *dump
	prog     *ir.Program
	world    int64
	teams    map[string]*team
	teamList []*team
	// State of the place being translated.
	blk       *block
	loops     []*loop
	serial    map[string]int
	declared  map[string]bool
	headStmts []*ir.Stmt
}

// fresh returns name, or name with a number where it is taken at this place.
func (t *output) fresh(name string) string {
	full := name
	for t.taken(full) {
		t.serial[name]++
		full = name + "_" + strconv.Itoa(t.serial[name]+1)
	}
	t.blk.names[full] = true
	for b := t.blk.parent; b != nil; b = b.parent {
		b.inner[full] = true
	}
	return full
}

// taken reports whether a definition of that name would be a second one: in this block and
// those around it, and, where it comes in front of blocks that are there, in those.
func (t *output) taken(name string) bool {
	if (t.blk.pushed > 0 || t.blk.group != nil) && t.blk.inner[name] {
		return true
	}
	for b := t.blk; b != nil; b = b.parent {
		if b.names[name] {
			return true
		}
	}
	return false
}

// define adds a definition to a block that is open: in front of the statement
// that is being filled, behind all others.
func (t *output) define(b *block, s *ir.Stmt) {
	n := len(b.out.Stmts)
	comment(s)
	if b.pushed > 0 || b.group != nil {
		last := b.out.Stmts[n-1]
		b.out.Stmts = append(b.out.Stmts[:n-1], s, last)
		return
	}
	b.guard = nil
	b.out.Stmts = append(b.out.Stmts, s)
}

// comment says which line of the dump a statement comes from.
func comment(s *ir.Stmt) {
	if s.Pos.Valid() && !s.Comments.HasTrail {
		s.Comments.Trail, s.Comments.HasTrail = " line "+strconv.Itoa(int(s.Pos.Line)), true
	}
}

// here returns the block that a statement on the current stream goes to,
// opening an on where the current stream is not the block's own.
func (t *streams) here(pos ir.Pos) *ir.Block {
	b := t.blk
	cur := t.current(pos)
	if cur.key == b.base.key {
		if b.group != nil {
			b.group, b.guard = nil, nil
		}
		return b.out
	}
	if b.group == nil || b.key != cur.key {
		b.group = &ir.Stmt{Op: ir.OpOn, Pos: cur.place.Pos, Args: []ir.Place{cur.place}, Body: &ir.Block{}}
		b.key, b.guard = cur.key, nil
		comment(b.group)
		b.out.Stmts = append(b.out.Stmts, b.group)
	}
	return b.group.Body
}

// emit adds a statement on the current stream, for the given ranks.
func (t *streams) emit(s *ir.Stmt, ranks rankSet) {
	to := t.here(s.Pos)
	comment(s)
	b := t.blk
	if t.everybody(ranks) {
		b.guard = nil
		to.Stmts = append(to.Stmts, s)
		return
	}
	key := ranks.String()
	if b.guard == nil || b.guardKey != key {
		b.guard, b.guardKey = t.membership(ranks, s.Pos), key
		to.Stmts = append(to.Stmts, b.guard)
	}
	b.guard.Body.Stmts = append(b.guard.Body.Stmts, s)
}

// open adds a loop or conditional, and calls fill for each of its blocks. If it does not change streams, it is placed
// on the current stream.
func (t *streams) open(s *ir.Stmt, steady bool, fill func(body *ir.Block)) {
	outer := t.blk
	base := outer.base
	if steady {
		to := t.here(s.Pos)
		base = t.cur
		to.Stmts = append(to.Stmts, s)
	} else {
		outer.group = nil
		outer.out.Stmts = append(outer.out.Stmts, s)
	}
	outer.guard = nil
	comment(s)
	for _, body := range []*ir.Block{s.Body, s.Else} {
		if body != nil {
			t.blk = newBlock(outer, body, base)
			fill(body)
		}
	}
	t.blk = outer
}
