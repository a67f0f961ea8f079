package footprint

import (
	"fmt"
	"html"
	"io"
	"strings"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// Panel is one picture of a page: a plan's memory under one strategy, and its report.
type Panel struct {
	Title  string
	Plan   *plan.Plan
	Report *Report
	// Simulated are the simulated caching allocators that the page compares the plan with.
	Simulated []*Simulation
}

const (
	panelWidth, panelHeight = 620, 420
	// mostRects bounds the number of buffers drawn in one picture; the largest ones are drawn.
	mostRects = 20000
)

// fills is the style sheet of buffers and lines.
const fills = `.input{fill:#b8c4d6}.alloc{fill:#e8a33d}.value{fill:#5b9bd5}.output{fill:#63b179}
.live{fill:none;stroke:#111;stroke-width:1.2}.reserved{stroke:#c0392b;stroke-dasharray:6 3}.bound{stroke:#1e8449;stroke-dasharray:2 3}`

// WriteHTML writes a self-contained page. For each panel it draws the buffers of rank 0 as
// rectangles: time runs to the right in commands, offsets upwards. Lines show live memory, reserved
// memory and the bound.
func WriteHTML(w io.Writer, title string, panels []Panel) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>%s</title><style>
body{font:14px system-ui,sans-serif;margin:1.5em}main{display:flex;flex-wrap:wrap;gap:2em}
figure{margin:0}svg{background:#f7f7f7}rect{stroke:#fff;stroke-width:.4}rect:hover{stroke:#000;stroke-width:1.5}
`+fills+`
td,th{text-align:right;padding:.1em .8em}td:first-child,th:first-child{text-align:left}
</style></head><body><h1>%s</h1><p>Rank 0. To the right: its commands in issue order; upwards: offsets. A rectangle is a buffer from
its first use to its last; point at it for its name and line. Black: live in issue order; red: reserved; green: the bound.</p><main>
`, html.EscapeString(title), html.EscapeString(title))
	top := int64(1)
	for i := range panels {
		top = max(top, panels[i].Report.Peak)
	}
	for i := range panels {
		panels[i].write(&b, top)
	}
	b.WriteString("</main></body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (p *Panel) write(b *strings.Builder, top int64) {
	r := p.Report
	fmt.Fprintf(b, "<figure><h2>%s</h2><table><tr><th></th><th>bytes</th></tr>", html.EscapeString(p.Title))
	rows := []struct {
		name  string
		bytes int64
	}{{"peak", r.Peak}, {"bound", r.Bound}, {"sequential", r.Sequential}}
	for _, s := range p.Simulated {
		rows = append(rows, struct {
			name  string
			bytes int64
		}{"reserved by a simulated allocator, " + s.Policy, s.ReservedPeak})
	}
	for _, x := range rows {
		fmt.Fprintf(b, "<tr><td>%s</td><td>%d</td></tr>", x.name, x.bytes)
	}
	b.WriteString("</table>")
	fmt.Fprintf(b, `<svg width="%d" height="%d" viewBox="0 0 %d %d" role="img">`, panelWidth, panelHeight,
		panelWidth, panelHeight)
	p.picture(b, top, false)
	b.WriteString("</svg></figure>\n")
}

// picture draws the buffers and the lines into a field of panelWidth by panelHeight. If named is
// set, buffers that are large enough show their names.
func (p *Panel) picture(b *strings.Builder, top int64, named bool) {
	r := p.Report
	lives, ops := Lives(p.Plan, 0)
	x := func(at int32) float64 { return float64(at) / float64(max(len(ops), 1)) * panelWidth }
	y := func(bytes int64) float64 { return panelHeight * (1 - float64(bytes)/float64(top)*0.97) }
	live := make([]int64, len(ops)+1)
	for _, l := range lives {
		size := plan.Aligned(l.Bytes)
		live[l.Begin] += size
		live[min(int(l.End)+1, len(ops))] -= size
	}
	for k, l := range lives {
		if k == mostRects {
			fmt.Fprintf(b, `<text x="4" y="14">the first %d of %d buffers</text>`, mostRects, len(lives))
			break
		}
		if l.Bytes == 0 {
			continue
		}
		size := plan.Aligned(l.Bytes)
		last := ""
		if int(l.End) < len(ops) {
			last = ops[l.End].Text
		}
		fmt.Fprintf(b, `<rect class="%s" x="%.2f" y="%.2f" width="%.2f" height="%.2f"><title>%s</title></rect>`, l.Role,
			x(l.Begin), y(l.Offset+size), max(0.5, x(l.End+1)-x(l.Begin)), max(0.5, y(l.Offset)-y(l.Offset+size)),
			html.EscapeString(fmt.Sprintf("%s: %d bytes at %d, line %d\nlast used by %s", l.Name, l.Bytes,
				l.Offset, l.Line, last)))
		if named && x(l.End+1)-x(l.Begin) > float64(8*len(l.Name)) && y(l.Offset)-y(l.Offset+size) > 14 {
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`, x(l.Begin)+4, y(l.Offset+size)+13,
				html.EscapeString(l.Name))
		}
	}
	b.WriteString(`<polyline class="live" points="`)
	sum := int64(0)
	for k := range ops {
		sum += live[k]
		fmt.Fprintf(b, "%.2f,%.2f %.2f,%.2f ", x(int32(k)), y(sum), x(int32(k+1)), y(sum))
	}
	b.WriteString(`"/>`)
	for _, l := range []struct {
		class string
		bytes int64
	}{{"reserved", r.Reserved}, {"bound", r.Bound}} {
		fmt.Fprintf(b, `<line class="%s" x1="0" x2="%d" y1="%.2f" y2="%.2f"/>`, l.class, panelWidth, y(l.bytes),
			y(l.bytes))
	}
}

// WritePicture writes the picture of one plan as an svg element to embed in a page, with its
// colours and names.
func WritePicture(w io.Writer, p Panel) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" role="img" aria-label="Memory of rank 0"><style>%s</style>`, panelWidth,
		panelHeight, scoped)
	p.picture(&b, max(p.Report.Peak, 1), true)
	b.WriteString("</svg>")
	_, err := io.WriteString(w, b.String())
	return err
}

// scoped is fills on one line. Strokes have the text colour of the page instead of black.
var scoped = strings.NewReplacer("\n", "", "stroke:#111", "stroke:currentColor").Replace(fills)

// WriteSVG writes the picture of one plan as a separate SVG file: the buffers of rank 0, with time
// to the right in commands and offsets upwards.
func WriteSVG(w io.Writer, p Panel) error {
	const left, head, foot = 90, 30, 50
	top := max(p.Report.Peak, 1)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" font-family="sans-serif" font-size="12">
<style>rect{stroke:#fff;stroke-width:.4}%s</style><rect width="100%%" height="100%%" fill="#fff"/>
<text x="%d" y="19" font-size="14">Memory of rank 0 of %d: %s, %s</text>
<g transform="translate(%d,%d)"><rect width="%d" height="%d" fill="#f7f7f7"/>`,
		panelWidth+left+10, panelHeight+head+foot, panelWidth+left+10, fills, left, p.Plan.Ranks,
		html.EscapeString(p.Plan.Func), html.EscapeString(p.Title), left, head, panelWidth, panelHeight)
	p.picture(&b, top, true)
	b.WriteString("</g>\n")
	for _, at := range []struct {
		share float64
		text  string
	}{{1, tensor.Size(top)}, {0.5, tensor.Size(top / 2)}, {0, "0"}} {
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`, left-6,
			head+panelHeight*(1-0.97*at.share)+4, at.text)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">commands in the order of issue; black: live; red: reserved; green: the bound</text>`,
		left, head+panelHeight+18)
	x := left
	for _, role := range []string{"input", "value", "alloc", "output"} {
		fmt.Fprintf(&b, `<rect class="%s" x="%d" y="%d" width="12" height="12"/><text x="%d" y="%d">%s</text>`, role, x,
			head+panelHeight+28, x+17, head+panelHeight+38, role)
		x += 80
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteSnapshotHTML writes a self-contained page about snapshots. For each device it draws the
// reserved, allocated and waiting memory after each allocation, and lists the call sites that had
// allocated the memory that waited at the peak.
func WriteSnapshotHTML(w io.Writer, title string, devices []*Explanation) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>%s</title><style>
body{font:14px system-ui,sans-serif;margin:1.5em}figure{margin:0 0 2em}td,th{text-align:right;padding:.1em .8em}
td:first-child,th:first-child{text-align:left}
</style></head><body><h1>%s</h1>
`, html.EscapeString(title), html.EscapeString(title))
	for _, x := range devices {
		fmt.Fprintf(&b, "<figure><h2>device %d</h2>", x.Device)
		if err := WriteCurves(&b, func(end float64) string {
			return fmt.Sprintf("allocations of the program, 0 to %.0f",
				end)
		},
			x.curves(), x.Peak); err != nil {
			return err
		}
		if len(x.WaitingBySite) > 0 {
			fmt.Fprintf(&b, "<table><tr><th>allocated at</th><th>waiting at the peak</th><th>blocks</th></tr>")
			for _, s := range x.WaitingBySite[:min(len(x.WaitingBySite), mostSites)] {
				fmt.Fprintf(&b, "<tr><td>%s</td><td>%s</td><td>%d</td></tr>", html.EscapeString(s.Name()),
					tensor.Size(s.Bytes), s.Blocks)
			}
			b.WriteString("</table>")
		}
		b.WriteString("</figure>\n")
	}
	b.WriteString("</body></html>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// mostSites bounds the number of call sites in a picture.
const mostSites = 100

// curves returns the curves of an explanation's picture.
func (x *Explanation) curves() []Curve {
	list := []Curve{{Name: "reserved", Colour: "#c0392b"}, {Name: "allocated", Colour: "#111"},
		{Name: "waiting for other streams", Colour: "#e8a33d"}}
	for _, p := range x.Curve {
		for k, bytes := range []int64{p.Reserved, p.Held, p.Waiting} {
			list[k].Points = append(list[k].Points, Point{At: p.At, Reserved: bytes})
		}
	}
	return list
}

// Curve is the memory that an allocator had reserved over time.
type Curve struct {
	Name   string
	Colour string
	Points []Point
}

// WriteCurves draws curves of reserved memory over time as one SVG. A horizontal line shows the
// memory of the plan. axis returns the label of the time axis, which runs from 0 to end, the At of
// the last point.
func WriteCurves(w io.Writer, axis func(end float64) string, curves []Curve, plan int64) error {
	const width, height, left, foot = 760, 360, 70, 40
	end, top := 0.0, plan
	for _, c := range curves {
		for _, p := range c.Points {
			end, top = max(end, p.At), max(top, p.Reserved)
		}
	}
	x := func(t float64) float64 { return left + t/max(end, 1e-9)*(width-left-10) }
	y := func(b int64) float64 { return (height-foot)*(1-float64(b)/float64(top)*0.95) + 2 }
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	for g := int64(0); g*1e9/2 <= top; g++ {
		at := y(g * 1e9 / 2)
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="4" y="%.1f">%.1f GB</text>`+"\n", left,
			at, width-10, at+4, float64(g)/2)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n", left, height-6, html.EscapeString(axis(end)))
	for k, c := range curves {
		fmt.Fprintf(&b, `<path fill="none" stroke="%s" stroke-width="2" d="`, c.Colour)
		last := 0.0
		for i, p := range c.Points {
			if i == 0 {
				last = y(p.Reserved)
				fmt.Fprintf(&b, "M%.1f %.1f", x(p.At), last)
			} else if now := y(p.Reserved); now != last {
				fmt.Fprintf(&b, "H%.1fV%.1f", x(p.At), now)
				last = now
			}
		}
		fmt.Fprintf(&b, `H%d"/><text x="%d" y="%d" fill="%s">%s</text>`+"\n", width-10, left+10, 18+16*k,
			c.Colour, html.EscapeString(c.Name))
	}
	if plan > 0 {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#1e8449" stroke-width="2" stroke-dasharray="6 4"/>`, left,
			y(plan), width-10)
		fmt.Fprintf(&b,
			`<text x="%d" y="%d" fill="#1e8449">hocket's plan, reserved before the run</text>`+"\n", left+10,
			18+16*len(curves))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
