// Package report writes HTML pages. Each is one self-contained file that needs no network, loads nothing and runs only
// its own scripts. Text from programs is escaped.
package report

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// Lowering is what the page of a lowered program shows: the source and what
// each pass left, side by side.
type Lowering struct {
	// Source is the program that was lowered; origins are places of its Source.
	Source *ir.Program
	Stages []lower.Stage
	// Log is shown at the side where there is no Prediction.
	Log []lower.Entry
	// Memory of the plan; nil where it is not known.
	Memory *Memory
	// Prediction may be nil; Unpredicted then says why, if anything does.
	Prediction  *Prediction
	Unpredicted string
}

// Prediction is what is expected of the lowered program on a machine.
type Prediction struct {
	// Subject says what was bound, Machine for what it is predicted.
	Subject, Machine string
	Notes            []Note
	// Time and Sequential are microseconds, with overlap and without; 0 where
	// they are not known.
	Time, Sequential float64
	// Exposed and SequentialExposed are the parts of these in which a rank communicates and
	// computes nothing.
	Exposed, SequentialExposed float64
	// Timeline is the predicted run; nil for none. Cut says that it ends early.
	Timeline *trace.Trace
	Cut      bool
}

// Memory is what the plan of the lowered program takes on each rank.
type Memory struct {
	// Peak and Bound say how much, in words: as laid out, and the least that any plan takes.
	Peak, Bound string
	// Picture is an SVG element that shows where the buffers lie.
	Picture template.HTML
}

// Note is a remark on a line of the source.
type Note struct {
	// Kind groups notes under a heading.
	Kind string
	Line int32
	// Value is the value that it is about, without "%"; may be empty.
	Value string
	// Title is what it says, Detail more of that, a paragraph each.
	Title  string
	Detail []string
	// Choices are what could have been done.
	Choices []Choice
}

// Choice is one way of several to do something.
type Choice struct {
	Name   string
	Time   float64 // microseconds
	Taken  bool
	Reason string // why it cannot be had; then Time means nothing
}

//go:embed page
var files embed.FS

var layout = template.Must(template.New("").Funcs(template.FuncMap{
	"duration": duration, "us": trace.Microseconds, "share": share, "maximum": func(a, b float64) float64 { return max(a, b) },
}).ParseFS(files, "page/*.html"))

// asset returns an embedded file.
func asset(name string) string {
	b, err := files.ReadFile("page/" + name)
	if err != nil {
		return ""
	}
	return string(b)
}

// view is what the template is given.
type view struct {
	*Lowering
	Title    string
	Columns  []*column
	Sections []section
	Timeline *drawing
	Style    template.CSS
	Script   template.JS
	Policy   string
}

// section is the notes of one kind.
type section struct {
	Kind  string
	Notes []Note
}

// WriteHTML writes the page. Equal contents make equal pages.
func (l *Lowering) WriteHTML(w io.Writer) error {
	script := asset("lowering.js")
	title := strings.ToValidUTF8(l.Source.File, "\uFFFD") // a file's name may be any bytes, the page is UTF-8
	v := &view{Lowering: l, Title: title, Columns: columns(l), Sections: l.sections(),
		Style: template.CSS(asset("lowering.css")), Script: template.JS(script), Policy: policy(script)}
	if p := l.Prediction; p != nil && p.Timeline != nil {
		v.Timeline = draw(p.Timeline)
	}
	return layout.ExecuteTemplate(w, "lowering.html", v)
}

// policy allows nothing but the one script and styles that stand in the page:
// even text that were not escaped could not run or fetch anything.
func policy(script string) string {
	sum := sha256.Sum256([]byte(script))
	return fmt.Sprintf("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
}

// sections groups the notes, or the log where there is no prediction.
func (l *Lowering) sections() []section {
	var notes []Note
	if l.Prediction != nil {
		notes = l.Prediction.Notes
	} else {
		for _, e := range l.Log {
			notes = append(notes, Note{Kind: e.Pass, Line: e.Pos.Line, Value: e.Value, Title: e.From + " → " + e.To, Detail: []string{e.Func + ": " + e.Why}})
		}
	}
	var list []section
	at := map[string]int{}
	for _, n := range notes {
		i, ok := at[n.Kind]
		if !ok {
			i = len(list)
			at[n.Kind] = i
			list = append(list, section{Kind: n.Kind})
		}
		list[i].Notes = append(list[i].Notes, n)
	}
	return list
}
