package sqlite

import "strings"

// columns returns the columns that a CREATE TABLE statement declares, and the index of the INTEGER PRIMARY KEY, the
// column that holds the row number; -1 if there is none.
func columns(sql string) (names []string, rowID int) {
	rowID = -1
	open := strings.IndexByte(sql, '(')
	if open < 0 {
		return nil, rowID
	}
	for _, def := range definitions(sql[open+1:]) {
		name, rest := firstWord(def)
		if name == "" || rest != "" && isConstraint(name, def) {
			continue
		}
		upper := strings.ToUpper(rest)
		if kind, more := firstWord(upper); kind == "INTEGER" && strings.Contains(strings.Join(strings.Fields(more),
			" "), "PRIMARY KEY") {
			rowID = len(names)
		}
		names = append(names, name)
	}
	return names, rowID
}

// definitions splits the text between the parentheses of a statement at commas that are not nested,
// and removes comments.
func definitions(s string) []string {
	var out []string
	var text strings.Builder // the current definition
	depth := 0
	var quote byte
	end := func() {
		out = append(out, strings.TrimSpace(text.String()))
		text.Reset()
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'' || c == '`':
			quote = c
		case c == '[':
			quote = ']'
		case strings.HasPrefix(s[i:], "--"):
			i, c = after(s, i, "\n"), ' '
		case strings.HasPrefix(s[i:], "/*"):
			i, c = after(s, i, "*/"), ' '
		case c == '(':
			depth++
		case c == ')' && depth == 0:
			end()
			return out
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			end()
			continue
		}
		text.WriteByte(c)
	}
	end()
	return out
}

// after returns the index after the next occurrence of end in s from i on, or the length of s.
func after(s string, i int, end string) int {
	if n := strings.Index(s[i:], end); n >= 0 {
		return i + n + len(end) - 1
	}
	return len(s) - 1
}

// firstWord splits s into a name, without its quotes, and the rest.
func firstWord(s string) (word, rest string) {
	if s == "" {
		return "", ""
	}
	if end, quoted := map[byte]byte{'"': '"', '\'': '\'', '`': '`', '[': ']'}[s[0]]; quoted {
		if i := strings.IndexByte(s[1:], end); i >= 0 {
			return s[1 : 1+i], strings.TrimSpace(s[i+2:])
		}
	}
	if i := strings.IndexAny(s, " \t\r\n("); i >= 0 {
		return s[:i], strings.TrimSpace(s[i:])
	}
	return s, ""
}

// isConstraint reports whether a definition is a constraint of the table and not a column.
func isConstraint(word, def string) bool {
	if def[0] == '"' || def[0] == '`' || def[0] == '[' {
		return false
	}
	switch strings.ToUpper(word) {
	case "CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN":
		return true
	}
	return false
}
