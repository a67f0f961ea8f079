package account

import (
	"math"
	"strings"
	"testing"
)

// FuzzCondition: a condition is a metric and a limit, and means the same without spaces; errors quote what was written.
func FuzzCondition(f *testing.F) {
	for _, s := range []string{"exposed > 10%", "skew>80us", " wait > 1.5ms ", "problems > 0", "span > 2s", "skew > 1%",
		"x > 1", "step > 1.2.3us", "idle > .5µs"} {
		f.Add(s)
	}
	r := &Report{Ranks: 2, SpanUS: 10, Untold: "a test"}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCondition(text)
		if err != nil {
			return
		}
		if !(c.limit >= 0 && c.limit <= math.MaxFloat64) {
			t.Errorf("%q: limit %v", text, c.limit)
		}
		if _, _, err := c.Holds(r); err != nil && !strings.Contains(err.Error(), c.metric) &&
			!strings.Contains(err.Error(), "a test") {
			t.Errorf("%q: %v", text, err)
		}
		again, err := ParseCondition(strings.Join(strings.Fields(text), ""))
		if err != nil || again.limit != c.limit || again.metric != c.metric || again.share != c.share {
			t.Errorf("%q: %+v, without spaces %+v, %v", text, c, again, err)
		}
	})
}
