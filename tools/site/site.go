package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

const front = "docs/README.md"

var (
	//go:embed page.html
	pageHTML string
	//go:embed site.css
	siteCSS []byte
	//go:embed site.js
	siteJS []byte

	pageTemplate = template.Must(template.New("page").Parse(pageHTML))
)

// site is a site that is being built. Paths of source files are relative to the repository's root.
type site struct {
	root  fs.FS
	pages map[string]*page // pages by source file
	order []string         // source files of the pages, in the order in which links lead to them
	files map[string][]byte
	errs  []error
}

// page is one Markdown file.
type page struct {
	source   string
	address  string // name of the page's file in the site
	text     []byte
	doc      ast.Node
	title    string
	sections []section
	anchors  map[string]bool
	wants    []anchor // headings, of other pages and of this one, to which the page links
}

// section is a heading with the text up to the next one.
type section struct {
	Level   int
	ID      string
	Heading string
	Text    string
}

// anchor is a heading to which a link leads.
type anchor struct{ source, id string }

// group is a heading of the front page, with the pages that are linked below it.
type group struct {
	Name  string
	Links []navLink
}

type navLink struct {
	Href, Text string
	Current    bool
}

// build returns the files of the site of a repository by their names in the site.
func build(root fs.FS) (map[string][]byte, error) {
	s := &site{root: root, pages: map[string]*page{}, files: map[string][]byte{}}
	s.add(front)
	for i := 0; i < len(s.order); i++ { // reading a page adds the pages to which it links
		s.read(s.pages[s.order[i]])
	}
	s.check()
	if len(s.errs) > 0 {
		return nil, errors.Join(s.errs...)
	}
	for _, source := range s.order {
		if err := s.render(s.pages[source]); err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
	}
	index, err := s.index()
	if err != nil {
		return nil, err
	}
	s.files["index.js"], s.files["site.css"], s.files["site.js"] = index, siteCSS, siteJS
	return s.files, nil
}

func (s *site) fail(source, format string, args ...any) {
	s.errs = append(s.errs, fmt.Errorf("%s: "+format, append([]any{source}, args...)...))
}

// add makes a Markdown file a page of the site, unless it already is one.
func (s *site) add(source string) {
	if s.pages[source] == nil {
		s.pages[source] = &page{source: source, address: address(source), anchors: map[string]bool{}}
		s.order = append(s.order, source)
	}
}

// address returns the name, in the site, of the file to which a Markdown file is written.
func address(source string) string {
	name, ok := strings.CutPrefix(source, "docs/")
	if !ok {
		name = "repository/" + source
	}
	if path.Base(name) == "README.md" {
		return path.Join(path.Dir(name), "index.html")
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

// read parses a page and resolves its links.
func (s *site) read(p *page) {
	text, err := fs.ReadFile(s.root, p.source)
	if err != nil {
		s.errs = append(s.errs, err)
		return
	}
	p.parse(text)
	var links []ast.Node
	walk(p.doc, func(n ast.Node) {
		switch n.(type) {
		case *ast.Link, *ast.Image:
			links = append(links, n)
		}
	})
	for _, n := range links {
		switch n := n.(type) {
		case *ast.Link:
			if to, ok := s.resolve(p, string(n.Destination)); ok {
				n.Destination = []byte(to)
			} else {
				unwrap(n)
			}
		case *ast.Image:
			if to, ok := s.resolve(p, string(n.Destination)); ok {
				n.Destination = []byte(to)
			}
		}
	}
}

// resolve returns the address in the site to which a link of a page leads, relative to the page. It returns false
// for a folder without a page, which a site cannot show.
func (s *site) resolve(p *page, destination string) (string, bool) {
	u, err := url.Parse(destination)
	if err != nil {
		s.fail(p.source, "%v", err)
		return "", false
	}
	if u.Scheme != "" || u.Host != "" {
		return destination, true
	}
	target := p.source
	if u.Path != "" {
		target = path.Join(path.Dir(p.source), u.Path)
	}
	info, err := fs.Stat(s.root, target)
	if err != nil {
		s.fail(p.source, "the link %s leads to no file", destination)
		return "", false
	}
	if info.IsDir() {
		readme := path.Join(target, "README.md")
		if _, err := fs.Stat(s.root, readme); err != nil {
			return "", false
		}
		target = readme
	}
	to := ""
	switch {
	case path.Ext(target) == ".md":
		s.add(target)
		if to = address(target); u.Fragment != "" {
			p.wants = append(p.wants, anchor{target, u.Fragment})
		}
		if target == p.source && u.Fragment != "" {
			return "#" + u.Fragment, true
		}
	default:
		if to, err = s.copy(target); err != nil {
			s.errs = append(s.errs, err)
			return "", false
		}
	}
	to = relative(p.address, to)
	if u.Fragment != "" {
		to += "#" + u.Fragment
	}
	return to, true
}

// copy adds a file of the repository to the site. It appends .txt to the names of source files and tables, so that
// browsers show them.
func (s *site) copy(source string) (string, error) {
	to := "files/" + source
	if path.Ext(source) != ".svg" {
		to += ".txt"
	}
	text, err := fs.ReadFile(s.root, source)
	s.files[to] = text
	return to, err
}

// relative returns the address of the file to, relative to the file from.
func relative(from, to string) string {
	r, err := filepath.Rel(filepath.FromSlash(path.Dir(from)), filepath.FromSlash(to))
	if err != nil {
		panic(err) // cannot happen, because both are relative to the site
	}
	return filepath.ToSlash(r)
}

// check reports links to headings that do not exist, and pages of docs that no link leads to.
func (s *site) check() {
	for _, source := range s.order {
		for _, a := range s.pages[source].wants {
			if to := s.pages[a.source]; !to.anchors[a.id] {
				s.fail(source, "a link leads to #%s, and %s has no such heading", a.id, a.source)
			}
		}
	}
	err := fs.WalkDir(s.root, "docs", func(source string, d fs.DirEntry, err error) error {
		if err == nil && path.Ext(source) == ".md" && s.pages[source] == nil {
			s.fail(source, "no page links to it: add a link to %s", front)
		}
		return err
	})
	if err != nil {
		s.errs = append(s.errs, err)
	}
}

// navigation returns the groups of pages, with addresses relative to the page from.
func (s *site) navigation(from *page) []group {
	var groups []group
	f := s.pages[front]
	for n := f.doc.FirstChild(); n != nil; n = n.NextSibling() {
		if h, ok := n.(*ast.Heading); ok && h.Level == 2 {
			groups = append(groups, group{Name: plain(h, f.text)})
		}
		walk(n, func(n ast.Node) {
			l, ok := n.(*ast.Link)
			if !ok || len(groups) == 0 {
				return
			}
			// addresses of the front page are relative to the site
			to, ok := strings.CutSuffix(string(l.Destination), ".html")
			if !ok || strings.Contains(to, ":") {
				return
			}
			g := &groups[len(groups)-1]
			href := relative(from.address, to+".html")
			g.Links = append(g.Links, navLink{href, plain(l, f.text), from.address == to+".html"})
		})
	}
	return slices.DeleteFunc(groups, func(g group) bool { return len(g.Links) == 0 })
}

// render writes a page.
func (s *site) render(p *page) error {
	body := new(bytes.Buffer)
	if err := markdown.Renderer().Render(body, p.text, p.doc); err != nil {
		return err
	}
	var contents []section
	for _, c := range p.sections {
		if c.Level == 2 {
			contents = append(contents, c)
		}
	}
	out := new(bytes.Buffer)
	err := pageTemplate.Execute(out, map[string]any{
		"Title": p.title, "Source": p.source, "Base": relative(p.address, "."), "Groups": s.navigation(p),
		"Contents": contents, "Body": template.HTML(body.String()), "Front": p.source == front,
	})
	s.files[p.address] = out.Bytes()
	return err
}

// index returns the script with the texts that search uses. It is a script and not JSON, because a page that is
// opened from a folder may not fetch files.
func (s *site) index() ([]byte, error) {
	type entry struct {
		Page    string `json:"p"`
		Title   string `json:"t"`
		ID      string `json:"a"`
		Heading string `json:"h"`
		Text    string `json:"x"`
	}
	var entries []entry
	for _, source := range s.order {
		p := s.pages[source]
		for _, c := range p.sections {
			entries = append(entries, entry{p.address, p.title, c.ID, c.Heading, c.Text})
		}
	}
	text, err := json.Marshal(entries)
	return slices.Concat([]byte("window.siteIndex = "), text, []byte(";\n")), err
}
