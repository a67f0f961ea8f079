package hocket

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/footprint"
	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// HTMLOptions say what a page shows beside the passes.
type HTMLOptions struct {
	// Explanation, where not nil, gives what was resharded and why, the
	// strategies and the predicted timeline. It should come from Explain with
	// the options of Lower.
	Explanation *Explanation
	// Memory, where not nil, is shown beside it. It should come from PlanMemory with the options
	// of Lower.
	Memory *MemoryPlan
	// Unexplained says why there is no Explanation; may be empty.
	Unexplained string
}

// WriteHTML writes a page that shows the source and what each pass left, side
// by side: one file that needs no network. A value or line that is clicked is
// followed through the passes. Without an explanation it has the log of
// reshards at its side.
func (l *Lowered) WriteHTML(w io.Writer, opts HTMLOptions) error {
	page := l.page
	page.Unpredicted = opts.Unexplained
	if opts.Explanation != nil {
		page.Prediction, page.Unpredicted = prediction(opts.Explanation), ""
	}
	if m := opts.Memory; m != nil {
		var picture strings.Builder
		if err := footprint.WritePicture(&picture, m.panel()); err != nil {
			return err
		}
		page.Memory = &report.Memory{Peak: tensor.Size(m.Report.Peak), Bound: tensor.Size(m.Report.Bound),
			Picture: template.HTML(picture.String())}
	}
	return page.WriteHTML(w)
}

// prediction words an explanation for a page.
func prediction(e *Explanation) *report.Prediction {
	p := &report.Prediction{Subject: subject(e), Machine: fmt.Sprintf("%s (%s)", e.Machine, e.Source), Time: e.Time,
		Sequential: e.Sequential, Exposed: e.Exposed,
		SequentialExposed: e.SequentialExposed, Cut: e.Cut}
	if t := e.Measured(); t != "" {
		p.Machine += "; collectives by " + t + ", where it has them"
	}
	if len(e.Timeline) > 0 {
		p.Timeline = e.x.Trace()
	}
	for _, r := range e.Reshards {
		why := "as written"
		if r.Why != "" {
			why = "for " + r.Why
		}
		p.Notes = append(p.Notes, report.Note{Kind: "Reshards", Line: r.Line, Value: r.Value,
			Title: r.From + " → " + r.To,
			Detail: []string{why, fmt.Sprintf("%s, %s, %s%s", r.How, tensor.Size(r.Bytes), trace.Microseconds(r.Time),
				e.By(r.Tabled, r.Across))}})
	}
	for i := range e.Pairs {
		p.Notes = append(p.Notes, pairNote(&e.Pairs[i], e.By(e.Pairs[i].Tabled, e.Pairs[i].Across)))
	}
	for _, n := range e.Alone {
		p.Notes = append(p.Notes, report.Note{Kind: "Not overlapped", Line: n.Line, Title: n.Text})
	}
	return p
}

// pairNote is a pair with its strategies; by is where its collective's time is from.
func pairNote(r *PairReport, by string) report.Note {
	n := report.Note{Kind: "Strategies", Line: r.Line, Value: r.Value,
		Title: fmt.Sprintf("%s, %s", r.Pair, tensor.Size(r.Bytes))}
	if by != "" {
		n.Detail = append(n.Detail, "its collective"+by)
	}
	found := false
	for _, s := range r.Strategies {
		taken := s.Strategy == r.Chosen
		found = found || taken
		n.Choices = append(n.Choices, report.Choice{Name: s.Strategy, Time: s.Time, Taken: taken, Reason: s.Refused})
	}
	if !found {
		n.Detail = append(n.Detail, "chosen: "+r.Chosen)
	}
	if r.Why != "" {
		n.Detail = append(n.Detail, r.Why)
	}
	return n
}

// subject names the function, its ranks and dims.
func subject(e *Explanation) string {
	ranks := "ranks"
	if e.Ranks == 1 {
		ranks = "rank"
	}
	parts := []string{fmt.Sprintf("%s on %d %s", e.Func, e.Ranks, ranks)}
	for _, d := range slices.Sorted(maps.Keys(e.Dims)) {
		parts = append(parts, fmt.Sprintf("%s=%d", d, e.Dims[d]))
	}
	return strings.Join(parts, " ")
}

// WriteSVG draws the timeline of the run, a lane for each stream of each rank, as one SVG. It
// needs LoadOptions.Trace.
func (r *Report) WriteSVG(w io.Writer) error {
	if r.trace == nil || r.trace.Virtual {
		return errUntraced
	}
	return report.WriteSVG(w, []report.Strip{{Title: fmt.Sprintf("%s on %d ranks", r.Func, r.Ranks), Trace: r.trace}})
}

// WriteTimelineSVG draws the predicted timelines of explanations below each other, on one scale,
// as one SVG: of one strategy beside another. titles say what each is.
func WriteTimelineSVG(w io.Writer, titles []string, list ...*Explanation) error {
	var strips []report.Strip
	for i, e := range list {
		s := report.Strip{Trace: e.x.Trace()}
		if i < len(titles) {
			s.Title = titles[i]
		}
		strips = append(strips, s)
	}
	return report.WriteSVG(w, strips)
}
