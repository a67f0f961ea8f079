package lower

import (
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// decompose replaces each reshard with the statements that implement it: collectives and local cuts if both layouts
// are on one mesh (emit.go), transfers if they are on two meshes (transfer.go).
func decompose(u *unit) error {
	meshes := newMeshes(u.prog)
	for _, f := range u.prog.Funcs {
		d := &decomposer{unit: u, fn: f, names: namesOf(f), meshes: meshes}
		if err := d.block(f.Body); err != nil {
			return err
		}
	}
	return nil
}

type decomposer struct {
	*unit
	fn     *ir.Func
	names  *names
	meshes meshes
}

func (d *decomposer) block(b *ir.Block) error {
	if b == nil {
		return nil
	}
	out := make([]*ir.Stmt, 0, len(b.Stmts))
	for _, s := range b.Stmts {
		if err := d.block(s.Body); err != nil {
			return err
		}
		if err := d.block(s.Else); err != nil {
			return err
		}
		if s.Op != ir.OpReshard {
			out = append(out, s)
			continue
		}
		stmts, err := d.reshard(s)
		if err != nil {
			return err
		}
		replace(s, stmts)
		out = append(out, stmts...)
	}
	b.Stmts = out
	return nil
}

// replace moves the comments of s to stmts, the statements that replace s.
func replace(s *ir.Stmt, stmts []*ir.Stmt) {
	leadOf(s, stmts[0])
	last := stmts[len(stmts)-1]
	last.Comments.Trail, last.Comments.HasTrail = s.Comments.Trail, s.Comments.HasTrail
}

// reshard returns the statements that implement the reshard s.
func (d *decomposer) reshard(s *ir.Stmt) ([]*ir.Stmt, error) {
	src := d.info.Operands[s][0].Type
	if err := d.possible(s, src); err != nil {
		return nil, err
	}
	w := &writer{names: d.names, pos: s.Pos, name: s.Results[0].Text, dst: s.Type}
	if from, to := d.meshes.of(src), d.meshes.of(s.Type); from != to || from.fetches(src, s.Type) {
		w.move(s.Args[0].Name, src, from, to)
	} else {
		w.walk(s.Args[0].Name, from.plan(src, s.Type), from, true)
	}
	d.note(d.fn, s.Pos, s.Results[0].Text, src, s.Type, summary(w.out))
	return w.out, nil
}

// possible returns an error for a reshard that cannot be implemented: one that would make a value partial, because
// the text does not determine which rank holds which summand, and one to or from a mesh without ranks.
func (d *decomposer) possible(s *ir.Stmt, src *ir.Type) error {
	for _, pl := range []*place{d.meshes.of(src), d.meshes.of(s.Type)} {
		if !pl.main && len(pl.devices) == 0 {
			diag := d.prog.Diag("layout", s.Pos, "mesh %s has no ranks", pl.axes[0].Name)
			diag.Help = "list the ranks in the mesh's declaration, such as mesh d[2] = {0 2}"
			return ir.Diagnostics{diag}
		}
	}
	same := d.meshes.of(src) == d.meshes.of(s.Type)
	for _, p := range s.Type.Partial {
		if same && slices.Contains(src.Partial, p) {
			continue
		}
		diag := d.prog.Diag("layout", s.Pos, "a value that is not partial over %s cannot be resharded to a partial one", p.Axis)
		diag.Help = "remove partial(" + p.Axis + ", " + p.Red.String() + ") from the type"
		return ir.Diagnostics{diag}
	}
	return nil
}

// summary lists the operations in stmts and their nested blocks for the log: "all_gather over tp, local cut" or "send
// ×2, recv ×2, copy".
func summary(stmts []*ir.Stmt) string {
	var words []string
	times := map[string]int{}
	(&ir.Block{Stmts: stmts}).Walk(func(s *ir.Stmt) {
		word := act(s)
		if word == "" {
			return
		}
		if times[word]++; times[word] == 1 {
			words = append(words, word)
		}
	})
	for i, w := range words {
		words[i] = repeatedWord(w, times[w])
	}
	return strings.Join(words, ", ")
}

// repeatedWord returns "word ×n", or the word alone for one.
func repeatedWord(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + " ×" + strconv.Itoa(n)
}

// act returns the word with which summary lists a statement. It returns "" for a statement that only prepares another
// statement.
func act(s *ir.Stmt) string {
	switch s.Op {
	case ir.OpChunk:
		if s.Exprs[0].Kind != ir.ExprInt {
			return "local cut"
		}
	case ir.OpCopy:
		if s.Into != nil || s.Type != nil { // without a type and a destination, the copy only makes a local cut dense
			return "copy"
		}
	case ir.OpSend, ir.OpRecv:
		return s.Op.String()
	}
	if over := s.Over(); over != nil {
		return s.Op.String() + " over " + strings.Join(over, ",")
	}
	return ""
}
