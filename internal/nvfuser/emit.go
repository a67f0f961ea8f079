package nvfuser

import (
	"strconv"

	"hocket.example/hocket/ir"
)

// block is a block of the program under construction. The block's definitions (buffers, views, lets) are placed
// directly in it, so that they are visible until the block ends. A statement that runs on another stream than the block
// is placed after the definitions, within an on statement.
type block struct {
	parent *block
	out    *ir.Block
	// base is the stream on which the statements in the field out run.
	base streamRef
	// group is the last statement of out, if it is an on statement to which more statements can be added. The field
	// key identifies the stream of that on statement.
	group *ir.Stmt
	key   string
	// guard is an if statement that only some ranks execute. guard is nil unless the if statement is the last statement
	// of the block and more statements for the same ranks can be added.
	guard    *ir.Stmt
	guardKey string

	// names holds the names that are defined in the block itself, and inner the names that are defined in nested blocks.
	names, inner map[string]bool
	binds        map[string]*binding
	lets         map[string]string // names of the lets that define indices
	// pushed counts how often a nested block, while it was being filled, has added something to this block.
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

// output assigns names to the declarations of the program. It also records the block to which the next statement is
// added.
type output struct {
	r        *reader
	d        *dump
	prog     *ir.Program
	world    int64
	teams    map[string]*team
	teamList []*team
	// The following fields describe the part of the program that is being written.
	blk       *block
	loops     []*loop
	serial    map[string]int
	declared  map[string]bool
	headStmts []*ir.Stmt
}

// fresh returns name if no visible declaration has this name, and otherwise name with a number appended.
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

// taken reports whether a definition with this name would be a duplicate. taken searches this block and the enclosing
// blocks, and also nested blocks that already exist, since the new definition may be placed before these.
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

// define adds a definition to an open block. The definition is placed before the statement that is being filled and
// after all other statements.
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

// comment adds to s a comment with the line of the dump from which s was made.
func comment(s *ir.Stmt) {
	if s.Pos.Valid() && !s.Comments.HasTrail {
		s.Comments.Trail, s.Comments.HasTrail = " line "+strconv.Itoa(int(s.Pos.Line)), true
	}
}

// here returns the block to which a statement on the current stream is added. If the current stream is not the
// stream of the enclosing block, here opens an on statement.
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

// emit adds a statement on the current stream that the given ranks execute.
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

// open adds a loop or conditional, and calls fill for each of its blocks. If steady is set, the loop or conditional
// does not change the current stream and is placed on that stream.
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
