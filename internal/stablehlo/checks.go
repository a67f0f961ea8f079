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

// runParallel translates a function that several processes run. If the function's parameters have shardings and are
// larger than the parts that the processes hold, it is translated once for all processes.
func (b *builder) runParallel(in []tens) []tens {
	o := b.op
	a := o.attrs["programs"]
	if a == nil || len(a.list) == 0 || o.attrs["infeed"] != nil || b.lift != 0 {
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
	if n == 0 || int64(n)%rows != 0 || len(in)%n != 0 || len(o.types)%n != 0 {
		b.wrong("%d operands and %d results cannot be divided among %d programs", len(in), len(o.types), n)
	}
	for _, x := range names {
		if x != names[0] {
			b.refuse("processes that run different functions")
		}
	}
	f := b.module.funcs[names[0]]
	if f == nil || len(f.args) != len(in)/n {
		b.wrong("there is no function %s of %d parameters", names[0], len(in)/n)
	}
	m := &manual{replicas: rows, partitions: int64(n) / rows}
	for _, x := range b.meshes {
		size := int64(1)
		for _, e := range x.axes {
			size *= e.size
		}
		if size == int64(n) && len(x.axes) > 0 && (m.mesh == nil || len(x.axes) > len(m.mesh.axes)) {
			m.mesh = x
		}
	}
	global := m.mesh != nil
	if !global {
		m.mesh = &mesh{axes: []axis{{"devices", int64(n)}}}
	}
	m.axes = m.mesh.axes
	k := len(in) / n
	args := make([]tens, k)
	b.lift, b.devs = int64(n), m
	of := func(a arg) *sharding {
		if s := a.attrs["sdy.sharding"]; global && s != nil && s.sharding != nil {
			return s.sharding
		}
		return &sharding{dims: make([]dimension, len(a.t.shape))}
	}
	// order lists the processes in the order of their positions in a sharding's mesh.
	order := func(s *sharding) []int64 {
		if x := b.meshes[s.mesh]; x != nil && len(x.order) == n && global {
			return x.order
		}
		return graph.Counting(n)
	}
	for j := range args {
		s := of(f.args[j])
		var parts []tens
		for _, p := range order(s) {
			if p < 0 || p >= int64(n) {
				b.refuse("a sharding over a mesh of other devices")
			}
			x := in[int(p)*k+j]
			if !slices.Equal(x.t.shape, in[j].t.shape) || x.t.dt != in[j].t.dt {
				b.wrong("processes give %s and %s", in[j].t, x.t)
			}
			parts = append(parts, b.reshapedTo(x, append([]int64{1}, x.t.shape...)))
		}
		args[j] = tens{v: b.full(b.joined(0, parts...)), t: in[j].t, lifted: true}
		if global {
			b.agree(m, s, parts)
			args[j] = b.globalized(m, args[j], s, f.args[j].t)
		}
	}
	if global {
		b.lift, b.devs = 0, nil
	}
	out := b.function(f.name, args)
	b.op = o
	b.lift, b.devs = int64(n), m
	list := make([]tens, len(out)*n)
	for j, x := range out {
		places := graph.Counting(n)
		if global {
			s := of(f.results[j])
			x, places = b.localized(m, x, s, o.types[j], int64(n)), order(s)
		}
		for at, p := range places {
			y := x
			if x.lifted {
				v := b.fullAs(x, true)
				v = b.cut(tens{v: v, t: typ{dt: x.t.dt, shape: v.Shape}}, 0, int64(at), int64(at)+1).v
				y = tens{v: b.reshaped(v, x.t.shape), t: x.t}
			}
			list[int(p)*len(out)+j] = y
		}
	}
	b.lift, b.devs = 0, nil
	return list
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
	if a := b.op.attrs["channel_handle"]; a != nil && a.dict != nil && a.dict["handle"] != nil {
		channel = a.dict["handle"].number > 0
	}
	a := b.op.attrs["use_global_device_ids"]
	flat := a != nil
	byPartition := strings.HasSuffix(b.op.name, "all_to_all") || strings.HasSuffix(b.op.name, "collective_permute")
	var out [][]int64
	for _, r := range rows {
		switch {
		case flat && channel:
			out = append(out, r)
		case channel && byPartition: // one group for each replica
			for rep := range m.replicas {
				var g []int64
				for _, p := range r {
					g = append(g, rep*m.partitions+p)
				}
				out = append(out, g)
			}
		case channel: // one group with all partitions of the replicas
			var g []int64
			for p := range m.partitions {
				for _, rep := range r {
					g = append(g, rep*m.partitions+p)
				}
			}
			out = append(out, g)
		default: // one group for each partition
			for p := range m.partitions {
				var g []int64
				for _, rep := range r {
					g = append(g, rep*m.partitions+p)
				}
				out = append(out, g)
			}
		}
	}
	for _, g := range out {
		for _, p := range g {
			if p < 0 || p >= b.lift {
				b.refuse("a group with process %d, which does not exist", p)
			}
		}
	}
	return out
}
