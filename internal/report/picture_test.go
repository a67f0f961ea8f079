package report

import (
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
)

func events(list ...trace.Event) *trace.Trace {
	t := &trace.Trace{Ranks: 1, Events: list}
	t.Sort()
	return t
}

// drawn draws a single trace, whose length is that of the axis.
func drawn(t *trace.Trace) (*drawing, []legend) {
	lo, hi := t.Bounds()
	p, ops := newPaint(t)
	return draw(t, hi-lo, p), ops
}

func TestDraw(t *testing.T) {
	d, ops := drawn(events(
		trace.Event{Stream: "a", Name: "put", Class: trace.Comm, Start: 500, End: 1500},
		trace.Event{Stream: "main", Name: "linear", Start: 1500, End: 4500},
		trace.Event{Stream: "main", Name: "gelu", Start: 4500, End: 4500},
	))
	if len(d.Lanes) != 2 || d.Lanes[0].Name != "main" || d.Lanes[1].Name != "a" {
		t.Fatalf("lanes %+v", d.Lanes)
	}
	for _, c := range []struct {
		got      span
		x, width string
		wide     bool
	}{
		{d.Lanes[1].Spans[0], "0.000", "25.000", true},
		{d.Lanes[0].Spans[0], "25.000", "75.000", true},
		{d.Lanes[0].Spans[1], "100.000", "0.050", false},
	} {
		if c.got.X != c.x || c.got.Width != c.width || c.got.Wide != c.wide {
			t.Errorf("%+v, want x %s, width %s, wide %v", c.got, c.x, c.width, c.wide)
		}
	}
	if len(ops) != 3 || ops[0].Name != "gelu" || ops[1].Name != "linear" || ops[0].Class == ops[1].Class ||
		ops[2].Name != "put" {
		t.Errorf("operations %+v", ops)
	}
}

// TestTicks checks that there is a readable number of ticks, that the first is at 0, and that they are evenly spaced,
// for any length.
func TestTicks(t *testing.T) {
	for _, ns := range []int64{0, 1, 7, 999, 1000, 12345, 1e6, 9999999, 1e7, 123456789, 1e12} {
		d, _ := drawn(events(trace.Event{Stream: "main", Name: "x", Start: 77, End: 77 + ns}))
		if n := len(d.Ticks); n < 4 || n > 12 {
			t.Errorf("%d ns: %d ticks", ns, n)
			continue
		}
		last := -1.0
		for _, k := range d.Ticks {
			x, err := strconv.ParseFloat(k.X, 64)
			if err != nil || x <= last || x > 97.01 {
				t.Errorf("%d ns: tick at %s after %g: %v", ns, k.X, last, err)
			}
			last = x
		}
		if d.Ticks[0].X != "0.000" || !strings.HasPrefix(d.Ticks[0].Text, "0 ") {
			t.Errorf("%d ns: the first tick is %+v", ns, d.Ticks[0])
		}
	}
}

func TestNoEvents(t *testing.T) {
	if d, _ := drawn(&trace.Trace{}); len(d.Lanes) != 0 || d.Height() <= 0 {
		t.Errorf("%+v", d)
	}
}
