package world

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestErrorsOfGroups checks that errors in a group name processes by their ranks in the world that
// the group belongs to.
func TestErrorsOfGroups(t *testing.T) {
	inOne(t, options(t, 3), func(w *World) error {
		ctx := context.Background()
		if w.Process() == 0 {
			_, err := w.Agree(ctx, "end", nil)
			return err
		}
		g, err := JoinGroup(ctx, w, "g", []int{1, 2})
		if err != nil {
			return err
		}
		c, err := g.NewCounters("c", 1)
		if err != nil {
			return err
		}
		defer c.Close()
		if w.Process() == 1 {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if err := c.Wait(ended, 0, 1, 1); err == nil || !strings.Contains(err.Error(), "waiting for rank 2") {
				t.Errorf("wait for process 2: %v", err)
			}
			if _, err := g.Expect(5, 1, nil); err == nil || !strings.Contains(err.Error(), "of group g") {
				t.Errorf("receipt from rank 5 of the group: %v", err)
			}
			wire := g.NewWires(1)
			if _, err := g.Expect(1, wire, make([]byte, 1)); err != nil {
				return err
			}
			if _, err := g.Expect(1, wire, make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "from rank 2") {
				t.Errorf("second receipt from process 2: %v", err)
			}
		}
		_, err = w.Agree(ctx, "end", nil)
		return err
	})
}

// TestGroupReportsCauseOfWorld lets process 0 end the world and exit before it ends a group. The members of the group
// first find that the link to process 0 is closed, and must report why the world ended. A member may still be in
// JoinGroup, which returns in process 0 as soon as all others have joined, and in the others later.
func TestGroupReportsCauseOfWorld(t *testing.T) {
	want := &DisagreeError{What: "the order in which groups are called", Values: []Value{{Rank: 0, Value: "a"}, {Rank: 1, Value: "b"}}}
	inOne(t, options(t, 3), func(w *World) error {
		ctx := context.Background()
		g, err := JoinGroup(ctx, w, "g", []int{0, 1, 2})
		if w.Process() == 0 {
			if err != nil {
				return err
			}
			w.mesh.page.abort(0, causeOf(w.mesh.self, want))
			for _, p := range g.mesh.peers[1:] {
				p.link.close()
			}
			<-w.Done()
			return errEnded
		}
		if err == nil {
			_, err = g.Agree(ctx, "end", nil)
		}
		var got *DisagreeError
		if !errors.As(err, &got) || got.What != want.What {
			t.Errorf("rank %d: the world ended by %v, and the group reports: %v", w.Process(), want, err)
		}
		<-w.Done()
		return errEnded
	})
}
