package cuda

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/nvlib"
)

// slack is a tolerance, in steps of rows: the largest batch that runs may be smaller than planned by it, because
// libraries and kernels use memory that is not part of the plan.
const slack = 32

// TestLargestBatch plans the largest batch for the free memory of two GPUs, and checks that it runs there, within
// slack, and that the next larger batch runs out of memory. A dummy allocation leaves 4 GiB free on each GPU.
func TestLargestBatch(t *testing.T) {
	m := real(t, Options{})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	leave := func(bytes int64) (release func()) {
		var ballast []nvlib.MemHandle
		onEach := func(do func(dev nvlib.Device) error) {
			t.Helper()
			for _, g := range m.sys.GPUs[:2] {
				if err := g.Bound(func() error { return do(g.Device) }); err != nil {
					t.Fatal(err)
				}
			}
		}
		onEach(func(dev nvlib.Device) error {
			free, _, err := m.sys.Driver.MemInfo()
			if err != nil || free < bytes {
				return errors.Join(err, fmt.Errorf("%d bytes are free, and the test is about %d", free, bytes))
			}
			h, err := m.sys.Driver.CreateMem(dev, (free-bytes)&^(2<<20-1), false)
			ballast = append(ballast, h)
			return err
		})
		return func() {
			for _, h := range ballast {
				if err := m.sys.Driver.ReleaseMem(h); err != nil {
					t.Error(err)
				}
			}
		}
	}
	largestBatches(t, m, 8, 8192, 128, 4<<30, []bool{false, true}, leave)
}

// TestLargestBatchFake is TestLargestBatch on the fake driver.
func TestLargestBatchFake(t *testing.T) {
	f := fakedriver.New(t, 2)
	m := newMachine(system(f), Options{Kernels: f})
	graphs := []bool{false, true}
	if i := longtest.Drawn(t) % 2; !longtest.On() {
		graphs = graphs[i : i+1]
	}
	largestBatches(t, m, 2, 16, 32768, 7<<20, graphs, func(bytes int64) func() {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		for _, g := range m.sys.GPUs {
			f.Limit = max(f.Limit, f.Reach.Mapped(int32(g.Device))+bytes)
		}
		return func() { f.Limit = 0 }
	})
}

// byAlgorithms returns the algorithms by which the collectives of a run were executed.
func byAlgorithms(r *hocket.Report) string {
	var names []string
	for _, o := range r.Overlap {
		names = append(names, o.Algorithm)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// shardedLayers is examples/forum.hkt with weights split over the ranks, so that strategies apply to its layers.
func shardedLayers(layers int64) string {
	var b strings.Builder
	b.WriteString("dim B = 4\ndim D = 4\nmesh tp[2]\nfunc forum(%x: bf16[B, D]")
	for i := range layers {
		fmt.Fprintf(&b, ", %%w%d: bf16[D, D/tp]", i)
	}
	b.WriteString(") -> bf16[B, D] {\n")
	in := "x"
	for i := range layers {
		fmt.Fprintf(&b, "  %%h%d: bf16[B, D] = linear %%%s, %%w%d\n", i, in, i)
		in = fmt.Sprintf("h%d", i)
	}
	fmt.Fprintf(&b, "  return %%%s\n}\n", in)
	return b.String()
}

// largestBatches tests the largest batch of a model with the given number of layers, with weights of dim × dim. The
// function leave reserves memory so that the given number of bytes is free on each device.
func largestBatches(t *testing.T, m *machine, layers, dim, rows, bytes int64, graphs []bool, leave func(int64) func()) {
	machine := modeltest.Open(t, m)
	whole, err := os.ReadFile("../../../examples/forum.hkt")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, strategy string }{
		{"whole weights", string(whole), "sequential"},
		{"sharded weights", shardedLayers(layers), "sequential"},
		{"sharded weights", shardedLayers(layers), "chunked(4)"},
		{"sharded weights", shardedLayers(layers), "exchange"},
	} {
		p, err := hocket.Parse("forum.hkt", c.text)
		if err != nil {
			t.Fatal(err)
		}
		dims := map[string]int64{"D": dim}
		if c.strategy == "sequential" && strings.Contains(c.text, "dim L") {
			dims["L"] = layers
		}
		bind := func(batch int64) hocket.Binding {
			dims["B"] = batch
			return hocket.Binding{Dims: dims}
		}
		planned := func(batch int64) int64 {
			r, err := p.PlanMemory(hocket.LowerOptions{Strategy: c.strategy, Binding: bind(batch)})
			if err != nil {
				t.Fatal(err)
			}
			return r.Report.Peak
		}
		fits := rows
		for step := rows << 20; step >= rows; step >>= 1 {
			for fits+step <= bytes/dim && planned(fits+step) <= bytes {
				fits += step
			}
		}
		for _, graph := range graphs {
			algorithm := ""
			load := func(batch int64) (held int64, err error) {
				model, err := machine.Load(p, bind(batch), hocket.LoadOptions{Strategy: c.strategy, Graph: graph,
					Cache: math.MaxInt64})
				if err != nil {
					return 0, err
				}
				args := hocket.Args{In: map[string]*hocket.Tensor{}}
				sig, err := p.Bind(bind(batch))
				if err != nil {
					t.Fatal(err)
				}
				for _, in := range sig.In {
					if args.In[in.Name], err = hocket.NewTensor(in.DType, in.Shape...); err != nil {
						t.Fatal(err)
					}
				}
				reports, err := model.RunBatch(t.Context(), []hocket.Args{args, args})
				if err == nil {
					algorithm = byAlgorithms(reports[1])
				}
				held = machine.Stats().Plans.Device
				return held, errors.Join(err, model.Close())
			}
			if _, err := load(min(fits, 32*rows)); err != nil { // libraries allocate memory at their first use
				t.Fatal(err)
			}
			release := leave(bytes)
			run := fits
			held, err := load(run)
			if errors.Is(err, hocket.ErrOutOfMemory) {
				run = max(fits-slack*rows, rows)
				held, err = load(run)
			}
			_, more := load(fits + rows)
			release()
			switch {
			case err != nil:
				t.Fatalf("%s, %s, graph %v: %d bytes are planned for a batch of %d, but with %d free a batch of %d returns: %v",
					c.name, c.strategy, graph, planned(fits), fits, bytes, run, err)
			case !errors.Is(more, hocket.ErrOutOfMemory):
				t.Errorf("%s, %s, graph %v: with %d bytes free a batch of %d returns: %v", c.name, c.strategy, graph, bytes,
					fits+rows, more)
			}
			t.Logf("%s, %s, graph %v: batch %d planned, batch %d ran within %d bytes, %d bytes allocated, by %s", c.name,
				c.strategy, graph, fits, run, bytes, held, algorithm)
		}
	}
}
