package cuda

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
)

// lends enqueues an execution of fill(seed), whose result %z is lent: the caller reads it in the plan's memory. It
// returns the address of %z on each rank.
func (c *movingCaller) lends(seed float32) map[int]uintptr {
	c.Helper()
	c.fill(seed)
	z := map[int]uintptr{}
	out := maps.Clone(c.out)
	delete(out, "z")
	a := hocket.EnqueueArgs{Streams: c.streams, In: c.in, Out: out, Lend: map[string]map[int]uintptr{"z": z}}
	if err := c.model.Enqueue(c.Context(), a); err != nil {
		c.Fatal(err)
	}
	return z
}

// copiedFrom returns a counter of the copies that will be made from the blocks z.
func (c *movingCaller) copiedFrom(z map[int]uintptr) *atomic.Int64 {
	n := &atomic.Int64{}
	c.f.Mu.Lock()
	defer c.f.Mu.Unlock()
	c.f.OnCall = func(name string, a []uintptr) {
		for _, at := range z {
			if name == "cuMemcpyAsync" && a[1] == at {
				n.Add(1)
			}
		}
	}
	return n
}

// TestEnqueueLends checks that a lent result is correct after each execution and is never copied, also while another
// model executes. Executions that have a lent result's memory as an argument are refused.
func TestEnqueueLends(t *testing.T) {
	for name, o := range map[string]hocket.LoadOptions{"eager": {}, "graph": {Graph: true}} {
		t.Run(name, func(t *testing.T) {
			c := newMovingCaller(t, 2, o)
			names, err := c.model.Lendable(t.Context(), nil)
			if err != nil || !slices.Equal(names, []string{"z"}) {
				t.Fatalf("lendable: %v, %v", names, err)
			}
			c.runs(1)
			z := c.lends(2)
			copies := c.copiedFrom(z)
			for seed := float32(2); seed < 6; seed++ {
				if at := c.lends(seed); !maps.Equal(at, z) || len(at) != 2 {
					t.Fatalf("the lent result is at %x, want %x", at, z)
				}
				c.wait()
				c.holds("z", z, seed)
				c.holds("y", c.out["y"], seed)
				if n := copies.Load(); n > 0 {
					t.Errorf("the lent result was copied %d times", n)
				}
			}
			other := modeltest.Load(t, c.m, movable, hocket.LoadOptions{})
			was := c.model
			c.model = other
			c.runs(7)
			c.model = was
			c.holds("z", z, 5)
			c.runs(8)
			if n := copies.Load(); n != 2 {
				t.Errorf("an execution that does not lend the result copies it %d times, want 2", n)
			}
			c.holds("z", z, 8)

			lent := map[string]map[int]uintptr{"z": {}}
			in, twice := maps.Clone(c.in), maps.Clone(c.out)
			in["g"] = z
			out := maps.Clone(c.out)
			delete(out, "z")
			for want, a := range map[string]hocket.EnqueueArgs{
				"pass a copy of it":                 {In: in, Out: out, Lend: lent},
				"has more than one destination":     {In: c.in, Out: twice, Lend: lent},
				"result y cannot be lent":           {In: c.in, Out: c.out, Lend: map[string]map[int]uintptr{"y": nil}},
				"results that can be lent are [z]":  {In: c.in, Out: c.out, Lend: map[string]map[int]uintptr{"q": {}}},
				"has no destination on the devices": {In: c.in, Out: out, Lend: map[string]map[int]uintptr{"z": nil}},
			} {
				a.Streams = c.streams
				err := c.model.Enqueue(t.Context(), a)
				if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), want) {
					t.Errorf("want %q: %v", want, err)
				}
			}
			if err := c.model.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.model.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestEnqueueLendsCaptured checks that a lent result is correct after each launch of the caller's graph.
func TestEnqueueLendsCaptured(t *testing.T) {
	c := newMovingCaller(t, 1, hocket.LoadOptions{})
	z := c.lends(1)
	c.wait()
	c.f.BeginGuest(c.streams[0])
	if at := c.lends(2); !maps.Equal(at, z) {
		t.Errorf("within a capture the lent result is at %x, want %x", at, z)
	}
	work := c.f.EndGuest(c.streams[0])
	copies := c.copiedFrom(z)
	for seed := float32(3); seed < 6; seed++ {
		c.fill(seed)
		c.f.LaunchGuest(work, c.streams[0])
		c.wait()
		c.holds("z", z, seed)
	}
	if n := copies.Load(); n > 0 {
		t.Errorf("the lent result was copied %d times", n)
	}
}

// TestEnqueueLendsStays checks that a plan with a lent result is not evicted.
func TestEnqueueLendsStays(t *testing.T) {
	c := newMovingCaller(t, 2, hocket.LoadOptions{})
	c.model = modeltest.Load(t, c.m, "dim T\nmesh tp[2]\nfunc f(%g: f32[T/tp, 16]) -> f32[T, 16] {\n"+
		"  %z: f32[T, 16] = all_gather %g, over=tp, axis=0\n  return %z\n}\n", hocket.LoadOptions{Cache: -1})
	c.in, c.out = map[string]map[int]uintptr{"g": c.counted(512)}, nil
	run := func(rows int64, seed float32) map[int]uintptr {
		c.f.Mu.Lock()
		for r := range 2 {
			put(c.in["g"][r], int(8*rows), seed+float32(8*int(rows)*r))
		}
		c.f.Mu.Unlock()
		z := map[int]uintptr{}
		err := c.model.Enqueue(t.Context(), hocket.EnqueueArgs{Streams: c.streams, In: c.in,
			Lend: map[string]map[int]uintptr{"z": z}, Dims: map[string]int64{"T": rows}})
		if err != nil {
			t.Fatal(err)
		}
		c.wait()
		return z
	}
	first := run(16, 100)
	for rows := int64(32); rows <= 64; rows += 16 {
		run(rows, 7)
	}
	for r := range 2 {
		for i := range 256 {
			if got := cabi.Load[float32](first[r] + uintptr(4*i)); got != float32(100+i) {
				t.Fatalf("rank %d: z[%d] is %v", r, i, got)
			}
		}
	}
	if s := c.m.Stats(); s.Plans.Plans < 4 {
		t.Errorf("%d plans are loaded", s.Plans)
	}
	if again := run(16, 3); !maps.Equal(again, first) {
		t.Errorf("the lent result is at %x, want %x", again, first)
	}
}

// TestEnqueueLendsOfLayers checks, for each strategy, that the results which cannot be used in place are lent, and that
// no rank's next execution writes a lent result while another rank still reads it.
func TestEnqueueLendsOfLayers(t *testing.T) {
	const sum = 32
	for _, text := range []string{
		"(%x: f32[16, 32/tp], %w: f32[16, 32/tp]) -> f32[16, 16]",
		"(%x: f32[16/tp, 32], %w: f32[16, 32]) -> f32[16, 16]",
		"(%x: f32[16, 32/tp], %w: f32[16, 32/tp]) -> f32[16/tp, 16]",
	} {
		for _, strategy := range []string{"sequential", "chunked", "exchange", "ahead"} {
			t.Run(text+" by "+strategy, func(t *testing.T) {
				c := newMovingCaller(t, 2, hocket.LoadOptions{})
				c.model = modeltest.Load(t, c.m, "mesh tp[2]\nfunc layer"+text+" {\n  %y = linear %x, %w\n  return %y\n}\n",
					hocket.LoadOptions{Strategy: strategy})
				names, err := c.model.Lendable(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				gathers, scatters := strings.Contains(text, "x: f32[16/tp"), strings.HasSuffix(text, "[16/tp, 16]")
				early := strategy == "exchange" || strategy == "ahead"
				if movable := gathers && strategy == "chunked" || scatters && early; movable != (len(names) == 0) {
					t.Fatalf("lendable: %v", names)
				} else if movable {
					return
				}
				c.in = map[string]map[int]uintptr{"x": c.counted(512), "w": c.counted(512)}
				y := map[int]uintptr{}
				a := hocket.EnqueueArgs{Streams: c.streams, In: c.in, Lend: map[string]map[int]uintptr{"y": y}}
				run := func(seed float32) {
					c.f.Mu.Lock()
					for r := range 2 {
						for i := range uintptr(512) {
							cabi.Store(c.in["x"][r]+4*i, seed)
							cabi.Store(c.in["w"][r]+4*i, float32(1))
						}
					}
					c.f.Mu.Unlock()
					if err := c.model.Enqueue(t.Context(), a); err != nil {
						t.Fatal(err)
					}
				}
				holds := func(r int, want float32) {
					t.Helper()
					n := 256
					if scatters {
						n = 128
					}
					for i := range n {
						if got := cabi.Load[float32](y[r] + uintptr(4*i)); got != want {
							t.Fatalf("rank %d: y[%d] is %v, not %v", r, i, got, want)
						}
					}
				}
				run(1)
				c.wait()
				for seed := float32(2); seed < 8; seed++ {
					held := int(seed) % 2
					var open atomic.Bool
					c.f.GiveGuest(c.streams[held], open.Load)
					run(seed)
					for _, s := range c.streams {
						c.on(c.sys.GPUs[held].Bound, func() error { _, err := c.sys.Driver.StreamIdle(nvlib.Stream(s)); return err })
					}
					holds(held, (seed-1)*sum)
					open.Store(true)
					c.wait()
					holds(0, seed*sum)
					holds(1, seed*sum)
				}
			})
		}
	}
}

// TestLendable checks the condition for lending a result: other ranks write to it, and to memory that overlaps it, only
// after its rank has begun the execution.
func TestLendable(t *testing.T) {
	const put = `mesh tp[2]
func f(%x: f32[64]) -> f32[64] {
  %free = counter
  %full = counter
  %y = alloc f32[64] symmetric
BEFORE
  put %x into %y at tp[1 - rank(tp)]
  signal %full at tp[1 - rank(tp)]
  wait %full >= 1
  return %y
}
`
	for before, want := range map[string]int{"  signal %free at tp[1 - rank(tp)]\n  wait %free >= 1": 1, "": 0} {
		c := newMovingCaller(t, 2, hocket.LoadOptions{})
		c.model = modeltest.Load(t, c.m, strings.Replace(put, "BEFORE", before, 1), hocket.LoadOptions{NoProve: true})
		names, err := c.model.Lendable(t.Context(), nil)
		if err != nil || len(names) != want {
			t.Errorf("with %q: %v, %v", before, names, err)
		}
	}
}
