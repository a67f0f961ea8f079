package report

import (
	"fmt"
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// node is an element of a parsed page, or text, which has no name.
type node struct {
	name  string
	attrs map[string]string
	kids  []*node
	text  string
}

var (
	markup = regexp.MustCompile(`^<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\s+[a-zA-Z][a-zA-Z0-9:-]*(?:="[^"<>]*")?)*)\s*(/?)>`)
	attr   = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9:-]*)(?:="([^"]*)")?`)
	void   = []string{"meta", "link", "br", "img", "input", "hr"}
)

// parse reads a page more strictly than any browser: every element that is not void must be closed, in order, every
// attribute must be quoted, and no "<" may stand alone.
func parse(t *testing.T, page string) *node {
	t.Helper()
	rest, ok := strings.CutPrefix(page, "<!DOCTYPE html>")
	if !ok {
		t.Fatalf("no doctype: %.40q", page)
	}
	root := &node{name: "#root"}
	open := []*node{root}
	for rest != "" {
		top := open[len(open)-1]
		if n := rawLen(top.name, rest); n > 0 {
			top.kids = append(top.kids, &node{text: rest[:n]})
			rest = rest[n:]
			continue
		}
		if rest[0] != '<' {
			n := strings.IndexByte(rest, '<')
			if n < 0 {
				n = len(rest)
			}
			top.kids = append(top.kids, &node{text: html.UnescapeString(rest[:n])})
			rest = rest[n:]
			continue
		}
		m := markup.FindStringSubmatch(rest)
		if m == nil {
			t.Fatalf("no tag: %.60q", rest)
		}
		rest = rest[len(m[0]):]
		switch {
		case m[1] == "/" && (len(open) == 1 || top.name != m[2]):
			t.Fatalf("</%s> closes <%s>, before %.60q", m[2], top.name, rest)
		case m[1] == "/":
			open = open[:len(open)-1]
		default:
			e := &node{name: m[2], attrs: map[string]string{}}
			for _, a := range attr.FindAllStringSubmatch(m[3], -1) {
				if _, twice := e.attrs[a[1]]; twice {
					t.Fatalf("<%s> has %s twice", e.name, a[1])
				}
				e.attrs[a[1]] = html.UnescapeString(a[2])
			}
			top.kids = append(top.kids, e)
			if m[4] == "" && !slices.Contains(void, e.name) {
				open = append(open, e)
			}
		}
	}
	if len(open) != 1 {
		t.Fatalf("<%s> is not closed", open[len(open)-1].name)
	}
	return root
}

// rawLen returns the length of the text at the start of rest that belongs to a script or style element, or 0 for other
// elements.
func rawLen(name, rest string) int {
	if name != "script" && name != "style" {
		return 0
	}
	return strings.Index(strings.ToLower(rest), "</"+name)
}

// all returns the elements below n that ok accepts, in document order.
func (n *node) all(ok func(*node) bool) []*node {
	var out []*node
	for _, k := range n.kids {
		if k.name != "" && ok(k) {
			out = append(out, k)
		}
		out = append(out, k.all(ok)...)
	}
	return out
}

// find returns the elements with a tag name, and with a class if the argument has one, as in p.new.
func (n *node) find(name string) []*node {
	name, class, _ := strings.Cut(name, ".")
	return n.all(func(e *node) bool { return e.name == name && (class == "" || e.has(class)) })
}

func (n *node) one(t *testing.T, name string) *node {
	t.Helper()
	found := n.find(name)
	if len(found) != 1 {
		t.Fatalf("%d elements %s, want one", len(found), name)
	}
	return found[0]
}

func (n *node) has(class string) bool {
	return slices.Contains(strings.Fields(n.attrs["class"]), class)
}

// content returns the text of n and of all elements in it.
func (n *node) content() string {
	var b strings.Builder
	b.WriteString(n.text)
	for _, k := range n.kids {
		b.WriteString(k.content())
	}
	return b.String()
}

// words returns the content, with each run of white space replaced by a single space.
func (n *node) words() string { return strings.Join(strings.Fields(n.content()), " ") }

// columnText returns the program that a column shows.
func columnText(col *node) string {
	var b strings.Builder
	for _, p := range col.find("p") {
		b.WriteString(p.content() + "\n")
	}
	return b.String()
}

// outline returns what a reader of the page sees, one item per line.
func outline(t *testing.T, page string) string {
	t.Helper()
	root := parse(t, page)
	var b strings.Builder
	fmt.Fprintln(&b, "title:", root.one(t, "head").one(t, "title").words())
	for _, h := range root.find("header") {
		fmt.Fprintln(&b, "top:", h.words())
	}
	for _, col := range root.find("section.col") {
		fmt.Fprintf(&b, "\ncolumn %s: %s", col.attrs["data-name"], col.one(t, "button").words())
		if col.has("folded") {
			b.WriteString(" (folded)\n")
			continue
		}
		b.WriteString("\n")
		for _, f := range col.find("div.f") {
			fmt.Fprintf(&b, "- %q\n", f.attrs["data-f"])
			for _, p := range f.find("p") {
				mark := " "
				if p.has("new") {
					mark = "+"
				}
				fmt.Fprintf(&b, "%3s %s %s\n", p.attrs["data-o"], mark, p.content())
			}
		}
	}
	for _, s := range root.one(t, "aside").find("section") {
		fmt.Fprintf(&b, "\nside: %s\n", s.one(t, "h2").words())
		for _, p := range s.all(func(n *node) bool { return n.name == "h3" || n.name == "p" || n.name == "tr" }) {
			mark := ""
			if p.has("taken") {
				mark = " *"
			}
			fmt.Fprintf(&b, "  %s: %s%s\n", p.name, p.words(), mark)
			for _, bar := range p.find("rect") {
				fmt.Fprintf(&b, "    bar %s\n", bar.attrs["width"])
			}
		}
	}
	for _, d := range root.find("details") {
		fmt.Fprintf(&b, "\ntimeline: %s\n", d.one(t, "summary").words())
		fmt.Fprintf(&b, "  lanes: %s\n", d.one(t, "div.names").words())
		for _, r := range d.find("rect") {
			if h := r.find("title"); len(h) == 1 {
				fmt.Fprintf(&b, "  %s: %s\n", r.attrs["class"], h[0].words())
			}
		}
	}
	return b.String()
}
