package report

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// operation identifies all events with the same name and class.
type operation struct {
	class trace.Class
	name  string
}

// legend explains one colour, or one kind of line, which a CSS class selects. Total is an amount as text; it may be
// empty.
type legend struct {
	Class, Name, Total string
	Line               bool
}

// fill returns the CSS class of a colour of the palette.
func fill(class trace.Class, hue int) string { return fmt.Sprintf("%s h%d", class, hue) }

// paint assigns colours to operations. A colour is its index in the palette of the operation's class.
type paint map[operation]int

// shared has, for each class, the legend's name for the last colour of the palette if several operations share this
// colour.
var shared = map[trace.Class]string{trace.Compute: "other computations", trace.Comm: "other communication",
	trace.Sync: "waits and signals", trace.IO: "copies of the host"}

// newPaint assigns colours to the operations of the traces, in the order of names, so that a program looks the same
// on every machine. If a class has more operations than colours, the operations with the least time share the last
// colour.
func newPaint(traces ...*trace.Trace) (paint, []legend) {
	sums := map[operation]int64{}
	for _, t := range traces {
		for i := range t.Events {
			e := &t.Events[i]
			sums[operation{e.Class, e.Name}] += e.Duration()
		}
	}
	classes := map[trace.Class][]operation{}
	for o := range sums {
		classes[o.class] = append(classes[o.class], o)
	}
	p := paint{}
	var out []legend
	for _, class := range []trace.Class{trace.Compute, trace.Comm, trace.Sync, trace.IO} {
		list, most := classes[class], len(palette[class])
		slices.SortFunc(list, func(a, b operation) int {
			return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a.name, b.name))
		})
		own, rest := list, []operation(nil)
		if len(list) > most {
			own, rest = list[:most-1], list[most-1:]
		}
		slices.SortFunc(own, func(a, b operation) int { return cmp.Compare(a.name, b.name) })
		for i, o := range own {
			p[o] = i
			out = append(out, legend{Class: fill(class, i), Name: o.name, Total: nanoseconds(sums[o])})
		}
		var ns int64
		for _, o := range rest {
			p[o] = most - 1
			ns += sums[o]
		}
		if len(rest) > 0 {
			out = append(out, legend{Class: fill(class, most-1), Name: shared[class], Total: nanoseconds(ns)})
		}
	}
	return p, out
}

func nanoseconds(ns int64) string { return trace.Microseconds(float64(ns) / 1e3) }

// drawing is a timeline, with the data that the templates need. Horizontal positions are percentages of the width,
// so that the timeline fits any window.
type drawing struct {
	Lanes []*swimlane
	Ticks []tick
	Ops   []legend
}

// swimlane is one row of a timeline: one stream of one rank.
type swimlane struct {
	Name  string
	Rank  int
	Spans []span
}

// span is one event. Wide reports that the event's name fits into its rectangle in a picture of the usual width. Roomy
// reports that the name fits on a phone, too.
type span struct {
	X, Width          string
	Class, Name, Hint string
	Wide, Roomy       bool
}

// tick is a mark on a horizontal axis, with its position and its label.
type tick struct{ X, Text string }

const (
	// thin is the smallest width of a drawn event, in percent of the picture.
	thin = 0.05
	// mostSpans is the largest number of events that one timeline shows.
	mostSpans = 20_000
)

// fits reports whether a text fits in the given percentage of a picture's width.
func fits(text string, percent, width float64) bool {
	return percent*width/100 > 6.2*float64(len([]rune(text)))+8
}

// usual and phone are the widths of pictures, in pixels, in which names must fit.
const usual, phone = 800, 320

// draw makes the drawing of a trace. The drawing has one lane for each stream, with the main streams first. whole is
// the length of the time axis in nanoseconds.
func draw(t *trace.Trace, whole int64, p paint) *drawing {
	lo, _ := t.Bounds()
	d := &drawing{Ticks: timeAxis(float64(max(whole, 1)))}
	lanes := map[string]*swimlane{}
	for i := range t.Events[:min(len(t.Events), mostSpans)] {
		e := &t.Events[i]
		key := fmt.Sprint(e.Rank, " ", e.Stream)
		if lanes[key] == nil {
			lanes[key] = &swimlane{Name: e.Stream, Rank: e.Rank}
			d.Lanes = append(d.Lanes, lanes[key])
		}
		l := lanes[key]
		l.Spans = append(l.Spans, newSpan(e, lo, float64(max(whole, 1)), p[operation{e.Class, e.Name}]))
	}
	slices.SortStableFunc(d.Lanes, func(a, b *swimlane) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), trace.CompareStreams(a.Name, b.Name))
	})
	if t.Ranks > 1 {
		for _, l := range d.Lanes {
			l.Name = fmt.Sprintf("rank %d %s", l.Rank, l.Name)
		}
	}
	return d
}

func newSpan(e *trace.Event, lo int64, whole float64, hue int) span {
	at, width := 100*float64(e.Start-lo)/whole, max(100*float64(e.Duration())/whole, thin)
	hint := fmt.Sprintf("%s: %s, from %s", cmp.Or(e.Detail, e.Name), nanoseconds(e.Duration()), nanoseconds(e.Start-lo))
	return span{X: percent(at), Width: percent(width), Class: fill(e.Class, hue), Name: e.Name, Hint: hint,
		Wide: fits(e.Name, width, usual), Roomy: fits(e.Name, width, phone)}
}

func percent(x float64) string { return fmt.Sprintf("%.3f", x) }

// timeAxis returns about ten ticks for a time axis. The distance between ticks is 1, 2 or 5 times a power of ten of a
// unit of time.
func timeAxis(ns float64) []tick {
	unit, name := 1e3, "µs"
	if ns >= 1e7 {
		unit, name = 1e6, "ms"
	}
	step := roundStep(ns/unit/10, 1, 2, 5, 10)
	var out []tick
	for i := 0; float64(i)*step*unit <= ns*0.93; i++ {
		v := float64(i) * step
		out = append(out, tick{X: percent(100 * v * unit / ns), Text: strconv.FormatFloat(v, 'g', 6, 64) + " " + name})
	}
	return out
}

// roundStep returns the smallest product of a power of ten and one of the factors that is not less than least.
func roundStep(least float64, factors ...float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range factors {
		if m*base >= least {
			return m * base
		}
	}
	return 10 * base
}

// Height is the height of the drawing in pixels.
func (d *drawing) Height() int { return axisHeight + laneHeight*len(d.Lanes) }

const axisHeight, laneHeight = 18, 24

// Top is the position of the top of lane i in pixels.
func (d *drawing) Top(i int) int { return axisHeight + laneHeight*i }

// Strip is one of the timelines in a picture, with its title.
type Strip struct {
	Title string
	Trace *trace.Trace
}

// strip is the drawing of a Strip, with its vertical position in the picture.
type strip struct {
	*drawing
	Title string
	Y     int
}

// mostLanes is the largest number of lanes that one strip of a picture shows.
const mostLanes = 64

// WriteSVG draws timelines below each other, on one time scale, as a self-contained SVG. An operation has the same
// colour in all of them. Waits and signals are omitted.
func WriteSVG(w io.Writer, strips []Strip) error {
	longest := int64(1)
	var traces []*trace.Trace
	for _, s := range strips {
		lo, hi := s.Trace.Bounds()
		longest = max(longest, hi-lo)
		t := *s.Trace
		t.Events = slices.DeleteFunc(slices.Clone(t.Events), func(e trace.Event) bool { return e.Class == trace.Sync })
		traces = append(traces, &t)
	}
	p, ops := newPaint(traces...)
	pic := &picture{}
	var list []strip
	for i, t := range traces {
		s := strip{draw(t, longest, p), strips[i].Title, pic.Height}
		if n := len(s.Lanes); n > mostLanes {
			s.Title += fmt.Sprintf(" (%d of %d streams)", mostLanes, n)
			s.Lanes = s.Lanes[:mostLanes]
		}
		pic.Height += stripTitle + s.drawing.Height() + stripGap
		list = append(list, s)
	}
	for i := range ops {
		ops[i].Total = ""
	}
	pic.addLegend(ops)
	pic.Body = list
	return pic.write(w, "strips")
}

const stripTitle, stripGap = 30, 14

// picture is the input of the template of a standalone SVG.
type picture struct {
	Height int
	Body   any
	Legend []placedLegend
	Style  template.CSS
	Marks  template.HTML
}

// placedLegend is an entry of the legend with its position in a picture.
type placedLegend struct {
	legend
	X, Y int
}

// pictureWidth is the width of a standalone SVG in pixels.
const pictureWidth = 860

// addLegend places the legend at the end of the picture, in as many rows as it needs.
func (p *picture) addLegend(ops []legend) {
	x, y := 12, p.Height
	for _, o := range ops {
		width := 38 + 6*len([]rune(o.Name+o.Total))
		if x > 12 && x+width > pictureWidth {
			x, y = 12, y+20
		}
		p.Legend = append(p.Legend, placedLegend{o, x, y})
		x += width
	}
	p.Height = y + 26
}

// write executes the template with the given name, and adds CSS rules for the classes that its output uses.
func (p *picture) write(w io.Writer, name string) error {
	var b strings.Builder
	if err := layout.ExecuteTemplate(&b, name, p); err != nil {
		return err
	}
	p.Marks = template.HTML(b.String())
	p.Style = style(func(class string) bool { return class == "paper" || strings.Contains(b.String(), class) })
	return layout.ExecuteTemplate(w, "svg", p)
}
