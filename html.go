package hocket

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
)

// HTMLOptions selects the contents of a page in addition to the passes.
type HTMLOptions struct {
	// Explanation, if not nil, adds the log of reshards with their reasons, the strategies and the predicted timeline. It
	// should be the result of Explain with the same options as Lower.
	Explanation *Explanation
	// Memory, if not nil, adds the memory plan. It should be the result of PlanMemory with the same options as Lower.
	Memory *MemoryPlan
	// Unexplained is the reason why there is no Explanation. It may be empty.
	Unexplained string
}

// WriteHTML writes a page that shows the source and the program after each pass, side by side. The page is a single
// file and loads nothing from the network. A click on a value or line highlights it in all passes. Without an
// explanation the page shows only the log of reshards.
func (l *Lowered) WriteHTML(w io.Writer, opts HTMLOptions) error {
	page := l.page
	page.Unpredicted = opts.Unexplained
	if opts.Explanation != nil {
		page.Prediction, page.Unpredicted = prediction(opts.Explanation), ""
	}
	if opts.Memory != nil {
		page.Memory = opts.Memory.picture()
	}
	return page.WriteHTML(w)
}

// prediction converts an explanation to the form that a page shows.
func prediction(e *Explanation) *report.Prediction {
	p := &report.Prediction{Subject: subject(e), Machine: fmt.Sprintf("%s (%s)", e.Machine, e.Source), Time: e.Time,
		Sequential: e.Sequential, Exposed: e.Exposed,
		SequentialExposed: e.SequentialExposed, Cut: e.Cut}
	if t := e.x.Measured(); t != "" {
		p.Machine += "; times of collectives from " + t + ", unless it lacks them"
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
				e.x.By(r.Tabled, r.Across))}})
	}
	for i := range e.Pairs {
		p.Notes = append(p.Notes, pairNote(&e.Pairs[i], e.x.By(e.Pairs[i].Tabled, e.Pairs[i].Across)))
	}
	for _, n := range e.Alone {
		p.Notes = append(p.Notes, report.Note{Kind: "Not overlapped", Line: n.Line, Title: n.Text})
	}
	return p
}

// pairNote describes a pair and its strategies. by names the source of the time of the pair's collective.
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

// subject describes the function, its number of ranks and its dims.
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

// WriteSVG draws the timeline of the run as one SVG, with a lane for each stream of each rank. The run must have been
// traced (LoadOptions.Trace).
func (r *Report) WriteSVG(w io.Writer) error {
	if r.trace == nil || r.trace.Virtual {
		return errUntraced
	}
	return report.WriteSVG(w, []report.Strip{{Title: fmt.Sprintf("%s on %d ranks", r.Func, r.Ranks), Trace: r.trace}})
}

// WriteTimelineSVG draws the predicted timelines of several explanations as one SVG, one below the other and on the
// same time scale, so that strategies can be compared. titles holds the captions.
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
