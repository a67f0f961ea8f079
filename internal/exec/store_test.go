package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// storing is a machine that counts its open worlds, and may lack features that a store needs.
type storing struct {
	device.Machine
	open int
	// worlds holds all worlds that were opened, in order.
	worlds []*storingWorld
	lacks  bool // whether it cannot lend memory
	fails  int  // number of allocations until one fails; 0 if none fails
	took   []device.Memory
	// closing is called before a world is closed; may be nil.
	closing func()
}

func (m *storing) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	m.open++
	m.worlds = append(m.worlds, &storingWorld{w, m})
	return m.last(), nil
}

// last returns the world that was opened last.
func (m *storing) last() *storingWorld { return m.worlds[len(m.worlds)-1] }

type storingWorld struct {
	device.World
	m *storing
}

func (w *storingWorld) Close() error {
	w.m.open--
	if w.m.closing != nil {
		w.m.closing()
	}
	return w.World.Close()
}

func (w *storingWorld) Device(rank int) device.Device {
	d := storingDevice{w.World.Device(rank), w.m}
	return d
}

type storingDevice struct {
	device.Device
	m *storing
}

func (d storingDevice) Borrow(m device.Memory) (device.Memory, error) {
	if d.m.lacks {
		return nil, device.ErrUnsupported
	}
	return d.Device.Borrow(m)
}

func (d storingDevice) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	if d.m.fails--; d.m.fails == 0 {
		return nil, fmt.Errorf("this one: %w", device.ErrOutOfMemory)
	}
	mem, err := d.Device.Alloc(bytes, kind)
	d.m.took = append(d.m.took, mem)
	return mem, err
}

// sharedWeights returns the number of parameters in the store.
func sharedWeights(p *Program) (n int) {
	for _, w := range p.im.Shared {
		if w != nil {
			n++
		}
	}
	return n
}

// stored loads a plan with a store for the parameter w and the parameters in more.
func stored(t *testing.T, m device.Machine, s *resident.Weights, p *plan.Plan, more ...string) *Program {
	t.Helper()
	weights := map[string]bool{"w": true}
	for _, name := range more {
		weights[name] = true
	}
	return loadOn(t, m, p, Options{Options: image.Options{Store: s, Weights: weights}})
}

// taller is the plan chunked with one more command, so that the two plans differ.
func taller(ranks int) *plan.Plan {
	p := chunked(ranks, "")
	at := slices.IndexFunc(p.Buffers, func(b plan.Buffer) bool { return b.Role == plan.RoleOutput })
	for i := range p.Buffers {
		if i >= at {
			p.Buffers[i].Offset += 5 * plan.Align
		}
	}
	p.ArenaBytes += 5 * plan.Align
	return p
}

// TestStore checks that programs with one store have one copy of a weight, which is uploaded once and freed with the
// last of these programs, and that the programs' arenas do not contain the weight.
func TestStore(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) { testStore(t, mode) })
	}
}

func testStore(t *testing.T, mode cpu.Mode) {
	m := &storing{Machine: cpu.New(cpu.Options{Mode: mode, Seed: 3})}
	s := resident.NewWeights(m)
	alone := stored(t, m, nil, chunked(2, ""))
	one := stored(t, m, s, chunked(2, ""))
	two := stored(t, m, s, taller(2))
	w := plan.Aligned(one.im.Plan.Buffers[1].Bytes)
	if got, want := one.Held().Device, alone.Held().Device-2*w; got != want {
		t.Errorf("with the weight elsewhere %d bytes are held, want %d", got, want)
	}
	if got := s.Held().Device; got != 2*w {
		t.Errorf("the store holds %d bytes, want %d", got, 2*w)
	}
	in := chunkedInputs(t, 2, 1)
	known := map[*tensor.Tensor]*Weights{} // the same value for all batches, so that programs recognize the weights
	run := func(prog *Program, what string, x uint64, w, was *tensor.Tensor, lasts bool) {
		t.Helper()
		in := map[string]*tensor.Tensor{"x": ints(t, ir.F32, "x", x, 10, 3)}
		var weights *Weights
		if known[w] == nil {
			known[w] = NewWeights(map[string]*tensor.Tensor{"w": w})
		}
		if weights = known[w]; !lasts {
			weights, in["w"] = nil, w
		}
		results, err := prog.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in, in}), weights)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if got, want := floats(r.Outputs["y"]),
				wantChunked(2, map[string]*tensor.Tensor{"x": in["x"], "w": was}); !slices.Equal(got, want) {
				t.Fatalf("%s: got %v, want %v", what, got, want)
			}
		}
	}
	first := in["w"]
	was := first.Clone()
	run(one, "the first", 2, first, was, true)
	clear(first.Data) // callers must not do this; it shows that the tensor was uploaded for both programs
	run(two, "the second, by what the first uploaded", 3, first, was, true)
	second := ints(t, ir.F32, "w", 9, 8, 3)
	own := second.Clone()
	run(two, "the second's own", 4, own, own, false)
	copy(first.Data, was.Data)
	run(one, "the first after that", 5, first, was, true)
	run(two, "another", 6, second, own, true)
	clear(second.Data)
	run(one, "another, by what the second uploaded", 7, second, own, true)
	if m.open != 4 {
		t.Errorf("%d worlds are open, want three programs' and the store's", m.open)
	}
	both := stored(t, m, s, chunked(2, ""), "x")
	if got, want := s.Held().Device, 2*(w+plan.Aligned(both.im.Plan.Buffers[0].Bytes)); got != want {
		t.Errorf("with another parameter the store holds %d bytes, want %d", got, want)
	}
	run(both, "with another parameter", 10, second, own, true)
	if err := both.Close(); err != nil {
		t.Error(err)
	}
	if got := s.Held().Device; got != 2*w {
		t.Errorf("with one again the store holds %d bytes, want %d", got, 2*w)
	}
	if err := errors.Join(one.Close(), one.Close()); err != nil {
		t.Error(err)
	}
	run(two, "after the other is gone", 8, second, own, true)
	copy(second.Data, own.Data)
	two.im.World.Abort(errors.New("a fault"))
	if _, err := two.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}),
		NewWeights(in)); err == nil || two.Usable() {
		t.Error("the program ran after a fault")
	}
	if m.open != 1 || s.Held() != (device.Held{}) {
		t.Errorf("%d worlds are open, want only that of the program without a store; the store holds %v", m.open, s.Held())
	}
	three := stored(t, m, s, chunked(2, ""))
	run(three, "loaded anew", 9, second, own, true)
}

// TestStoreFault checks that weights that a failed program has uploaded are uploaded again.
func TestStoreFault(t *testing.T) {
	m := &storing{Machine: cpu.New(cpu.Options{})}
	s := resident.NewWeights(m)
	one, two := stored(t, m, s, chunked(2, "")), stored(t, m, s, chunked(2, ""))
	in := chunkedInputs(t, 2, 1)
	if err := one.Preload(context.Background(), map[string]*tensor.Tensor{"w": in["w"]}); err != nil {
		t.Fatal(err)
	}
	one.im.World.Abort(errors.New("a fault"))
	if _, err := one.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}),
		NewWeights(in)); err == nil {
		t.Error("the program ran after a fault")
	}
	for i := range in["w"].Len() {
		in["w"].SetFloat64(i, 1) // shows whether the tensor is read again
	}
	results, err := two.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in}), NewWeights(in))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := floats(results[0].Outputs["y"]), wantChunked(2, in); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestStoreDeclines checks that weights are used in place where possible, that others are in the arena, and that the
// results are right. The cases are machines that cannot lend memory, and plans that write a parameter, access it from
// peers, have no block of it on some rank, or have another value in the same memory.
func TestStoreDeclines(t *testing.T) {
	for name, c := range map[string]struct {
		plan  func() *plan.Plan
		lacks bool
		lent  int
	}{
		"a machine that cannot": {func() *plan.Plan { return chunked(2, "") }, true, 0},
		"another layout":        {func() *plan.Plan { return byColumns(chunked(2, "")) }, false, 2},
		"at the arena's end": {func() *plan.Plan {
			p := chunked(2, "")
			x, y := &p.Buffers[0], &p.Buffers[2]
			y.Offset, x.Offset = p.ArenaBytes, p.ArenaBytes+plan.Aligned(y.Bytes)
			p.ArenaBytes = x.Offset + x.Bytes
			return p
		}, false, 2},
		"written": {func() *plan.Plan {
			p := chunked(2, "")
			p.Inputs[1].Inout = true
			return p
		}, false, 1},
		"none on a rank": {func() *plan.Plan {
			p := chunked(2, "")
			b := &builder{p: p, dt: ir.F32, where: map[string]int32{}}
			buf := b.buffer("%only", plan.RoleInput, 3)
			p.Inputs = append(p.Inputs, plan.IO{Name: "only", DType: ir.F32, Shape: []int64{3},
				Parts: []plan.IOPart{{Ref: b.ref(1, buf, 3), Lo: []int64{0}}, {Ref: plan.Absent(), Lo: []int64{0}}}})
			p.Cmds = append([]plan.Cmd{{Kind: plan.Input, Rank: 1, Stream: p.Main[1], IO: 2, Peer: -1}}, p.Cmds...)
			return p
		}, false, 2},
		"two at one place": {func() *plan.Plan {
			p := chunked(2, "")
			only := p.Inputs[1]
			only.Name = "only"
			p.Inputs = append(p.Inputs, only)
			for r := range int32(2) {
				p.Cmds = append([]plan.Cmd{{Kind: plan.Input, Rank: r, Stream: p.Main[r], IO: 2, Peer: -1}}, p.Cmds...)
			}
			return p
		}, false, 1},
		"another buffer there": {func() *plan.Plan {
			p := chunked(2, "")
			p.Buffers = append(p.Buffers,
				plan.Buffer{Name: "%other", Role: plan.RoleValue, Offset: p.Buffers[1].Offset, Bytes: 4})
			return p
		}, false, 1},
		"read at a peer": {func() *plan.Plan {
			p := chunked(2, "")
			b := &builder{p: p, dt: ir.F32, where: map[string]int32{}}
			for i, s := range p.Streams {
				b.where[fmt.Sprint(int(s.Rank), s.Name)] = int32(i)
			}
			seen := b.buffer("%seen", plan.RoleValue, 4, 3)
			b.put(0, "main", b.ref(1, seen, 4, 3), b.ref(0, 1, 4, 3))
			return p
		}, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := &storing{Machine: cpu.New(cpu.Options{}), lacks: c.lacks}
			s := resident.NewWeights(m)
			prog := stored(t, m, s, c.plan(), "x", "only")
			if lent := sharedWeights(prog); lent != c.lent {
				t.Errorf("%d weights are lent, want %d", lent, c.lent)
			}
			rows := chunkedInputs(t, 2, 1)
			in := map[string]*tensor.Tensor{"x": rows["x"], "w": rows["w"]}
			if name == "another layout" {
				in["w"] = sideBySide(t, rows["w"])
			}
			switch name {
			case "none on a rank":
				in["only"] = ints(t, ir.F32, "only", 5, 3)
			case "two at one place": // w is uploaded last
				in["only"] = ints(t, ir.F32, "only", 5, 8, 3)
			}
			for range 2 {
				results, err := prog.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in, in}),
					NewWeights(in))
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range results {
					if got, want := floats(r.Outputs["y"]), wantChunked(2, rows); !slices.Equal(got, want) {
						t.Errorf("got %v, want %v", got, want)
					}
				}
			}
			if err := prog.Close(); err != nil {
				t.Error(err)
			}
			if m.open != 0 || s.Held() != (device.Held{}) {
				t.Errorf("%d worlds are open, %v is held", m.open, s.Held())
			}
		})
	}
}

// TestStoreShort checks that, whichever allocation of a load fails for lack of memory, nothing remains allocated and
// the next load succeeds.
func TestStoreShort(t *testing.T) {
	m := &storing{Machine: cpu.New(cpu.Options{})}
	s := resident.NewWeights(m)
	for call := 1; ; call++ {
		m.fails = call
		prog, err := Load(context.Background(), m, chunked(2, ""),
			Options{Options: image.Options{Store: s, Weights: map[string]bool{"w": true, "x": true}}})
		if err == nil {
			if call < 7 {
				t.Errorf("allocation %d was not attempted", call)
			}
			if err := prog.Close(); err != nil {
				t.Error(err)
			}
			break
		}
		if !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("call %d: %v", call, err)
		}
		if m.open != 0 || s.Held() != (device.Held{}) {
			t.Errorf("call %d: %d worlds are open, %v is held", call, m.open, s.Held())
		}
		m.fails = 0
		stored(t, m, s, chunked(2, "")).Close()
	}
	if m.open != 0 || s.Held() != (device.Held{}) {
		t.Errorf("%d worlds are open, %v is held", m.open, s.Held())
	}
}
