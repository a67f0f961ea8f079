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

// Lowering is the content of the page of a lowered program: the source and the result of each pass, in columns.
type Lowering struct {
	// Source is the program that was lowered. Origins are positions in its Source.
	Source *ir.Program
	Stages []lower.Stage
	// Log is shown in the side column if there is no Prediction.
	Log []lower.Entry
	// Memory is the memory of the plan, or nil if it is unknown.
	Memory *Memory
	// Prediction may be nil. In this case Unpredicted may say why.
	Prediction  *Prediction
	Unpredicted string
}

// Prediction is the predicted run of the lowered program on a machine.
type Prediction struct {
	// Subject describes which dims were set. Machine is the name of the machine description.
	Subject, Machine string
	Notes            []Note
	// Time and Sequential are in microseconds, with overlap and without it; 0 if they are unknown.
	Time, Sequential float64
	// Exposed and SequentialExposed are the parts of these in which a rank communicates and computes nothing.
	Exposed, SequentialExposed float64
	// Timeline is the predicted run, or nil. Cut says that the timeline was cut off at its end.
	Timeline *trace.Trace
	Cut      bool
}

// Memory is the memory that the plan of the lowered program needs on each rank.
type Memory struct {
	// Peak and Bound are the amount, in words: Peak in the plan, and Bound the least that any plan needs.
	Peak, Bound string
	// Picture is an SVG element that shows the positions of the buffers.
	Picture template.HTML
}

// Note is a remark on a line of the source.
type Note struct {
	// Kind is the heading under which the note is shown.
	Kind string
	Line int32
	// Value is the value that the note is about, without "%". It may be empty.
	Value string
	// Title is the note, and Detail has more paragraphs about it.
	Title  string
	Detail []string
	// Choices are the alternatives.
	Choices []Choice
}

// Choice is one of several ways to do something.
type Choice struct {
	Name   string
	Time   float64 // microseconds
	Taken  bool
	Reason string // why it is not possible; then Time has no meaning
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

// view is the input of the template.
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
	title := strings.ToValidUTF8(l.Source.File, "\uFFFD") // a file name may have any bytes, but the page is UTF-8
	v := &view{Lowering: l, Title: title, Columns: columns(l), Sections: l.sections(),
		Style: template.CSS(asset("lowering.css")), Script: template.JS(script), Policy: policy(script)}
	if p := l.Prediction; p != nil && p.Timeline != nil {
		v.Timeline = draw(p.Timeline)
	}
	return layout.ExecuteTemplate(w, "lowering.html", v)
}

// policy allows only the one script and the styles in the page. So even text that was not escaped could not run or load
// anything.
func policy(script string) string {
	sum := sha256.Sum256([]byte(script))
	return fmt.Sprintf("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
}

// sections groups the notes, or the log if there is no prediction.
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
