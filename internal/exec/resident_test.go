package exec

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// doubling is a plan that doubles each parameter in place on two ranks, split by rows.
func doubling(params ...string) *plan.Plan {
	b := newBuilder(2, ir.F32)
	for _, name := range params {
		x := b.input(name, true, 4, 3)
		b.p.Outputs = append(b.p.Outputs, b.ioOf(name, x, true, []int64{4, 3}, []int64{2, 3}))
	}
	for i := range b.p.Inputs {
		b.p.Inputs[i].Inout = true
		for r := range 2 {
			x := b.ref(r, b.p.Inputs[i].Parts[0].Ref.Buf, 2, 3)
			b.compute(r, "main", ir.OpAdd, x, x, x)
		}
	}
	b.output()
	return b.p
}

// TestResident checks that a plan that can work in a device tensor does so, copies nothing and has no space for the
// tensor in its arena, and that other plans copy. Both kinds of plans must give the same results.
func TestResident(t *testing.T) {
	for name, c := range map[string]struct {
		plan     func() *plan.Plan
		resident bool
	}{
		"in place": {func() *plan.Plan { return doubling("x") }, true},
		"returned elsewhere": {func() *plan.Plan {
			p := doubling("x")
			b := &builder{p: p, dt: ir.F32, where: map[string]int32{}}
			buf := b.buffer("%there", plan.RoleOutput, 2, 3)
			for i := range p.Cmds {
				if p.Cmds[i].Kind == plan.Compute {
					p.Cmds[i].Outs = []plan.Ref{b.ref(int(p.Cmds[i].Rank), buf, 2, 3)}
				}
			}
			p.Outputs[0] = b.ioOf("x", buf, true, []int64{4, 3}, []int64{2, 3})
			return p
		}, false},
		"part of a buffer": {func() *plan.Plan {
			p := doubling("x")
			p.Buffers[0].Bytes += 4
			return p
		}, false},
		"two at one place": {func() *plan.Plan {
			p := doubling("x")
			twin := p.Inputs[0]
			twin.Name, twin.Inout = "twin", false
			p.Inputs = append(p.Inputs, twin)
			for r := range int32(2) {
				p.Cmds = append([]plan.Cmd{{Kind: plan.Input, Rank: r, Stream: p.Main[r], IO: 1, Peer: -1}}, p.Cmds...)
			}
			return p
		}, false},
	} {
		for mode, cpuMode := range modes {
			t.Run(name+", "+mode, func(t *testing.T) {
				dev, s := tensorsOn(cpuMode)
				d := newDeviceTensor(t, s, loadOn(t, dev, doubling("x"), Options{}), "x")
				x := ints(t, ir.F32, "x", 3, 4, 3)
				if err := d.Write(t.Context(), x); err != nil {
					t.Fatal(err)
				}
				prog := loadOn(t, dev, c.plan(), Options{Options: image.Options{Resident: map[string]*resident.DeviceTensor{"x": d}}})
				if got := prog.im.WorksIn("x", d); got != c.resident {
					t.Errorf("works in the tensor: %v, want %v", got, c.resident)
				}
				if want := prog.im.Plan.ArenaBytes - plan.Align; c.resident && prog.im.ArenaBytes() != want {
					t.Errorf("the arena has %d bytes, want %d", prog.im.ArenaBytes(), want)
				}
				on := map[string]*resident.DeviceTensor{"x": d}
				batch := make([]map[string]*tensor.Tensor, 3)
				if name == "two at one place" { // x's upload comes last
					for i := range batch {
						batch[i] = map[string]*tensor.Tensor{"twin": x}
					}
				}
				if _, err := prog.RunBatch(t.Context(), joined(batch, slices.Repeat([]Args{{DeviceIn: on, DeviceOut: on}}, 3)), nil); err != nil {
					t.Fatal(err)
				}
				got, err := d.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range floats(got) {
					if want := 8 * x.Float64(int64(i)); v != want {
						t.Fatalf("got %v, want 8 times %v", floats(got), floats(x))
					}
				}
			})
		}
	}
}

// TestResidentOnly checks that a program that works in a device tensor refuses runs with another argument for that
// parameter, and runs that use the tensor a second time.
func TestResidentOnly(t *testing.T) {
	dev, s := tensorsOn(cpu.Concurrent)
	plain := loadOn(t, dev, doubling("x"), Options{})
	d, other := newDeviceTensor(t, s, plain, "x"), newDeviceTensor(t, s, plain, "x")
	x := ints(t, ir.F32, "x", 3, 4, 3)
	if err := errors.Join(d.Write(t.Context(), x), other.Write(t.Context(), x)); err != nil {
		t.Fatal(err)
	}
	prog := loadOn(t, dev, doubling("x"), Options{Options: image.Options{Resident: map[string]*resident.DeviceTensor{"x": d}}})
	type devs = map[string]*resident.DeviceTensor
	for name, c := range map[string]struct {
		in     map[string]*tensor.Tensor
		direct Args
	}{
		"given by the host":  {map[string]*tensor.Tensor{"x": x}, Args{}},
		"given another":      {nil, Args{DeviceIn: devs{"x": other}, DeviceOut: devs{"x": other}}},
		"left elsewhere":     {nil, Args{DeviceIn: devs{"x": d}, DeviceOut: devs{"x": other}}},
		"left with the host": {nil, Args{DeviceIn: devs{"x": d}}},
	} {
		if _, err := prog.RunBatch(t.Context(), joined([]map[string]*tensor.Tensor{c.in}, []Args{c.direct}),
			nil); !errors.Is(err, blocks.ErrInput) || !strings.Contains(err.Error(), "x is resident in a device tensor") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := d.Read(t.Context()); err != nil || !slices.Equal(got.Data, x.Data) {
		t.Errorf("the tensor contains %v, %v", got, err)
	}
	for name, c := range map[string]struct {
		direct Args
		inout  bool
		want   bool
	}{
		"updated":                {Args{DeviceIn: devs{"x": d}, DeviceOut: devs{"x": d}}, true, true},
		"read":                   {Args{DeviceIn: devs{"x": d}}, false, true},
		"beside others":          {Args{DeviceIn: devs{"x": d, "y": other}, DeviceOut: devs{"x": d, "z": other}}, true, true},
		"read, and left in":      {Args{DeviceIn: devs{"x": d}, DeviceOut: devs{"z": d}}, false, false},
		"updated, and read from": {Args{DeviceIn: devs{"x": d, "y": d}, DeviceOut: devs{"x": d}}, true, false},
		"read twice":             {Args{DeviceIn: devs{"x": d, "y": d}}, false, false},
		"updated, and left in":   {Args{DeviceIn: devs{"x": d}, DeviceOut: devs{"x": d, "z": d}}, true, false},
	} {
		if got := c.direct.UsesOnlyAs(d, "x", c.inout); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestResidentWritten checks that a program that overwrites a parameter that is not inout does not work in the
// parameter's device tensor, because the caller must not see these writes.
func TestResidentWritten(t *testing.T) {
	b := newBuilder(2, ir.F32)
	x, y := b.input("x", false, 3), b.result("y", false, 3)
	for r := range 2 {
		rx, ry := b.ref(r, x, 3), b.ref(r, y, 3)
		b.compute(r, "main", ir.OpAdd, ry, rx, rx)
		b.compute(r, "main", ir.OpAdd, rx, rx, rx)
	}
	b.output()
	m, s := tensorsOn(cpu.Concurrent)
	d := newDeviceTensor(t, s, loadOn(t, m, b.p, Options{}), "x")
	in := ints(t, ir.F32, "x", 3, 3)
	if err := d.Write(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	prog := loadOn(t, m, b.p, Options{Options: image.Options{Resident: map[string]*resident.DeviceTensor{"x": d}}})
	on := []Args{{DeviceIn: map[string]*resident.DeviceTensor{"x": d}}}
	for range 2 {
		r, err := prog.RunBatch(t.Context(), joined(make([]map[string]*tensor.Tensor, 1), on), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range floats(r[0].Outputs["y"]) {
			if v != 2*in.Float64(int64(i)) {
				t.Errorf("got %v, want twice %v", floats(r[0].Outputs["y"]), floats(in))
			}
		}
	}
	if got, err := d.Read(t.Context()); err != nil || !slices.Equal(got.Data, in.Data) {
		t.Errorf("the tensor contains %v, %v", got, err)
	}
}

// TestResidentTrials checks that the forms of a graph are measured by complete runs, after which resident tensors are
// restored, and that they are not measured if there is no memory for a copy of these tensors. If a trial fails, the
// tensor is lost with an error that has the reason, and all memory of the copies is freed.
func TestResidentTrials(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		fails error
		short int
		tried int
	}{
		"tried":                    {nil, 0, 3 * trialRounds},
		"no memory, at once":       {nil, 1, 0},
		"no memory on second rank": {nil, 2, 0},
		"no memory for the other":  {nil, 3, 0},
		"broken":                   {broken, 0, 3},
		"broken by a shortage":     {device.ErrOutOfMemory, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			under := &storing{Machine: cpu.New(cpu.Options{})}
			var runs []string
			m := &waysMachine{Machine: under, slow: map[string]time.Duration{}, runs: &runs, fails: c.fails}
			s := resident.NewDeviceTensors(m)
			plain := loadOn(t, m, doubling("x", "z"), Options{})
			d, z := newDeviceTensor(t, s, plain, "x"), newDeviceTensor(t, s, plain, "z")
			pool := under.last()
			x := ints(t, ir.F32, "x", 3, 4, 3)
			if err := errors.Join(d.Write(t.Context(), x), z.Write(t.Context(), x)); err != nil {
				t.Fatal(err)
			}
			m.prog = loadOn(t, m, doubling("x", "z"), Options{Options: image.Options{Resident: map[string]*resident.DeviceTensor{"x": d, "z": z}}, Graph: true})
			on := map[string]*resident.DeviceTensor{"x": d, "z": z}
			run := func() error {
				_, err := m.prog.RunBatch(t.Context(), joined(make([]map[string]*tensor.Tensor, 1), []Args{{DeviceIn: on, DeviceOut: on}}), nil)
				return err
			}
			if err := run(); err != nil {
				t.Fatal(err)
			}
			under.fails = c.short
			if c.fails != nil {
				m.slow["middling"] = -1
			}
			kept := func() int64 { return pool.World.Held().Device }
			before, atEnd := kept(), int64(0)
			under.closing = func() { atEnd = kept() }
			err := run()
			under.closing = nil
			want := c.tried
			if c.fails == nil {
				want++ // for the run itself
			}
			if len(runs) != want {
				t.Errorf("launched %v, want %d of them to be trials", runs, c.tried)
			}
			if kept() != before {
				t.Errorf("%d bytes are left, want the tensors', %d", kept(), before)
			}
			if c.fails != nil {
				if atEnd != 2*before {
					t.Errorf("%d bytes are allocated when the world ends, want %d: copies may still use the saved data", atEnd, 2*before)
				}
				var spoiled *SpoiledError
				if !errors.Is(err, c.fails) || !errors.As(err, &spoiled) {
					t.Errorf("got %v", err)
				}
				if _, err := d.Read(t.Context()); !errors.Is(err, resident.ErrNoContents) {
					t.Errorf("reading a tensor that a failed trial left: %v", err)
				}
				return
			}
			if err == nil {
				err = run()
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := z.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range floats(got) {
				if want := 8 * x.Float64(int64(i)); v != want {
					t.Fatalf("after three runs: %v, want 8 times %v", floats(got), floats(x))
				}
			}
		})
	}
}

// TestResidentTrialsShort checks that memory for copies of resident tensors is freed only after all copies into it have
// ended, because it may then be reused.
func TestResidentTrialsShort(t *testing.T) {
	under := &storing{Machine: cpu.New(cpu.Options{Mode: cpu.Scheduled})} // executes nothing before a Sync
	m := &waysMachine{Machine: under, runs: new([]string)}
	s := resident.NewDeviceTensors(m)
	plain := loadOn(t, m, doubling("x", "z"), Options{})
	on := map[string]*resident.DeviceTensor{"x": newDeviceTensor(t, s, plain, "x"), "z": newDeviceTensor(t, s, plain, "z")}
	for _, d := range on {
		if err := d.Write(t.Context(), ints(t, ir.F32, "x", 3, 4, 3)); err != nil {
			t.Fatal(err)
		}
	}
	prog := loadOn(t, m, doubling("x", "z"), Options{Options: image.Options{Resident: on}})
	under.took, under.fails = nil, 3 // for the other tensor
	if err := prog.recorder.backup.take(t.Context()); !errors.Is(err, device.ErrOutOfMemory) {
		t.Fatal(err)
	}
	if err := prog.im.World.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(under.took) != 2 {
		t.Fatalf("%d blocks were taken", len(under.took))
	}
	for _, mem := range under.took {
		if b := mem.Host(); b[0] != 0xff || b[1] != 0x7f {
			t.Errorf("freed memory was written to: %v", b[:8])
		}
	}
}
