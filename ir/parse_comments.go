package ir

// A program stores comments in three places: above a statement, after a statement on its last line, and at the end of a
// block. Every other comment moves to the nearest of these places, so no comment is lost.

// takeComments returns the comments that were read since the last call.
func (p *lookahead) takeComments() []Comment {
	if len(p.pending) == 0 {
		return nil
	}
	list := append([]Comment(nil), p.pending...)
	p.pending = p.pending[:0]
	return list
}

// lead returns the comments and empty lines above the current token.
func (p *statements) lead() Comments {
	c := Comments{Lead: p.takeComments(), Blank: p.tok.blank}
	if len(c.Lead) > 0 {
		c.Gap, c.Blank = c.Blank, c.Lead[0].Blank
		c.Lead[0].Blank = false
	}
	return c
}

// insideComments moves comments between the words of a statement to the lines above the statement.
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

// endLine reads the end of a line and the comments on it. The arguments first and last are the first and last block of
// the statement or declaration that ends there, if it has blocks. A comment after a block of several lines moves into
// the block. endLine reports whether the line ended without an error.
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

// oneLine reports whether b is written on a single line.
func oneLine(b *Block) bool {
	return len(b.Tail) == 0 && (len(b.Stmts) == 0 || b.Stmts[0].Pos.Line == b.End.Line)
}

// tailComments adds the comments above the closing brace of b to b.
func (p *statements) tailComments(b *Block) {
	b.Tail = p.takeComments()
	if len(b.Tail) > 0 {
		b.TailBlank = b.Tail[0].Blank && len(b.Stmts) > 0
		b.Tail[0].Blank = false
	}
}
