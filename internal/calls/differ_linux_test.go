package calls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// These tests make ranks behave differently, in ways that were reported as bugs of other collective
// libraries. Here either all ranks agree, or all soon get an error that names both values.

// inTwo runs f in both processes of a world, each on a stub, and returns their errors.
func inTwo(t *testing.T, f func(g *Group, s *stub, w *world.World) error) [2]error {
	t.Helper()
	var errs [2]error
	dir := t.TempDir()
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() {
			w, err := world.Join(context.Background(), world.Options{Rank: r, Size: 2, ID: t.Name(), Dir: dir,
				JoinTimeout: time.Minute, StallTimeout: 20 * time.Second})
			if err != nil {
				t.Error(err)
				return
			}
			s := &stub{loose: true}
			g := opened(s)
			g.peers = w
			errs[r] = f(g, s, w)
			_ = w.Leave() // errs contains the reason why the process ended
		})
	}
	all.Wait()
	return errs
}

// wantDisagree checks that the errors of both processes name the difference and both values.
func wantDisagree(t *testing.T, errs [2]error, values ...string) {
	t.Helper()
	for r, err := range errs {
		var d *world.DisagreeError
		if !errors.As(err, &d) {
			t.Errorf("process %d: %v", r, err)
			continue
		}
		for _, v := range values {
			if !strings.Contains(err.Error(), v) {
				t.Errorf("process %d: the error does not mention %q: %v", r, v, err)
			}
		}
	}
}

func reduceOf(count int64) Call {
	return Call{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.BF16, Count: count, In: 4096, Out: 1 << 30}
}

// TestSymmetricMemoryOfTwoSizes covers pytorch#190977 and sglang#34230: ranks reserved symmetric
// memory of different sizes or in different order, and then read the wrong memory without an error.
func TestSymmetricMemoryOfTwoSizes(t *testing.T) {
	errs := inTwo(t, func(g *Group, _ *stub, w *world.World) error {
		if _, err := g.Empty(t.Context(), 4096); err != nil {
			return fmt.Errorf("of one size: %w", err)
		}
		_, err := g.Empty(t.Context(), 1024<<w.Process())
		return err
	})
	wantDisagree(t, errs, "memory of 1024 bytes", "memory of 2048 bytes")

	errs = inTwo(t, func(g *Group, _ *stub, w *world.World) error {
		var areas []uintptr
		for range 2 {
			a, err := g.Empty(t.Context(), 4096)
			if err != nil {
				return err
			}
			areas = append(areas, a)
		}
		c := reduceOf(64)
		c.In, c.Out = areas[w.Process()], areas[w.Process()] // each rank uses another area
		return g.Do(t.Context(), c)
	})
	wantDisagree(t, errs, "in area 1", "in area 2")
}

// TestAdoptedApart adopts memory of different sizes, and memory that one process cannot adopt.
func TestAdoptedApart(t *testing.T) {
	errs := inTwo(t, func(g *Group, _ *stub, w *world.World) error {
		return g.Adopt(t.Context(), []uintptr{1 << 30, 1 << 31}, 256<<w.Process())
	})
	wantDisagree(t, errs, "256 bytes", "512 bytes")
	errs = inTwo(t, func(g *Group, _ *stub, w *world.World) error {
		return g.Adopt(t.Context(), []uintptr{1 << 30, 1<<31 + uintptr(w.Process())}, 256)
	})
	wantDisagree(t, errs, "fit: true", "fit: false")
}

// TestNoElements: calls without elements do nothing on the device, but ranks that call with other counts are refused,
// at the first call and at later ones.
func TestNoElements(t *testing.T) {
	errs := inTwo(t, func(g *Group, s *stub, w *world.World) error {
		if err := g.Do(t.Context(), reduceOf(0)); err != nil {
			t.Error(err)
		}
		if len(s.did) > 0 {
			t.Errorf("a call without elements did %v", s.did)
		}
		if err := g.Do(t.Context(), reduceOf(int64(64*w.Process()))); err != nil {
			return err
		}
		_, err := w.Agree(t.Context(), "end", nil) // a call that is prepared does not wait
		return err
	})
	wantDisagree(t, errs, "bf16[0]")
	for _, err := range inTwo(t, func(g *Group, s *stub, w *world.World) error {
		for _, count := range []int64{0, 64} {
			if err := g.Do(t.Context(), reduceOf(count)); err != nil {
				return err
			}
		}
		if err := g.Close(); err != nil || s.released != 1 {
			t.Errorf("closing a group with an empty call and another one: %v, and %d calls were released", err, s.released)
		}
		_, err := w.Agree(t.Context(), "end", nil)
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	errs = inTwo(t, func(g *Group, _ *stub, w *world.World) error {
		for _, count := range []int64{0, 64, int64(64 * w.Process()), 64} {
			if err := g.Do(t.Context(), reduceOf(count)); err != nil {
				return err
			}
		}
		_, err := w.Agree(t.Context(), "end", nil)
		return err
	})
	wantDisagree(t, errs, "bf16[0]", "bf16[64]")
}

// TestScratchDoesNotGrow covers vllm#55211: symmetric scratch was reserved anew for every shape.
// Here scratch doubles, and the previous memory stays allocated. In total that is at most four
// times the largest operands, for any number and order of shapes.
func TestScratchDoesNotGrow(t *testing.T) {
	s := &stub{} // not loose: operands are copied
	g := opened(s)
	const most = 1 << 16
	for n := int64(1); n <= 1000; n++ {
		count := n * 7919 % most
		c := Call{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.F32, Count: count + 1, In: 1 << 40, Out: 1 << 41}
		if err := g.Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if got, bound := s.bytes, int64(4*2*2*4*most); got > bound { // one operand and one result on each of two ranks
		t.Errorf("1000 shapes allocated %d bytes, more than %d, four times the largest", got, bound)
	}
}

// TestTunedApart covers sglang#35343: each rank tuned for itself and chose another algorithm than
// its peers, so they waited for each other forever. Here processes compare their tables when a
// group is opened, and the algorithm when a call is prepared.
func TestTunedApart(t *testing.T) {
	errs := inTwo(t, func(g *Group, _ *stub, w *world.World) error {
		table := &comm.Table{Entries: []comm.Entry{{Members: 2 + w.Process()}}}
		return g.meetOpened(t.Context(), Options{}, table)
	})
	wantDisagree(t, errs, "table")

	errs = inTwo(t, func(g *Group, s *stub, w *world.World) error {
		g.dispatch = comm.NewDispatch(pair{s: s}, device.Caps{}, nil,
			comm.Policy{Algorithm: []string{"fast", "other"}[w.Process()]})
		return g.Do(t.Context(), reduceOf(64))
	})
	wantDisagree(t, errs, "by {Algo:fast", "by {Algo:other")
}

// TestOtherOrder checks that ranks that make known calls in different orders get an error, although
// calls do not wait for each other.
func TestOtherOrder(t *testing.T) {
	errs := inTwo(t, func(g *Group, _ *stub, w *world.World) error {
		sizes := []int64{64, 128}
		for _, n := range sizes {
			if err := g.Do(t.Context(), reduceOf(n)); err != nil {
				return err
			}
		}
		for i := range 2 { // prepares both calls
			if err := g.Do(t.Context(), reduceOf(sizes[(i+w.Process())%2])); err != nil {
				return err
			}
		}
		for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
			if err := w.Err(); err != nil {
				return err
			}
		}
		return nil
	})
	wantDisagree(t, errs, "bf16[64]", "bf16[128]")
}
