package stablehlo

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// attr is an attribute. One field of an attr is set, according to the kind of the attribute.
type attr struct {
	number   float64 // value of a number or bool
	text     string  // value of a string, symbol or word
	list     []*attr
	dict     map[string]*attr
	raw      string // text of an attribute that is not supported
	dense    *dense
	sharding *sharding
	per      []*sharding // shardings of several values
	mesh     *mesh
	typ      *typ
	words    []string // of "#stablehlo<comparison_direction LT>"
}

// ints returns the integers of a list attribute or a dense attribute.
func (a *attr) ints() []int64 {
	list := []int64{}
	if a == nil {
		return list
	}
	if a.dense != nil {
		for _, x := range a.dense.all() {
			list = append(list, int64(x))
		}
		return list
	}
	for _, x := range a.list {
		list = append(list, int64(x.number))
	}
	return list
}

// int returns the integer of a number attribute, or 0 if there is none.
func (a *attr) int() int64 {
	if a == nil {
		return 0
	}
	return int64(a.number)
}

// attributes parses types and attributes.
type attributes struct {
	scanner
	elems   int64 // total number of elements of constants
	aliases map[string]*attr
}

// dict reads "{name = attribute, …}".
func (p *attributes) dict() map[string]*attr {
	defer p.deeper()()
	d := map[string]*attr{}
	p.list("{", "}", func() {
		name := ""
		if p.peek() == '"' {
			name = p.text()
		} else {
			name = p.word()
		}
		d[name] = &attr{}
		if p.accept("=") {
			d[name] = p.attr()
		}
	})
	return d
}

// attr reads an attribute.
func (p *attributes) attr() *attr {
	a := p.value()
	if a.dense == nil && a.typ == nil && p.peek() == ':' && !strings.HasPrefix(p.src[p.at:], "::") {
		at := p.at
		p.accept(":")
		if !p.isType() || p.peek() == '(' { // the type that follows belongs to the operation and not to the attribute
			p.at = at
			return a
		}
		if t := p.typ(); strings.HasPrefix(t.String(), "tensor") {
			p.at = at
		}
	}
	return a
}

// value parses an attribute without its type.
func (p *attributes) value() *attr {
	defer p.deeper()()
	c := p.peek()
	switch {
	case c == '"':
		return &attr{text: p.text()}
	case c == '@':
		a := &attr{text: p.symbol()}
		for p.accept("::") {
			a.text += "::" + p.symbol()
		}
		return a
	case c == '[':
		a := &attr{list: []*attr{}}
		p.list("[", "]", func() { a.list = append(a.list, p.attr()) })
		return a
	case c == '{':
		return &attr{dict: p.dict()}
	case c == '#':
		return p.hash()
	case c == '-' || isDigit(c):
		return &attr{number: p.float()}
	case c == '<':
		return &attr{raw: p.skip()}
	case p.isType():
		t := p.typ()
		return &attr{typ: &t}
	}
	switch w := p.word(); w {
	case "true":
		return &attr{number: 1}
	case "false", "unit":
		return &attr{}
	case "dense":
		return &attr{dense: p.dense()}
	case "array":
		a := &attr{list: []*attr{}}
		p.expect("<")
		p.word()
		if p.accept(">") {
			return a
		}
		p.expect(":")
		for {
			a.list = append(a.list, p.value())
			if p.accept(">") {
				return a
			}
			p.expect(",")
		}
	default:
		if p.at < len(p.src) && p.src[p.at] == '<' {
			return &attr{text: w, raw: p.skip()}
		}
		return &attr{text: w}
	}
}

// hash reads "#name", "#dialect.name<…>" or "#dialect<…>".
func (p *attributes) hash() *attr {
	p.expect("#")
	name := p.bare()
	if p.at == len(p.src) || p.src[p.at] != '<' {
		if a := p.aliases[name]; a != nil {
			return a
		}
		return &attr{raw: "#" + name}
	}
	switch name {
	case "sdy.sharding":
		return &attr{sharding: p.sharding()}
	case "sdy.sharding_per_value":
		a := &attr{}
		p.expect("<")
		p.list("[", "]", func() { a.per = append(a.per, p.sharding()) })
		p.expect(">")
		return a
	case "sdy.mesh":
		return &attr{mesh: p.mesh()}
	case "sdy.manual_axes":
		a := &attr{}
		p.expect("<")
		p.list("{", "}", func() { a.list = append(a.list, &attr{text: p.text()}) })
		p.expect(">")
		return a
	}
	if !strings.HasPrefix(name, "stablehlo") && !strings.HasPrefix(name, "mhlo") && !strings.HasPrefix(name, "chlo") {
		return &attr{raw: p.skip()}
	}
	a := &attr{dict: map[string]*attr{}}
	p.expect("<")
	for !p.accept(">") {
		if p.isWord() {
			if w := p.word(); p.accept("=") {
				a.dict[w] = p.value()
			} else {
				a.words = append(a.words, w)
			}
		} else if !p.accept(":") && !p.accept("->") {
			a.list = append(a.list, p.value())
		}
		p.accept(",")
	}
	return a
}

// float parses a number. It stores hexadecimal digits unconverted, because dense interprets them.
func (p *scanner) float() float64 {
	p.space()
	from := p.at
	if p.at < len(p.src) && p.src[p.at] == '-' {
		p.at++
	}
	for p.at < len(p.src) {
		c := p.src[p.at]
		if !isDigit(c) && c != '.' && c != 'e' && c != 'E' && !((c == '-' || c == '+') &&
			(p.src[p.at-1] == 'e' || p.src[p.at-1] == 'E')) {
			break
		}
		p.at++
	}
	x, err := strconv.ParseFloat(p.src[from:p.at], 64)
	if err != nil && !math.IsInf(x, 0) {
		p.at = from
		p.fail("want a number, found %q", p.found())
	}
	return x
}

// maxElems is the largest number of elements in all constants of a text together; they need 512 MiB.
const maxElems = 64 << 20

// dense is a constant tensor. It holds either all elements, or the one number that all elements equal.
type dense struct {
	t     typ
	splat bool
	elems []float64
	imag  []float64 // the imaginary parts of complex elements
}

// all returns the elements of the constant, one for each element of the tensor if the tensor is small.
func (d *dense) all() []float64 {
	if !d.splat {
		return d.elems
	}
	n := int64(1)
	for _, e := range d.t.shape {
		if n *= e; n > 1<<20 {
			return d.elems
		}
	}
	return slices.Repeat(d.elems, int(n))
}

// dense parses "<…> : type" after the word dense.
func (p *attributes) dense() *dense {
	d := &dense{}
	p.expect("<")
	from := p.at
	if p.peek() != '>' { // the elements are skipped first, because the type, which determines the meaning of the numbers, follows them
		p.skipElements()
	}
	end := p.at
	p.expect(">")
	p.expect(":")
	d.t = p.typ()
	after := p.at
	p.at = from
	n := int64(1)
	for _, e := range d.t.shape {
		if e > 0 && n > (1<<48)/e {
			p.fail("a constant of type %s is too large", d.t)
		}
		n *= e
	}
	if d.t.other != "" {
		p.at = after
		return d
	}
	if p.peek() == '"' && d.t.complex {
		for i, x := range p.raw(p.text(), d.t.dt, 2*n) {
			if i%2 == 0 {
				d.elems = append(d.elems, x)
			} else {
				d.imag = append(d.imag, x)
			}
		}
	} else if p.peek() == '"' {
		d.elems = p.raw(p.text(), d.t.dt, n)
	} else if p.at < end {
		p.elements(d, d.t.dt, d.t.shape, 0)
	}
	p.at = after
	if int64(len(d.elems)) == 1 && n != 1 {
		d.splat = true
	} else if int64(len(d.elems)) != n {
		p.fail("a constant of type %s has %d elements", d.t, len(d.elems))
	}
	if d.t.complex && len(d.imag) != len(d.elems) {
		p.fail("a constant of type %s has %d real and %d imaginary parts", d.t, len(d.elems), len(d.imag))
	}
	for _, list := range []*[]float64{&d.elems, &d.imag} {
		t := &graph.Tensor{DType: graph.F64, Shape: []int64{int64(len(*list))}, Elems: *list}
		*list = t.As(d.t.dt).Elems
	}
	return d
}

// skipElements skips the elements of a dense constant.
func (p *attributes) skipElements() {
	for p.at < len(p.src) && p.src[p.at] != '>' {
		if p.src[p.at] == '"' {
			p.text()
			continue
		}
		p.at++
	}
}

// elements parses numbers or nested lists of numbers.
func (p *attributes) elements(d *dense, dt graph.DType, shape []int64, depth int) {
	if depth > maxRank {
		p.fail("it nests more than %d deep", maxRank)
	}
	if p.peek() == '[' {
		n := int64(0)
		p.list("[", "]", func() { p.elements(d, dt, shape, depth+1); n++ })
		if depth >= len(shape) || n != shape[depth] {
			p.fail("the elements of a constant are not of its shape %v", shape)
		}
		return
	}
	if depth != 0 && depth != len(shape) {
		p.fail("the elements of a constant are not of its shape %v", shape)
	}
	if p.elems++; p.elems > maxElems {
		p.fail("constants have more than %d elements", maxElems)
	}
	if d.t.complex {
		var parts []float64
		p.list("(", ")", func() { parts = append(parts, p.element(dt)) })
		if len(parts) != 2 {
			p.fail("a complex number has %d parts", len(parts))
		}
		d.elems, d.imag = append(d.elems, parts[0]), append(d.imag, parts[1])
		return
	}
	d.elems = append(d.elems, p.element(dt))
}

// element parses one number.
func (p *attributes) element(dt graph.DType) float64 {
	switch {
	case p.accept("true"):
		return 1
	case p.accept("false"):
		return 0
	case p.accept("0x"):
		from := p.at
		for p.at < len(p.src) && (isDigit(p.src[p.at]) || isLetter(p.src[p.at])) {
			p.at++
		}
		u, err := strconv.ParseUint(p.src[from:p.at], 16, 64)
		if err != nil {
			p.fail("want hexadecimal digits, found %q", p.src[from:p.at])
		}
		return ofBits(dt, u)
	}
	return p.float()
}

// ofBits returns the number of type dt that has the given bit pattern.
func ofBits(dt graph.DType, u uint64) float64 {
	k, ok := ir.ParseDType(string(dt))
	if !ok {
		k = ir.I64
	}
	var x [1]float64
	tensor.ToFloat64(x[:], binary.LittleEndian.AppendUint64(nil, u), k)
	return x[0]
}

// raw parses elements that are written as the hexadecimal digits of their bytes: "0x…".
func (p *attributes) raw(text string, dt graph.DType, n int64) []float64 {
	size := dt.Size()
	data, err := hex.DecodeString(strings.TrimPrefix(text, "0x"))
	if err != nil || !strings.HasPrefix(text, "0x") {
		p.fail("want hexadecimal digits of a constant")
	}
	if p.elems += int64(len(data)) / size; p.elems > maxElems {
		p.fail("constants have more than %d elements", maxElems)
	}
	if dt == graph.Bool && int64(len(data)) == (n+7)/8 && n != int64(len(data)) { // eight bools are packed in each byte
		list := make([]float64, n)
		for i := range list {
			list[i] = float64(data[i/8] >> (i % 8) & 1)
		}
		return list
	}
	if int64(len(data)) != n*size && int64(len(data)) != size {
		p.fail("a constant of %d elements has %d bytes", n, len(data))
	}
	list := make([]float64, int64(len(data))/size)
	for i := range list {
		var b [8]byte
		copy(b[:], data[int64(i)*size:][:size])
		u := binary.LittleEndian.Uint64(b[:])
		if dt == graph.Bool {
			u = min(u, 1)
		}
		list[i] = ofBits(dt, u)
	}
	return list
}
