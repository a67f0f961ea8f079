package cuda

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
)

// movable has a parameter %x and a result %y that only computations of the same rank use, and %g and %z, which a
// collective uses. %v is the result of two commands that run as one launch.
const movable = `mesh tp[2]
func step(%x: f32[16/tp, 16], %w: f32[16], %g: f32[16/tp, 16]) -> (f32[16/tp, 16], f32[16, 16], f32[16/tp, 16]) {
  %y = sub %x, %w
  %z: f32[16, 16] = all_gather %g, over=tp, axis=0
  %u = add %x, %x
  %v = mul %u, %w
  return %y, %z, %v
}
`

// movingCaller calls the program movable, and counts the copies from and to its blocks.
type movingCaller struct {
	*caller
	copies map[uintptr]*atomic.Int64 // by address of the block
	n      int                       // words of each rank's block
	w      map[int]uintptr           // addresses of %w
}

func newMovingCaller(t *testing.T, ranks int, opts hocket.LoadOptions, form ...string) *movingCaller {
	t.Helper()
	c := &movingCaller{caller: &caller{T: t, f: fakedriver.New(t, ranks)}, copies: map[uintptr]*atomic.Int64{},
		n: 256 / ranks}
	c.f.Queue()
	c.sys = system(c.f)
	c.f.OnCall = func(name string, a []uintptr) {
		if name == "cuMemcpyAsync" {
			for _, at := range a[:2] {
				if n := c.copies[at]; n != nil {
					n.Add(1)
				}
			}
		}
	}
	c.m = modeltest.Open(t, newMachine(c.sys, Options{Kernels: c.f, Graphs: strings.Join(form, "")}))
	text := movable
	if ranks == 1 {
		text = "mesh tp[1]" + movable[len("mesh tp[2]"):]
	}
	c.model = modeltest.Load(t, c.m, text, opts)
	c.makeStreams()
	c.in = map[string]map[int]uintptr{"x": c.counted(c.n), "w": c.counted(16), "g": c.counted(c.n)}
	c.out = map[string]map[int]uintptr{"y": c.counted(c.n), "z": c.counted(256), "v": c.counted(c.n)}
	c.w = c.in["w"]
	return c
}

// counted allocates a block whose copies are counted.
func (c *movingCaller) counted(words int) map[int]uintptr {
	at := c.block(words)
	for _, p := range at {
		c.copies[p] = &atomic.Int64{}
	}
	return at
}

// put stores the numbers base, base+1, … at an address.
func put(at uintptr, n int, base float32) {
	for i := range n {
		cabi.Store(at+uintptr(4*i), base+float32(i))
	}
}

// fill writes the inputs of an execution.
func (c *movingCaller) fill(seed float32) {
	c.f.Mu.Lock()
	defer c.f.Mu.Unlock()
	for r := range c.sys.GPUs {
		put(c.in["g"][r], c.n, 3*seed+float32(c.n*r))
		put(c.in["x"][r], c.n, seed+float32(1000*r))
		put(c.w[r], 16, 5*seed)
	}
}

// holds compares the memory of a result with the expected result for fill(seed).
func (c *movingCaller) holds(what string, at map[int]uintptr, seed float32) {
	c.Helper()
	for r := range c.sys.GPUs {
		n := c.n
		if what == "z" {
			n = 256
		}
		for i := range n {
			got := cabi.Load[float32](at[r] + uintptr(4*i))
			x, w := seed+float32(1000*r+i), 5*seed+float32(i%16)
			want := map[string]float32{"y": x - w, "z": 3*seed + float32(i), "v": (x + x) * w}[what]
			if got != want {
				c.Fatalf("rank %d: %s[%d] is %v, want %v", r, what, i, got, want)
			}
		}
	}
}

// runs enqueues an execution of fill(seed) and compares the results.
func (c *movingCaller) runs(seed float32) {
	c.Helper()
	c.fill(seed)
	if err := c.enqueue(); err != nil {
		c.Fatal(err)
	}
	c.wait()
	for what, at := range c.out {
		c.holds(what, at, seed)
	}
}

// copied returns how often the blocks at these addresses were copied, summed over the ranks, since the last call of
// copied.
func (c *movingCaller) copied(at map[int]uintptr) (n int64) {
	for _, p := range at {
		n += c.copies[p].Swap(0)
	}
	return n
}

// wantCopies checks how often each block was copied on each rank since the last call.
func (c *movingCaller) wantCopies(when string, want map[string]int64) {
	c.Helper()
	got := map[string]int64{}
	for _, all := range []map[string]map[int]uintptr{c.in, c.out} {
		for name, at := range all {
			got[name] = c.copied(at) / int64(len(c.sys.GPUs))
		}
	}
	if !maps.Equal(got, want) {
		c.Errorf("%s: copies %v, want %v", when, got, want)
	}
}

// Numbers of copies of each block: in an execution that copies all blocks, and in executions that copy only where
// necessary.
var (
	allCopied = map[string]int64{"x": 1, "w": 1, "g": 1, "y": 1, "z": 1, "v": 1}
	// otherCopied applies if the address of the result y was not used when the program was recorded.
	otherCopied = map[string]int64{"x": 0, "w": 0, "g": 1, "y": 1, "z": 1, "v": 0}
	restCopied  = map[string]int64{"x": 0, "w": 0, "g": 1, "y": 0, "z": 1, "v": 0}
)

// TestEnqueueMoves checks that executions use blocks in place from the first execution on, also with changed addresses.
// Results that the caller keeps are not overwritten.
func TestEnqueueMoves(t *testing.T) {
	c := newMovingCaller(t, 2, hocket.LoadOptions{})
	c.runs(1)
	c.wantCopies("the first run", restCopied)
	for seed := range 3 {
		c.runs(float32(seed + 2))
		c.wantCopies("the addresses come again", restCopied)
	}
	kept := maps.Clone(c.out)
	c.out["y"], c.out["v"] = c.counted(c.n), c.counted(c.n)
	for _, seed := range []float32{7, 8} {
		c.runs(seed)
		c.wantCopies("other addresses", restCopied)
	}
	c.holds("y", kept["y"], 4)
	c.holds("v", kept["v"], 4)
	other := maps.Clone(c.out)
	c.out["y"], c.out["v"] = kept["y"], kept["v"]
	c.runs(9)
	c.wantCopies("the addresses from before", restCopied)
	c.holds("y", other["y"], 8)
	if err := c.model.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestEnqueueMovesByGraph checks executions that replay a graph. Such executions use blocks in place if the addresses
// were passed before the program was recorded. If other addresses are passed, only blocks whose address never changed
// are used in place.
func TestEnqueueMovesByGraph(t *testing.T) {
	c := newMovingCaller(t, 1, hocket.LoadOptions{Graph: true})
	first := maps.Clone(c.out)
	c.runs(1)
	c.wantCopies("the first run", allCopied)
	c.out["y"] = c.counted(c.n)
	second := maps.Clone(c.out)
	for _, seed := range []float32{2, 3, 4} {
		c.runs(seed)
		c.wantCopies("recorded", restCopied)
	}
	c.out = first
	c.runs(5)
	c.wantCopies("the addresses of the first run", restCopied)
	c.holds("y", second["y"], 4)
	c.out = maps.Clone(first)
	c.out["y"] = c.counted(c.n)
	for _, seed := range []float32{6, 7, 8} {
		c.runs(seed)
		c.wantCopies("an address that came later", otherCopied)
	}
	c.holds("y", first["y"], 5)

	for _, form := range []string{"", "one", "each"} {
		c = newMovingCaller(t, 2, hocket.LoadOptions{Graph: true}, form)
		for range 2 {
			c.runs(1)
		}
		c.forget()
		c.runs(2)
		c.wantCopies("a graph over two GPUs", restCopied)
		for gated := range 2 {
			var open atomic.Bool
			c.f.GiveGuest(c.streams[gated], open.Load)
			c.fill(3)
			if err := c.enqueue(); err != nil {
				t.Fatal(err)
			}
			c.on(c.sys.GPUs[gated].Bound, func() error {
				_, err := c.sys.Driver.StreamIdle(nvlib.Stream(c.streams[1-gated]))
				return err
			})
			if got := cabi.Load[float32](c.out["y"][gated]); got != 2+float32(1000*gated)-10 {
				t.Fatalf("form %q: rank %d executed before its stream reached the execution: %v", form, gated, got)
			}
			open.Store(true)
			c.wait()
			c.runs(2)
		}
	}
}

// TestEnqueueMovesApart checks that blocks are copied if they are not aligned, or overlap blocks that are written.
func TestEnqueueMovesApart(t *testing.T) {
	for name, o := range map[string]struct {
		change func(c *movingCaller)
		copied []string
	}{
		"a result over a parameter": {func(c *movingCaller) { c.out["y"] = c.in["x"] }, []string{"x", "y"}},
		"a result over part of a parameter": {func(c *movingCaller) { c.out["y"] = c.shifted("x", 256) },
			[]string{"x", "y"}},
		"a result over one that is copied": {func(c *movingCaller) { c.out["z"] = c.over("y", 256) }, []string{"y"}},
		"a parameter twice":                {func(c *movingCaller) { c.in["g"] = c.in["x"] }, []string{"x"}}, // copied for %g
		"a result that is not aligned":     {func(c *movingCaller) { c.out["y"] = c.shifted("y", 64) }, []string{"y"}},
		"a result over a bound tensor":     {func(c *movingCaller) { c.bind("w", c.out["v"]) }, []string{"v"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newMovingCaller(t, 2, hocket.LoadOptions{})
			o.change(c)
			for _, seed := range []float32{1, 2, 3} {
				c.forget()
				c.fill(seed)
				if err := c.enqueue(); err != nil {
					t.Fatal(err)
				}
				c.wait()
				for _, what := range []string{"y", "v"} {
					if what != "y" || name != "a result over one that is copied" { // the overlap may have either result
						c.holds(what, c.out[what], seed)
					}
				}
			}
			for what, at := range map[string]map[int]uintptr{"x": c.in["x"], "y": c.out["y"], "v": c.out["v"]} {
				if n := c.copies[at[0]].Load(); (n > 0) != slices.Contains(o.copied, what) {
					t.Errorf("%s is copied %d times", what, n)
				}
			}
		})
	}
}

// shifted returns a block of n words at an offset of the given bytes in a larger block.
func (c *movingCaller) shifted(name string, bytes uintptr) map[int]uintptr {
	at, big := map[int]uintptr{}, c.counted(2*c.n)
	if name == "x" {
		c.in["x"] = big
	}
	for r, p := range big {
		at[r] = p + bytes
		c.copies[at[r]] = &atomic.Int64{}
	}
	return at
}

// over allocates a buffer on each rank, places a result at an offset of the given bytes in it, and returns the buffers.
func (c *movingCaller) over(name string, bytes uintptr) map[int]uintptr {
	big := c.counted(256)
	at := map[int]uintptr{}
	for r, p := range big {
		at[r] = p + bytes
		c.copies[at[r]] = &atomic.Int64{}
	}
	c.out[name] = at
	return big
}

// forget resets all counters.
func (c *movingCaller) forget() {
	for _, n := range c.copies {
		n.Store(0)
	}
}

// bind binds the block at these addresses to a parameter.
func (c *movingCaller) bind(name string, at map[int]uintptr) {
	d, err := c.model.DeviceTensorAt(c.Context(), name, nil, at)
	if err == nil {
		err = c.model.BindDevice(name, d)
	}
	if err != nil {
		c.Fatal(err)
	}
	delete(c.in, name)
	c.w = at
}

// TestEnqueueMovesInTurns passes different sets of addresses cyclically, as many as are cached.
func TestEnqueueMovesInTurns(t *testing.T) {
	c := newMovingCaller(t, 2, hocket.LoadOptions{})
	var ys []map[int]uintptr
	for range 16 {
		ys = append(ys, c.counted(c.n))
	}
	for range 3 {
		for i, y := range ys {
			c.out["y"] = y
			c.runs(float32(i))
			c.wantCopies("in turns", restCopied)
		}
	}
}

// TestEnqueueMovesFreed checks that nothing is prepared for addresses that the caller has freed.
func TestEnqueueMovesFreed(t *testing.T) {
	for name, off := range map[string]uintptr{"all of it": 0, "its end": 1023} {
		t.Run(name, func(t *testing.T) {
			c := newMovingCaller(t, 1, hocket.LoadOptions{Graph: true})
			freed := c.out["y"]
			gone := map[int]uintptr{0: freed[0] + off}
			c.runs(1)
			c.out["y"] = c.counted(c.n)
			c.foreign(gone, true)
			for _, seed := range []float32{2, 3} {
				c.forget()
				c.runs(seed)
				c.wantCopies("recorded", restCopied)
			}
			c.foreign(gone, false)
			c.out["y"] = freed
			c.runs(4)
			c.wantCopies("addresses that were given back", otherCopied)
		})
	}
}

// foreign is a setter: it makes addresses unknown to the driver, or known again.
func (c *movingCaller) foreign(at map[int]uintptr, unknown bool) {
	c.f.Mu.Lock()
	defer c.f.Mu.Unlock()
	if c.f.Guests.Foreign == nil {
		c.f.Guests.Foreign = map[uintptr]bool{}
	}
	for _, p := range at {
		c.f.Guests.Foreign[p] = unknown
	}
}

// TestEnqueueMovesOutdated checks what happens when the passed addresses differ from all cached ones. For a while,
// executions copy. The launches that were prepared for cached addresses are freed after the executions that may use
// them have ended. Results are correct throughout.
func TestEnqueueMovesOutdated(t *testing.T) {
	c := &caller{T: t, f: fakedriver.New(t, 1)}
	c.f.Queue()
	c.f.LT = &fakedriver.LT{T: t, Costs: []float32{1}, GPU: c.f}
	c.sys = system(c.f)
	c.m = modeltest.Open(t, newMachine(c.sys, Options{Kernels: c.f}))
	c.model = modeltest.Load(t, c.m, "mesh tp[1]\nfunc f(%x: bf16[128, 64], %w: bf16[64, 64]) -> bf16[128, 64] {\n"+
		"  %y = linear %x, %w\n  return %y\n}\n", hocket.LoadOptions{})
	c.makeStreams()
	c.in = map[string]map[int]uintptr{"x": c.block(128 * 32), "w": c.block(32 * 64)}
	enqueue := func(y map[int]uintptr, times int) {
		t.Helper()
		c.out = map[string]map[int]uintptr{"y": y}
		for range times {
			if err := c.enqueue(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const known, missed = 16, 256
	first := c.block(128 * 32)
	for i := range known {
		enqueue([]map[int]uintptr{first, c.block(128 * 32)}[min(i, 1)], 1)
	}
	c.wait()
	full := c.f.LT.Live
	other := c.block(128 * 32)
	enqueue(other, missed-1)
	c.wait()
	if got := c.f.LT.Live; got != full {
		t.Errorf("while executions copy there are %d cached objects, want %d", got, full)
	}
	var open atomic.Bool
	c.f.GiveGuest(c.streams[0], open.Load)
	enqueue(first, 1) // is held back
	enqueue(other, 1)
	next := make(chan error, 1)
	go func() { next <- c.enqueue() }()
	for range 100 {
		runtime.Gosched()
	}
	c.f.Mu.Lock()
	if got := c.f.LT.Live; got != full {
		t.Errorf("while an execution is in flight there are %d cached objects, want %d", got, full)
	}
	c.f.Mu.Unlock()
	select {
	case err := <-next:
		t.Errorf("freeing cached objects did not wait for the execution in flight: %v", err)
		return
	default:
	}
	open.Store(true)
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	c.wait()
	if got := c.f.LT.Live; got >= full {
		t.Errorf("after the executions there are %d cached objects, want fewer than %d", got, full)
	}
}

// TestEnqueueMovesInOut checks programs with results that are also parameters, results that are the same value, and
// results that are parts of tensors. Their results equal those of Run, and parameters are not changed.
func TestEnqueueMovesInOut(t *testing.T) {
	const sum = "  %y = add %x, %g\n"
	for name, p := range map[string]struct{ results, body string }{
		"a result twice":    {"f32[8, 16], f32[8, 16]", sum + "  return %y, %y\n"},
		"a parameter":       {"f32[8, 16], f32[8, 16]", sum + "  return %x, %y\n"},
		"a parameter twice": {"f32[8, 16], f32[8, 16]", "  return %x, %x\n"},
		"halves": {"f32[4, 16], f32[4, 16]",
			sum + "  %a = slice %y, axis=0, 0..4\n  %b = slice %y, axis=0, 4..8\n  return %a, %b\n"},
		"the second half": {"f32[4, 16], f32[8, 16]",
			sum + "  %a = slice %y, axis=0, 4..8\n  %z = add %y, %y\n  return %a, %z\n"},
		"columns": {"f32[8, 4], f32[8, 16]",
			sum + "  %a = slice %y, axis=1, 4..8\n  %z = mul %y, %x\n  return %a, %z\n"},
		"transposed": {"f32[16, 8], f32[8, 16]", sum + "  %a = transpose %y\n  %z = mul %y, %x\n  return %a, %z\n"},
		"half a parameter": {"f32[4, 16], f32[8, 16]",
			"  %a = slice %x, axis=0, 4..8\n  %z = mul %g, %x\n  return %a, %z\n"},
		"a result that another uses": {"f32[8, 16], f32[8, 16]", sum + "  %z = mul %y, %x\n  return %y, %z\n"},
	} {
		for _, graph := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, graph %v", name, graph), func(t *testing.T) {
				c := newMovingCaller(t, 1, hocket.LoadOptions{})
				c.model = modeltest.Load(t, c.m,
					"mesh tp[1]\nfunc f(%x: f32[8, 16], %g: f32[8, 16]) -> ("+p.results+") {\n"+
						p.body+"}\n", hocket.LoadOptions{Graph: graph})
				in, err := c.model.RandomInputs("ints:1")
				if err != nil {
					t.Fatal(err)
				}
				want, err := c.model.Run(t.Context(), hocket.Args{In: in})
				if err != nil {
					t.Fatal(err)
				}
				for i := range 6 {
					if i%3 == 0 {
						c.in = map[string]map[int]uintptr{"x": c.block(128), "g": c.block(128)}
						c.out = map[string]map[int]uintptr{}
						for name := range want.Out {
							c.out[name] = c.block(128)
						}
					}
					for name, x := range in {
						for k, v := range x.Floats() {
							cabi.Store(c.in[name][0]+uintptr(4*k), float32(v))
						}
					}
					if err := c.enqueue(); err != nil {
						t.Fatal(err)
					}
					c.wait()
					for _, all := range []struct {
						is   map[string]map[int]uintptr
						want map[string]*hocket.Tensor
					}{{c.in, in}, {c.out, want.Out}} {
						for name, x := range all.want {
							for k, v := range x.Floats() {
								if got := cabi.Load[float32](all.is[name][0] + uintptr(4*k)); got != float32(v) {
									t.Fatalf("run %d: %s[%d] is %v, want %v", i, name, k, got, v)
								}
							}
						}
					}
				}
			})
		}
	}
}

// TestEnqueueMovesCaptured checks that an execution within the caller's graph uses blocks in place, whatever their
// addresses.
func TestEnqueueMovesCaptured(t *testing.T) {
	for name, o := range map[string]hocket.LoadOptions{"eager": {}, "graph": {Graph: true}} {
		t.Run(name, func(t *testing.T) {
			c := newMovingCaller(t, 1, o)
			for range 2 {
				c.runs(1)
			}
			stream := c.streams[0]
			c.forget()
			var outs []map[string]map[int]uintptr
			var graphs [][]fakedriver.Task
			for range 3 {
				c.out = map[string]map[int]uintptr{"y": c.counted(c.n), "z": c.counted(256), "v": c.counted(c.n)}
				outs = append(outs, c.out)
				c.f.BeginGuest(stream)
				if err := c.enqueue(); err != nil {
					t.Fatal(err)
				}
				graphs = append(graphs, c.f.EndGuest(stream))
				c.wantCopies("captured", map[string]int64{"x": 0, "w": 0, "g": 1, "y": 0, "z": 1, "v": 0})
			}
			for seed := range 6 {
				c.fill(float32(seed + 2))
				c.f.LaunchGuest(graphs[seed%3], stream)
				c.wait()
			}
			for i, out := range outs {
				for what, at := range out {
					c.holds(what, at, float32(i+3+2))
				}
			}
			if err := c.model.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.runs(9)
		})
	}
}

// TestMovableOfLayers checks the statements of docs/pytorch.md about layers under each strategy.
func TestMovableOfLayers(t *testing.T) {
	always := func(string) bool { return true }
	early := func(strategy string) bool { return strategy == "exchange" || strategy == "ahead" }
	for text, moves := range map[string]struct{ x, y func(strategy string) bool }{
		"(%x: bf16[M/tp, K], %w: bf16[N/tp, K]) -> bf16[M, N/tp]": {early, always},
		"(%x: bf16[M, K/tp], %w: bf16[N, K/tp]) -> bf16[M/tp, N]": {always, early},
		"(%x: bf16[M, K/tp], %w: bf16[N, K/tp]) -> bf16[M, N]":    {always, func(string) bool { return false }},
		"(%x: bf16[M/tp, K], %w: bf16[N, K]) -> bf16[M, N]": {always,
			func(strategy string) bool { return strategy == "chunked" }},
	} {
		for _, strategy := range []string{"sequential", "chunked", "exchange", "ahead"} {
			f := fakedriver.New(t, 4)
			f.Queue()
			m := modeltest.Open(t, newMachine(system(f), Options{Kernels: f}))
			p, err := hocket.Parse("layer.hkt", "dim M = 512\ndim N = 256\ndim K = 256\nmesh tp[4]\nfunc layer"+text+
				" {\n  %y = linear %x, %w\n  return %y\n}\n")
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			debug := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Strategy: strategy, Logger: debug})
			if err == nil {
				err = model.Prepare(t.Context(), nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			inputs, results := "[w]", "[]"
			if moves.x(strategy) {
				inputs = `"[x w]"`
			}
			if moves.y(strategy) {
				results = "[y]"
			}
			want := `"movable inputs"=` + inputs + ` "movable results"=` + results + "\n"
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s by %s: no %s in:\n%s", text, strategy, want, &log)
			}
			if err := model.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
