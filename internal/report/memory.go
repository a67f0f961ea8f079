package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"hocket.example/hocket/internal/tensor"
)

// MemoryPlan is the memory of one plan on one rank. Sizes are in bytes.
type MemoryPlan struct {
	// Title is the name of the strategy. Subject is the function and the number of ranks.
	Title, Subject string
	// Peak is the end of the last buffer, and Bound a lower bound of Peak for any layout. Sequential is the largest
	// number of bytes that are live at once if statements execute in the order of the program's text.
	Peak, Bound, Sequential, Reserved int64
	Buffers                           []Buffer
	// Commands lists the commands of the rank in the order in which they are issued.
	Commands []string
	// AtBound are the buffers whose sizes sum to Bound.
	AtBound []Buffer
}

// Buffer is one buffer of a MemoryPlan.
type Buffer struct {
	Name, Role string
	Line       int32
	// Bytes is the size, and Span the size with alignment.
	Offset, Bytes, Span int64
	Begin, End          int32 // the first and the last command that uses it
}

// chart is a picture of memory, with the data that the templates need. The horizontal axis shows the commands, and the
// vertical axis the offsets.
type chart struct {
	*MemoryPlan
	Blocks   []block
	Live     string // points of the curve of live bytes: x in thousandths of the width, y in pixels
	Levels   []level
	Scale    []mark
	Steps    []tick
	Legend   []legend
	Constant string // description of the buffers that the strip at the bottom represents; empty if there is no strip
	Left     int    // number of buffers that are not drawn
}

// block is a buffer of a chart. X and Width are in percent, Y and Height in pixels.
type block struct {
	X, Width, Y, Height string
	Role, Name, Hint    string
	Wide, Roomy         bool
}

// level is a horizontal line of a chart.
type level struct{ Class, Y string }

// mark is a tick of the vertical axis.
type mark struct{ Y, Text string }

const (
	chartHeight = 320
	chartStrip  = 36 // height of the strip for buffers that are in use during all commands
	chartTop    = 10 // free pixels above the highest line
	mostBlocks  = 20_000
	panelWidth  = 380 // width of a chart if three of them are next to each other in a large window
)

// Height is the height of a chart in pixels, without the names of its steps.
func (*chart) Height() int { return chartHeight }

// field converts numbers of bytes to vertical positions. The bytes below base are drawn as a strip at the bottom,
// so that the buffers above them are visible even if they are small.
type field struct{ base, top int64 }

func (f field) y(bytes int64) float64 {
	bottom, whole := float64(chartHeight), float64(chartHeight-chartTop)
	if f.base > 0 {
		if bytes <= f.base {
			return bottom - chartStrip*float64(bytes)/float64(f.base)
		}
		bottom, whole = bottom-chartStrip, whole-chartStrip
	}
	return bottom - whole*float64(bytes-f.base)/float64(max(f.top-f.base, 1))
}

// fieldOf returns the vertical scale that the pictures of all given plans share.
func fieldOf(plans []*MemoryPlan) field {
	f := field{base: -1, top: 1}
	for _, p := range plans {
		f.top = max(f.top, p.Peak, p.Bound)
		if b := p.constant(); f.base < 0 || b < f.base {
			f.base = b
		}
	}
	if f.base < f.top/2 || f.base >= f.top {
		f.base = 0
	}
	return f
}

// always reports whether the buffer b is in use during all commands.
func (p *MemoryPlan) always(b *Buffer) bool {
	return b.Begin == 0 && int(b.End) >= len(p.Commands)-1
}

// constant returns the size of the part of memory, beginning at offset 0, whose buffers are all in use during all
// commands.
func (p *MemoryPlan) constant() int64 {
	list := slices.Clone(p.Buffers)
	slices.SortStableFunc(list, func(a, b Buffer) int { return cmp.Compare(a.Offset, b.Offset) })
	end := int64(0)
	for i := range list {
		if b := &list[i]; b.Bytes > 0 {
			if !p.always(b) || b.Offset > end {
				break
			}
			end = max(end, b.Offset+b.Span)
		}
	}
	return end
}

func newChart(p *MemoryPlan, f field) *chart {
	c := &chart{MemoryPlan: p}
	whole := float64(max(len(p.Commands), 1))
	live := make([]int64, len(p.Commands)+1)
	count, sums, constant := map[string]int{}, map[string]int64{}, 0
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.Bytes == 0 {
			continue
		}
		live[b.Begin] += b.Span
		live[min(int(b.End)+1, len(p.Commands))] -= b.Span
		count[b.Role]++
		sums[b.Role] += b.Bytes
		if b.Offset+b.Span <= f.base {
			constant++
		}
		if len(c.Blocks) == mostBlocks {
			c.Left++
			continue
		}
		c.Blocks = append(c.Blocks, p.block(b, f, whole))
	}
	var line strings.Builder
	sum := int64(0)
	for k := range p.Commands {
		sum += live[k]
		fmt.Fprintf(&line, "%.2f,%.1f %.2f,%.1f ", 1000*float64(k)/whole, f.y(sum), 1000*float64(k+1)/whole, f.y(sum))
	}
	c.Live = line.String()
	c.Levels = []level{{"reserved", pixels(f.y(p.Reserved))}, {"bound", pixels(f.y(p.Bound))}}
	if f.base > 0 {
		c.Constant = fmt.Sprintf("%d buffers of %s that are in use during all commands, not drawn to scale",
			constant, tensor.Size(f.base))
	}
	c.Scale = f.scale()
	for k, step := 0, max(1, int(roundStep(whole/5, 1, 2, 5, 10))); float64(k) < 0.85*whole; k += step {
		c.Steps = append(c.Steps, tick{percent(100 * float64(k) / whole), fmt.Sprintf("command %d", k)})
	}
	for _, r := range roles {
		if n := count[r.role]; n > 0 {
			c.Legend = append(c.Legend, legend{Class: r.role, Name: r.name,
				Total: tensor.Size(sums[r.role]) + " in " + buffers(n)})
		}
	}
	c.Legend = append(c.Legend, legend{Class: "live", Name: "live, in the order of issue", Line: true},
		legend{Class: "reserved", Name: "reserved", Total: tensor.Size(p.Reserved), Line: true},
		legend{Class: "bound", Name: "bound", Total: tensor.Size(p.Bound), Line: true})
	return c
}

func buffers(n int) string {
	if n == 1 {
		return "1 buffer"
	}
	return fmt.Sprintf("%d buffers", n)
}

func (p *MemoryPlan) block(b *Buffer, f field, whole float64) block {
	x, width := 100*float64(b.Begin)/whole, 100*float64(b.End+1-b.Begin)/whole
	top, height := f.y(b.Offset+b.Span), f.y(b.Offset)-f.y(b.Offset+b.Span)
	hint := fmt.Sprintf("%s: %s at %s", b.Name, tensor.Size(b.Bytes), tensor.Size(b.Offset))
	if b.Line > 0 {
		hint += fmt.Sprintf(", line %d", b.Line)
	}
	if int(b.End) < len(p.Commands) {
		hint += fmt.Sprintf(", used by the commands %d to %d, last by %s", b.Begin, b.End, p.Commands[b.End])
	}
	name := b.Name + " " + tensor.Size(b.Bytes)
	if !fits(name, width, panelWidth) {
		name = b.Name
	}
	return block{percent(x), percent(max(width, 0.1)), pixels(top), pixels(max(height, 0.5)), b.Role, name, hint,
		height >= 14 && fits(name, width, panelWidth), fits(name, width, phone-60)}
}

func pixels(x float64) string { return fmt.Sprintf("%.1f", x) }

// scale marks the vertical axis at powers of two. The texts of the marks differ: if tensor.Size rounds two sizes to the
// same text, all sizes are written as whole numbers of a smaller unit.
func (f field) scale() []mark {
	step := int64(1)
	for 6*step < f.top-f.base {
		step *= 2
	}
	text := tensor.Size
	out := []mark{{pixels(chartHeight), "0 B"}}
	for at := (f.base + step - 1) / step * step; at <= f.top; at += step {
		if tensor.Size(at) == tensor.Size(at+step) {
			text = func(at int64) string { return whole(at, step) }
		}
	}
	for at := (f.base + step - 1) / step * step; at <= f.top; at += step {
		if y := f.y(at); at > 0 && y < chartHeight-14 {
			out = append(out, mark{pixels(y), text(at)})
		}
	}
	return out
}

// whole writes a multiple of step, which is a power of two, as a whole number of the largest unit that divides step.
func whole(at, step int64) string {
	switch {
	case step >= 1<<20:
		return fmt.Sprintf("%d MiB", at>>20)
	case step >= 1<<10:
		return fmt.Sprintf("%d KiB", at>>10)
	}
	return fmt.Sprintf("%d B", at)
}

// memoryView is the input of the template of a page about plans.
type memoryView struct {
	frame
	Charts []*chart
	Wide   bool
}

// WriteMemory writes a page about the memory of plans of one program. Plans that are equal are shown once.
func WriteMemory(w io.Writer, title string, plans []*MemoryPlan) error {
	var shown []*MemoryPlan
	for _, p := range plans {
		k := slices.IndexFunc(shown, func(q *MemoryPlan) bool { return slices.Equal(p.Buffers, q.Buffers) })
		if k < 0 {
			q := *p
			shown = append(shown, &q)
		} else {
			shown[k].Title += " = " + p.Title
		}
	}
	v := &memoryView{frame: frame{Title: title, About: plans[0].Subject, Verdict: memoryVerdict(shown),
		Hint: "Click a buffer, or focus a picture and press an arrow key.", Keys: pictureKeys}}
	f := fieldOf(shown)
	for _, p := range shown {
		v.Charts = append(v.Charts, newChart(p, f))
	}
	return v.write(w, "memory.html", "", v)
}

// memoryVerdict describes how much memory the plans need.
func memoryVerdict(plans []*MemoryPlan) string {
	if p := plans[0]; len(plans) == 1 {
		if p.Peak == p.Bound {
			return fmt.Sprintf("A rank needs %s, which no other layout of this plan can reduce.", tensor.Size(p.Peak))
		}
		return fmt.Sprintf("A rank needs %s, which is %.1f %% more than the largest live size of %s.",
			tensor.Size(p.Peak),
			100*float64(p.Peak-p.Bound)/float64(max(p.Bound, 1)), tensor.Size(p.Bound))
	}
	var parts []string
	for _, p := range plans {
		parts = append(parts, fmt.Sprintf("%s with %s", tensor.Size(p.Peak), p.Title))
	}
	last := len(parts) - 1
	return "A rank needs " + strings.Join(parts[:last], ", ") + " and " + parts[last] + "."
}

// WriteMemorySVG draws the memory of one plan as a self-contained SVG.
func WriteMemorySVG(w io.Writer, p *MemoryPlan) error {
	c := newChart(p, fieldOf([]*MemoryPlan{p}))
	pic := &picture{Height: stripTitle + chartHeight + 26, Body: c}
	pic.addLegend(c.Legend)
	return pic.write(w, "memory.svg")
}

// Curve is an amount of memory that changes in steps over time. At ascends.
type Curve struct {
	Name  string
	At    []float64
	Bytes []int64
}

// Curves are curves that one picture shows on a common scale.
type Curves struct {
	// Axis describes the horizontal axis.
	Axis   string
	Curves []Curve
	// Plan is the size of the memory plan that hocket computes for the same lifetimes of buffers; 0 if there is no
	// plan.
	Plan int64
}

// curves is the input of the templates for a picture of Curves.
type curves struct {
	*Curves
	Lines  []drawnCurve
	Legend []legend
	Scale  []mark
	Levels []level
}

type drawnCurve struct{ Class, Points string }

// Height is the height of the picture in pixels, without the name of its axis.
func (*curves) Height() int { return chartHeight }

func newCurves(c *Curves) *curves {
	f, end := field{top: max(c.Plan, 1)}, 0.0
	for _, x := range c.Curves {
		f.top = max(f.top, slices.Max(append(x.Bytes, 0)))
		end = max(end, slices.Max(append(x.At, 0)))
	}
	out := &curves{Curves: c, Scale: f.scale()}
	for k, x := range c.Curves {
		var b strings.Builder
		last := int64(-1)
		for i, at := range x.At {
			if x.Bytes[i] == last {
				continue
			}
			left := 1000 * at / max(end, 1e-9)
			if last >= 0 {
				fmt.Fprintf(&b, "%.2f,%.1f ", left, f.y(last))
			}
			fmt.Fprintf(&b, "%.2f,%.1f ", left, f.y(x.Bytes[i]))
			last = x.Bytes[i]
		}
		fmt.Fprintf(&b, "1000,%.1f", f.y(max(last, 0)))
		class := fmt.Sprintf("line%d", k%len(lines))
		out.Lines = append(out.Lines, drawnCurve{"curve " + class, b.String()})
		out.Legend = append(out.Legend, legend{Class: class, Name: x.Name + ",",
			Total: "at most " + tensor.Size(slices.Max(append(x.Bytes, 0)))})
	}
	if c.Plan > 0 {
		out.Levels = []level{{"bound", pixels(f.y(c.Plan))}}
		out.Legend = append(out.Legend, legend{Class: "bound", Name: "hocket's plan for the same lifetimes,",
			Total: tensor.Size(c.Plan), Line: true})
	}
	return out
}

// curvesTop is the height in pixels of the empty space above the curves in a picture.
const curvesTop = 20

// WriteCurves draws curves as a self-contained SVG.
func WriteCurves(w io.Writer, c *Curves) error {
	body := newCurves(c)
	pic := &picture{Height: curvesTop + chartHeight + 26, Body: body}
	pic.addLegend(body.Legend)
	return pic.write(w, "curves.svg")
}

// Device holds the data of one device of a memory snapshot that a page shows.
type Device struct {
	Title string
	Curves
	// Sites are the call sites that allocated memory which was freed but waits for other streams before it can be
	// reused.
	Sites []Site
}

// Site is a call site in the source of the program that made a memory snapshot.
type Site struct {
	Name   string
	Bytes  int64
	Blocks int
}

// snapshotView is the input of the template of a page about a memory snapshot.
type snapshotView struct {
	frame
	Devices []deviceView
}

type deviceView struct {
	*Device
	Picture *curves
}

// WriteSnapshot writes a page about a snapshot of a caching allocator. verdict is its first sentence.
func WriteSnapshot(w io.Writer, title, verdict string, devices []Device) error {
	v := &snapshotView{frame: frame{Title: title, Verdict: verdict}}
	for i := range devices {
		v.Devices = append(v.Devices, deviceView{&devices[i], newCurves(&devices[i].Curves)})
	}
	return v.write(w, "snapshot.html", "", v)
}
