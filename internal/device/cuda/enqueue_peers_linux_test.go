package cuda

import (
	"fmt"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// movableOfPeers has blocks that only their own rank uses, and an all_gather of others.
const movableOfPeers = `mesh tp[2]
func step(%x: f32[16/tp, 16], %g: f32[16/tp, 16]) -> (f32[16/tp, 16], f32[16, 16]) {
  %y = add %x, %x
  %z: f32[16, 16] = all_gather %g, over=tp, axis=0
  return %y, %z
}
`

// peerCaller enqueues runs of movableOfPeers on a stream of its own, as one of two processes.
type peerCaller struct {
	*testing.T
	p      *peerMember
	model  *hocket.Model
	stream uintptr
	in     map[string]map[int]uintptr
	out    map[string]map[int]uintptr
}

// peerCalls has each of two processes do what a caller does there.
func peerCalls(t *testing.T, what string, opts hocket.LoadOptions, do func(c *peerCaller) error) {
	t.Helper()
	for rank, err := range runMembers(t, alike(2, peerJob{GPUs: 2, PerGPU: 1}), func(p *peerMember) error {
		prog, err := hocket.Parse("movable.hkt", movableOfPeers)
		if err != nil {
			return err
		}
		c := &peerCaller{T: t, p: p}
		if c.model, err = p.m.Load(prog, hocket.Binding{}, opts); err != nil {
			return err
		}
		defer c.model.Close()
		sys := p.f.system()
		g := sys.GPUs[p.rank]
		if err := g.Bound(func() error {
			s, err := sys.Driver.NewStream(0)
			c.stream = uintptr(s)
			return err
		}); err != nil {
			return err
		}
		defer g.Bound(func() error { return sys.Driver.DestroyStream(nvlib.Stream(c.stream)) })
		c.in = map[string]map[int]uintptr{"x": c.block(128), "g": c.block(128)}
		c.out = map[string]map[int]uintptr{"y": c.block(128), "z": c.block(256)}
		return do(c)
	}) {
		if err != nil {
			t.Errorf("%s, process %d: %v", what, rank, err)
		}
	}
}

// block is memory of the process's GPU.
func (c *peerCaller) block(words int) map[int]uintptr {
	sys := c.p.f.system()
	g := sys.GPUs[c.p.rank]
	var at nvlib.Ptr
	if err := g.Bound(func() (err error) { at, err = sys.Driver.HostAlloc(int64(4 * words)); return err }); err != nil {
		panic(err)
	}
	c.Cleanup(func() { _ = g.Bound(func() error { return sys.Driver.HostFree(at) }) })
	return map[int]uintptr{c.p.rank: uintptr(at)}
}

func (c *peerCaller) enqueue() error {
	return c.model.Enqueue(c.Context(), hocket.EnqueueArgs{Streams: []uintptr{c.stream}, In: c.in, Out: c.out})
}

// TestPeersEnqueueMovesApart: results are right where one process's addresses change and the other's stay.
func TestPeersEnqueueMovesApart(t *testing.T) {
	for _, graph := range []bool{false, true} {
		peerCalls(t, fmt.Sprintf("graph %v", graph), hocket.LoadOptions{Graph: graph}, func(c *peerCaller) error {
			r := c.p.rank
			for i := range 20 {
				if r == 1 && i%3 != 0 {
					c.out["y"] = c.block(128)
				}
				c.p.f.mu.Lock()
				put(c.in["x"][r], 128, float32(i))
				put(c.in["g"][r], 128, float32(128*r+i))
				c.p.f.mu.Unlock()
				if err := c.enqueue(); err != nil {
					return fmt.Errorf("run %d: %w", i, err)
				}
				if err := c.model.Sync(t.Context()); err != nil {
					return fmt.Errorf("run %d: %w", i, err)
				}
				for k := range 256 {
					if got := cabi.Load[float32](c.out["z"][r] + uintptr(4*k)); got != float32(k+i) {
						return fmt.Errorf("run %d: z[%d] is %v", i, k, got)
					}
					if k >= 128 {
						continue
					}
					if got := cabi.Load[float32](c.out["y"][r] + uintptr(4*k)); got != 2*float32(i+k) {
						return fmt.Errorf("run %d: y[%d] is %v", i, k, got)
					}
				}
			}
			return nil
		})
	}
}

// TestPeersEnqueueMovesCaptured: once a call was captured, calls with its addresses copy nothing that need not be
// copied, however many others came before.
func TestPeersEnqueueMovesCaptured(t *testing.T) {
	for _, before := range []int{1, 4, 6} {
		peerCalls(t, fmt.Sprintf("%d others", before), hocket.LoadOptions{}, func(c *peerCaller) error {
			f := c.p.f
			for range before {
				c.out["y"] = c.block(128)
				if err := c.enqueue(); err != nil {
					return err
				}
			}
			y := c.block(128)
			c.out["y"] = y
			f.beginGuest(c.stream)
			if err := c.enqueue(); err != nil {
				return err
			}
			f.launchGuest(f.endGuest(c.stream), c.stream)
			if err := c.model.Sync(t.Context()); err != nil {
				return err
			}
			copies := 0
			trace := func(do func(name string, a []uintptr)) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.trace = do
			}
			trace(func(name string, a []uintptr) {
				if name == "cuMemcpyAsync" && a[0] == y[c.p.rank] {
					copies++
				}
			})
			for range 5 {
				if err := c.enqueue(); err != nil {
					return err
				}
			}
			if err := c.model.Sync(t.Context()); err != nil {
				return err
			}
			trace(nil)
			if copies > 0 {
				return fmt.Errorf("the result was copied %d times", copies)
			}
			return nil
		})
	}
}
