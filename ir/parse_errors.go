package ir

import (
	"fmt"
	"strconv"
	"strings"
)

// expected reports an error at the current token. The argument what describes the token that the text must have
// instead.
func (p *lookahead) expected(what string) {
	p.failAt(p.tok.pos, helpFor(p.tok), "expected %s, found %s", what, describe(p.tok))
}

// failAt reports an error and skips the rest of the current statement or declaration.
func (p *lookahead) failAt(pos Pos, help, format string, args ...any) {
	if p.bad || p.stopped {
		p.bad = true
		return
	}
	if pos.Line != p.lastErr { // a second error in a line is usually a consequence of the first
		p.errorAt(pos, help, format, args...)
	}
	p.bad = true
	p.skip()
}

// errorAt records an error.
func (p *lookahead) errorAt(pos Pos, help, format string, args ...any) {
	d := p.prog.Diag("parse", pos, format, args...)
	d.Help = help
	p.diags = append(p.diags, d)
	p.lastErr = pos.Line
	if len(p.diags) == MaxDiagnostics {
		p.stop()
	}
}

// limit reports that the program exceeds a limit, and ends parsing.
func (p *lookahead) limit(what string) {
	if !p.stopped {
		p.errorAt(p.tok.pos, "", "%s nested deeper than %d, which is the limit", what, MaxNesting)
		p.stop()
	}
	p.bad = true
}

// tooMany reports that the program has more objects of the kind what than most, the limit, and ends parsing.
func (p *lookahead) tooMany(most int, what string) {
	if !p.stopped {
		p.errorAt(p.tok.pos, "replace repeated statements by a loop or a function", "the program has more than %d "+
			"%s, which is the limit",
			most, what)
		p.stop()
	}
	p.bad = true
}

// stop discards the text after the current token.
func (p *lookahead) stop() {
	p.stopped = true
	p.off = len(p.src)
	p.tok = token{kind: tokEOF, pos: p.tok.pos}
}

// skip skips to the end of the line, or to a brace before it.
func (p *lookahead) skip() {
	p.depth = 0
	for !p.is(tokNewline) && !p.is(tokLBrace) && !p.is(tokRBrace) && !p.is(tokEOF) && !p.atFunc() {
		p.advance()
	}
}

// describe shows a token in a message.
func describe(t token) string {
	switch t.kind {
	case tokIdent, tokIllegal:
		return strconv.Quote(clipWord(t.text))
	case tokVar:
		return "%" + clipWord(t.text)
	case tokInt, tokFloat:
		return clipWord(t.text)
	}
	return spelling[t.kind]
}

const maxShownWord = 40

// clipWord shortens a word for a message.
func clipWord(s string) string {
	if len(s) <= maxShownWord {
		return s
	}
	return strings.ToValidUTF8(s[:maxShownWord], "") + "…"
}

var tokenHelp = map[string]string{
	"%":  "names of values are % and then ASCII letters, digits, _ and dots; write mod for the remainder",
	"=>": "write >=",
	"=<": "write <=",
	"&&": "an if has only one comparison; nest two ifs",
	"||": "an if has only one comparison; use else",
	"!":  "write != for not equal",
	"#":  "comments start with //",
	";":  "a statement ends at the end of its line",
}

// missingPercent returns the help for a name without "%" where a %name is required.
func missingPercent(t token) string {
	if Nearest(t.text, []string{"main"}) != "" {
		return "did you mean main?"
	}
	return "names of values start with %: write %" + clipWord(t.text)
}

// helpFor describes the likely mistake if token t occurs where it is not allowed.
func helpFor(t token) string {
	switch t.kind {
	case tokIllegal:
		if isDigit(t.text[0]) {
			return "a name cannot start with a digit, and integers are decimal"
		}
		return tokenHelp[t.text]
	case tokSlash:
		return "index expressions have no / operator: write floordiv(a, b) or ceildiv(a, b); in a type, / shards a dimension over a mesh axis"
	case tokIdent:
		if t.text == "else" && t.first {
			return `write "else" on the line of the closing brace`
		}
	}
	return ""
}

// Nearest returns the word with the smallest edit distance to name, or "" if no word is similar.
func Nearest(name string, words []string) string {
	best, least := "", max(1, len(name)/3)
	for _, w := range words {
		if d := editDistance(name, w, least); d <= least && (best == "" || d < least) {
			best, least = w, d
		}
	}
	return best
}

// editDistance returns the smallest number of letters that must be inserted, deleted, replaced or exchanged with their
// neighbour to change a into b. All distances above the argument most give the same result.
func editDistance(a, b string, most int) int {
	if len(a) > 64 || len(a)-len(b) > most || len(b)-len(a) > most {
		return most + 1
	}
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			change := row[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			next[j] = min(change, row[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

// closestHelp returns the help for a name that is not one of the given words.
func closestHelp(name string, words []string) string {
	if w := Nearest(name, words); w != "" {
		return fmt.Sprintf("did you mean %s?", w)
	}
	return ""
}
