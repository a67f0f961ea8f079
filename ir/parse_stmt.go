package ir

import (
	"fmt"
	"strings"
)

// statements reads the body of a function.
type statements struct {
	expressions
	stmts  int             // read so far
	blocks int             // open blocks
	fn     *Func           // function that is being read
	named  bool            // whether the results before "=" of the current statement have been read
	arrays map[string]bool // names of the function that are declared as arrays
	inside []*Stmt         // operations that are operands of the current statement, in the order of execution
	inner  int             // open parentheses of such operands
	open   Pos             // position of the innermost open parenthesis
	lost   Lost
}

// block reads "{ stmt… }". Comments between the head and the brace, and the comment after the brace on its line, are
// added to head. The argument head holds the comments of the block's head; an else has none, so its comments are added
// to its first statement. If the closing brace is missing, the block has no End.
func (p *statements) block(head *Comments) *Block {
	b := &Block{}
	if head != nil {
		p.insideComments(head)
	}
	p.braceOnNextLine()
	open := p.tok
	if !p.got(tokLBrace) {
		p.expected(spelling[tokLBrace])
		return b
	}
	headBad := p.bad
	p.bad = false
	if p.blocks++; p.blocks > MaxNesting {
		p.limit("blocks are")
	}
	if head != nil && p.is(tokNewline) {
		p.endLine(head, nil, nil)
	} else {
		p.got(tokNewline)
	}
	for !p.is(tokRBrace) && !p.is(tokEOF) && !p.atFunc() {
		p.stmt(b)
	}
	p.blocks--
	p.tailComments(b)
	if end := p.tok.pos; p.got(tokRBrace) {
		b.End = end
	} else {
		p.failAt(p.tok.pos, fmt.Sprintf("the block that begins at line %d has no closing brace", open.pos.Line),
			"expected %s, found %s", spelling[tokRBrace], describe(p.tok))
	}
	p.bad = p.bad || headBad
	return b
}

// braceOnNextLine reports an error for an opening brace on a line of its own, and continues as if it were on the
// previous line.
func (p *statements) braceOnNextLine() {
	if p.is(tokNewline) && !p.bad && strings.HasPrefix(strings.TrimLeft(p.src[p.off:], " \t\r\n"), "{") {
		p.failAt(p.tok.pos, "write the brace on the same line", "expected %s, found %s", spelling[tokLBrace], describe(p.tok))
		p.advance()
	}
}

// stmt reads one statement and the end of its line, and adds the statement to b.
func (p *statements) stmt(b *Block) {
	s, first := &Stmt{Comments: p.lead()}, p.tok.pos.Line
	p.inside = nil
	s.Comments.Blank = s.Comments.Blank && len(b.Stmts) > 0
	p.operation(s)
	if !p.bad {
		p.endStmt(s)
	}
	if p.bad {
		may, _ := resultRule(s.Op)
		named := p.named || s.Op != InvalidOp && (!may || s.Into != nil)
		p.skipStmt()
		p.lost.dropLines(p.fn, named, first, p.tok.pos.Line-1)
		return
	}
	if p.stmts += len(p.inside) + 1; p.stmts > maxStatements {
		p.tooMany(maxStatements, "statements")
		return
	}
	b.Stmts = append(append(b.Stmts, p.inside...), s)
	p.inside = nil
}

// endStmt reads the end of the line. The last statement of a block on one line needs no line end.
func (p *statements) endStmt(s *Stmt) {
	if p.is(tokRBrace) {
		p.insideComments(&s.Comments)
		return
	}
	p.endLine(&s.Comments, s.Body, lastBlock(s))
}

// lastBlock returns the block whose closing brace ends s, or nil. An else block without braces of its own ends where
// the if inside it ends.
func lastBlock(s *Stmt) *Block {
	for s.Else != nil {
		n := elseIf(s)
		if n == nil || ending(n) != s.Else.End {
			return s.Else
		}
		s = n
	}
	return s.Body
}

// ending returns the position of the closing brace of an if.
func ending(s *Stmt) Pos {
	if s.Else != nil {
		return s.Else.End
	}
	return s.Body.End
}

// skipStmt skips the rest of a statement that has an error. skipStmt reads the blocks on the way, to report the errors
// in them.
func (p *statements) skipStmt() {
	for p.skip(); p.is(tokLBrace); p.skip() {
		p.block(&Comments{})
	}
	p.bad = false
	p.got(tokNewline)
}

// operation reads one complete statement.
func (p *statements) operation(s *Stmt) {
	p.named = false
	if p.is(tokVar) {
		p.resultList(s)
		p.named = !p.bad
	}
	p.verb(s)
}

// verb reads a statement from its operation's name on.
func (p *statements) verb(s *Stmt) {
	t := p.tok
	if s.Pos = t.pos; !p.is(tokIdent) {
		p.noOperation(s)
		return
	}
	op, ok := ParseOp(t.text)
	switch {
	case ok:
		s.Op = op
		p.advance()
		if op == OpBroadcast && p.repeats() {
			s.Op = OpExpand
		}
	case len(s.Results) == 0 && p.followedByAssign():
		p.failAt(t.pos, "write %"+clipWord(t.text), `expected a %%name before "=", found %s`, describe(t))
	case t.text == "else" || t.text == "dim" || t.text == "mesh":
		p.failAt(t.pos, misplaced[t.text], "expected a statement, found %s", describe(t))
	default:
		p.failAt(t.pos, closestHelp(t.text, namesOfOps(len(s.Results) > 0)), "unknown operation %s", describe(t))
	}
	if p.bad || !p.resultsFit(s) {
		return
	}
	p.rest(s)
}

// repeats reports whether a broadcast, whose operands follow, is the tensor operation, which has shape= but not over=.
func (p *statements) repeats() bool {
	ahead := lookahead{lexer: p.lexer, tok: p.tok}
	shape, level := false, ahead.depth
	if p.is(tokLParen) || p.is(tokLBracket) {
		level--
	}
	for ; ahead.depth >= level && !ahead.is(tokNewline) && !ahead.is(tokRBrace) && !ahead.is(tokEOF); ahead.advance() {
		if ahead.depth == level && ahead.is(tokIdent) && ahead.followedByAssign() {
			if ahead.tok.text == "over" {
				return false
			}
			shape = shape || ahead.tok.text == "shape"
		}
	}
	return shape
}

var misplaced = map[string]string{
	"else": `write "else" on the line of the closing brace`,
	"dim":  "declare dims outside of functions",
	"mesh": "declare meshes outside of functions",
}

// namesOfOps lists the names of the operations or, if define is set, of those that may define a name.
func namesOfOps(define bool) []string {
	var names []string
	for _, op := range Ops() {
		if may, _ := resultRule(op); may || !define {
			names = append(names, op.String())
		}
	}
	return names
}

// resultList reads "%a, %b =" or "%a: type =".
func (p *statements) resultList(s *Stmt) {
	s.Results = append(s.Results, p.variable())
	for p.got(tokComma) {
		s.Results = append(s.Results, p.variable())
	}
	if p.got(tokColon) {
		s.Type = p.typ()
	}
	p.expect(tokAssign)
}

// noOperation reports an error at a token that is not the name of an operation.
func (p *statements) noOperation(s *Stmt) {
	switch {
	case len(s.Results) == 0:
		p.expected("a statement")
	case p.is(tokVar):
		p.failAt(p.tok.pos, "use copy for a value with the same elements, or let to name an index",
			"expected an operation, found %s", describe(p.tok))
	case p.is(tokInt) || p.is(tokLParen) || p.is(tokMinus):
		p.failAt(p.tok.pos, fmt.Sprintf("name an index expression with let: let %%%s = …", clipWord(s.Results[0].Text)),
			"expected an operation, found %s", describe(p.tok))
	default:
		p.expected("an operation")
	}
}

// resultRule reports whether a statement may have results and whether it must have them.
func resultRule(op Op) (may, must bool) {
	switch info := op.Info(); info.Class {
	case ClassTensor, ClassView, ClassCollective:
		return true, info.Into == IntoNever
	case ClassLaunch:
		return false, false
	case ClassMemory:
		must = op != OpFree && op != OpLet
		return must, must
	}
	return op == OpCall || op == OpFor, false
}

// resultsFit checks that the text before the operation's name suits the operation.
func (p *statements) resultsFit(s *Stmt) bool {
	may, must := resultRule(s.Op)
	n := len(s.Results)
	switch {
	case n > 0 && !may:
		help := ""
		if s.Op == OpLet {
			help = fmt.Sprintf("write let %%%s = …", clipWord(s.Results[0].Text))
		}
		p.failAt(s.Pos, help, "%s has no result", s.Op)
	case n == 0 && must:
		p.failAt(s.Pos, fmt.Sprintf("write %%name = %s …", s.Op), "the result of %s needs a name", s.Op)
	case n > 1 && s.Op != OpCall && s.Op != OpFor:
		p.failAt(s.Results[1].Pos, "only call can have several results", "%s has one result, found %d names", s.Op, n)
	case s.Type != nil && (s.Op.Info().Class == ClassMemory || s.Op == OpFor || n > 1):
		p.failAt(s.Type.Pos, "", "expected %s, found a type: the result of %s cannot have a type before %[1]s",
			spelling[tokAssign], s.Op)
	}
	return !p.bad
}

// rest reads the text after the operation's name.
func (p *statements) rest(s *Stmt) {
	switch s.Op {
	case OpLet:
		name := p.variable()
		s.Pos, s.Results = name.Pos, []Name{name}
		p.expect(tokAssign)
		s.Exprs = []*Expr{p.expr()}
	case OpAlloc:
		p.alloc(s)
	case OpStream, OpEvent, OpCounter:
		p.array(s)
		p.moreAttrs(s)
	case OpFree, OpRecord:
		s.Args = []Place{p.place()}
	case OpWait:
		s.Args = []Place{p.place()}
		if p.got(tokGE) {
			s.Exprs = []*Expr{p.expr()}
		}
	case OpOn:
		s.Args = []Place{p.place()}
		s.Body = p.block(&s.Comments)
	case OpGroup:
		s.Body = p.block(&s.Comments)
	case OpFor:
		p.forLoop(s)
	case OpIf:
		p.ifElse(s)
	case OpCall:
		s.Callee = p.ident("the function's name")
		s.Args = p.places()
	case OpReturn, OpYield:
		s.Args = p.places()
	case OpLaunch:
		p.launch(s)
	default:
		p.operands(s)
	}
}

// count reads the length "[n]" of an array.
func (p *expressions) count() *Expr {
	open := p.tok
	if !p.got(tokLBracket) {
		return nil
	}
	n := p.expr()
	p.closing(open, false)
	return n
}

var allocFlags = []struct {
	flag AllocFlags
	word string
}{{Symmetric, "symmetric"}, {Zero, "zero"}, {Host, "host"}}

// array reads "[n]" if the statement may make an array.
func (p *statements) array(s *Stmt) {
	if s.Count = p.count(); s.Count != nil {
		p.arrays[s.Results[0].Text] = true
	}
}

func (p *statements) alloc(s *Stmt) {
	p.array(s)
	s.Type = p.typ()
	for p.is(tokIdent) {
		known := false
		for _, f := range allocFlags {
			if p.gotWord(f.word) {
				s.Flags |= f.flag
				known = true
				break
			}
		}
		if !known {
			p.failAt(p.tok.pos, closestHelp(p.tok.text, []string{"symmetric", "zero", "host"}),
				`expected "symmetric", "zero", "host" or end of line, found %s`, describe(p.tok))
		}
	}
}

func (p *statements) forLoop(s *Stmt) {
	behind := s.Results
	s.Results = append([]Name{p.variable()}, behind...)
	p.expectWord("in")
	lo := p.expr()
	p.expect(tokDots)
	s.Exprs = []*Expr{lo, p.expr()}
	if p.gotWord("stream") {
		p.expect(tokLParen)
		pos := p.tok.pos
		if s.Streams = p.integer(); s.Streams == 0 {
			p.failAt(pos, "remove stream(…) if the loop needs no separate streams", "stream(0) gives the loop no stream to run on")
		}
		p.expect(tokRParen)
	}
	if p.gotWord("carry") {
		p.carried(s)
	}
	if len(behind) != len(s.Carry) && !p.bad {
		p.failAt(s.Pos, "write %y = for %i in 0..L carry %h = %x { … yield %z }", "the loop carries %d values but "+
			"has %d result names",
			len(s.Carry), len(behind))
	}
	s.Body = p.block(&s.Comments)
}

// carried reads the values that a loop carries: "%h = %x, …".
func (p *statements) carried(s *Stmt) {
	for {
		s.Carry = append(s.Carry, p.variable())
		p.expect(tokAssign)
		s.Args = append(s.Args, p.place())
		if !p.got(tokComma) {
			return
		}
	}
}

var comparisons = map[tokKind]Cmp{tokEQ: EQ, tokNE: NE, tokLT: LT, tokLE: LE, tokGT: GT, tokGE: GE}

func (p *statements) ifElse(s *Stmt) {
	left := p.expr()
	cmp, ok := comparisons[p.tok.kind]
	switch {
	case ok:
		p.advance()
	case p.is(tokAssign):
		p.failAt(p.tok.pos, `write "=="`, "expected a comparison, found %s", describe(p.tok))
	default:
		p.expected("a comparison")
	}
	s.Cmp = cmp
	s.Exprs = []*Expr{left, p.expr()}
	s.Body = p.block(&s.Comments)
	if !p.bad && p.gotWord("else") {
		s.Else = p.elseBlock()
	}
}

// elseBlock reads the block after else. If an if follows else, elseBlock returns a block that contains this if.
func (p *statements) elseBlock() *Block {
	if !p.isWord("if") {
		return p.block(nil)
	}
	if p.blocks++; p.blocks > MaxNesting {
		p.limit("blocks are")
	}
	s := &Stmt{Op: OpIf, Pos: p.tok.pos}
	p.advance()
	p.ifElse(s)
	p.blocks--
	return &Block{Stmts: []*Stmt{s}, End: ending(s)}
}

// elseIf returns the if that is written "else if": the only statement of s's else block. elseIf returns nil if s has
// none.
func elseIf(s *Stmt) *Stmt {
	if s.Else == nil || len(s.Else.Stmts) != 1 || len(s.Else.Tail) > 0 {
		return nil
	}
	n := s.Else.Stmts[0]
	if n.Op != OpIf || len(n.Comments.Lead) > 0 {
		return nil
	}
	return n
}
