package main

import (
	"fmt"
	"html"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	gmhtml "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.Table),
	goldmark.WithRendererOptions(gmhtml.WithXHTML(), renderer.WithNodeRenderers(util.Prioritized(markup{}, 1))),
)

// parse parses a page, gives its headings the same anchors as GitHub, and divides its text into sections.
func (p *page) parse(source []byte) {
	p.text = source
	p.doc = markdown.Parser().Parse(text.NewReader(source))
	b := new(strings.Builder)
	cut := func() {
		if n := len(p.sections); n > 0 {
			p.sections[n-1].Text = strings.Join(strings.Fields(b.String()), " ")
		}
		b.Reset()
	}
	var comments []ast.Node
	walk(p.doc, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Heading:
			cut()
			heading := plain(n, source)
			id := slug(heading)
			for i, base := 1, id; p.anchors[id]; i++ {
				id = fmt.Sprintf("%s-%d", base, i)
			}
			p.anchors[id] = true
			n.SetAttributeString("id", []byte(id))
			if p.title == "" {
				p.title = heading
			}
			p.sections = append(p.sections, section{Level: n.Level, ID: id, Heading: heading})
		case *ast.Paragraph, *ast.TextBlock, *extast.TableCell, *ast.FencedCodeBlock, *ast.CodeBlock:
			b.WriteString(plain(n, source) + "\n")
		case *ast.HTMLBlock:
			comments = append(comments, n)
		}
	})
	cut()
	for _, n := range comments { // remove comments that are marks for tests
		n.Parent().RemoveChild(n.Parent(), n)
	}
}

// slug returns the anchor that GitHub gives a heading.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsNumber(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, heading)
}

// walk calls f for a node and all nodes in it, in the order of the text.
func walk(n ast.Node, f func(ast.Node)) {
	f(n)
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		walk(c, f)
	}
}

// plain returns the text of a node without markup.
func plain(n ast.Node, source []byte) string {
	b := new(strings.Builder)
	if n.Type() == ast.TypeBlock && n.FirstChild() == nil {
		b.Write(n.Lines().Value(source)) // the node is code
	}
	walk(n, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(n.Value)
		case *ast.AutoLink:
			b.Write(n.Label(source))
		}
	})
	return html.UnescapeString(b.String())
}

// unwrap replaces a link by its text.
func unwrap(n ast.Node) {
	parent := n.Parent()
	for c := n.FirstChild(); c != nil; c = n.FirstChild() {
		parent.InsertBefore(parent, n, c)
	}
	parent.RemoveChild(parent, n)
}

// markup renders some nodes in another way than goldmark: headings with permalinks, code with its commands marked,
// and wide blocks in boxes that scroll.
type markup struct{}

func (markup) RegisterFuncs(reg renderer.NodeRendererFuncRegisterer) {
	reg.Register(ast.KindHeading, heading)
	reg.Register(ast.KindFencedCodeBlock, code)
	reg.Register(ast.KindCodeBlock, code)
	reg.Register(ast.KindCodeSpan, codeSpan)
	reg.Register(extast.KindTable, table)
}

func heading(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	id, _ := n.AttributeString("id")
	level := n.(*ast.Heading).Level
	if entering {
		fmt.Fprintf(w, `<h%d id="%s">`, level, id)
	} else {
		fmt.Fprintf(w, ` <a class="permalink" href="#%s" aria-label="permalink">#</a></h%d>`+"\n", id, level)
	}
	return ast.WalkContinue, nil
}

func code(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	w.WriteString(`<pre tabindex="0"><code>`)
	for i := range n.Lines().Len() {
		line := n.Lines().At(i)
		text := html.EscapeString(strings.TrimSuffix(string(line.Value(source)), "\n"))
		if command, ok := strings.CutPrefix(text, "$ "); ok {
			text = "<span>$ </span><b>" + command + "</b>"
		}
		w.WriteString(text + "\n")
	}
	w.WriteString("</code></pre>\n")
	return ast.WalkContinue, nil
}

// codeSpan keeps short code, and short words of longer code, on one line, because browsers break lines at the
// dashes of a flag.
func codeSpan(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	const short = 24
	text := plain(n, source)
	if len(text) <= short {
		fmt.Fprintf(w, `<code class="short">%s</code>`, html.EscapeString(text))
		return ast.WalkSkipChildren, nil
	}
	words := strings.Split(text, " ")
	for i, word := range words {
		if words[i] = html.EscapeString(word); word != "" && len(word) <= short {
			words[i] = `<span class="short">` + words[i] + "</span>"
		}
	}
	fmt.Fprintf(w, "<code>%s</code>", strings.Join(words, " "))
	return ast.WalkSkipChildren, nil
}

func table(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
	if entering {
		w.WriteString("<div class=\"wide\" tabindex=\"0\"><table>\n")
	} else {
		w.WriteString("</table></div>\n")
	}
	return ast.WalkContinue, nil
}
