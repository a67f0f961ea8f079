// Package report writes the HTML pages and SVG pictures of all commands. The pages share parts: a frame with a verdict
// and keys, programs, timelines, pictures of memory, legends and tables. Each file is self-contained: it loads nothing
// from the network and runs only its own script. Text from programs is escaped.
package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

//go:embed page
var files embed.FS

var layout = template.Must(template.New("").Funcs(template.FuncMap{
	"duration": duration, "us": trace.Microseconds, "size": tensor.Size, "share": share,
	"maximum": func(a, b float64) float64 { return max(a, b) },
	"add":     func(a, b int) int { return a + b },
}).ParseFS(files, "page/*.html"))

// asset returns an embedded file.
func asset(name string) string {
	b, err := files.ReadFile("page/" + name)
	if err != nil {
		panic(err) // all files are embedded
	}
	return string(b)
}

// frame holds the elements that all pages have in common.
type frame struct {
	// Title is the subject of the page. Command is the command that wrote the page; it is empty if the title names
	// the command.
	Title, Command string
	// About is a line of facts about the subject. Verdict is the first sentence of the page.
	About, Verdict string
	// Hint is the text that the status line shows at first.
	Hint string
	Keys []keyHelp
	// Window makes the page exactly as high as the browser's window; its parts scroll. Without Window, the page scrolls
	// as a whole.
	Window bool

	Style  template.CSS
	Script template.JS
	Policy string
}

// keyHelp describes what some keys do.
type keyHelp struct {
	Keys []string
	What string
}

// pictureKeys describes the keys of pictures, which the script frame.js handles.
var pictureKeys = []keyHelp{{[]string{"Tab"}, "next picture"}, {[]string{"←", "→"}, "previous, next mark"}}

// write completes the frame with the page's script, and executes the template with the given name.
func (f *frame) write(w io.Writer, name, script string, view any) error {
	text := asset("frame.js")
	if script != "" {
		text += asset(script)
	}
	f.Verdict = strings.ReplaceAll(f.Verdict, " %", "\u00a0%") // prevents a line break before the percent sign
	f.Style = style(func(string) bool { return true }) + template.CSS(asset("look.css"))
	f.Script, f.Policy = template.JS(text), policy(text)
	return layout.ExecuteTemplate(w, name, view)
}

// policy returns a content security policy that permits only the page's script and styles. Even if text is not escaped
// by mistake, it can therefore neither run scripts nor load files.
func policy(script string) string {
	sum := sha256.Sum256([]byte(script))
	return fmt.Sprintf("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
}
