package exec

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

func shareBytes(a, b *tensor.Tensor) bool { return tensor.ShareBytes(a.Data, b.Data) }

// TestReceives checks that results are received directly into their destination, a tensor of the caller or a new
// tensor, unless the batch also uses the caller's tensor otherwise.
func TestReceives(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	mine, err := tensor.New(ir.F32, prog.im.Outputs[0].Shape)
	if err != nil {
		t.Fatal(err)
	}
	into := Args{Into: map[string]*tensor.Tensor{"y": mine}}
	for name, c := range map[string]struct {
		direct   []Args
		straight bool
	}{
		"none":             {nil, false},
		"the caller's":     {[]Args{into}, true},
		"of two runs":      {[]Args{into, into}, false},
		"of the other run": {[]Args{{}, into}, false},
	} {
		batch := []map[string]*tensor.Tensor{in}
		for len(batch) < len(c.direct) {
			batch = append(batch, in)
		}
		if err := prog.binder.bind(joined(batch, c.direct), nil, prog.weights.all); err != nil {
			t.Fatal(err)
		}
		f := prog.binder.frames[0]
		for b, get := range f.get {
			to, first := &tensor.Tensor{DType: ir.F32, Data: get}, b == 0 // block 1 is compared with block 0
			if shareBytes(to, mine) != (first && c.straight) {
				t.Errorf("%s: block %d is received directly into the caller's tensor: %v", name, b,
					shareBytes(to, mine))
			}
		}
		results, err := prog.RunBatch(t.Context(), joined(batch, c.direct), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			got, want := r.Outputs["y"], joined(batch, c.direct)[i].Into["y"]
			if want != nil && got != want {
				t.Errorf("%s: run %d: the result is not the caller's tensor", name, i)
			}
			for j := range results[:i] {
				if before := results[j].Outputs["y"]; before != got && shareBytes(before, got) {
					t.Errorf("%s: runs %d and %d share bytes", name, j, i)
				}
			}
		}
		if f.get[0] != nil {
			t.Errorf("%s: the frame keeps the caller's memory", name)
		}
	}
}

// TestReceivesInPlace checks that a tensor that is both an argument and the destination of a result receives the result
// directly only if no two ranks have the same part of the tensor, and each rank has the same part of argument and
// result.
func TestReceivesInPlace(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(p *Program)
		runs     int
		straight bool
		shifted  bool // the input overlaps the output, but is not at the same address
	}{
		"in place": {func(*Program) {}, 1, true, false},
		"shifted":  {func(*Program) {}, 1, false, true},
		"two runs": {func(*Program) {}, 2, false, false},
		"replicas": {func(p *Program) {
			p.im.Inputs[0].Parts[1].Lo, p.im.Outputs[0].Parts[1].Lo = []int64{0},
				[]int64{0}
		}, 1, false, false},
		"another place":   {func(p *Program) { p.im.Inputs[0].Parts[1].Lo = []int64{0} }, 1, false, false},
		"another rank":    {func(p *Program) { p.im.Inputs[0].Parts[1].Ref.Rank = 2 }, 1, false, false},
		"other sizes":     {func(p *Program) { p.im.Inputs[0].Parts[1].Ref.Shape = []int64{2} }, 1, false, false},
		"another's input": {func(p *Program) { p.im.Inputs[0].Name = "z" }, 1, false, false},
	} {
		b := newBuilder(2, ir.F32)
		x := b.input("x", true, 6)
		y := b.result("y", true, 6)
		for r := range 2 {
			b.compute(r, "main", ir.OpAdd, b.ref(r, y, 3), b.ref(r, x, 3), b.ref(r, x, 3))
		}
		b.output()
		prog := load(t, cpu.Concurrent, 0, b.p, Options{})
		mine := ints(t, ir.F32, "x", 1, 6)
		in := map[string]*tensor.Tensor{"x": mine}
		into := Args{Into: map[string]*tensor.Tensor{"y": mine}}
		if c.straight {
			want := floats(mine)
			if _, err := prog.RunBatch(t.Context(), joined([]map[string]*tensor.Tensor{in}, []Args{into}),
				nil); err != nil {
				t.Fatal(err)
			}
			for i, v := range floats(mine) {
				if v != 2*want[i] {
					t.Errorf("%s: element %d is %v, want %v", name, i, v, 2*want[i])
				}
			}
		}
		c.change(prog)
		if c.shifted {
			all := append(make([]byte, 4), mine.Data...)
			mine.Data = all[4:]
			in["x"] = &tensor.Tensor{DType: ir.F32, Shape: mine.Shape, Data: all[:len(mine.Data)]}
		}
		batch, direct := []map[string]*tensor.Tensor{in}, []Args{into}
		if c.runs == 2 {
			batch, direct = append(batch, in), append(direct, Args{})
		}
		shared, spoils := signature{prog.im}.sharedInto(joined(batch, direct), nil, prog.weights.all, prog.weights.skip)
		if shared[mine] == c.straight || spoils != c.straight {
			t.Errorf("%s: shared is %v, it spoils: %v", name, shared[mine], spoils)
		}
	}
}

// TestSharedMemory checks that an argument that a run updates in place must not share memory with another argument,
// whether the arguments are in host memory or at device addresses.
func TestSharedMemory(t *testing.T) {
	b := newBuilder(2, ir.F32)
	for _, name := range []string{"k", "v", "x"} {
		b.input(name, true, 6)
	}
	y := b.result("k", true, 6)
	for r := range 2 {
		b.compute(r, "main", ir.OpAdd, b.ref(r, y, 3), b.ref(r, 0, 3), b.ref(r, 2, 3))
	}
	b.output()
	s := signature{load(t, cpu.Concurrent, 0, b.p, Options{}).im}
	k, x := ints(t, ir.F32, "k", 1, 6), ints(t, ir.F32, "x", 1, 6)
	type tensors = map[string]*tensor.Tensor
	type addresses = map[string]map[int]uintptr
	at := func(zero, one uintptr) map[int]uintptr { return map[int]uintptr{0: zero, 1: one} }
	for name, c := range map[string]struct {
		args Args
		want []string
	}{
		"separate":         {Args{In: tensors{"k": k, "x": x}, Into: tensors{"k": k}}, nil},
		"updated and read": {Args{In: tensors{"k": k, "x": k}, Into: tensors{"k": k}}, nil},
		"updated twice": {Args{In: tensors{"k": k, "x": k}, Into: tensors{"k": k, "x": k}},
			[]string{tensor.SharesMemory("k", "x")}},
		"read twice":     {Args{In: tensors{"k": k, "x": k}}, nil},
		"into another's": {Args{In: tensors{"k": k, "x": x}, Into: tensors{"k": x}}, nil},
		"separate blocks": {Args{InAt: addresses{"k": at(64, 64), "x": at(76, 76)},
			OutAt: addresses{"k": at(64, 64)}}, nil},
		"blocks read twice": {Args{InAt: addresses{"v": at(64, 64), "x": at(64, 64)}}, nil},
		"blocks that are read": {Args{InAt: addresses{"k": at(64, 64), "x": at(96, 72)},
			OutAt: addresses{"k": at(64, 64)}}, nil},
		"blocks that overlap": {Args{InAt: addresses{"k": at(64, 64), "x": at(96, 72)},
			OutAt: addresses{"k": at(64, 64), "x": at(96, 72)}}, []string{tensor.SharesMemory("k", "x")}},
	} {
		if got := append(s.wrongInto(c.args), s.wrongUpdates(c.args)...); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
