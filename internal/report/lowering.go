package report

import (
	"fmt"
	"io"
	"strings"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// Lowering is the content of the page about a lowered program: the source and the result of each pass, in columns.
type Lowering struct {
	// Source is the program that was lowered. The Origins of the Stages are positions in Source.
	Source *ir.Program
	Stages []lower.Stage
	// Log contains the messages of the passes. The side column of the page shows them if there is no Prediction.
	Log []lower.Entry
	// Memory is the memory of the plan, or nil if it is unknown.
	Memory *MemoryPlan
	// Prediction is nil if there is no prediction; Unpredicted may then contain the reason.
	Prediction  *Prediction
	Unpredicted string
}

// Prediction is the predicted run of the lowered program on a machine.
type Prediction struct {
	// Subject lists the values of the dims. Machine is the name of the machine description.
	Subject, Machine string
	Notes            []Note
	// Time and Sequential are the times in microseconds with overlap and without it; 0 if unknown.
	Time, Sequential float64
	// Exposed and SequentialExposed are the parts of Time and Sequential in which a rank communicates without
	// computing.
	Exposed, SequentialExposed float64
	// Timeline has the predicted times of all commands; nil if unknown. Cut reports that the end of the timeline is
	// missing.
	Timeline *trace.Trace
	Cut      bool
}

// Note is a remark on a line of the source.
type Note struct {
	// Kind is the heading under which the note is shown.
	Kind string
	Line int32
	// Value is the value that the note is about, without "%". It may be empty.
	Value string
	// Title is the note's text. Detail has more paragraphs.
	Title  string
	Detail []string
	// Choices are the alternatives that the note compares, such as strategies.
	Choices []Choice
}

// Choice is an alternative, such as a strategy, with its predicted time.
type Choice struct {
	Name   string
	Time   float64 // in microseconds
	Taken  bool
	Reason string // the reason why the alternative is not possible; if it is empty, Time is valid
}

// view is the input of the template of the page about a lowered program.
type view struct {
	frame
	*Lowering
	Columns  []*column
	Sections []section
	Timeline *drawing
	Chart    *chart
}

// loweringKeys are the keys of the page of a lowered program.
var loweringKeys = []keyHelp{{[]string{"←", "→"}, "column"}, {[]string{"Enter"}, "fold"}, {[]string{"j", "k"}, "line"},
	{[]string{"v"}, "value"}, {[]string{"n", "p"}, "next, previous"}, {[]string{"w"}, "wrap"}, {[]string{"s"}, "side"},
	{[]string{"Esc"}, "clear"}}

// section holds the notes of one kind.
type section struct {
	Kind  string
	Notes []Note
}

// WriteHTML writes the page. The page depends only on the content of l.
func (l *Lowering) WriteHTML(w io.Writer) error {
	title := strings.ToValidUTF8(l.Source.File, "\uFFFD") // a file name may have any bytes, but the page is UTF-8
	v := &view{Lowering: l, Columns: columns(l), Sections: l.sections(), frame: frame{Title: title,
		Command: "hocket opt", Verdict: l.verdict(), Keys: loweringKeys, Window: true,
		Hint: "Click a value to follow it through the passes, or a line to see its translation."}}
	if p := l.Prediction; p != nil {
		v.About = p.Subject
		if t := p.Timeline; t != nil {
			lo, hi := t.Bounds()
			paint, ops := newPaint(t)
			v.Timeline = draw(t, hi-lo, paint)
			v.Timeline.Ops = ops
		}
	}
	if l.Memory != nil {
		v.Chart = newChart(l.Memory, fieldOf([]*MemoryPlan{l.Memory}))
	}
	return v.write(w, "lowering.html", "lowering.js", v)
}

// verdict describes the predicted time of the program and its exposed communication.
func (l *Lowering) verdict() string {
	p := l.Prediction
	if p == nil || p.Time == 0 {
		if l.Unpredicted != "" {
			return "No prediction: " + l.Unpredicted + "."
		}
		return ""
	}
	s := fmt.Sprintf("Predicted to take %s, ", trace.Microseconds(p.Time))
	if p.Exposed > 0 {
		s += fmt.Sprintf("of it %s (%.0f %%) exposed communication", trace.Microseconds(p.Exposed), 100*p.Exposed/p.Time)
	} else {
		s += "without exposed communication"
	}
	if p.Sequential > 0 && p.Sequential != p.Time {
		s += fmt.Sprintf("; the sequential program takes %s", trace.Microseconds(p.Sequential))
	}
	return s + "."
}

// sections groups the notes of the prediction by kind. If there is no prediction, sections groups the messages of the
// passes.
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
