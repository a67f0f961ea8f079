package lower

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// This file combines and delays reductions whose results are needed only later, such as those of the gradients of
// weights. A delayed reduction runs on a separate stream while the statements that do not depend on it are computed.
// Small reductions with the same attributes that are needed at the same statement share a collective, a bucket: their
// operands are written to slots of one buffer.

// Buckets limits the sizes of buckets, the collectives that combine several reductions.
type Buckets struct {
	// Bytes is the largest size of a bucket with several reductions.
	Bytes int64
	// Sizes gives the values of dims with which sizes in bytes are computed; it may be nil. A reduction of unknown size
	// does not share a bucket.
	Sizes ir.Env
}

// small is the number of bytes below which the time of a collective does not depend on its size. A reduction after
// which no other work remains does not join a larger bucket, because that bucket can be reduced earlier.
const small = 1 << 20

// delayed is a reduction, or the one collective that replaces several.
type delayed struct {
	members []*ir.Stmt
	key     string
	bytes   int64 // −1 if unknown
	// join is the index of the first statement that waits for the collective. The collective is issued at the position
	// of its last member.
	join int
	// moved holds the statements between the combined reductions (the members) and join that depend on the members.
	moved map[*ir.Stmt]bool
	// hidden reports that work between issue and join does not depend on the collective.
	hidden bool
	// claims holds the statements after the wait, which define the members' values.
	claims []*ir.Stmt
}

// delay delays and combines the reductions that are not part of a pair that was replaced.
func delay(u *unit) error {
	info, ds := checker.Check(u.prog)
	if ds.HasErrors() {
		return &PassError{u.pass, fmt.Errorf("%w\n%s", ds, u.prog)}
	}
	u.info = info
	for _, f := range u.prog.Funcs {
		b := &bucketer{unit: u, fn: f, names: namesOf(f)}
		b.block(f.Body)
	}
	return nil
}

type bucketer struct {
	*unit
	fn    *ir.Func
	names *names
}

// block rewrites a block that runs on the main stream, and the bodies of loops in it.
func (b *bucketer) block(block *ir.Block) {
	for _, s := range block.Stmts {
		if s.Op == ir.OpFor && s.Streams == 0 {
			b.block(s.Body)
		}
	}
	stmts := block.Stmts
	groups := b.find(stmts)
	if len(groups) == 0 {
		return
	}
	at, waits, moved := map[*ir.Stmt][]*ir.Stmt{}, map[int][]*delayed{}, map[*ir.Stmt]int{}
	// Collectives that are needed at different statements have different streams, so that none waits for a later one.
	streams := map[int]string{}
	for _, d := range groups {
		b.alone = append(b.alone, ir.Note{Pos: d.members[0].Pos, Message: d.text(stmts)})
		b.groups++
		for i := range b.choices { // pairs that were left sequential
			c := &b.choices[i]
			c.Strategy.Delayed = c.Strategy.Delayed || c.Pair.Func == b.fn.Name && d.defines(c.Pair.Value)
		}
		if first := d.members[0]; d.hidden && streams[d.join] == "" {
			streams[d.join] = b.names.fresh(first.Results[0].Text, "s")
			at[first] = append(at[first], declare(first.Pos, ir.OpStream, streams[d.join], nil))
		}
		b.emit(d, at, streams[d.join])
		waits[d.join] = append(waits[d.join], d)
		for s := range d.moved {
			moved[s] = max(moved[s], d.join)
		}
	}
	block.Stmts = nil
	for i, s := range stmts {
		if list := waits[i]; len(list) > 0 {
			if streams[i] != "" {
				block.Stmts = append(block.Stmts, waitStream(list[0].members[0].Pos, streams[i]))
			}
			for _, d := range list {
				block.Stmts = append(block.Stmts, d.claims...)
			}
			for _, x := range stmts[:i] {
				if moved[x] == i {
					block.Stmts = append(block.Stmts, x)
				}
			}
		}
		switch {
		case moved[s] > i:
		case at[s] != nil:
			leadOf(s, at[s][0])
			block.Stmts = append(block.Stmts, at[s]...)
		default:
			block.Stmts = append(block.Stmts, s)
		}
	}
}

// find returns the reductions of a block that are delayed or combined, in the order of their first members.
func (b *bucketer) find(stmts []*ir.Stmt) (list []*delayed) {
	open := map[string]*delayed{}
	for i, s := range stmts {
		d := b.candidate(stmts, i)
		if d == nil {
			continue
		}
		if o := open[d.key]; o != nil && b.joins(o, d) {
			o.members, o.bytes = append(o.members, s), o.bytes+d.bytes
			for x := range d.moved {
				o.moved[x] = true
			}
			o.hidden = d.hidden
			continue
		}
		open[d.key] = d
		list = append(list, d)
	}
	return slices.DeleteFunc(list, func(d *delayed) bool { return !d.hidden && len(d.members) == 1 })
}

// defines reports whether a member of d defines the value with the given name.
func (d *delayed) defines(name string) bool {
	return slices.ContainsFunc(d.members, func(s *ir.Stmt) bool { return s.Results[0].Text == name })
}

// text describes d for the log.
func (d *delayed) text(stmts []*ir.Stmt) string {
	text := d.members[0].Op.String() + ":"
	if len(d.members) > 1 {
		var lines []string
		for _, s := range d.members[1:] {
			lines = append(lines, strconv.Itoa(int(s.Pos.Line)))
		}
		text += " in one collective with line " + strings.Join(lines, ", ")
	}
	if d.hidden {
		text += fmt.Sprintf(" while other work is computed, until line %d", stmts[d.join].Pos.Line)
	}
	return text
}

// joins reports whether d can be reduced with o, the group before it.
func (b *bucketer) joins(o, d *delayed) bool {
	return o.bytes >= 0 && d.bytes >= 0 && o.bytes+d.bytes <= b.buckets.Bytes && d.join == o.join &&
		(d.hidden || !o.hidden || o.bytes <= small)
}

// candidate returns the reduction stmts[i] as a group, or nil if it is not a reduction of values on the main mesh.
func (b *bucketer) candidate(stmts []*ir.Stmt, i int) *delayed {
	s := stmts[i]
	if s.Op != ir.OpAllReduce && s.Op != ir.OpReduceScatter || !pure(s) || !b.plain(s) {
		return nil
	}
	d := &delayed{members: []*ir.Stmt{s}, join: len(stmts), moved: map[*ir.Stmt]bool{}, bytes: -1}
	from := b.info.Operands[s][0].Type
	words := []string{s.Op.String(), from.DType.String()}
	for _, a := range s.Attrs {
		words = append(words, a.String())
	}
	d.key = strings.Join(words, " ")
	if b.buckets.Sizes != nil && len(from.Dims) > 0 && (s.Op == ir.OpAllReduce || s.Attr("axis").Exprs[0].IsInt(0)) {
		if n, err := elements(from.LocalType()).Eval(b.buckets.Sizes); err == nil {
			d.bytes = n * from.DType.Size()
		}
	}
	needs := map[string]bool{s.Results[0].Text: true}
	for j := i + 1; j < len(stmts); j++ {
		t, uses := stmts[j], false
		mentions(t, func(name string) { uses = uses || needs[name] })
		if t.Op == ir.OpBarrier || uses && !b.light(t) {
			d.join = j
			break
		}
		if uses {
			d.moved[t] = true
			needs[t.Results[0].Text] = true
		}
	}
	if d.join == len(stmts) { // nothing needs the result
		return nil
	}
	d.hidden = slices.ContainsFunc(stmts[i+1:d.join], heavy) // all statements that depend on d are light
	return d
}

// plain reports whether all operands and the result of s are values on the main mesh.
func (b *bucketer) plain(s *ir.Stmt) bool {
	return len(b.info.Results[s]) == 1 && plainValue(b.info.Results[s][0]) &&
		!slices.ContainsFunc(b.info.Operands[s], func(x *ir.Sym) bool { return !plainValue(x) })
}

// light reports whether s can be moved to the end of the work that hides a collective: it takes little time, and reads
// and defines only values.
func (b *bucketer) light(s *ir.Stmt) bool {
	return pure(s) && b.plain(s) && (s.Op.Info().Elementwise || s.Op.Info().Class == ir.ClassView || s.Op == ir.OpCast)
}

// heavy reports whether s contains a GEMM or attention.
func heavy(s *ir.Stmt) bool {
	switch s.Op {
	case ir.OpLinear, ir.OpMatmul, ir.OpGroupedLinear, ir.OpAttention, ir.OpAttentionDQ, ir.OpAttentionDKV:
		return true
	}
	return s.Body != nil && slices.ContainsFunc(s.Body.Stmts, heavy) || s.Else != nil && slices.ContainsFunc(s.Else.Stmts, heavy)
}

// elements returns the number of elements of a tensor.
func elements(t *ir.Type) *ir.Expr {
	n := ir.Int(1)
	for _, d := range t.Dims {
		n = ir.Mul(n, d.Extent)
	}
	return n
}

// emit sets the statements that replace the members of d.
func (b *bucketer) emit(d *delayed, at map[*ir.Stmt][]*ir.Stmt, stream string) {
	first, last := d.members[0], d.members[len(d.members)-1]
	name := first.Results[0].Text
	add := func(s *ir.Stmt, list ...*ir.Stmt) { at[s] = append(at[s], list...) }
	run := func(arg, dst string, s *ir.Stmt) {
		comm := into(s.Pos, s.Op, arg, dst, s.Attrs...)
		if d.hidden {
			comm = on(s.Pos, stream, waitMain(s.Pos), comm)
		}
		add(last, comm)
	}
	if len(d.members) == 1 {
		t := b.info.Results[first][0].Type
		buf := b.names.fresh(name, "b")
		add(first, alloc(first.Pos, buf, plain(t)))
		run(first.Args[0].Name, buf, first)
		d.claims = []*ir.Stmt{value(first.Pos, name, t, ir.OpClaim, nil, buf)}
		return
	}
	total := ir.Int(0)
	for _, s := range d.members {
		total = ir.Add(total, elements(b.info.Results[s][0].Type.LocalType()))
	}
	// The operands are written to a matrix. It has one row for each rank if the collective is a reduce_scatter, and
	// otherwise a single row.
	rows, dtype := ir.Int(1), b.info.Results[first][0].Type.DType
	if first.Op == ir.OpReduceScatter {
		rows = sizeOfAxes(first.Over())
	}
	buf := b.names.fresh(name, "b")
	sums, flat := buf, buf
	add(first, alloc(first.Pos, buf, bufferType(dtype, ir.Mul(rows, total))))
	if first.Op == ir.OpReduceScatter {
		flat, sums = b.names.fresh(buf, "r"), b.names.fresh(buf, "d")
		add(first, reshape(first.Pos, flat, buf, []*ir.Expr{rows, total}), alloc(first.Pos, sums, bufferType(dtype, total)))
	}
	lo := ir.Int(0)
	for _, s := range d.members {
		t := b.info.Results[s][0].Type
		local := t.LocalType()
		hi := ir.Add(lo, elements(local))
		slot, shaped := b.names.fresh(s.Results[0].Text, "i"), b.names.fresh(s.Results[0].Text, "r")
		part := firstRows(s.Pos, slot, sums, 0, hi)
		part.Exprs[0] = lo
		cut := reshape(s.Pos, shaped, slot, extentsOf(local))
		if s.Op == ir.OpAllReduce {
			add(s, part, cut, into(s.Pos, ir.OpCopy, s.Args[0].Name, shaped))
			d.claims = append(d.claims, value(s.Pos, s.Results[0].Text, t, ir.OpClaim, nil, shaped))
		} else {
			own, matrix, dst := b.names.fresh(s.Args[0].Name, "l"), b.names.fresh(s.Args[0].Name, "m"), b.names.fresh(s.Args[0].Name, "i")
			to := firstRows(s.Pos, dst, flat, 1, hi)
			to.Exprs[0] = lo
			add(s, result(s.Pos, own, ir.OpLocal, nil, s.Args[0].Name), reshape(s.Pos, matrix, own, []*ir.Expr{rows, elements(local)}), to,
				into(s.Pos, ir.OpCopy, matrix, dst))
			d.claims = append(d.claims, part, cut, value(s.Pos, s.Results[0].Text, t, ir.OpClaim, nil, shaped))
		}
		lo = hi
	}
	run(buf, sums, last)
}

// bufferType returns the type of a buffer with one dimension.
func bufferType(dtype ir.DType, n *ir.Expr) *ir.Type {
	return &ir.Type{DType: dtype, Dims: []ir.Dimension{{Extent: n}}}
}

// extentsOf returns the extents of t.
func extentsOf(t *ir.Type) (list []*ir.Expr) {
	for _, d := range t.Dims {
		list = append(list, d.Extent)
	}
	return list
}
