package stablehlo

import "math"

// mesh is a mesh of devices.
type mesh struct {
	axes  []axis
	order []int64 // order of the devices; empty for ascending numbers
}

// axis is an axis of a mesh.
type axis struct {
	name string
	size int64
}

// size returns the number of devices of the mesh.
func (m *mesh) size() int64 {
	n := int64(1)
	for _, a := range m.axes {
		n *= a.size
	}
	return n
}

// part describes an axis over which a dimension is split. If size is not 0, the part is a factor of the axis of this
// size, after a factor of size pre.
type part struct {
	axis      string
	pre, size int64 // both are 0 if the part is the whole axis
}

// dimension describes how a dimension is split.
type dimension struct {
	parts []part
	open  bool // the dimension may be split over further axes
}

// sharding describes how a value is distributed over devices.
type sharding struct {
	mesh   string
	inline *mesh
	dims   []dimension
}

// mesh reads `<["x"=2, "y"=4], device_ids=[…]>`.
func (p *attributes) mesh() *mesh {
	m := &mesh{}
	p.expect("<")
	if p.peek() == '[' {
		p.list("[", "]", func() {
			a := axis{name: p.text()}
			p.expect("=")
			if a.size = p.integer(); a.size < 1 || a.size > 1<<20 {
				p.fail("axis %q has size %d", a.name, a.size)
			}
			m.axes = append(m.axes, a)
		})
	}
	total := int64(1)
	for _, a := range m.axes {
		if total > math.MaxInt32/a.size {
			p.fail("the mesh is too large")
		}
		total *= a.size
	}
	for p.accept(",") || p.isWord() {
		w := p.word()
		p.expect("=")
		a := p.attr()
		if w == "device_ids" {
			m.order = a.ints()
		}
	}
	p.expect(">")
	return m
}

// sharding reads `<@mesh, [{"x"}, {?}], replicated={"y"}, unreduced={"z"}>`.
func (p *attributes) sharding() *sharding {
	defer p.deeper()()
	s := &sharding{}
	p.accept("#sdy.sharding")
	p.expect("<")
	if p.peek() == '@' {
		s.mesh = p.symbol()
	} else if p.acceptWord("mesh") {
		s.inline = p.mesh()
	} else {
		p.fail("want a mesh, found %q", p.found())
	}
	p.expect(",")
	p.list("[", "]", func() {
		d := dimension{}
		p.list("{", "}", func() {
			if p.accept("?") {
				d.open = true
				return
			}
			d.parts = append(d.parts, p.part())
		})
		if p.at < len(p.src) && p.src[p.at] == 'p' { // a priority
			p.at++
			p.integer()
		}
		s.dims = append(s.dims, d)
	})
	for p.accept(",") {
		w := p.word()
		p.expect("=")
		p.list("{", "}", func() { p.part() })
		if w != "replicated" && w != "unreduced" {
			p.fail("a sharding has no %s", w)
		}
	}
	p.expect(">")
	return s
}

// part reads `"x"` or `"x":(2)4`.
func (p *attributes) part() part {
	a := part{axis: p.text()}
	if p.accept(":") {
		p.expect("(")
		a.pre = p.integer()
		p.expect(")")
		if a.size = p.integer(); a.pre < 1 || a.size < 2 {
			p.fail("(%d)%d is not a part of an axis", a.pre, a.size)
		}
	}
	return a
}
