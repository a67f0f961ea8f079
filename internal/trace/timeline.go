package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Style chooses how a timeline is drawn.
type Style struct {
	Width int  // columns; less than 40 counts as 40
	ASCII bool // no character beyond ASCII
}

// Timeline draws the trace as text, width columns wide: a lane for each stream
// of each rank, a letter for each operation, a time axis and a legend.
func (t *Trace) Timeline(w io.Writer, width int) error { return t.Draw(w, Style{Width: width}) }

// Draw draws the trace as text. An event covers the columns that it lasts, and
// one at least; where several fall into one column, the shortest shows, and
// waiting shows only where nothing else does. The part of a collective in which
// a member waits for those that are late is drawn as a line.
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

// painter knows the scale and the letters of one timeline.
type painter struct {
	style   Style
	labels  int   // columns left of the bars
	columns int   // columns of the bars
	lo      int64 // time at the left edge
	span    int64
	unit    unit
	letters map[opKey]rune
	order   []opKey
	idle    rune // for a member of a collective that waits
	idles   bool
	arrived map[instance]int64
}

type opKey struct {
	class Class
	name  string
}

func newPainter(t *Trace, lanes []lane, s Style) *painter {
	p := &painter{style: s, letters: map[opKey]rune{}, idle: '─', arrived: t.arrivals()}
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

// assign gives every operation a letter: its own, which it has in every timeline, and what
// has none of its own, such as a kernel launched by name, one that no operation has.
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

// letters are those of the operations: capitals and digits compute, small letters communicate.
var letters = map[Class]map[string]rune{
	Compute: {
		"add": 'A', "broadcast": 'B', "scale": 'C', "div": 'D', "embedding": 'E', "fill": 'F', "gelu": 'G', "cast": 'H',
		"index_copy": '6', "argmax": 'J', "launch": 'K', "linear": 'L', "matmul": 'M', "layer_norm": 'N', "rope": 'O',
		"relu": 'P', "rsqrt": 'Q', "rms_norm": 'R', "silu": 'I', "attention": 'T', "mul": 'U', "concat": 'V',
		"softmax": 'W', "exp": 'X', "copy": 'Y', "reduce_slots": 'Z',
		"sub": '1', "neg": '2', "max": '3', "min": '4', "mean": '5', "sum": 'S',
	},
	Comm: {
		"all_reduce": 'a', "broadcast": 'b', "scatter": 'c', "reduce": 'd', "get": 'e', "all_gather": 'g', "gather": 'h',
		"barrier": 'k', "permute": 'm', "put": 'p', "recv": 'q', "reduce_scatter": 'r', "send": 's', "all_to_all": 't',
		"group": 'u', "all_gatherv": 'v', "reduce_scatterv": 'w', "all_to_allv": 'x',
	},
	Sync: {"signal": '!', "record": '^'},
	IO:   {"input": '<', "output": '>'},
}

// others are the letters of what letters does not name.
const others = "7890@%&$#*+=~fijlnoyz"

// own returns an operation's letter, 0 where it has none.
func (p *painter) own(k opKey) rune {
	if k.class == Sync && k.name == "wait" {
		if p.style.ASCII {
			return '.'
		}
		return '·'
	}
	return letters[k.class][k.name]
}

// column returns the column that time ns falls into.
func (p *painter) column(ns int64) int {
	return min(int(float64(ns-p.lo)/float64(p.span)*float64(p.columns)), p.columns-1)
}

func (p *painter) lane(b *strings.Builder, l *lane) {
	cells := []rune(strings.Repeat(" ", p.columns))
	events := slices.Clone(l.events)
	slices.SortStableFunc(events, func(x, y *Event) int {
		if a, b := x.Class == Sync, y.Class == Sync; a != b {
			if a {
				return -1
			}
			return 1
		}
		return cmp.Compare(y.Duration(), x.Duration())
	})
	for _, e := range events {
		for c := p.column(e.Start); c <= p.column(max(e.End-1, e.Start)); c++ {
			cells[c] = p.letters[opKey{e.Class, e.Name}]
		}
		for c := p.column(e.Start); c < p.meeting(e); c++ {
			cells[c], p.idles = p.idle, true
		}
	}
	edge := "│"
	if p.style.ASCII {
		edge = "|"
	}
	name := label(l)
	fmt.Fprintf(b, "%s%s%s%s%s\n", name, strings.Repeat(" ", p.labels-utf8.RuneCountInString(name)), edge, string(cells), edge)
}

// meeting returns the column in which the last member of e's collective
// arrived, e's last column at most; 0 where not everybody waits for everybody.
func (p *painter) meeting(e *Event) int {
	if e.Group == NoGroup || e.Bytes == 0 {
		return 0
	}
	switch e.Name {
	case "all_reduce", "all_gather", "reduce_scatter", "all_to_all":
		return p.column(max(min(p.arrived[instance{e.Run, e.Group}], e.End-1), e.Start))
	}
	return 0
}

// legend names the letters, as many on a line as fit.
func (p *painter) legend(b *strings.Builder) {
	var entries []string
	for _, k := range p.order {
		entries = append(entries, fmt.Sprintf("%c %s", p.letters[k], k.name))
	}
	if p.idles {
		entries = append(entries, fmt.Sprintf("%c waiting for peers", p.idle))
	}
	line := ""
	for _, entry := range entries {
		if line != "" && utf8.RuneCountInString(line)+3+utf8.RuneCountInString(entry) > max(p.style.Width, 40) {
			fmt.Fprintln(b, line)
			line = ""
		}
		if line != "" {
			line += "   "
		}
		line += entry
	}
	fmt.Fprintln(b, line)
}
