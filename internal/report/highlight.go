package report

import (
	"html/template"
	"strings"

	"hocket.example/hocket/ir"
)

// highlight returns one line of a program as HTML. Values are in elements var, operations and keywords in b, types
// in samp, and comments in i. The elements have no attributes, which keeps pages of long programs small. The page's
// script reads the name of a value from the text of its element.
func highlight(s string) template.HTML {
	var b strings.Builder
	for s != "" {
		n, tag := token(s)
		text := template.HTMLEscapeString(s[:n])
		if tag == "" {
			b.WriteString(text)
		} else {
			b.WriteString("<" + tag + ">" + text + "</" + tag + ">")
		}
		s = s[n:]
	}
	return template.HTML(b.String())
}

// token returns the length of the token at the start of s, which is at least 1, and the HTML element for it.
func token(s string) (n int, tag string) {
	switch {
	case strings.HasPrefix(s, "//"):
		return len(s), "i"
	case s[0] == '%':
		if n := valueLen(s); n > 1 {
			return n, "var"
		}
		return 1, ""
	case isWord(s[0]):
		n := wordLen(s)
		if t := typeLen(s, n); t > 0 {
			return t, "samp"
		}
		if strings.HasPrefix(s[n:], "=") { // an attribute such as op=sum or axis=0
			return n + 1 + wordLen(s[n+1:]), ""
		}
		if words[s[:n]] {
			return n, "b"
		}
		return n, ""
	}
	n = 1 // skip to a character at which a token may start
	for n < len(s) && !isWord(s[n]) && s[n] != '%' && s[n] != '/' {
		n++
	}
	return n, ""
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func wordLen(s string) int {
	n := 0
	for n < len(s) && isWord(s[n]) {
		n++
	}
	return n
}

// valueLen returns the length of "%name" at the start of s. A dot is part of the name if a word follows it.
func valueLen(s string) int {
	n := 1 + wordLen(s[1:])
	for n > 1 && n+1 < len(s) && s[n] == '.' && isWord(s[n+1]) {
		n += 1 + wordLen(s[n+1:])
	}
	return n
}

// typeLen returns the length of the type at the start of s. The first n bytes are its dtype. A type ends with its
// closing bracket or, if it is partial, with the axes over which it is partial. The result is 0 if s does not start
// with a type.
func typeLen(s string, n int) int {
	if !dtypes[s[:n]] || n == len(s) || s[n] != '[' {
		return 0
	}
	depth := 0
	for i := n; i < len(s); i++ {
		switch s[i] {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				return i + 1 + partialLen(s[i+1:])
			}
		case '%':
			return 0
		}
	}
	return 0
}

// partialLen returns the length of " partial(tp, sum)".
func partialLen(s string) int {
	if !strings.HasPrefix(s, " partial(") {
		return 0
	}
	return strings.IndexByte(s, ')') + 1
}

var words, dtypes = func() (words, types map[string]bool) {
	words, types = map[string]bool{}, map[string]bool{}
	for _, op := range ir.Ops() {
		words[op.String()] = true
	}
	for _, w := range []string{"dim", "mesh", "func", "into", "in", "of", "at", "main", "else", "refines", "inout"} {
		words[w] = true
	}
	for _, d := range ir.DTypes() {
		types[d.String()] = true
	}
	return words, types
}()
