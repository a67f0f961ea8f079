package report

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// Strip is a timeline of a picture, with a title.
type Strip struct {
	Title string
	Trace *trace.Trace
}

// Sizes of a picture, in pixels.
const (
	svgWidth   = 860
	svgLabels  = 120 // left of the lanes
	svgLane    = 22
	svgTitle   = 26
	svgAxis    = 20
	svgMargin  = 12
	mostLanes  = 64 // in one strip
	mostEvents = 20000
)

// palettes are the colours of operations that compute, that communicate, and of others. White letters are readable on
// each.
var palettes = map[trace.Class][]string{
	trace.Compute: {"#2f6fb2", "#00828a", "#5a55b8", "#4b8330", "#8a4a9e", "#3b6478", "#1f7a5c", "#6b6f1d"},
	trace.Comm:    {"#c4620a", "#b3304a", "#a37400", "#d0437f", "#8c4a2f", "#b04fb0"},
	trace.Sync:    {"#b5b0a7"},
	trace.IO:      {"#b5b0a7"},
}

// WriteSVG draws timelines below each other, on one scale, as a self-contained SVG. An operation has the same colour in
// all of them.
func WriteSVG(w io.Writer, strips []Strip) error {
	longest := int64(1)
	colours := svgColours(strips)
	for _, s := range strips {
		lo, hi := s.Trace.Bounds()
		longest = max(longest, hi-lo)
	}
	var body strings.Builder
	y := svgMargin
	for _, s := range strips {
		y = drawStrip(&body, s, y, longest, colours)
	}
	y = drawLegend(&body, colours, y)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" font-family="system-ui,sans-serif" font-size="12" role="img">
<rect width="100%%" height="100%%" fill="#fff"/>
%s</svg>
`, svgWidth, y, svgWidth, body.String())
	_, err := io.WriteString(w, b.String())
	return err
}

// operationKey distinguishes operations with the same name but different classes.
type operationKey struct {
	class trace.Class
	name  string
}

// svgColours assigns each operation a colour of its class, in the order of their names.
func svgColours(strips []Strip) map[operationKey]string {
	colours := map[operationKey]string{}
	for _, s := range strips {
		for i := range s.Trace.Events {
			e := &s.Trace.Events[i]
			colours[operationKey{e.Class, e.Name}] = ""
		}
	}
	next := map[trace.Class]int{}
	for _, k := range sortedKeys(colours) {
		list := palettes[k.class]
		colours[k] = list[next[k.class]%len(list)]
		next[k.class]++
	}
	return colours
}

func sortedKeys(colours map[operationKey]string) []operationKey {
	var keys []operationKey
	for k := range colours {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b operationKey) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.name, b.name))
	})
	return keys
}

// drawStrip draws one timeline at y and returns the position of the next one.
func drawStrip(b *strings.Builder, s Strip, y int, longest int64, colours map[operationKey]string) int {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="14" font-weight="600">%s</text>`+"\n", svgMargin, y+14,
		html.EscapeString(s.Title))
	y += svgTitle
	top := y
	d := &drawing{}
	d.axis(float64(longest))
	lo, _ := s.Trace.Bounds()
	field := float64(svgWidth - svgLabels - svgMargin)
	x := func(ns int64) float64 { return svgLabels + field*float64(ns)/float64(longest) }
	lanes := svgLanes(s.Trace)
	var bars strings.Builder
	drawn := 0
	for i, l := range lanes {
		if i == mostLanes {
			fmt.Fprintf(&bars, `<text x="%d" y="%d" fill="#666">%d more streams</text>`+"\n", svgMargin, y+15,
				len(lanes)-i)
			y += svgLane
			break
		}
		name := l.name
		if s.Trace.Ranks > 1 {
			name = fmt.Sprintf("rank %d %s", l.rank, l.name)
		}
		fmt.Fprintf(&bars, `<text x="%d" y="%d" fill="#444">%s</text>`+"\n", svgMargin, y+15,
			html.EscapeString(shortened(name, 16)))
		for _, e := range l.events {
			if drawn++; drawn > mostEvents {
				break
			}
			from, width := x(e.Start-lo), max(field*float64(e.Duration())/float64(longest), 0.5)
			fmt.Fprintf(&bars, `<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="1.5" fill="%s" stroke="#fff" stroke-width=".6"><title>%s</title></rect>`,
				from, y+1, width, svgLane-3, colours[operationKey{e.Class, e.Name}],
				html.EscapeString(fmt.Sprintf("%s, %s", cmp.Or(e.Detail, e.Name),
					trace.Microseconds(float64(e.Duration())/1e3))))
			if width > 7.5*float64(len(e.Name)) {
				fmt.Fprintf(&bars, `<text x="%.1f" y="%d" fill="#fff" font-size="11">%s</text>`, from+5, y+14,
					html.EscapeString(e.Name))
			}
		}
		bars.WriteString("\n")
		y += svgLane
	}
	for _, t := range d.Ticks {
		at := svgLabels + field*t.at/100
		fmt.Fprintf(b, `<path d="M%.1f %dV%d" stroke="#e2ded6"/>`, at, top, y)
		if text := t.Text + " " + d.Unit; at+8+6*float64(len(text)) < svgWidth {
			fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="#777" font-size="10">%s</text>`, at+3, y+12, text)
		}
		b.WriteString("\n")
	}
	b.WriteString(bars.String())
	return y + svgAxis
}

type svgLaneOf struct {
	rank   int
	name   string
	events []*trace.Event
}

// svgLanes lists the streams that compute or communicate.
func svgLanes(t *trace.Trace) []svgLaneOf {
	var lanes []svgLaneOf
	for i := range t.Events {
		e := &t.Events[i]
		if e.Class == trace.Sync {
			continue
		}
		k := slices.IndexFunc(lanes, func(l svgLaneOf) bool { return l.rank == e.Rank && l.name == e.Stream })
		if k < 0 {
			k = len(lanes)
			lanes = append(lanes, svgLaneOf{rank: e.Rank, name: e.Stream})
		}
		lanes[k].events = append(lanes[k].events, e)
	}
	slices.SortStableFunc(lanes, func(a, b svgLaneOf) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), trace.CompareStreams(a.name, b.name))
	})
	return lanes
}

func shortened(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// drawLegend draws the names of the colours, and returns the position of the end of the picture.
func drawLegend(b *strings.Builder, colours map[operationKey]string, y int) int {
	x := svgMargin
	for _, k := range sortedKeys(colours) {
		if k.class == trace.Sync {
			continue
		}
		width := 24 + 8*len(k.name)
		if x+width > svgWidth {
			x, y = svgMargin, y+20
		}
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="12" height="12" rx="2" fill="%s"/><text x="%d" y="%d" fill="#444">%s</text>`,
			x, y+2, colours[k], x+17, y+12, html.EscapeString(k.name))
		x += width
	}
	b.WriteString("\n")
	return y + 20 + svgMargin/2
}
