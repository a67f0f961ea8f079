package exec

import (
	"context"
	"errors"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestSharedInputs checks that contiguous blocks are not copied from the caller's memory, that runs of a batch with the
// same tensor share one copy of blocks that are not contiguous, and that few frames outlive a batch.
func TestSharedInputs(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, byColumns(chunked(2, "")), Options{})
	rows := chunkedInputs(t, 2, 1)["w"]
	w := sideBySide(t, rows)
	var batch []map[string]*tensor.Tensor
	for i := range 7 {
		batch = append(batch, map[string]*tensor.Tensor{"w": w, "x": ints(t, ir.F32, "x", uint64(2+i), 10, 3)})
	}
	if err := prog.binder.bind(Inputs(batch), nil, prog.weights.all); err != nil {
		t.Fatal(err)
	}
	for i, f := range prog.binder.frames {
		for b, x := range f.spare {
			if isW := b >= 2; (x != nil) != (isW && i == 0) {
				t.Errorf("frame %d has storage for block %d: %v", i, b, x != nil)
			}
		}
		if &f.in[0][0] != &batch[i]["x"].Data[0] || &f.in[2][0] != &prog.binder.frames[0].spare[2].Data[0] {
			t.Errorf("frame %d has copies", i)
		}
	}
	results, err := prog.RunBatch(context.Background(), Inputs(batch), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if got, want := floats(r.Outputs["y"]), wantChunked(2, map[string]*tensor.Tensor{"w": rows, "x": batch[i]["x"]}); !slices.Equal(got, want) {
			t.Errorf("run %d: got %v, want %v", i, got, want)
		}
	}
	if len(prog.binder.frames) > keptFrames {
		t.Errorf("%d frames are kept", len(prog.binder.frames))
	}
}

// byColumns changes the plan chunked so that w has shape [4, 3·ranks] and each rank holds some columns of w, so that
// blocks are not contiguous.
func byColumns(p *plan.Plan) *plan.Plan {
	io := &p.Inputs[1]
	io.Shape = []int64{4, 3 * int64(p.Ranks)}
	for r := range io.Parts {
		io.Parts[r].Lo = []int64{0, 3 * int64(r)}
	}
	return p
}

// sideBySide returns the tensor w for a plan that byColumns has changed.
func sideBySide(t *testing.T, w *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	ranks := w.Shape[0] / 4
	out, err := tensor.New(w.DType, []int64{4, 3 * ranks})
	if err != nil {
		t.Fatal(err)
	}
	for i := range w.Len() {
		r, n, k := i/12, i/3%4, i%3
		out.SetFloat64(n*3*ranks+r*3+k, w.Float64(i))
	}
	return out
}

// TestSubMesh checks that ranks without a block of a parameter or result, which have an Absent part, transfer nothing.
func TestSubMesh(t *testing.T) {
	b := newBuilder(3, ir.I64)
	x := b.buffer("%x", plan.RoleInput, 2)
	in := b.ioOf("x", x, false, []int64{2}, []int64{2})
	for _, r := range []int{0, 2} {
		in.Parts[r] = plan.IOPart{Ref: plan.Absent()}
	}
	b.p.Inputs = []plan.IO{in}
	out := in
	out.Name = "y"
	b.p.Outputs = []plan.IO{out}
	b.emit(1, "main", ir.InvalidOp, "input", plan.Cmd{Kind: plan.Input})
	b.emit(1, "main", ir.InvalidOp, "output", plan.Cmd{Kind: plan.Output})
	x0 := ints(t, ir.I64, "x", 1, 2)
	for _, mode := range modes {
		res, err := load(t, mode, 0, b.p, Options{Trace: true}).Run(context.Background(), map[string]*tensor.Tensor{"x": x0})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(res.Outputs["y"].Int64s(), x0.Int64s()) {
			t.Errorf("got %v, want %v", res.Outputs["y"].Int64s(), x0.Int64s())
		}
	}
}

// TestHostBuffer checks a plan that passes a tensor through a buffer in host memory on each rank.
func TestHostBuffer(t *testing.T) {
	b := newBuilder(2, ir.BF16)
	x := b.input("x", true, 6)
	h := b.buffer("%h", plan.RoleAlloc, 3)
	h2 := b.buffer("%h2", plan.RoleAlloc, 3)
	for i, buf := range []int32{h, h2} {
		b.p.Buffers[buf].Space, b.p.Buffers[buf].Offset = plan.Host, int64(i)*plan.Align
	}
	b.p.HostBytes = 2 * plan.Align
	y := b.result("y", true, 6)
	for r := range 2 {
		b.compute(r, "main", ir.OpCopy, b.ref(r, h, 3), b.ref(r, x, 3))
		b.compute(r, "main", ir.OpNeg, b.ref(r, h2, 3), b.ref(r, h, 3))
		b.compute(r, "main", ir.OpCopy, b.ref(r, y, 3), b.ref(r, h, 3))
	}
	b.output()
	x0 := ints(t, ir.BF16, "x", 1, 6)
	for _, mode := range modes {
		prog := load(t, mode, 0, b.p, Options{})
		for range 2 {
			res, err := prog.Run(context.Background(), map[string]*tensor.Tensor{"x": x0})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(res.Outputs["y"].Data, x0.Data) {
				t.Errorf("got %v, want %v", floats(res.Outputs["y"]), floats(x0))
			}
		}
	}
}

// TestEmpty checks plans whose tensors have zero extents: no element is moved, but every synchronisation takes place.
func TestEmpty(t *testing.T) {
	for _, mode := range modes {
		b := newBuilder(3, ir.F32)
		x := b.input("x", true, 0, 4)
		y := b.result("y", false, 0, 4)
		ch := b.channel("main")
		for r := range 3 {
			b.compute(r, "main", ir.OpRelu, b.ref(r, x, 0, 4), b.ref(r, x, 0, 4))
		}
		b.collective("main", ch, ir.OpAllGather, func(r int) plan.CollPart {
			return plan.CollPart{In: b.ref(r, x, 0, 4), Out: b.ref(r, y, 0, 4)}
		})
		b.output()
		x0, _ := tensor.New(ir.F32, []int64{0, 4})
		res, err := load(t, mode, 0, b.p, Options{}).Run(context.Background(), map[string]*tensor.Tensor{"x": x0})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Outputs["y"].String(); got != "f32[0, 4]" {
			t.Errorf("got %s", got)
		}
	}
}

// TestEarlyCancel checks that a context that has already ended leaves the program usable.
func TestEarlyCancel(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := prog.Run(ctx, chunkedInputs(t, 2, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := programs["chunked"].runBatch(t, prog, 2, 2, 1); err != nil {
		t.Error(err)
	}
}
