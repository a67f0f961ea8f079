package cuda

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
)

// movableOfPeers is a program of two processes. Its operand x and result y can be used in place, because only the rank
// itself uses its blocks of x and y. Other ranks also use a rank's blocks of g and z, the operand and the result of an
// all_gather.
const movableOfPeers = `mesh tp[2]
func step(%x: f32[16/tp, 16], %g: f32[16/tp, 16]) -> (f32[16/tp, 16], f32[16, 16]) {
  %y = add %x, %x
  %z: f32[16, 16] = all_gather %g, over=tp, axis=0
  return %y, %z
}
`

// peerCaller is a caller in one of two processes. It has one stream, on the GPU of the process's rank.
type peerCaller struct {
	*caller
	rank int
}

// peerCalls loads a program in each of two processes, calls the function do there, and returns the errors of both.
func peerCalls(
	t *testing.T, jobs []peerJob, program string, opts hocket.LoadOptions, do func(c *peerCaller) error,
) []error {
	t.Helper()
	return runMembers(t, jobs, func(p *peerMember) error {
		c := &peerCaller{&caller{T: t, f: p.f, sys: system(p.f), m: p.m}, p.rank}
		c.model = modeltest.Load(t, p.m, program, opts)
		defer c.model.Close()
		bound := c.sys.GPUs[p.rank].Bound
		c.on(bound, func() error {
			s, err := c.sys.Driver.NewStream(0)
			c.streams = []uintptr{uintptr(s)}
			return err
		})
		defer c.on(bound, func() error { return c.sys.Driver.DestroyStream(nvlib.Stream(c.streams[0])) })
		return do(c)
	})
}

// at allocates memory on the process's GPU.
func (c *peerCaller) at(words int) map[int]uintptr {
	return map[int]uintptr{c.rank: c.block(words)[c.rank]}
}

// ends enqueues a run and waits for it.
func (c *peerCaller) ends() error {
	if err := c.enqueue(); err != nil {
		return err
	}
	return c.model.Sync(c.Context())
}

// moving starts two processes that load movableOfPeers and allocate its arguments and results, and calls the function
// do in each.
func moving(t *testing.T, what string, opts hocket.LoadOptions, do func(c *peerCaller) error) {
	t.Helper()
	for rank, err := range peerCalls(t, alike(2, peerJob{GPUs: 2, PerGPU: 1}), movableOfPeers, opts,
		func(c *peerCaller) error {
			c.in = map[string]map[int]uintptr{"x": c.at(128), "g": c.at(128)}
			c.out = map[string]map[int]uintptr{"y": c.at(128), "z": c.at(256)}
			return do(c)
		}) {
		if err != nil {
			t.Errorf("%s, process %d: %v", what, rank, err)
		}
	}
}

// TestPeersEnqueueMovesApart checks results if one process passes new addresses in most runs, and the other process
// passes the same addresses in all runs.
func TestPeersEnqueueMovesApart(t *testing.T) {
	for _, graph := range []bool{false, true} {
		moving(t, fmt.Sprintf("LoadOptions.Graph %v", graph), hocket.LoadOptions{Graph: graph}, func(c *peerCaller) error {
			r := c.rank
			for i := range 20 {
				if r == 1 && i%3 != 0 {
					c.out["y"] = c.at(128)
				}
				c.f.Mu.Lock()
				put(c.in["x"][r], 128, float32(i))
				put(c.in["g"][r], 128, float32(128*r+i))
				c.f.Mu.Unlock()
				if err := c.ends(); err != nil {
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

// TestPeersEnqueueMovesCaptured checks that after a captured call, later calls with the same addresses do not copy the
// result that can be used in place, regardless of how many calls with other addresses came before.
func TestPeersEnqueueMovesCaptured(t *testing.T) {
	for _, before := range []int{1, 4, 6} {
		moving(t, fmt.Sprintf("%d calls before", before), hocket.LoadOptions{}, func(c *peerCaller) error {
			f := c.f
			for range before {
				c.out["y"] = c.at(128)
				if err := c.enqueue(); err != nil {
					return err
				}
			}
			y := c.at(128)
			c.out["y"] = y
			f.BeginGuest(c.streams[0])
			if err := c.enqueue(); err != nil {
				return err
			}
			f.LaunchGuest(f.EndGuest(c.streams[0]), c.streams[0])
			if err := c.model.Sync(t.Context()); err != nil {
				return err
			}
			copies := 0
			trace := func(do func(name string, a []uintptr)) {
				f.Mu.Lock()
				defer f.Mu.Unlock()
				f.OnCall = do
			}
			trace(func(name string, a []uintptr) {
				if name == "cuMemcpyAsync" && a[0] == y[c.rank] {
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
				return fmt.Errorf("runs copied result y %d times instead of using it in place", copies)
			}
			return nil
		})
	}
}

// TestPeersEnqueueMovesLinears checks that runs use the arguments and results of three linears with a common operand in
// place. In the second case one process first plans the linears as one launch. Then the processes agree to compute the
// linears one after another.
func TestPeersEnqueueMovesLinears(t *testing.T) {
	for _, ms := range [][2]float32{{1.2, 1.2}, {1.2, 9}} {
		jobs := alike(2, peerJob{GPUs: 2, PerGPU: 1})
		for i := range jobs {
			jobs[i].AtOnce = ms[i]
		}
		var log bytes.Buffer // the writer needs no lock, because a slog handler writes one record at a time
		opts := hocket.LoadOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		for rank, err := range peerCalls(t, jobs, threeLinears, opts, func(c *peerCaller) error {
			c.in = map[string]map[int]uintptr{"x": c.at(512)}
			for _, w := range []string{"q", "k", "v"} {
				c.in[w] = c.at(1024 * 1024)
			}
			c.out = map[string]map[int]uintptr{"a": c.at(1024), "b": c.at(1024), "c": c.at(1024)}
			for range 3 {
				if err := c.enqueue(); err != nil {
					return err
				}
			}
			return c.model.Sync(t.Context())
		}) {
			if err != nil {
				t.Errorf("one launch takes %v ms in the two processes; process %d: %v", ms, rank, err)
			}
		}
		if strings.Contains(log.String(), "copy their arguments") {
			t.Errorf("one launch takes %v ms in the two processes; arguments were copied: %s", ms, &log)
		}
	}
}
