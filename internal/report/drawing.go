package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"hocket.example/hocket/internal/trace"
)

// drawing is a timeline in the form that the template needs. Horizontal positions are percentages of the width, so that
// it fits any window.
type drawing struct {
	Lanes []*swimlane
	Ticks []tick
	Unit  string
	Ops   []legend
}

// swimlane is one stream of one rank.
type swimlane struct {
	Name  string
	Rank  int
	Spans []span
}

// span is one event. Wide ones have room for their name.
type span struct {
	X, Width string
	Class    trace.Class
	Hue      int
	Name     string
	Hint     string
	Wide     bool
}

// tick is a mark of the axis: its position in percent and its number.
type tick struct {
	X, Text string
	at      float64
}

type legend struct {
	Name  string
	Class trace.Class
	Hue   int
	Total string
}

const (
	// wide is the width, in percent, from which on a span has room for a name.
	wide = 3.5
	// thin is the smallest width that is drawn, in percent.
	thin = 0.05
)

// hues is the number of colours for the operations of a class, at least 1.
var hues = map[trace.Class]int{trace.Compute: 8, trace.Comm: 6, trace.Sync: 1, trace.IO: 1}

// draw makes the drawing of a trace: one lane for each stream, with main first.
func draw(t *trace.Trace) *drawing {
	lo, hi := t.Bounds()
	whole := float64(max(hi-lo, 1))
	d := &drawing{}
	d.axis(whole)
	ops := operations(t)
	lanes := map[string]*swimlane{}
	for i := range t.Events {
		e := &t.Events[i]
		key := fmt.Sprint(e.Rank, " ", e.Stream)
		if lanes[key] == nil {
			lanes[key] = &swimlane{Name: e.Stream, Rank: e.Rank}
			d.Lanes = append(d.Lanes, lanes[key])
		}
		l := lanes[key]
		l.Spans = append(l.Spans, newSpan(e, lo, whole, ops[e.Name].hue))
	}
	slices.SortStableFunc(d.Lanes, func(a, b *swimlane) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), trace.CompareStreams(a.Name, b.Name))
	})
	for name, o := range ops {
		d.Ops = append(d.Ops, legend{Name: name, Class: o.class, Hue: o.hue,
			Total: trace.Microseconds(float64(o.ns) / 1e3)})
	}
	slices.SortFunc(d.Ops, func(a, b legend) int {
		return cmp.Or(cmp.Compare(a.Class, b.Class), cmp.Compare(a.Name, b.Name))
	})
	return d
}

func newSpan(e *trace.Event, lo int64, whole float64, hue int) span {
	at, width := 100*float64(e.Start-lo)/whole, max(100*float64(e.Duration())/whole, thin)
	hint := fmt.Sprintf("%s: %s, from %s", cmp.Or(e.Detail, e.Name), trace.Microseconds(float64(e.Duration())/1e3),
		trace.Microseconds(float64(e.Start-lo)/1e3))
	return span{X: fmt.Sprintf("%.3f", at), Width: fmt.Sprintf("%.3f", width), Class: e.Class, Hue: hue, Name: e.Name,
		Hint: hint, Wide: width >= wide}
}

// operation is what all events with one name have in common.
type operation struct {
	class trace.Class
	hue   int
	ns    int64
}

// operations assigns different hues to the operations of each class, in the order of their names.
// So a program looks the same on every machine.
func operations(t *trace.Trace) map[string]*operation {
	ops := map[string]*operation{}
	var names []string
	for i := range t.Events {
		e := &t.Events[i]
		if ops[e.Name] == nil {
			ops[e.Name] = &operation{class: e.Class}
			names = append(names, e.Name)
		}
		ops[e.Name].ns += e.Duration()
	}
	slices.Sort(names)
	next := map[trace.Class]int{}
	for _, n := range names {
		o := ops[n]
		o.hue = next[o.class] % hues[o.class]
		next[o.class]++
	}
	return ops
}

// axis makes about ten ticks, at a distance of 1, 2 or 5 times a power of ten units.
func (d *drawing) axis(ns float64) {
	unit := 1e3
	d.Unit = "µs"
	if ns >= 1e7 {
		unit, d.Unit = 1e6, "ms"
	}
	least := ns / unit / 10
	base := math.Pow(10, math.Floor(math.Log10(least)))
	step := 10 * base
	for _, m := range []float64{1, 2, 5} {
		if m*base >= least {
			step = m * base
			break
		}
	}
	for i := 0; float64(i)*step*unit <= ns*0.97; i++ {
		v := float64(i) * step
		d.Ticks = append(d.Ticks, tick{at: 100 * v * unit / ns, X: fmt.Sprintf("%.3f", 100*v*unit/ns),
			Text: strconv.FormatFloat(v, 'g', 6, 64)})
	}
}

// Height is the height of the drawing in pixels.
func (d *drawing) Height() int { return axisHeight + laneHeight*len(d.Lanes) }

const axisHeight, laneHeight = 18, 24

// Top is the position of the top of lane i in pixels.
func (d *drawing) Top(i int) int { return axisHeight + laneHeight*i }
