package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// document is what a test needs of an HTML file.
type document struct {
	ids   []string
	links []string // of the whole page: href and src
	main  []string // href of the page's text, without its navigation
}

// read reads an HTML file of the site. Names and attributes must be well formed, and every element must be closed.
func read(t *testing.T, name string, text []byte) document {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(text))
	d.Entity = xml.HTMLEntity
	var doc document
	depth, inMain := 0, 0
	for {
		token, err := d.Token()
		if err == io.EOF {
			return doc
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if depth++; e.Name.Local == "main" {
				inMain = depth
			}
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "id":
					doc.ids = append(doc.ids, a.Value)
				case "href", "src":
					doc.links = append(doc.links, a.Value)
					if inMain > 0 && e.Name.Local == "a" {
						doc.main = append(doc.main, a.Value)
					}
				}
			}
		case xml.EndElement:
			if depth == inMain {
				inMain = 0
			}
			depth--
		}
	}
}

// target returns the file of the site and the anchor that a link of a page leads to; "" for other sites.
func target(t *testing.T, page, link string) (file, anchor string) {
	t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	if u.Scheme == "https" {
		return "", ""
	}
	if u.Scheme != "" || strings.HasPrefix(u.Path, "/") {
		t.Errorf("%s: %s leads neither to a file of the site nor to https", page, link)
	}
	if u.Path == "" {
		return page, u.Fragment
	}
	return path.Join(path.Dir(page), u.Path), u.Fragment
}

// documents builds the site of this repository and reads its pages.
func documents(t *testing.T) (map[string][]byte, map[string]document) {
	t.Helper()
	files, err := build(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]document{}
	for name, text := range files {
		if path.Ext(name) == ".html" {
			pages[name] = read(t, name, text)
		}
	}
	return files, pages
}

// TestLinks: no link and no anchor of the site is broken, and links in the text lead from the front page to every page.
func TestLinks(t *testing.T) {
	files, pages := documents(t)
	links := 0
	for name, p := range pages {
		if slices.Sort(p.ids); len(slices.Compact(slices.Clone(p.ids))) != len(p.ids) {
			t.Errorf("%s has an id twice", name)
		}
		for _, link := range p.links {
			file, anchor := target(t, name, link)
			if file == "" {
				continue
			}
			if links++; files[file] == nil {
				t.Errorf("%s: %s leads to no file", name, link)
			} else if anchor != "" && !slices.Contains(pages[file].ids, anchor) {
				t.Errorf("%s: %s leads to no anchor", name, link)
			}
		}
	}
	if links < 1000 {
		t.Errorf("only %d links were checked", links)
	}
	reached, queue := map[string]bool{"index.html": true}, []string{"index.html"}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		for _, link := range pages[name].main {
			if file, _ := target(t, name, link); path.Ext(file) == ".html" && !reached[file] {
				reached[file] = true
				queue = append(queue, file)
			}
		}
	}
	for name := range pages {
		if !reached[name] {
			t.Errorf("no links lead from the front page to %s", name)
		}
	}
	err := fs.WalkDir(os.DirFS("../.."), "docs", func(source string, _ fs.DirEntry, err error) error {
		if path.Ext(source) == ".md" && files[address(source)] == nil {
			t.Errorf("%s is no page of the site", source)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFiveWaysIn: the front page leads to five pages for beginners, and the navigation of each page leads to them, too.
func TestFiveWaysIn(t *testing.T) {
	_, pages := documents(t)
	ways := []string{"start-model.html", "start-all-reduce.html", "start-profile.html", "start-schedule.html", "start-server.html"}
	for _, way := range ways {
		if !slices.Contains(pages["index.html"].main, way) {
			t.Errorf("the front page does not lead to %s", way)
		}
		if !slices.Contains(pages["measured/layers.html"].links, "../"+way) {
			t.Errorf("the navigation of a page of measurements does not lead to %s", way)
		}
	}
}

// small returns a repository of a front page with some text, and of another page.
func small(text string) fstest.MapFS {
	return fstest.MapFS{
		"docs/README.md": {Data: []byte("# Front\n\n## Group\n\n- [Other](other.md)\n\n" + text)},
		"docs/other.md":  {Data: []byte("# Other `page`\n\n## Same\n\nOne & two\nlines.\n\n## Same\n\n```\n$ a <b>\nout\n```\n")},
		"code/a.go":      {Data: []byte("package a\n")},
		"code/a.svg":     {Data: []byte("<svg/>")},
		"ROOT.md":        {Data: []byte("# Root\n\n[back](docs/other.md#same-1)\n")},
	}
}

// TestRefused: a repository with a broken link, a broken anchor or a page that no link leads to has no site.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ text, file, says string }{
		{"", "", ""},
		{"[x](gone.md)", "", "docs/README.md: the link gone.md leads to no file"},
		{"[x](../code/gone.go)", "", "docs/README.md: the link ../code/gone.go leads to no file"},
		{"![x](gone.svg)", "", "docs/README.md: the link gone.svg leads to no file"},
		{"[x](other.md#gone)", "", "docs/README.md: a link leads to #gone, and docs/other.md has no such heading"},
		{"[x](#gone)", "", "docs/README.md: a link leads to #gone, and docs/README.md has no such heading"},
		{"[x](%zz)", "", "docs/README.md: parse \"%zz\""},
		{"", "docs/more/alone.md", "docs/more/alone.md: no page links to it"},
	} {
		root := small(c.text)
		if c.file != "" {
			root[c.file] = &fstest.MapFile{Data: []byte("# Alone\n")}
		}
		_, err := build(root)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s%s: %v, want %q", c.text, c.file, err, c.says)
		}
	}
}

// TestLinksOfText: links between Markdown files lead to pages, links to other files to copies of them, and links to
// folders are text.
func TestLinksOfText(t *testing.T) {
	files, err := build(small("[root](../ROOT.md), [two](other.md#same-1), [go](../code/a.go), [folder](../code), " +
		"[web](https://example.org/a.md), ![svg](../code/a.svg), `a --<b>`, `command --flag of-more-than-24-characters`"))
	if err != nil {
		t.Fatal(err)
	}
	front := string(files["index.html"])
	for _, want := range []string{
		`<a href="repository/ROOT.html">root</a>`, `<a href="other.html#same-1">two</a>`,
		`<a href="files/code/a.go.txt">go</a>, folder, `, `<a href="https://example.org/a.md">web</a>`,
		`<img src="files/code/a.svg" alt="svg" />`, `<code class="short">a --&lt;b&gt;</code>`,
		`<code><span class="short">command</span> <span class="short">--flag</span> of-more-than-24-characters</code>`, `<script defer="defer" src="./site.js" data-base="."></script>`,
	} {
		if !strings.Contains(front, want) {
			t.Errorf("the front page lacks %s:\n%s", want, front)
		}
	}
	if got := string(files["files/code/a.go.txt"]); got != "package a\n" {
		t.Errorf("the copy is %q", got)
	}
	root := string(files["repository/ROOT.html"])
	for _, want := range []string{`<a href="../other.html#same-1">back</a>`, `href="../site.css"`, `<li><a href="../other.html">Other</a></li>`} {
		if !strings.Contains(root, want) {
			t.Errorf("the page of a file outside docs lacks %s:\n%s", want, root)
		}
	}
	other := string(files["other.html"])
	for _, want := range []string{
		`<h2 id="same-1">Same <a class="permalink" href="#same-1"`, `<title>Other page · hocket</title>`,
		`<span>$ </span><b>a &lt;b&gt;</b>` + "\nout\n</code>", `<li><a href="other.html" aria-current="page">Other</a></li>`,
	} {
		if !strings.Contains(other, want) {
			t.Errorf("the other page lacks %s:\n%s", want, other)
		}
	}
	index, ok := bytes.CutPrefix(bytes.TrimSuffix(files["index.js"], []byte(";\n")), []byte("window.siteIndex = "))
	var entries []struct{ P, T, A, H, X string }
	if err := json.Unmarshal(index, &entries); err != nil || !ok {
		t.Fatal(err)
	}
	if len(entries) != 6 || entries[3].P != "other.html" || entries[3].A != "same" || entries[3].H != "Same" ||
		entries[3].T != "Other page" || entries[3].X != "One & two lines." || entries[4].X != "$ a <b> out" {
		t.Errorf("the index is %q", entries)
	}
}

// TestSlugs: anchors are those of GitHub, which the same pages have there.
func TestSlugs(t *testing.T) {
	for heading, want := range map[string]string{
		"Where the time went: hocket trace": "where-the-time-went-hocket-trace",
		"NCCL's mistakes":                   "nccls-mistakes",
		"8-bit types":                       "8-bit-types",
		"a_b — c":                           "a_b--c",
		"Größe":                             "größe",
	} {
		if got := slug(heading); got != want {
			t.Errorf("the anchor of %q is %q, want %q", heading, got, want)
		}
	}
}
