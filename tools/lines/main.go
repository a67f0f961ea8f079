// Command lines lists the lines of Go files that are longer than 120 columns, counting a tab as 4 columns. With -w,
// it breaks these lines after a comma or an operator that is in as few brackets as possible. It then lists the
// lines that it cannot break, such as long strings.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	most = 120
	tab  = 4
)

func main() {
	write := flag.Bool("w", false, "break lines in the files")
	flag.Parse()
	left := 0
	for _, root := range flag.Args() {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			n, err := file(path, *write)
			left += n
			return err
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if left > 0 {
		os.Exit(1)
	}
}

// file handles one file and returns how many of its lines are too long.
func file(path string, write bool) (int, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	if write {
		out, err := wrap(src)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if !bytes.Equal(out, src) {
			if err := os.WriteFile(path, out, 0o644); err != nil {
				return 0, err
			}
		}
		src = out
	}
	left := 0
	for i, line := range strings.Split(string(src), "\n") {
		if n := columns(line); n > most {
			left++
			fmt.Printf("%s:%d: %d columns\n", path, i+1, n)
		}
	}
	return left, nil
}

func columns(s string) int { return utf8.RuneCountInString(s) + (tab-1)*strings.Count(s, "\t") }

// wrap breaks long lines until it can break no further line.
func wrap(src []byte) ([]byte, error) {
	for range 50 {
		at := breaks(src)
		if len(at) == 0 {
			return src, nil
		}
		var out []byte
		last := 0
		for _, b := range at {
			out = append(append(out, bytes.TrimRight(src[last:b.at], " ")...), b.text...)
			for last = b.to; last < len(src) && src[last] == ' '; last++ {
			}
		}
		next, err := format.Source(append(out, src[last:]...))
		if err != nil {
			return nil, err
		}
		if bytes.Equal(next, src) {
			return src, nil
		}
		src = next
	}
	return src, nil
}

// cut is a position at which a line is broken: the end of the text before it, and the text that is inserted.
type cut struct {
	at, to int
	text   string
}

// breaks returns one position to break at for every long line that has such a position.
func breaks(src []byte) []cut {
	fset := token.NewFileSet()
	f := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(f, src, nil, scanner.ScanComments)
	type candidate struct{ at, depth int }
	byLine := map[int][]candidate{}
	comments := map[int][]cut{}
	depth := 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		line, at := f.Line(pos), f.Offset(pos)
		switch tok {
		case token.LPAREN, token.LBRACK, token.LBRACE:
			depth++
		case token.RPAREN, token.RBRACK, token.RBRACE:
			depth--
		case token.COMMA, token.LAND, token.LOR, token.ADD:
			end := at + len(tok.String())
			if end < len(src) && src[end] == ' ' { // the minus is an operator and not the sign of a number
				d := depth
				if tok == token.ADD {
					d += 2
				}
				byLine[line] = append(byLine[line], candidate{end, d})
			}
		case token.COMMENT:
			comments[line] = comment(src, at, lit)
		}
	}
	var list []cut
	begin := 0
	for n := 1; begin < len(src); n++ {
		end := bytes.IndexByte(src[begin:], '\n')
		if end < 0 {
			break
		}
		line := string(src[begin : begin+end])
		if columns(line) > most {
			if c := comments[n]; c != nil {
				list = append(list, c...)
			} else {
				best, found := candidate{}, false
				for _, c := range byLine[n] {
					head := columns(string(src[begin:c.at]))
					if head > most || c.at-begin >= end || head < most/3 {
						continue
					}
					if !found || c.depth <= best.depth {
						best, found = c, true
					}
				}
				if found {
					list = append(list, cut{best.at, best.at, "\n"})
				}
			}
		}
		begin += end + 1
	}
	return list
}

// comment breaks a comment line that is too long. If the next line continues the sentence, the rest of the broken
// line is joined to it.
func comment(src []byte, at int, text string) []cut {
	begin := bytes.LastIndexByte(src[:at], '\n') + 1
	indent := string(src[begin:at])
	room := most - columns(indent)
	if !strings.HasPrefix(text, "// ") || strings.TrimSpace(indent) != "" || utf8.RuneCountInString(text) <= room {
		return nil
	}
	n := strings.LastIndexByte(string([]rune(text)[:room]), ' ')
	if n <= 2 {
		return nil
	}
	list := []cut{{at + n, at + n, "\n" + indent + "// "}}
	below := "\n" + indent + "// "
	end := at + len(text)
	if rest, ok := bytes.CutPrefix(src[end:], []byte(below)); ok && len(rest) > 0 && unicode.IsLetter(rune(rest[0])) {
		list = append(list, cut{end, end + len(below), " "})
	}
	return list
}
