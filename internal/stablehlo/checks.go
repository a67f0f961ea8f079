package stablehlo

import (
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// The tests of StableHLO's interpreter are programs that check their own results. ReadTest converts each check to two
// outputs: the values that the check compares.

// Check describes a pair of outputs that should be equal within a tolerance.
type Check struct {
	Name string // name of the operation: "check.expect_eq_const"
	Line int
	// Tolerance is the largest permitted difference between the outputs, if the check specifies one.
	Tolerance float64
	// ULPs is the largest permitted difference as a number of units in the last place.
	ULPs float64
}

// compared records the two values that a check compares.
func (b *builder) compared(in []tens) {
	o := b.op
	var want tens
	switch {
	case len(in) == 2:
		want = in[1]
	case len(in) == 1 && o.attrs["value"] != nil && o.attrs["value"].dense != nil:
		if d := o.attrs["value"].dense; d.t.complex {
			want = b.ofComplex(o, "constant", nil, nil)[0]
		} else {
			want = b.constantOf(d)
		}
	default:
		b.refuse("it does not compare with a tensor")
	}
	if in[0].t.complex && want.t.complex {
		b.compared([]tens{in[0].re(), want.re()})
		b.compared([]tens{in[0].imag(), want.imag()})
		return
	}
	if !slices.Equal(in[0].t.shape, want.t.shape) || in[0].t.dt != want.t.dt {
		b.wrong("it compares %s and %s", in[0].t, want.t)
	}
	if anyLifted(in...) {
		b.refuse("values that differ between devices")
	}
	c := Check{Name: o.name, Line: o.line}
	if a := o.attrs["tolerance"]; a != nil {
		c.Tolerance = a.number
	}
	if a := o.attrs["max_ulp_difference"]; a != nil {
		c.ULPs = a.number
	}
	b.checks = append(b.checks, c)
	for _, x := range []tens{in[0], want} {
		b.output(x, make(graph.Layout, len(x.t.shape)))
	}
}

// isCheck reports whether an operation is a check.
func isCheck(name string) bool { return strings.HasPrefix(name, "check.expect") }

// parallel describes processes that run one function. If global is set, the function's parameters have shardings, and
// are larger than the parts that the processes hold.
type parallel struct {
	*manual
	n      int // number of processes
	f      *function
	global bool
}

// runParallel translates a function that several processes run. A global function is translated once for all processes.
func (b *builder) runParallel(in []tens) []tens {
	o, p := b.op, b.processesOf(in)
	b.lift, b.devs = int64(p.n), p.manual
	args := b.argumentsOf(p, in)
	if p.global {
		b.lift, b.devs = 0, nil
	}
	out := b.function(p.f.name, args)
	b.op = o
	b.lift, b.devs = int64(p.n), p.manual
	list := make([]tens, len(out)*p.n)
	for j, x := range out {
		places := graph.Counting(p.n)
		if p.global {
			s := p.sharding(p.f.results[j])
			x, places = b.localized(p.manual, x, s, o.types[j], int64(p.n)), b.order(p, s)
		}
		for at, process := range places {
			y := x
			if x.lifted {
				v := b.fullAs(x, true)
				v = b.cut(tens{v: v, t: typ{dt: x.t.dt, shape: v.Shape}}, 0, int64(at), int64(at)+1).v
				y = tens{v: b.reshaped(v, x.t.shape), t: x.t}
			}
			list[int(process)*len(out)+j] = y
		}
	}
	b.lift, b.devs = 0, nil
	return list
}

// processesOf reads the programs of an operation with the operands in.
func (b *builder) processesOf(in []tens) *parallel {
	a := b.op.attrs["programs"]
	if a == nil || len(a.list) == 0 || b.op.attrs["infeed"] != nil || b.lift != 0 {
		b.refuse("this list of programs")
	}
	rows := int64(len(a.list))
	var names []string
	for _, r := range a.list {
		for _, p := range r.list {
			names = append(names, p.text)
		}
	}
	n := len(names)
	if n == 0 || int64(n)%rows != 0 || len(in)%n != 0 || len(b.op.types)%n != 0 {
		b.wrong("%d operands and %d results cannot be divided among %d programs", len(in), len(b.op.types), n)
	}
	if slices.ContainsFunc(names, func(x string) bool { return x != names[0] }) {
		b.refuse("processes that run different functions")
	}
	p := &parallel{manual: &manual{replicas: rows, partitions: int64(n) / rows}, n: n, f: b.module.funcs[names[0]]}
	if p.f == nil || len(p.f.args) != len(in)/n {
		b.wrong("there is no function %s of %d parameters", names[0], len(in)/n)
	}
	for _, x := range b.meshes {
		if x.size() == int64(n) && len(x.axes) > 0 && (p.mesh == nil || len(x.axes) > len(p.mesh.axes)) {
			p.mesh = x
		}
	}
	if p.global = p.mesh != nil; !p.global {
		p.mesh = &mesh{axes: []axis{{"devices", int64(n)}}}
	}
	p.axes = p.mesh.axes
	return p
}

// argumentsOf returns the arguments of the function that the processes run.
func (b *builder) argumentsOf(p *parallel, in []tens) []tens {
	args := make([]tens, len(p.f.args))
	for j := range args {
		s := p.sharding(p.f.args[j])
		var parts []tens
		for _, process := range b.order(p, s) {
			if process < 0 || process >= int64(p.n) {
				b.refuse("a sharding over a mesh of other devices")
			}
			x := in[int(process)*len(args)+j]
			if !slices.Equal(x.t.shape, in[j].t.shape) || x.t.dt != in[j].t.dt {
				b.wrong("processes give %s and %s", in[j].t, x.t)
			}
			parts = append(parts, b.reshapedTo(x, append([]int64{1}, x.t.shape...)))
		}
		args[j] = tens{v: b.full(b.joined(0, parts...)), t: in[j].t, lifted: true}
		if p.global {
			b.agree(p.manual, s, parts)
			args[j] = b.globalized(p.manual, args[j], s, p.f.args[j].t)
		}
	}
	return args
}

// sharding returns the sharding of a parameter or result.
func (p *parallel) sharding(a arg) *sharding {
	if s := a.attrs["sdy.sharding"]; p.global && s != nil && s.sharding != nil {
		return s.sharding
	}
	return &sharding{dims: make([]dimension, len(a.t.shape))}
}

// order lists the processes in the order of their positions in a sharding's mesh.
func (b *builder) order(p *parallel, s *sharding) []int64 {
	if x := b.meshes[s.mesh]; x != nil && len(x.order) == p.n && p.global {
		return x.order
	}
	return graph.Counting(p.n)
}

// agree reports an error if the parts of two processes differ although the sharding requires that they be equal.
func (b *devices) agree(m *manual, s *sharding, parts []tens) {
	_, axes := b.split(m, s, len(s.dims))
	first := map[int64]tens{}
	for at, x := range parts {
		place, left := int64(0), int64(at)
		step := int64(1)
		for i := len(m.axes) - 1; i >= 0; i-- {
			a := m.axes[i]
			if slices.Contains(axes, a) {
				place += left % a.size * step
				step *= a.size
			}
			left /= a.size
		}
		if y, ok := first[place]; ok && y.v != x.v {
			b.refuse("processes have different values where the sharding says that they are equal")
		}
		first[place] = x
	}
}

// processes converts the groups of a collective to groups of processes. Each replica has one process for each
// partition.
func (b *devices) processes(rows [][]int64) [][]int64 {
	m := b.devs
	channel := false
	if a := b.op.attrs["channel_handle"]; a != nil {
		channel = a.dict["handle"].int() > 0
	}
	flat := b.op.attrs["use_global_device_ids"] != nil
	byPartition := strings.HasSuffix(b.op.name, "all_to_all") || strings.HasSuffix(b.op.name, "collective_permute")
	var out [][]int64
	for _, r := range rows {
		switch {
		case flat && channel:
			out = append(out, r)
		case channel && byPartition: // one group for each replica
			for replica := range m.replicas {
				out = append(out, m.processesIn([]int64{replica}, r))
			}
		case channel: // one group with all partitions of the replicas
			out = append(out, m.processesIn(r, graph.Counting(int(m.partitions))))
		default: // one group for each partition
			for partition := range m.partitions {
				out = append(out, m.processesIn(r, []int64{partition}))
			}
		}
	}
	for _, p := range slices.Concat(out...) {
		if p < 0 || p >= b.lift {
			b.refuse("a group with process %d, which does not exist", p)
		}
	}
	return out
}

// processesIn lists the processes of some replicas and partitions, by partition.
func (m *manual) processesIn(replicas, partitions []int64) (list []int64) {
	for _, p := range partitions {
		for _, r := range replicas {
			list = append(list, r*m.partitions+p)
		}
	}
	return list
}
