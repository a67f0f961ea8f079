package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestLasting checks that weights are uploaded for the first batch that has them, for a batch after one with other
// weights, and for no other batch. Changes to the weights' host memory in the meantime, which are not allowed, have no
// effect. On the scheduled machine, the adversary does not overwrite uploaded weights.
func TestLasting(t *testing.T) {
	for modeName, mode := range modes {
		for _, graph := range graphs() {
			t.Run(fmt.Sprintf("%s, graph %v", modeName, graph), func(t *testing.T) {
				for seed := range int64(10) {
					testLasting(t, load(t, mode, seed, byColumns(chunked(2, "")), Options{Graph: graph}))
				}
			})
		}
	}
}

// graphs returns the values of Options.Graph to test, as far as the machine supports graphs.
func graphs() []bool {
	if *onCUDA {
		return []bool{false, true}
	}
	return []bool{false}
}

func testLasting(t *testing.T, prog *Program) {
	t.Helper()
	rows := map[*tensor.Tensor]*tensor.Tensor{} // the contents of a tensor when it was created
	weight := func(seed uint64) *tensor.Tensor {
		r := chunkedInputs(t, 2, seed)["w"]
		w := sideBySide(t, r)
		rows[w] = r
		return w
	}
	first, second, own := weight(1), weight(2), weight(3)
	spoil := func(w *tensor.Tensor) { clear(w.Data) }
	mend := func(w *tensor.Tensor) { copy(w.Data, sideBySide(t, rows[w]).Data) }
	x := uint64(10)
	// the same value for all batches, so that the program recognizes the weights
	known := map[*tensor.Tensor]*Weights{nil: NewWeights(nil)}
	for i, s := range []struct {
		what    string
		before  func(*tensor.Tensor)
		weights *tensor.Tensor   // that remain on the devices
		ws      []*tensor.Tensor // arguments of each run of the batch
	}{
		{"nothing lasts", nil, nil, []*tensor.Tensor{second, first}},
		{"the first time", nil, first, []*tensor.Tensor{first, first, first}},
		{"again, with other bytes", spoil, first, []*tensor.Tensor{first, first}},
		{"others", nil, second, []*tensor.Tensor{second}},
		{"others again", spoil, second, []*tensor.Tensor{second, second}},
		{"one run has its own", mend, second, []*tensor.Tensor{second, own, second}},
		{"after that", nil, second, []*tensor.Tensor{second, second}},
		{"all have their own", nil, second, []*tensor.Tensor{own}},
		{"after that, too", nil, second, []*tensor.Tensor{second}},
		{"none lasts any more", nil, nil, []*tensor.Tensor{second, own}},
	} {
		if s.before != nil {
			s.before(s.weights)
		}
		var batch, want []map[string]*tensor.Tensor
		for _, w := range s.ws {
			x++
			in := chunkedInputs(t, 2, x)
			delete(in, "w")
			if w != s.weights {
				in["w"] = w
			}
			batch = append(batch, in)
			want = append(want, map[string]*tensor.Tensor{"x": in["x"], "w": rows[w]})
		}
		if known[s.weights] == nil {
			known[s.weights] = NewWeights(map[string]*tensor.Tensor{"w": s.weights})
		}
		results, err := prog.RunBatch(context.Background(), Inputs(batch), known[s.weights])
		if err != nil {
			t.Fatalf("step %d, %s: %v", i, s.what, err)
		}
		for k, r := range results {
			if got, want := floats(r.Outputs["y"]), wantChunked(2, want[k]); !slices.Equal(got, want) {
				t.Fatalf("step %d, %s, run %d: got %v, want %v", i, s.what, k, got, want)
			}
		}
	}
}

// TestLastingUploads checks that the uploads of runs by graph are determined before a graph exists, because the first
// graph may be recorded for a capture, when the weights are already on the devices.
func TestLastingUploads(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	weights := NewWeights(map[string]*tensor.Tensor{"w": in["w"]})
	delete(in, "w")
	if _, err := prog.RunBatch(t.Context(), Inputs([]map[string]*tensor.Tensor{in}), weights); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range prog.weights.uploads() {
		got = append(got, prog.im.Inputs[prog.im.Plan.Cmds[c].IO].Name)
	}
	if !slices.Equal(got, []string{"x", "x"}) {
		t.Errorf("a run uploads %v, want x on both ranks", got)
	}
}

// TestLastingTrace checks that the trace of the run that uploads weights shows the upload, that traces of later runs do
// not, and that no frame holds blocks that are on the devices.
func TestLastingTrace(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, byColumns(chunked(2, "")), Options{Trace: true})
	in := chunkedInputs(t, 2, 1)
	in["w"] = sideBySide(t, in["w"])
	for i, want := range []int{4, 4, 2, 2} {
		weights := map[string]*tensor.Tensor{}
		if i > 0 {
			weights["w"] = in["w"]
		}
		results, err := prog.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}),
			NewWeights(weights))
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, e := range results[0].Trace.Events {
			if e.Name == "input" {
				got++
			}
		}
		if got != want {
			t.Errorf("run %d: %d uploads in the trace, want %d", i, got, want)
		}
		for _, f := range prog.binder.frames {
			if f.in[0] != nil || f.in[2] != nil || (f.spare[2] == nil) != (i > 0) {
				t.Errorf("after the run a frame has blocks of x: %v, of w: %v, and storage for them: %v", f.in[0] != nil,
					f.in[2] != nil, f.spare[2])
			}
		}
	}
}

// ending is a world that ends a context while a caller waits for work.
type ending struct {
	device.World
	end func()
}

func (w ending) Sync(ctx context.Context) error {
	w.end()
	return w.World.Sync(ctx)
}

// TestHold checks that Preload uploads weights before the run until its context ends, that a later call continues with
// the remaining weights, and that the program can run in the meantime. A tensor that does not fit the parameter gives
// an error before anything is uploaded.
func TestHold(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	want := wantChunked(2, in)
	world := prog.im.World
	for i, left := range []string{"w", ""} {
		ctx, cancel := context.WithCancel(context.Background())
		prog.im.World = ending{world, cancel}
		err := prog.Preload(ctx, in)
		prog.im.World = world
		if errors.Is(err, context.Canceled) != (left != "") || left == "" && err != nil || !prog.Usable() {
			t.Fatalf("time %d: %v, usable %v", i, err, prog.Usable())
		}
		for name, x := range in {
			if name != left {
				clear(x.Data) // callers must not do this; it shows when the tensor was read
			}
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := prog.Preload(ended, in); err != nil {
		t.Errorf("Preload of weights that are already uploaded: %v", err)
	}
	results, err := prog.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}), NewWeights(in))
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(results[0].Outputs["y"]); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	traced := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{Trace: true})
	if err := traced.Preload(context.Background(), in); err != nil {
		t.Fatal(err)
	}
	if results, err = traced.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}),
		NewWeights(in)); err != nil {
		t.Fatal(err)
	}
	for _, e := range results[0].Trace.Events {
		if e.Name == "input" {
			t.Errorf("the run's trace contains uploads by Preload")
		}
	}
	wrong := map[string]*tensor.Tensor{"w": in["x"]}
	if err := prog.Preload(context.Background(), wrong); !errors.Is(err, blocks.ErrInput) {
		t.Errorf("Preload of a tensor of the wrong shape: %v", err)
	}
	if err := prog.Close(); err != nil {
		t.Fatal(err)
	}
	if err := prog.Preload(context.Background(), in); !errors.Is(err, ErrUnusable) {
		t.Errorf("closed: %v", err)
	}
}

// stuck is a world whose work does not end.
type stuck struct{ device.World }

func (w stuck) Sync(ctx context.Context) error {
	<-ctx.Done()
	return &device.Expired{Err: ctx.Err(), Cause: context.Cause(ctx)}
}

// TestHoldStuck checks that an upload that does not end is abandoned some time after the context has ended.
func TestHoldStuck(t *testing.T) { synctest.Test(t, testHoldStuck) }

func testHoldStuck(t *testing.T) {
	defer func(was time.Duration) { grace.Transfer = was }(grace.Transfer)
	grace.Transfer = 10 * time.Millisecond
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	prog.im.World = stuck{prog.im.World}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := prog.Preload(ctx, chunkedInputs(t, 2, 1)); !errors.Is(err, context.DeadlineExceeded) || prog.Usable() {
		t.Errorf("%v, usable %v", err, prog.Usable())
	}
}

// TestHoldFails checks that a failed upload makes the program unusable, as a failed run does.
func TestHoldFails(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	lost := errors.New("lost")
	prog.im.World.Abort(lost)
	if err := prog.Preload(context.Background(), chunkedInputs(t, 2, 1)); !errors.Is(err, lost) || prog.Usable() {
		t.Errorf("%v, usable %v", err, prog.Usable())
	}
}

// stager is a world that records the sizes of the buffers that it must reserve.
type stager struct {
	device.World
	sizes []int64
}

func (w *stager) Stage(sizes []int64, _ int) error {
	w.sizes = sizes
	return nil
}

// TestLastingStaged checks that no staging is reserved for weights on the devices, unless they are uploaded for each
// run again.
func TestLastingStaged(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	w := &stager{World: prog.im.World}
	prog.im.World = w
	in := chunkedInputs(t, 2, 1)
	lasts := map[string]*tensor.Tensor{"w": in["w"]}
	const x, each, y = 5 * 3 * 4, 4 * 3 * 4, 5 * 4 * 4 // bytes of a block
	for i, s := range []struct {
		weights map[string]*tensor.Tensor
		want    []int64
	}{
		{lasts, []int64{x, x, 0, 0, y, y}}, {lasts, nil}, {nil, []int64{x, x, each, each, y, y}}, {nil, nil},
		{lasts, nil},
	} {
		w.sizes = nil
		if _, err := prog.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}),
			NewWeights(s.weights)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w.sizes, s.want) {
			t.Errorf("batch %d: staged for %v, want %v", i, w.sizes, s.want)
		}
	}
}

// TestWritten checks that parameters that the program writes are uploaded for each run, even if they are declared as
// weights: an inout parameter, and a parameter that a command writes although it is not inout.
func TestWritten(t *testing.T) {
	for _, inout := range []bool{false, true} {
		t.Run(fmt.Sprint("inout ", inout), func(t *testing.T) {
			b := newBuilder(1, ir.F32)
			x := b.input("x", false, 3)
			y := b.result("y", false, 3)
			rx, ry := b.ref(0, x, 3), b.ref(0, y, 3)
			b.compute(0, "main", ir.OpAdd, ry, rx, rx)
			if inout {
				b.p.Inputs[0].Inout = true
			} else {
				b.compute(0, "main", ir.OpAdd, rx, rx, rx)
			}
			b.output()
			prog := load(t, cpu.Concurrent, 0, b.p, Options{})
			in := map[string]*tensor.Tensor{"x": ints(t, ir.F32, "x", 1, 3)}
			for range 3 {
				in["x"].SetFloat64(0, in["x"].Float64(0)+1)
				results, err := prog.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}),
					NewWeights(in))
				if err != nil {
					t.Fatal(err)
				}
				want := floats(in["x"])
				for i := range want {
					want[i] *= 2
				}
				if got := floats(results[0].Outputs["y"]); !slices.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			}
		})
	}
}
