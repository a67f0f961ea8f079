package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Style selects how a timeline is drawn.
type Style struct {
	Width int  // in columns, at least 40
	ASCII bool // use no characters beyond ASCII
}

// Timeline draws the trace as text that is width columns wide: a lane for each stream of each rank, a letter for each
// operation, a time axis and a legend.
func (t *Trace) Timeline(w io.Writer, width int) error { return t.Draw(w, Style{Width: width}) }

// Draw draws the trace as text. Each column shows the operation that takes the most time in the column. A column is
// empty only if no operation runs in it; events without duration are therefore visible, too. The part of a collective
// in which a member waits for late members is drawn as a line, like a separate operation. The legend explains all
// letters and lines.
func (t *Trace) Draw(w io.Writer, s Style) error {
	lanes := t.lanes()
	if len(lanes) == 0 {
		_, err := fmt.Fprintln(w, "no events")
		return err
	}
	p := newPainter(t, lanes, s)
	var b strings.Builder
	p.axis(&b)
	for i := range lanes {
		p.lane(&b, &lanes[i])
	}
	p.legend(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// painter holds the scale and the letters of one timeline.
type painter struct {
	style   Style
	labels  int   // columns left of the bars
	columns int   // columns of the bars
	lo      int64 // time at the left edge
	span    int64
	unit    unit
	letters map[opKey]rune
	order   []opKey
	idle    rune // the character for a member of a collective that waits
	shown   map[drawn]bool
	arrived map[instance]int64
}

type opKey struct {
	class Class
	name  string
}

func newPainter(t *Trace, lanes []lane, s Style) *painter {
	p := &painter{style: s, letters: map[opKey]rune{}, shown: map[drawn]bool{}, idle: '─', arrived: t.arrivals()}
	if s.ASCII {
		p.idle = '-'
	}
	for i := range lanes {
		p.labels = max(p.labels, utf8.RuneCountInString(label(&lanes[i]))+1)
	}
	p.columns = max(max(s.Width, 40)-p.labels-2, 10)
	lo, hi := t.Bounds()
	p.lo, p.span = lo, max(hi-lo, 1)
	p.unit = unitFor(p.span, t.Virtual)
	p.assign(t)
	return p
}

func label(l *lane) string {
	if l.index == 0 {
		return fmt.Sprintf("rank %d  %s", l.rank, l.stream)
	}
	return strings.Repeat(" ", len(fmt.Sprintf("rank %d  ", l.rank))) + l.stream
}

// assign chooses a letter for every operation. Most operations have a fixed letter, which is the same in every
// timeline. Other operations, such as a kernel that is launched by name, get a letter that no other operation has.
func (p *painter) assign(t *Trace) {
	for i := range t.Events {
		e := &t.Events[i]
		if k := (opKey{e.Class, e.Name}); p.letters[k] == 0 {
			p.letters[k] = '?'
			p.order = append(p.order, k)
		}
	}
	slices.SortFunc(p.order, func(a, b opKey) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.name, b.name))
	})
	free := []rune(others)
	for _, k := range p.order {
		r := p.own(k)
		if r == 0 && len(free) > 0 {
			r, free = free[0], free[1:]
		}
		if r != 0 {
			p.letters[k] = r
		}
	}
}

// letters are the letters of the operations. Capital letters and digits stand for computation, and small letters for
// communication.
var letters = map[Class]map[string]rune{
	Compute: {
		"add": 'A', "broadcast": 'B', "scale": 'C', "div": 'D', "embedding": 'E', "fill": 'F', "gelu": 'G', "cast": 'H',
		"index_copy": '6', "argmax": 'J', "launch": 'K', "linear": 'L', "matmul": 'M', "layer_norm": 'N', "rope": 'O',
		"relu": 'P', "rsqrt": 'Q', "rms_norm": 'R', "silu": 'I', "attention": 'T', "mul": 'U', "concat": 'V',
		"softmax": 'W', "exp": 'X', "copy": 'Y', "reduce_slots": 'Z',
		"sub": '1', "neg": '2', "max": '3', "min": '4', "mean": '5', "sum": 'S',
	},
	Comm: {
		"all_reduce": 'a', "broadcast": 'b', "scatter": 'c', "reduce": 'd', "get": 'e', "all_gather": 'g',
		"gather":  'h',
		"barrier": 'k', "permute": 'm', "put": 'p', "recv": 'q', "reduce_scatter": 'r', "send": 's', "all_to_all": 't',
		"group": 'u', "all_gatherv": 'v', "reduce_scatterv": 'w', "all_to_allv": 'x',
	},
	Sync: {"signal": '!', "record": '^'},
	IO:   {"input": '<', "output": '>'},
}

// others are the letters for operations without a fixed letter.
const others = "7890@%&$#*+=~fijlnoyz"

// own returns the fixed letter of an operation, or 0 if the operation has none.
func (p *painter) own(k opKey) rune {
	if k.class == Sync && k.name == "wait" {
		if p.style.ASCII {
			return '.'
		}
		return '·'
	}
	return letters[k.class][k.name]
}

// drawn is an item that a column can show: an operation, or the waiting part of a collective.
type drawn struct {
	opKey
	idle bool
}

// lane draws one stream.
func (p *painter) lane(b *strings.Builder, l *lane) {
	cells := make([]map[drawn]float64, p.columns)
	for _, e := range l.events {
		began := e.Start
		if p.waits(e) {
			began = max(min(p.arrived[instance{e.Run, e.Group}], e.End), e.Start)
			if began > e.Start {
				p.cover(cells, drawn{idle: true}, e.Start, began)
			}
		}
		p.cover(cells, drawn{opKey: opKey{e.Class, e.Name}}, began, e.End)
	}
	text := make([]rune, p.columns)
	for c, shares := range cells {
		text[c] = ' '
		var most drawn
		for d, share := range shares {
			if x := shares[most]; text[c] == ' ' || share > x || share == x && d.before(most) {
				most, text[c] = d, p.letter(d)
			}
		}
		if text[c] != ' ' {
			p.shown[most] = true
		}
	}
	edge := "│"
	if p.style.ASCII {
		edge = "|"
	}
	name := label(l)
	fmt.Fprintf(b, "%s%s%s%s%s\n", name, strings.Repeat(" ", p.labels-utf8.RuneCountInString(name)), edge, string(text),
		edge)
}

// rounding is a fraction of a column that can only result from rounding errors.
const rounding = 1e-9

// cover adds the interval from from to to to each column that it overlaps: the length of the overlap, which may be 0 in
// the first column.
func (p *painter) cover(cells []map[drawn]float64, d drawn, from, to int64) {
	x, y := p.position(from), p.position(to)
	first := min(int(x), p.columns-1)
	for c := first; c < p.columns && (c == first || float64(c) < y-rounding); c++ {
		if cells[c] == nil {
			cells[c] = map[drawn]float64{}
		}
		cells[c][d] += max(min(y, float64(c+1))-max(x, float64(c)), 0)
	}
}

// position returns the position of the time ns on the horizontal axis, in columns.
func (p *painter) position(ns int64) float64 {
	return float64(ns-p.lo) / float64(p.span) * float64(p.columns)
}

// before decides between two operations with equal times: work is preferred over waits and signals.
func (d drawn) before(other drawn) bool {
	if a, b := d.class == Sync, other.class == Sync; a != b {
		return b
	}
	if d.idle != other.idle {
		return other.idle
	}
	return cmp.Or(cmp.Compare(d.class, other.class), cmp.Compare(d.name, other.name)) < 0
}

func (p *painter) letter(d drawn) rune {
	if d.idle {
		return p.idle
	}
	return p.letters[d.opKey]
}

// waits reports whether all members of the collective of e wait for all others.
func (p *painter) waits(e *Event) bool {
	if e.Group == NoGroup || e.Bytes == 0 {
		return false
	}
	switch e.Name {
	case "all_reduce", "all_gather", "reduce_scatter", "all_to_all":
		return true
	}
	return false
}

// legend writes the names of the letters, as many per line as fit.
func (p *painter) legend(b *strings.Builder) {
	var entries []string
	var short []string
	for _, k := range p.order {
		if p.shown[drawn{opKey: k}] {
			entries = append(entries, fmt.Sprintf("%c %s", p.letters[k], k.name))
		} else {
			short = append(short, k.name)
		}
	}
	if p.shown[drawn{idle: true}] {
		entries = append(entries, fmt.Sprintf("%c waiting for peers", p.idle))
	}
	for i, name := range short {
		if i == 0 {
			name = "too short to show: " + name
		}
		if i+1 < len(short) {
			name += ","
		}
		entries = append(entries, name)
	}
	line := ""
	for _, entry := range entries {
		if line != "" && utf8.RuneCountInString(line)+3+utf8.RuneCountInString(entry) > max(p.style.Width, 40) {
			fmt.Fprintln(b, line)
			line = ""
		}
		switch {
		case strings.HasSuffix(line, ","):
			line += " "
		case line != "":
			line += "   "
		}
		line += entry
	}
	fmt.Fprintln(b, line)
}
