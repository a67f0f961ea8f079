package world

import (
	"context"
	"errors"
	"testing"
	"time"
)

// looked waits until the waits of the processes 0 and 1 have not changed for several beats, in which their detectors
// have searched for circles, or until the world has ended.
func looked(w *World) {
	var since [2]uint64
	var first [2]wait
	for n := 0; n < 2 && w.Err() == nil; time.Sleep(beat / 4) {
		n = 0
		for r := range first {
			x, beats, ok := w.mesh.page.readWait(r)
			switch was := first[r]; {
			case !ok || x.in == 0 || x.in != was.in || x.step != was.step || x.ended != was.ended:
				first[r], since[r] = x, beats
			case beats >= since[r]+15:
				n++
			}
		}
	}
}

// TestCircles lets process 0 wait in a step of group g, which has all processes. Meanwhile process 1 waits in group h
// for process 0, and begins the step of g only afterwards. These waits form a circle if process 0 waits for process 1.
// If process 0 waits for process 2, which is merely slow, there is no circle.
func TestCircles(t *testing.T) {
	t.Cleanup(func() { threads.known, threads.several = false, false })
	CalledBy(1)
	for _, c := range []struct {
		name   string
		from   int
		circle bool
	}{{"for the process in h", 1, true}, {"for the third", 2, false}, {"for any", Any, false}} {
		t.Run(c.name, func(t *testing.T) {
			inOne(t, options(t, 3), func(w *World) error {
				err := crossed(w, c.from)
				if err != nil && c.circle {
					<-w.Done()
				}
				if !c.circle {
					return err
				}
				var d *DisagreeError
				if err == nil {
					err = w.Err()
				}
				if !errors.As(err, &d) || len(d.Values) != 2 {
					t.Errorf("rank %d: a circle of two has error %v", w.Process(), err)
				}
				return errEnded
			})
		})
	}
}

// crossed performs the waits of TestCircles. Process 2 raises the counter that process 0 waits for.
func crossed(w *World, from int) error {
	ctx, r := context.Background(), w.Process()
	g, err := JoinGroup(ctx, w, "g", []int{0, 1, 2})
	if err != nil {
		return err
	}
	var h *World
	if r < 2 {
		if h, err = JoinGroup(ctx, w, "h", []int{0, 1}); err != nil {
			return err
		}
	}
	c, err := g.NewCounters("c", 1)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := g.Agree(ctx, "begin", nil); err != nil {
		return err
	}
	switch r {
	case 0:
		if err := g.Step("run"); err != nil {
			return err
		}
		if err := c.Wait(ctx, 0, 1, from); err != nil {
			return err
		}
		if _, err := h.Agree(ctx, "both", nil); err != nil {
			return err
		}
	case 1:
		if _, err := h.Agree(ctx, "both", nil); err != nil {
			return err
		}
		if err := g.Step("run"); err != nil {
			return err
		}
	case 2:
		theirs, err := g.MapCounters(ctx, 0, "c")
		if err != nil {
			return err
		}
		defer theirs.Close()
		if err := g.Step("run"); err != nil {
			return err
		}
		looked(w)
		theirs.Add(0, 1)
	}
	_, err = g.Agree(ctx, "end", nil)
	return err
}
