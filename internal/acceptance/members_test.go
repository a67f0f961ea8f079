package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/world"
)

// In these tests the members of a world are goroutines of one process, each with a separate machine. The tests check
// that members with different memory, arguments or contexts come to the same decision.

// members runs f in each of n members. memory is the memory per rank of each member's machine.
func members(t *testing.T, memory []int64, f func(w *world.World, m *hocket.Machine) error) {
	t.Helper()
	errs := make([]error, len(memory))
	dir := t.TempDir()
	var all sync.WaitGroup
	for rank := range memory {
		all.Go(func() {
			w, err := world.Join(t.Context(),
				world.Options{Rank: rank, Size: len(memory), ID: t.Name(), Dir: dir, StallTimeout: 20 * time.Second})
			if err != nil {
				errs[rank] = err
				return
			}
			m := modeltest.Open(t, cpu.New(cpu.Options{Peers: w, Memory: memory[rank], Host: 1 << 40}))
			if err := f(w, m); err != nil {
				errs[rank] = fmt.Errorf("member %d: %w", rank, err)
				w.Abort(err)
			}
			if err := m.Close(); err != nil && errs[rank] == nil {
				errs[rank] = err
			}
			_ = w.Leave()
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

const memberProgram = `dim T
mesh d[2]
func f(%x: f32[T/d, 64]) -> f32[T, 64] { return %x }`

// TestEvictionAgreed checks that, if one member lacks memory for another plan, all members unload
// the same plan, and that, if there is no plan left to unload, all get an error that names the
// member that lacks memory.
func TestEvictionAgreed(t *testing.T) {
	members(t, []int64{1 << 30, 8 << 20}, func(w *world.World, m *hocket.Machine) error {
		p, err := hocket.Parse("member.hkt", memberProgram)
		if err != nil {
			return err
		}
		model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Gather: true})
		if err != nil {
			return err
		}
		// A plan of 8192 rows needs 5 MiB per rank; the second member has no room for two of them.
		for i, rows := range []int64{8192, 64, 8190, 8192, 64, 8190} {
			x, err := hocket.NewTensor(p.IR().Funcs[0].Params[0].Type.DType, rows, 64)
			if err != nil {
				return err
			}
			for k := range x.Data {
				x.Data[k] = byte(k%101) / 2
			}
			r, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
			if err != nil {
				return fmt.Errorf("run %d of %d rows: %w", i, rows, err)
			}
			if got := r.Out[r.OutNames[0]]; string(got.Data) != string(x.Data) {
				return fmt.Errorf("run %d of %d rows: other bytes", i, rows)
			}
		}
		x, err := hocket.NewTensor(p.IR().Funcs[0].Params[0].Type.DType, 1<<16, 64)
		if err != nil {
			return err
		}
		_, err = model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
		if !errors.Is(err, hocket.ErrOutOfMemory) {
			return fmt.Errorf("too much for one member: got %v", err)
		}
		if w.Process() == 0 && !strings.Contains(err.Error(), "process 1") && !strings.Contains(err.Error(), "rank 1") {
			return fmt.Errorf("the error does not say who is short: %v", err)
		}
		// The world can still be used.
		small, err := hocket.NewTensor(x.DType, 2, 64)
		if err != nil {
			return err
		}
		_, err = model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": small}})
		return err
	})
}

// TestLocalBlocks checks that a member passes arguments and receives results as the blocks of its own ranks. A result
// with blocks on another member's ranks must not be returned as a global tensor.
func TestLocalBlocks(t *testing.T) {
	members(t, []int64{1 << 30, 1 << 30}, func(w *world.World, m *hocket.Machine) error {
		p, err := hocket.Parse("blocks.hkt", `dim T = 8
mesh d[4]
func f(%x: f32[T/d, 2], %k: f32[2]) -> (f32[T/d, 2], f32[T, 2]) {
  %y = add %x, %x
  %z: f32[T, 2] = reshard %y
  return %y, %z
}`)
		if err != nil {
			return err
		}
		model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
		if err != nil {
			return err
		}
		dt := p.IR().Funcs[0].Params[0].Type.DType
		block := func(rank int) *hocket.Tensor {
			x, err := hocket.FromFloats(dt, []float64{float64(4 * rank), 1, 2, 3}, 2, 2)
			if err != nil {
				t.Error(err)
			}
			return x
		}
		k, err := hocket.NewTensor(dt, 2)
		if err != nil {
			return err
		}
		own := map[int]*hocket.Tensor{}
		for _, rank := range []int{2 * w.Process(), 2*w.Process() + 1} {
			own[rank] = block(rank)
		}
		args := hocket.Args{InLocal: map[string]map[int]*hocket.Tensor{"x": own}, In: map[string]*hocket.Tensor{"k": k}}
		r, err := model.Run(context.Background(), args)
		if err != nil {
			return err
		}
		y, z := r.OutLocal["y"], r.Out["z"]
		if r.Out["y"] != nil || len(y) != 2 || z == nil {
			return fmt.Errorf("results: whole %v, blocks %v", r.Out, r.OutLocal)
		}
		for rank := range own {
			if got := fmt.Sprint(y[rank].Floats()); got != fmt.Sprint([]float64{float64(8 * rank), 2, 4, 6}) {
				return fmt.Errorf("block of rank %d: %s", rank, got)
			}
		}
		if got := z.Floats()[12]; got != 24 {
			return fmt.Errorf("the gathered result has %v for rank 3", got)
		}
		// These arguments are invalid: another member's block, a missing block, blocks together
		// with a global tensor, and a global tensor of which the member has only a part.
		delete(own, 2*w.Process())
		own[3-2*w.Process()] = block(0)
		_, err = model.Run(context.Background(), args)
		if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), ", but this process has no block of it for this rank") ||
			!strings.Contains(err.Error(), "is missing") {
			return fmt.Errorf("blocks of other members: got %v", err)
		}
		whole, err := hocket.NewTensor(dt, 8, 2)
		if err != nil {
			return err
		}
		args.In["x"] = whole
		if _, err = model.Run(context.Background(), args); !errors.Is(err, hocket.ErrInput) ||
			!strings.Contains(err.Error(), "is passed twice") {
			return fmt.Errorf("given twice: got %v", err)
		}
		args.InLocal, args.Out = nil, map[string]*hocket.Tensor{"y": whole}
		if _, err = model.Run(context.Background(), args); !errors.Is(err, hocket.ErrInput) ||
			!strings.Contains(err.Error(), "other processes hold blocks") {
			return fmt.Errorf("a part as a whole: got %v", err)
		}
		return nil
	})
}

// TestLocalBlocksStay checks that later runs do not change the blocks that a run returned, even if the blocks are
// columns of a whole result and are copied through storage that later runs reuse.
func TestLocalBlocksStay(t *testing.T) {
	members(t, []int64{1 << 30, 1 << 30}, func(w *world.World, m *hocket.Machine) error {
		p, err := hocket.Parse("columns.hkt", "mesh d[2]\nfunc f(%x: f32[3, 4/d]) -> f32[3, 4/d] { return %x }")
		if err != nil {
			return err
		}
		model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Gather: true})
		if err != nil {
			return err
		}
		var first *hocket.Tensor
		for run := range 2 {
			vals := make([]float64, 12)
			for i := range vals {
				vals[i] = float64(100*run + i)
			}
			x, err := hocket.FromFloats(p.IR().Funcs[0].Params[0].Type.DType, vals, 3, 4)
			if err != nil {
				return err
			}
			r, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
			if err != nil {
				return err
			}
			if name := r.OutNames[0]; run == 0 {
				first = r.OutLocal[name][w.Process()]
			} else if got := fmt.Sprint(r.Out[name].Floats()); got != fmt.Sprint(vals) {
				return fmt.Errorf("the whole result is %s", got)
			}
		}
		c := float64(2 * w.Process())
		if got, want := fmt.Sprint(first.Floats()),
			fmt.Sprint([]float64{c, c + 1, c + 4, c + 5, c + 8, c + 9}); got != want {
			return fmt.Errorf("after another run the block of the first run is %s, before it was %s", got, want)
		}
		return nil
	})
}

// TestDeviceTensorsOfMembers checks that state stays on the ranks of each member from run to run,
// and that a member that holds a part of a tensor cannot read the whole tensor.
func TestDeviceTensorsOfMembers(t *testing.T) {
	members(t, []int64{1 << 30, 1 << 30}, func(_ *world.World, m *hocket.Machine) error {
		p, err := hocket.Parse("state.hkt", `mesh d[2]
func step(%s: inout f32[4/d]) -> f32[4] {
  add %s, %s into %s
  %y = alloc f32[4]
  all_gather %s into %y, over=d, axis=0
  return %y
}`)
		if err != nil {
			return err
		}
		model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
		if err != nil {
			return err
		}
		state, err := model.NewDeviceTensor(t.Context(), "s", nil)
		if err != nil {
			return err
		}
		x, err := hocket.FromFloats(p.IR().Funcs[0].Params[0].Type.DType, []float64{1, 2, 3, 4}, 4)
		if err != nil {
			return err
		}
		if err := state.Write(t.Context(), x); err != nil {
			return err
		}
		device := map[string]*hocket.DeviceTensor{"s": state}
		for run := range 3 {
			r, err := model.Run(t.Context(), hocket.Args{DeviceIn: device, DeviceOut: device})
			if err != nil {
				return err
			}
			k := float64(int(2) << run)
			if got := fmt.Sprint(r.Out[r.OutNames[0]].Floats()); got != fmt.Sprint([]float64{k, 2 * k, 3 * k, 4 * k}) {
				return fmt.Errorf("run %d: %s", run, got)
			}
		}
		if _, err := state.Read(t.Context()); !errors.Is(err, hocket.ErrUnsupported) {
			return fmt.Errorf("reading a part as a whole: got %v", err)
		}
		return state.Close()
	})
}

// TestExpiredRun checks that a run whose context ends while it waits for another member ends the world, and that the
// other member's error names the member of that run.
func TestExpiredRun(t *testing.T) {
	members(t, []int64{1 << 30, 1 << 30}, func(w *world.World, m *hocket.Machine) error {
		p, err := hocket.Parse("member.hkt", memberProgram)
		if err != nil {
			return err
		}
		model, err := m.Load(p, hocket.Binding{Dims: map[string]int64{"T": 2}}, hocket.LoadOptions{Grace: -1})
		if err != nil {
			return err
		}
		if err := model.Prepare(t.Context(), nil); err != nil {
			return err
		}
		in, err := model.RandomInputs("zeros")
		if err != nil {
			return err
		}
		ctx := t.Context()
		if w.Process() == 0 { // only member 0 runs
			late, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			ctx = late
		} else {
			select {
			case <-w.Done():
			case <-time.After(time.Minute):
				return errors.New("the other's run does not end the world")
			}
		}
		_, err = model.Run(ctx, hocket.Args{In: in})
		var peer *hocket.PeerError
		switch {
		case w.Process() == 0 && !errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("whose context ended: %v", err)
		case w.Process() == 1 && (!errors.As(err, &peer) || peer.Rank != 0):
			return fmt.Errorf("the other: %v", err)
		}
		return nil
	})
}
