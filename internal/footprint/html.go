package footprint

import (
	"fmt"
	"html"
	"io"
	"strings"

	"hocket.example/hocket/internal/plan"
)

// Panel is one picture of a page: a plan's memory under one strategy, and its report.
type Panel struct {
	Title  string
	Plan   *plan.Plan
	Report *Report
	// Simulated are what caching allocators would reserve.
	Simulated []*Simulation
}

const (
	panelWidth, panelHeight = 620, 420
	// mostRects bounds the buffers drawn in one picture: the largest ones.
	mostRects = 20000
)

// WriteHTML writes a self-contained page: for each panel the buffers of rank 0 as rectangles, time to the right in
// commands and offsets upwards, with lines for what is live, reserved, and the bound.
func WriteHTML(w io.Writer, title string, panels []Panel) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>%s</title><style>
body{font:14px system-ui,sans-serif;margin:1.5em}main{display:flex;flex-wrap:wrap;gap:2em}
figure{margin:0}svg{background:#f7f7f7}rect{stroke:#fff;stroke-width:.4}rect:hover{stroke:#000;stroke-width:1.5}
.input{fill:#b8c4d6}.alloc{fill:#e8a33d}.value{fill:#5b9bd5}.output{fill:#63b179}
.live{fill:none;stroke:#111;stroke-width:1.2}.reserved{stroke:#c0392b;stroke-dasharray:6 3}.bound{stroke:#1e8449;stroke-dasharray:2 3}
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
	lives, ops := Lives(p.Plan, 0)
	x := func(at int32) float64 { return float64(at) / float64(max(len(ops), 1)) * panelWidth }
	y := func(bytes int64) float64 { return panelHeight * (1 - float64(bytes)/float64(top)*0.97) }
	fmt.Fprintf(b, `<svg width="%d" height="%d" viewBox="0 0 %d %d" role="img">`, panelWidth, panelHeight, panelWidth, panelHeight)
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
			html.EscapeString(fmt.Sprintf("%s: %d bytes at %d, line %d\nlast used by %s", l.Name, l.Bytes, l.Offset, l.Line, last)))
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
		fmt.Fprintf(b, `<line class="%s" x1="0" x2="%d" y1="%.2f" y2="%.2f"/>`, l.class, panelWidth, y(l.bytes), y(l.bytes))
	}
	b.WriteString("</svg></figure>\n")
}
