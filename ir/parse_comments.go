package ir

// A program keeps comments in few places: above a statement, after it on its line, and at the end of a block. Comments
// elsewhere move to the nearest of these; none is lost.

// takeComments returns the comments read since the last call.
func (p *lookahead) takeComments() []Comment {
	if len(p.pending) == 0 {
		return nil
	}
	list := append([]Comment(nil), p.pending...)
	p.pending = p.pending[:0]
	return list
}

// lead returns the comments and empty lines above the token.
func (p *statements) lead() Comments {
	c := Comments{Lead: p.takeComments(), Blank: p.tok.blank}
	if len(c.Lead) > 0 {
		c.Gap, c.Blank = c.Blank, c.Lead[0].Blank
		c.Lead[0].Blank = false
	}
	return c
}

// insideComments moves comments from between a statement's words above it.
func (p *statements) insideComments(c *Comments) {
	list := p.takeComments()
	for i := range list {
		list[i].Blank = i == 0 && c.Gap
	}
	if len(list) > 0 {
		c.Gap = false
	}
	c.Lead = append(c.Lead, list...)
}

// endLine takes the end of a line and its comments. first and last are the
// first and last block of what ends there, if any: behind a block of several
// lines a comment moves into it. It reports whether the line was right.
func (p *statements) endLine(c *Comments, first, last *Block) bool {
	if !p.is(tokNewline) {
		p.expected(spelling[tokNewline])
	}
	if p.bad {
		return false
	}
	if n := len(p.pending) - 1; p.tok.trail {
		trail := p.pending[n]
		p.pending = p.pending[:n]
		if last == nil || !c.HasTrail && first.End.Line == last.End.Line && oneLine(first) {
			c.Trail, c.HasTrail = trail.Text, true
		} else {
			trail.Blank = false
			last.Tail = append(last.Tail, trail)
		}
	}
	p.insideComments(c)
	p.advance()
	return true
}

// oneLine reports whether b is not spread over lines.
func oneLine(b *Block) bool {
	return len(b.Tail) == 0 && (len(b.Stmts) == 0 || b.Stmts[0].Pos.Line == b.End.Line)
}

// tailComments gives b the comments above its closing brace.
func (p *statements) tailComments(b *Block) {
	b.Tail = p.takeComments()
	if len(b.Tail) > 0 {
		b.TailBlank = b.Tail[0].Blank && len(b.Stmts) > 0
		b.Tail[0].Blank = false
	}
}
