package terminal

import (
	"strings"
	"testing"
	"time"
)

// TestProgress checks that nothing is shown in the first two seconds, then the stage and its remaining time, and that
// the line is erased at the end.
func TestProgress(t *testing.T) {
	var out strings.Builder
	clock := time.Unix(0, 0)
	p := &Progress{w: &out, columns: 60, now: func() time.Time { return clock }, begun: clock, stop: make(chan struct{})}
	p.At("comparing schedules", 20, 0)
	clock = clock.Add(1900 * time.Millisecond)
	p.Step()
	p.draw()
	if out.Len() > 0 {
		t.Errorf("it says %q after 1.9 s", out.String())
	}
	clock = clock.Add(8100 * time.Millisecond)
	p.Step()
	for range 3 {
		p.Step()
	}
	p.draw()
	if want := "\r\x1b[Kcomparing schedules: 5 of 20, about 30 s left"; out.String() != want {
		t.Errorf("it says %q, want %q", out.String(), want)
	}
	for _, test := range []struct {
		stage string
		total int
		most  time.Duration
		after time.Duration
		want  string
	}{
		{"proving", 0, 10 * time.Second, 3 * time.Second, "proving, 3 s so far, at most 10 s"},
		{"running", 4, 0, 100 * time.Second, "running: 0 of 4, 2 min so far"},
		{"evaluating the reference", 0, 0, 61 * time.Second, "evaluating the reference, 61 s so far"},
	} {
		p.At(test.stage, test.total, test.most)
		if got := p.line(clock.Add(test.after)); got != test.want {
			t.Errorf("it says %q, want %q", got, test.want)
		}
	}
	out.Reset()
	p.End()
	if out.String() != "\r\x1b[K" {
		t.Errorf("at the end it writes %q", out.String())
	}
	var none *Progress
	none.At("x", 0, 0) // commands in tests have none
	none.Step()
	none.End()
}
