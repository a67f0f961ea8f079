package exec

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// The following types implement a machine that supports chains: it runs the operations of a chain one after another on
// the CPU machine, each into separate memory. The machine declines some chains, as machines are allowed to.
type (
	chainMachine struct {
		device.Machine
		declines bool
		chains   *int
		stored   *int           // results that chains store in addition to those of their last links
		sums     *int           // number of attentions that also compute attention_lse
		joints   map[string]int // by their ops
		ropes    map[string]int // groups of ropes and index_copies, by their parts
		fixed    *int           // number of kernels with Fixed set
		foreseen map[string]bool
		surprise *int // number of kernels that were not precompiled
		sms      *int // the SMs hint of the kernel prepared last
	}
	chainWorld struct {
		device.World
		m chainMachine
	}
	chainDevice struct {
		device.Device
		m chainMachine
	}
	chainStream struct{ device.Stream }
	chainLaunch []device.Launch
)

func newChainMachine(declines bool) chainMachine {
	return chainMachine{cpu.New(cpu.Options{}), declines, new(int), new(int), new(int), map[string]int{}, map[string]int{},
		new(int), map[string]bool{}, new(int), new(int)}
}

func (m chainMachine) Caps() device.Caps {
	c := m.Machine.Caps()
	c.Chains, c.Precompile = true, true
	return c
}

func (m chainMachine) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	return chainWorld{w, m}, err
}

func (w chainWorld) Device(r int) device.Device { return chainDevice{w.World.Device(r), w.m} }

func (d chainDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	return chainStream{s}, err
}

func (s chainStream) Launch(l device.Launch) error {
	for _, one := range l.(chainLaunch) {
		if err := s.Stream.Launch(one); err != nil {
			return err
		}
	}
	return nil
}

func (l chainLaunch) Release() {
	for _, one := range l {
		one.Release()
	}
}

func (d chainDevice) PrepareAhead(k device.Kernel) { d.m.foreseen[fmt.Sprint(k)] = true }

func (d chainDevice) Prepare(k device.Kernel) (device.Launch, error) {
	var product device.Product
	fused, sums := false, false
	switch op := k.Op.(type) {
	case device.Linear:
		product = op.Product
	case device.Matmul:
		product = op.Product
	case device.Attention:
		product.Fixed, sums = op.Fixed, op.LSE
	case device.Linears:
		product.Fixed, fused = op.Fixed, true
	}
	ropes, isRopes := k.Op.(device.Ropes)
	chain, isChain := k.Op.(device.Chain)
	if !d.m.foreseen[fmt.Sprint(k)] && !product.Relu && !fused {
		*d.m.surprise++
	}
	if product.Fixed {
		*d.m.fixed++
	}
	*d.m.sms = product.SMs
	if !isChain && !isRopes && !product.Relu && !fused && !sums {
		l, err := d.Device.Prepare(k)
		return chainLaunch{l}, err
	}
	if d.m.declines {
		return nil, fmt.Errorf("no chains today: %w", device.ErrUnsupported)
	}
	if linears, ok := k.Op.(device.Linears); ok {
		return d.joint(k, linears)
	}
	if isRopes {
		return d.ropes(k, ropes)
	}
	if sums {
		return d.withLSE(k, k.Op.(device.Attention))
	}
	if product.Relu {
		switch op := k.Op.(type) {
		case device.Linear:
			op.Relu = false
			k.Op = op
		case device.Matmul:
			op.Relu = false
			k.Op = op
		}
		first, err := d.Device.Prepare(k)
		if err != nil {
			return nil, err
		}
		second, err := d.Device.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpRelu}, Ins: k.Outs, Outs: k.Outs})
		return chainLaunch{first, second}, err
	}
	*d.m.chains++
	return d.links(k, chain)
}

// links runs each operation of a chain into separate memory, and then copies the results to their destinations, the
// last result first. It refuses a result that shares bytes with another result, or with an operand that is not the same
// tensor, because a GPU's threads would read elements that other threads have already overwritten.
func (d chainDevice) links(k device.Kernel, chain device.Chain) (device.Launch, error) {
	for i, out := range k.Outs {
		for _, other := range k.Outs[:i] {
			if overlapping(out, other) {
				return nil, fmt.Errorf("results of a chain overlap")
			}
		}
		for _, in := range k.Ins {
			same := in.Off == out.Off && in.DType == out.DType && slices.Equal(in.Strides, out.Strides)
			if overlapping(out, in) && !same {
				return nil, fmt.Errorf("a result of a chain overlaps an operand")
			}
		}
	}
	*d.m.stored += len(chain.Stored)
	var all chainLaunch
	var results []device.View
	shape := k.Outs[0].Shape
	for _, l := range chain.Links {
		mem, err := d.Alloc(k.Outs[0].Elements()*l.DType.Size(), device.Private)
		if err != nil {
			return nil, err
		}
		v := device.View{Mem: mem, DType: l.DType, Shape: shape, Strides: tensor.Strides(shape)}
		one := device.Kernel{Op: device.OpOf(l.Op, ir.Attrs{Numbers: l.Numbers}), Outs: []device.View{v}}
		for _, a := range l.Args {
			if a < 0 {
				one.Ins = append(one.Ins, results[^a])
			} else {
				one.Ins = append(one.Ins, k.Ins[a])
			}
		}
		launch, err := d.Device.Prepare(one)
		if err != nil {
			return nil, err
		}
		results, all = append(results, v), append(all, launch)
	}
	stored := append(slices.Clone(chain.Stored), len(results)-1)
	for i := len(stored) - 1; i >= 0; i-- {
		launch, err := d.Device.Prepare(device.Kernel{Op: device.Copy{Op: ir.OpCopy},
			Ins: results[stored[i] : stored[i]+1], Outs: k.Outs[i : i+1]})
		if err != nil {
			return nil, err
		}
		all = append(all, launch)
	}
	return all, nil
}

// overlapping reports whether the byte ranges of two views overlap.
func overlapping(a, b device.View) bool {
	end := func(v device.View) int64 {
		last, _ := device.LastElement(v.Shape, v.Strides)
		return v.Off + (last+1)*v.DType.Size()
	}
	return a.Mem == b.Mem && a.Off < end(b) && b.Off < end(a)
}

// withLSE computes attention_lse before the attention, so that an attention that reads or overwrites the result of
// attention_lse gives a wrong result.
func (d chainDevice) withLSE(k device.Kernel, op device.Attention) (device.Launch, error) {
	*d.m.sums++
	grad := device.AttentionGrad{Op: ir.OpAttentionLSE, Scale: op.Scale, Causal: op.Causal}
	first, err := d.Device.Prepare(device.Kernel{Op: grad, Ins: k.Ins[:2], Outs: k.Outs[:1]})
	if err != nil {
		return nil, err
	}
	op.LSE = false
	second, err := d.Device.Prepare(device.Kernel{Op: op, Ins: k.Ins, Outs: k.Outs[1:]})
	return chainLaunch{first, second}, err
}

// joint runs the linears in reverse order, each into separate memory, and then copies all results to their
// destinations, so that a linear that reads or overwrites another linear's result gives a wrong result.
func (d chainDevice) joint(k device.Kernel, how device.Linears) (device.Launch, error) {
	var all chainLaunch
	add := func(k device.Kernel) error {
		l, err := d.Device.Prepare(k)
		all = append(all, l)
		return err
	}
	weights := k.Ins[1 : 1+how.Count(&k)]
	results := make([]device.View, len(weights))
	for i := len(weights) - 1; i >= 0; i-- {
		var err error
		if results[i], err = d.room(k.Outs[i]); err != nil {
			return nil, err
		}
		ins := []device.View{k.Ins[0], weights[i]}
		if n := 1 + len(weights); how.Scaled {
			ins = append(ins, k.Ins[n], k.Ins[n+1+i])
		}
		if err := add(device.Kernel{Op: device.Linear{}, Ins: ins, Outs: results[i : i+1]}); err != nil {
			return nil, err
		}
	}
	if how.Gated {
		d.m.joints["gated"]++
		act, err := d.room(k.Outs[0])
		if err == nil {
			err = add(device.Kernel{Op: device.Elementwise{Op: ir.OpSilu}, Ins: results[:1], Outs: []device.View{act}})
		}
		if err == nil {
			err = add(device.Kernel{Op: device.Elementwise{Op: ir.OpMul}, Ins: []device.View{act, results[1]}, Outs: k.Outs[2:]})
		}
		return all, err
	}
	d.m.joints[fmt.Sprint(len(weights))]++
	for i := range weights {
		if err := add(device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: results[i : i+1], Outs: k.Outs[i : i+1]}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// room returns memory for a dense tensor with the type and shape of another one.
func (d chainDevice) room(like device.View) (device.View, error) {
	mem, err := d.Alloc(like.Elements()*like.DType.Size(), device.Private)
	return device.View{Mem: mem, DType: like.DType, Shape: like.Shape, Strides: tensor.Strides(like.Shape)}, err
}

// ropes rotates the parts in reverse order, each into separate memory, and then stores all results, so that a part that
// reads or overwrites another part's result gives a wrong result.
func (d chainDevice) ropes(k device.Kernel, op device.Ropes) (device.Launch, error) {
	var all chainLaunch
	var names []string
	n := len(op.Parts)
	angles, rows := k.Ins[n:], k.Ins[len(k.Ins)-1]
	if op.Keeps() {
		angles = k.Ins[n : len(k.Ins)-1]
	}
	results := make([]device.View, n)
	for i := n - 1; i >= 0; i-- {
		var err error
		if results[i], err = d.room(k.Ins[i]); err != nil {
			return nil, err
		}
		one := device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: k.Ins[i : i+1], Outs: results[i : i+1]}
		if op.Parts[i].Rotates {
			one.Op, one.Ins = op.Rope, append(one.Ins[:1:1], angles...)
		}
		l, err := d.Device.Prepare(one)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	for i, part := range op.Parts {
		one := device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: results[i : i+1], Outs: k.Outs[i : i+1]}
		name := "rope"
		if part.Keeps {
			one.Op, one.Ins = device.IndexCopy{Axis: len(k.Outs[i].Shape) - 3}, []device.View{results[i], rows, k.Outs[i]}
			if name = "copy"; part.Rotates {
				name = "both"
			}
		}
		l, err := d.Device.Prepare(one)
		if err != nil {
			return nil, err
		}
		all, names = append(all, l), append(names, name)
	}
	d.m.ropes[strings.Join(names, "+")]++
	return all, nil
}

// pointwisePlan generates a plan of one rank with random elementwise commands on x and y.
func pointwisePlan(rng *rand.Rand) *plan.Plan {
	b := newBuilder(1, ir.BF16)
	shape := []int64{4, 6}
	x, y := b.input("x", false, shape...), b.input("y", false, shape...)
	all := []plan.Ref{b.ref(0, x, shape...), b.ref(0, y, shape...)}
	one := []ir.Op{ir.OpNeg, ir.OpRelu, ir.OpGelu}
	two := []ir.Op{ir.OpAdd, ir.OpSub, ir.OpMul}
	stream := "main"
	for i := range 3 + rng.IntN(12) {
		switch rng.IntN(8) {
		case 0: // commands on another stream continue with all values
			other := map[string]string{"main": "side", "side": "main"}[stream]
			b.after(0, other, stream)
			stream = other
		case 1: // another stream reads it
			b.after(0, "third", stream)
		}
		last := all[len(all)-1-rng.IntN(min(2, len(all)))]
		var out plan.Ref
		switch n := rng.IntN(8); {
		case n == 0 && len(all) > 2:
			out = last // in place
		case n == 1:
			out = b.ref(0, b.result(fmt.Sprint("r", i), false, shape...), shape...)
		default:
			out = b.ref(0, b.buffer(fmt.Sprintf("%%t%d", i), plan.RoleValue, shape...), shape...)
		}
		if rng.IntN(2) == 0 {
			b.compute(0, stream, one[rng.IntN(len(one))], out, last)
		} else {
			b.compute(0, stream, two[rng.IntN(len(two))], out, last, all[rng.IntN(len(all))])
		}
		all = append(all, out)
	}
	final := b.result("out", false, shape...)
	b.compute(0, stream, ir.OpNeg, b.ref(0, final, shape...), all[len(all)-1])
	if stream != "main" {
		b.after(0, "main", stream)
	}
	b.after(0, "main", "third")
	b.output()
	return b.p
}

// TestChainsSameBits runs random plans with and without chains and compares the bits of their results.
func TestChainsSameBits(t *testing.T) {
	chains, stored := 0, 0
	for seed := range uint64(300) {
		p := pointwisePlan(rand.New(rand.NewPCG(seed, 3)))
		taking := sameBits(t, seed, p)
		if n := *taking.surprise; n > 0 {
			t.Errorf("seed %d: %d kernels were not precompiled", seed, n)
		}
		chains += *taking.chains
		stored += *taking.stored
	}
	if chains < 100 || stored < 100 {
		t.Errorf("only %d chains in all plans, which store %d more results: too few for a test", chains, stored)
	}
}

// sameBits runs a plan twice, with inputs drawn from seed, in three ways: each command by itself, several commands as
// one launch, and with such launches declined. The outputs must be the same. The result is the machine that executed
// several commands as one launch.
func sameBits(t *testing.T, seed uint64, p *plan.Plan) chainMachine {
	t.Helper()
	in := map[string]*tensor.Tensor{}
	for _, io := range p.Inputs {
		x, err := tensor.New(io.DType, io.Shape)
		if err == nil {
			err = tensor.Fill(x, io.Name, tensor.Spec{Kind: tensor.SpecRand, Seed: seed})
		}
		if err != nil {
			t.Fatal(err)
		}
		in[io.Name] = x
	}
	var want map[string]*tensor.Tensor
	taking, declining := newChainMachine(false), newChainMachine(true)
	for _, m := range []device.Machine{cpu.New(cpu.Options{}), taking, declining} {
		prog, err := Load(t.Context(), m, p, Options{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		rs, err := prog.RunBatch(t.Context(), Inputs([]map[string]*tensor.Tensor{in, in}), nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := prog.Close(); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = rs[1].Outputs
		}
		for name, w := range want {
			if !bytes.Equal(rs[1].Outputs[name].Data, w.Data) {
				t.Fatalf("seed %d: %s differs if several commands are one launch\n%s", seed, name, p)
			}
		}
	}
	return taking
}

// TestChainsFound checks which elementwise commands become one launch.
func TestChainsFound(t *testing.T) {
	shape := []int64{4, 6}
	type rig struct {
		*builder
		x, y, out plan.Ref
	}
	value := func(r rig, name string) plan.Ref {
		return r.ref(0, r.buffer(name, plan.RoleValue, shape...), shape...)
	}
	for name, c := range map[string]struct {
		emit func(r rig)
		want []int // lengths of chains
		more int   // number of results that chains store in addition to those of their last commands
	}{
		"both results": {func(r rig) {
			a, b := value(r, "%a"), value(r, "%b")
			r.compute(0, "main", ir.OpSilu, a, r.x)
			r.compute(0, "main", ir.OpMul, b, a, r.y)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpSub, r.out, b, a)
		}, []int{2}, 1},
		"gated": {func(r rig) {
			g := value(r, "%g")
			r.compute(0, "main", ir.OpSilu, g, r.x)
			r.compute(0, "main", ir.OpMul, r.out, g, r.y)
		}, []int{2}, 0},
		"a tree": {func(r rig) {
			a, b, c := value(r, "%a"), value(r, "%b"), value(r, "%c")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpRelu, b, r.y)
			r.compute(0, "main", ir.OpAdd, c, a, b)
			r.compute(0, "main", ir.OpMul, r.out, c, a)
		}, []int{4}, 0},
		"read again later": {func(r rig) {
			a, b := value(r, "%a"), value(r, "%b")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpRelu, b, a)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpAdd, r.out, a, b)
		}, []int{2}, 1},
		"something between": {func(r rig) {
			a := value(r, "%a")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpRelu, r.out, a)
		}, nil, 0},
		"on two streams": {func(r rig) {
			a := value(r, "%a")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.after(0, "side", "main")
			r.compute(0, "side", ir.OpRelu, r.out, a)
			r.after(0, "main", "side")
		}, nil, 0},
		"a part": {func(r rig) {
			a := value(r, "%a")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpRelu, rows(r.out, 0, 2), rows(a, 0, 2))
			r.compute(0, "main", ir.OpRelu, rows(r.out, 2, 4), rows(a, 2, 4))
		}, nil, 0},
		"an input": {func(r rig) {
			r.compute(0, "main", ir.OpNeg, r.y, r.x)
			r.compute(0, "main", ir.OpRelu, r.out, r.y)
		}, []int{2}, 1},
		"in place": {func(r rig) {
			a := value(r, "%a")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpRelu, a, a)
			r.compute(0, "main", ir.OpNeg, r.out, a)
		}, []int{2}, 1},
		"two chains": {func(r rig) {
			a, b, c := value(r, "%a"), value(r, "%b"), value(r, "%c")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpRelu, b, a)
			r.compute(0, "main", ir.OpNeg, c, b)
			r.compute(0, "main", ir.OpMul, r.out, b, c)
		}, []int{4}, 0},
		"the end of a chain is read on": {func(r rig) {
			a, b := value(r, "%a"), value(r, "%b")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpRelu, b, a)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpMul, r.out, b, b)
		}, []int{2}, 0},
		"a product and a relu": {func(r rig) {
			a, w := value(r, "%a"), r.ref(0, r.buffer("%w", plan.RoleValue, 6, 6), 6, 6)
			r.compute(0, "main", ir.OpLinear, a, r.x, w)
			r.compute(0, "main", ir.OpRelu, r.out, a)
		}, []int{2}, 0},
		"a product and two relus": {func(r rig) {
			a, w := value(r, "%a"), r.ref(0, r.buffer("%w", plan.RoleValue, 6, 6), 6, 6)
			r.compute(0, "main", ir.OpLinear, a, r.x, w)
			r.compute(0, "main", ir.OpRelu, r.out, a)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpRelu, r.out, a)
		}, nil, 0},
		"a product and a chain": {func(r rig) {
			a, b, w := value(r, "%a"), value(r, "%b"), r.ref(0, r.buffer("%w", plan.RoleValue, 6, 6), 6, 6)
			r.compute(0, "main", ir.OpLinear, a, r.x, w)
			r.compute(0, "main", ir.OpRelu, b, a)
			r.compute(0, "main", ir.OpMul, r.out, b, r.y)
		}, []int{2}, 0},
		"a product and a gelu": {func(r rig) {
			a, w := value(r, "%a"), r.ref(0, r.buffer("%w", plan.RoleValue, 6, 6), 6, 6)
			r.compute(0, "main", ir.OpLinear, a, r.x, w)
			r.compute(0, "main", ir.OpGelu, r.out, a)
		}, nil, 0},
		"many operands": {func(r rig) {
			sum := r.x
			for i := range 10 {
				next := value(r, fmt.Sprintf("%%s%d", i))
				r.compute(0, "main", ir.OpAdd, next, sum, value(r, fmt.Sprintf("%%v%d", i)))
				sum = next
			}
			r.compute(0, "main", ir.OpNeg, r.out, sum)
		}, []int{7, 4}, 0},
		"a common operand": {func(r rig) {
			a := value(r, "%a")
			r.compute(0, "main", ir.OpMul, a, r.x, r.y)
			r.compute(0, "main", ir.OpRelu, r.out, r.y)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpNeg, r.x, a)
		}, []int{2}, 1},
		"nothing in common": {func(r rig) {
			r.compute(0, "main", ir.OpNeg, r.x, r.x)
			r.compute(0, "main", ir.OpRelu, r.out, r.y)
		}, nil, 0},
		"two parts of a buffer": {func(r rig) {
			r.compute(0, "main", ir.OpNeg, rows(r.out, 0, 2), rows(r.x, 0, 2))
			r.compute(0, "main", ir.OpRelu, rows(r.out, 2, 4), rows(r.x, 0, 2))
		}, nil, 0},
		"the memory of an operand": {func(r rig) {
			a := value(r, "%a")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpMul, r.out, a, r.y)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpNeg, r.y, a)
			r.p.Buffers[a.Buf].Offset = r.p.Buffers[r.x.Buf].Offset
		}, []int{2}, 1},
		"across an operand": {func(r rig) {
			a, wide := value(r, "%a"), r.ref(0, r.buffer("%w", plan.RoleValue, 4, 128), 4, 128)
			wide.Shape = shape // the first columns of each row
			r.compute(0, "main", ir.OpMul, a, r.x, wide)
			r.compute(0, "main", ir.OpMul, r.out, a, r.y)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpNeg, r.y, a)
			r.p.Buffers[a.Buf].Offset = r.p.Buffers[wide.Buf].Offset + plan.Align
		}, nil, 0},
		"across an operand, not stored": {func(r rig) {
			a, wide := value(r, "%a"), r.ref(0, r.buffer("%w", plan.RoleValue, 4, 128), 4, 128)
			wide.Shape = shape
			r.compute(0, "main", ir.OpMul, a, r.x, wide)
			r.compute(0, "main", ir.OpMul, r.out, a, r.y)
			r.p.Buffers[a.Buf].Offset = r.p.Buffers[wide.Buf].Offset + plan.Align
		}, []int{2}, 0},
		"results in one place": {func(r rig) {
			a := value(r, "%a")
			r.compute(0, "main", ir.OpNeg, a, r.x)
			r.compute(0, "main", ir.OpRelu, r.out, a)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpNeg, a, a)
			r.p.Buffers[a.Buf].Offset = r.p.Buffers[r.out.Buf].Offset
		}, nil, 0},
		"a product and a relu that is read again": {func(r rig) {
			a, b, w := value(r, "%a"), value(r, "%b"), r.ref(0, r.buffer("%w", plan.RoleValue, 6, 6), 6, 6)
			r.compute(0, "main", ir.OpLinear, a, r.x, w)
			r.compute(0, "main", ir.OpRelu, b, a)
			r.compute(0, "main", ir.OpMul, r.out, b, b)
			r.after(0, "side", "main")
			r.compute(0, "main", ir.OpNeg, r.x, b)
		}, []int{2}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBuilder(1, ir.F32)
			x, y := b.input("x", false, shape...), b.input("y", false, shape...)
			out := b.result("out", false, shape...)
			r := rig{b, b.ref(0, x, shape...), b.ref(0, y, shape...), b.ref(0, out, shape...)}
			c.emit(r)
			b.output()
			m := newChainMachine(false)
			prog, err := Load(t.Context(), m, b.p, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer prog.Close()
			var got []int
			seen := map[*image.Group]bool{}
			for i := range b.p.Cmds {
				if f := prog.im.Groups[i]; f != nil && !seen[f] {
					seen[f] = true
					got = append(got, len(f.Members))
					last := f.Members[len(f.Members)-1]
					if e := (symbolizer{prog.im}).describe(int64(last)); e.Name != f.Name {
						t.Errorf("the trace calls it %q, not %q", e.Name, f.Name)
					}
				}
			}
			if !slices.Equal(got, c.want) || *m.stored != c.more {
				t.Errorf("chains of %v commands with %d more results, want %v and %d", got, *m.stored, c.want, c.more)
			}
			none, err := Load(t.Context(), newChainMachine(false), b.p, Options{Options: image.Options{NoChains: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer none.Close()
			if len(none.im.Groups) != 0 {
				t.Error("there are chains in spite of NoChains")
			}
		})
	}
}

// TestFixed checks that Options.Fixed sets the option Fixed of kernels, so that machines do not choose algorithms by
// measurement.
func TestFixed(t *testing.T) {
	b := newBuilder(1, ir.F32)
	x, w := b.input("x", false, 4, 6), b.input("w", false, 3, 6)
	out := b.result("out", false, 4, 3)
	b.compute(0, "main", ir.OpLinear, b.ref(0, out, 4, 3), b.ref(0, x, 4, 6), b.ref(0, w, 3, 6))
	b.output()
	for _, fixed := range []bool{false, true} {
		m := newChainMachine(false)
		prog, err := Load(t.Context(), m, b.p, Options{Options: image.Options{Fixed: fixed}})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: 1}[fixed]; *m.fixed != want {
			t.Errorf("%d fixed kernels, want %d", *m.fixed, want)
		}
		if err := prog.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSMs checks that the number of multiprocessors in the program is passed to GEMMs, including GEMMs that end in a
// relu.
func TestSMs(t *testing.T) {
	for _, relu := range []bool{false, true} {
		b := newBuilder(1, ir.F32)
		x, w := b.input("x", false, 4, 6), b.input("w", false, 3, 6)
		out, y := b.result("out", false, 4, 3), b.buffer("%y", plan.RoleValue, 4, 3)
		if !relu {
			y = out
		}
		b.compute(0, "main", ir.OpLinear, b.ref(0, y, 4, 3), b.ref(0, x, 4, 6), b.ref(0, w, 3, 6))
		b.p.Cmds[len(b.p.Cmds)-1].Attr.SMs = 124
		if relu {
			b.compute(0, "main", ir.OpRelu, b.ref(0, out, 4, 3), b.ref(0, y, 4, 3))
		}
		b.output()
		m := newChainMachine(false)
		prog, err := Load(t.Context(), m, b.p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if *m.sms != 124 || len(prog.im.Groups) > 0 != relu {
			t.Errorf("relu %v: a product for %d multiprocessors; chains %v", relu, *m.sms, prog.im.Groups)
		}
		if err := prog.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestJointsOf8Bits checks that linears of one bf16 input with 8-bit weights become one launch, also as the two linears
// of a gated layer, and that linears with different inputs or scales of inputs, or with 8-bit inputs, do not.
func TestJointsOf8Bits(t *testing.T) {
	const text = `dim T = 3
dim H = 128
mesh tp[1]
func f(%x: bf16[T, H], %w: f8e4m3[H, H], %v: f8e4m3[H, H], %u: f8e4m3[H, H], %sw: f32[1, 1], %sv: f32[1, 1], %su: f32[H],
       %one: f32[], %two: f32[]) -> (bf16[T, H], bf16[T, H], bf16[T, H], bf16[T, H], bf16[T, H], bf16[T, H]) {
  %q = linear %x, %w, %one, %sw
  %k = linear %x, %v, %one, %sv
  %a = linear %x, %u, %one, %su
  %b = linear %x, %w, %two, %sw
  %xx = add %x, %x
  %g = linear %xx, %w, %one, %sw
  %up = linear %xx, %v, %one, %sv
  %e = silu %g
  %m = mul %e, %up
  %s = scales %m, block=(1, 128)
  %z = quantize %m, %s
  %c = linear %z, %w, %s, %sw
  %d = linear %z, %v, %s, %sv
  return %q, %k, %a, %b, %c, %d
}
`
	if m := sameBits(t, 7, planOf(t, text)); m.joints["3"] != 1 || m.joints["gated"] != 1 || len(m.joints) != 2 {
		t.Errorf("joint linears: %v", m.joints)
	}
}

// planOf returns the plan of the function f of a program.
func planOf(t *testing.T, text string) *plan.Plan {
	t.Helper()
	prog, ds := ir.Parse("hand.hkt", text)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	unit, err := compile.Build(info, compile.Options{Strategy: "sequential"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := unit.Plan(ir.Binding{Func: "f"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestGatedGradient checks that the activation of a gated layer, and its gradient, are one kernel each, in memory that
// the planner has laid out, and that an optimizer's update of a parameter and its two moments is one kernel.
func TestGatedGradient(t *testing.T) {
	const gated = `dim T = 6
dim F = 8
mesh tp[1]
func f(%g: bf16[T, F], %u: bf16[T, F], %w: bf16[F, F]) -> (bf16[T, F], bf16[T, F], bf16[T, F]) {
  %m.0 = silu %g
  %m = mul %m.0, %u
  %dm = linear %m, %w
  %dm.0 = mul %dm, %u
  %du = mul %dm, %m.0
  %dg = mul %dm.0, (add (sigmoid %g), (mul %m.0, (sigmoid (neg %g))))
  return %m, %du, %dg
}
`
	const adam = `dim N = 24
mesh tp[1]
func f(%p: inout f32[N], %m: inout f32[N], %v: inout f32[N], %g: f32[N]) {
  %m1 = add (scale %m, by=0.9), (scale %g, by=0.1)
  %v1 = add (scale %v, by=0.99), (scale (mul %g, %g), by=0.01)
  %p1 = sub %p, (scale (div %m1, (sqrt (maximum %v1, %g))), by=0.001)
  copy %m1 into %m
  copy %v1 into %v
  copy %p1 into %p
}
`
	for name, c := range map[string]struct {
		text           string
		chains, stored int
	}{"gated": {gated, 2, 2}, "adam": {adam, 1, 2}} {
		if m := sameBits(t, 53, planOf(t, c.text)); *m.chains != c.chains || *m.stored != c.stored {
			t.Errorf("%s: %d chains store %d results in addition to the last ones, want %d and %d", name, *m.chains, *m.stored,
				c.chains, c.stored)
		}
	}
}
