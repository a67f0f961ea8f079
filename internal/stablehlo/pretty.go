package stablehlo

// pretty reads the pretty form of an operation after its name.
func (p *parser) pretty(o *op) {
	switch o.name {
	case "stablehlo.constant", "sdy.constant":
		if p.peek() == '{' {
			p.into(o, p.dict())
		}
		a := p.attr()
		if a.dense == nil {
			p.fail("want dense<…>, found another attribute")
		}
		o.attrs["value"] = a
		o.types = []typ{a.dense.t}
		return
	case "stablehlo.reduce":
		p.reduce(o)
		return
	case "stablehlo.while":
		p.while(o)
		return
	case "sdy.manual_computation", "sdy.named_computation":
		p.computation(o)
		return
	}
	for {
		c := p.peek()
		switch {
		case c == '%':
			o.in = append(o.in, p.use())
		case c == '@':
			o.words = append(o.words, p.symbol())
		case c == '"':
			o.words = append(o.words, p.text())
		case c == '(':
			p.parenthesis(o)
		case c == '{' && o.name == "sdy.all_reduce":
			p.skip()
		case c == '{' && p.isBlock():
			o.regions = append(o.regions, p.block("{", "}"))
		case c == '{':
			if p.into(o, p.dict()); o.attrs["value"] != nil && len(o.out) == 0 {
				return
			}
		case c == '[':
			o.attrs["list"] = p.ranges()
		case c == '<':
			o.attrs["sharding"] = &attr{sharding: p.sharding()}
		case p.nextWord() == "dense":
			o.attrs["value"] = p.attr() // the attribute includes the type
			if c := p.peek(); len(o.out) == 0 && c != ',' && c != '{' {
				return
			}
		case p.nextWord() == "loc":
			return
		case isLetter(c):
			p.named(o)
		case c == ':':
			p.accept(":")
			p.prettyTypes(o)
			return
		default:
			if len(o.out) == 0 { // a return without operands
				return
			}
			p.fail("%s: want a type, found %q", o.name, p.found())
		}
		p.accept(",")
	}
}

// named reads a word, or an attribute with its name: "dims = [0, 1]".
func (p *parser) named(o *op) {
	w := p.word()
	if !p.accept("=") {
		o.words = append(o.words, w)
		return
	}
	if w == "out_sharding" || w == "sharding" {
		o.attrs[w] = &attr{sharding: p.sharding()}
		return
	}
	a := p.attr()
	if p.acceptWord("x") { // "[1] x [0]"
		a = &attr{list: []*attr{a, p.attr()}}
	}
	if p.accept("->") { // dimension numbers of a convolution
		a.list = append(a.list, p.attr())
	}
	o.attrs[w] = a
}

// isBlock reports whether the text continues with a region that has a labelled block.
func (p *parser) isBlock() bool {
	at := p.at
	defer func() { p.at = at }()
	return p.accept("{") && p.peek() == '^'
}

// parenthesis reads operands in parentheses, which may be followed by attributes: "(%0, k = 5)".
func (p *parser) parenthesis(o *op) {
	p.list("(", ")", func() {
		if p.peek() == '%' {
			o.in = append(o.in, p.use())
			return
		}
		w := p.word()
		p.expect("=")
		o.attrs[w] = p.attr()
	})
}

// prettyTypes reads the types of a pretty form: a function type, or the type that all operands and results have.
func (p *attributes) prettyTypes(o *op) {
	n := len(o.out)
	var list []typ
	if p.peek() == '(' {
		p.list("(", ")", func() { list = append(list, p.typ()) })
		p.expect("->")
		o.types = p.arrowTypes()
		return
	}
	for {
		list = append(list, p.typ())
		if p.accept("->") {
			o.types = p.arrowTypes()
			return
		}
		if !p.accept(",") {
			break
		}
	}
	if n > 0 {
		if len(list) < n {
			p.fail("%s has %d results, but %d result types", o.name, n, len(list))
		}
		o.types = list[len(list)-n:]
	}
}

// ranges reads "[0:2, 1:3:2]". For any other list it stores the text.
func (p *attributes) ranges() *attr {
	at := p.at
	p.accept("[")
	c := p.peek()
	p.at = at
	if !isDigit(c) && c != '-' && c != ']' {
		return &attr{raw: p.skip()}
	}
	a := &attr{list: []*attr{}}
	p.list("[", "]", func() {
		r := []*attr{{number: float64(p.integer())}}
		for p.accept(":") {
			r = append(r, &attr{number: float64(p.integer())})
		}
		a.list = append(a.list, &attr{list: r})
	})
	return a
}

// reduce reads "(%0 init: %c), (%1 init: %d) applies op across dimensions = [1] : types", or the form that has a body
// in place of applies.
func (p *parser) reduce(o *op) {
	var inits []string
	for {
		p.expect("(")
		o.in = append(o.in, p.use())
		if !p.acceptWord("init") {
			p.fail("want init, found %q", p.found())
		}
		p.expect(":")
		inits = append(inits, p.use())
		p.expect(")")
		if !p.accept(",") {
			break
		}
	}
	n := len(o.in)
	o.in = append(o.in, inits...)
	if p.acceptWord("applies") {
		name := p.word()
		body := &op{name: name, line: o.line, in: []string{"a", "b"}, out: []string{"c"}, attrs: map[string]*attr{}}
		end := &op{name: "stablehlo.return", line: o.line, in: []string{"c"}, attrs: map[string]*attr{}}
		o.regions = []*block{{args: []arg{{name: "a"}, {name: "b"}}, ops: []*op{body, end}}}
	}
	if !p.acceptWord("across") || !p.acceptWord("dimensions") {
		p.fail("want across dimensions, found %q", p.found())
	}
	p.expect("=")
	o.attrs["dimensions"] = p.attr()
	if p.peek() == '{' {
		p.into(o, p.dict())
	}
	p.expect(":")
	p.prettyTypes(o)
	if len(o.regions) == 1 { // the operation after "applies" has the types of the operands
		if len(o.types) != 1 {
			p.fail("applies is supported for one operand only, not for %d", len(o.types))
		}
		t := typ{dt: o.types[0].dt, shape: []int64{}, other: o.types[0].other}
		b := o.regions[0]
		b.args[0].t, b.args[1].t, b.ops[0].types = t, t, []typ{t}
		return
	}
	if !p.acceptWord("reducer") {
		p.fail("want reducer, found %q", p.found())
	}
	var first, second []arg
	for p.peek() == '(' {
		pair := p.blockArgs()
		if len(pair) != 2 {
			p.fail("the parameters of a reducer must be pairs")
		}
		first, second = append(first, pair[0]), append(second, pair[1])
	}
	if len(first) != n {
		p.fail("a reducer of %d operands has %d pairs of parameters", n, len(first))
	}
	b := p.block("{", "}")
	b.args = append(first, second...)
	o.regions = []*block{b}
}

// while reads "(%a = %0, …) : types attributes {…} cond {…} do {…}".
func (p *parser) while(o *op) {
	var names []string
	p.list("(", ")", func() {
		p.expect("%")
		names = append(names, p.bare())
		p.expect("=")
		o.in = append(o.in, p.use())
	})
	if p.accept(":") {
		for {
			o.types = append(o.types, p.typ())
			if !p.accept(",") {
				break
			}
		}
	}
	if len(o.types) != len(o.in) {
		p.fail("while carries %d values, but has %d types", len(o.in), len(o.types))
	}
	if p.acceptWord("attributes") {
		p.into(o, p.dict())
	}
	var args []arg
	for i, n := range names {
		args = append(args, arg{name: n, t: o.types[i]})
	}
	for _, w := range []string{"cond", "do"} {
		if !p.acceptWord(w) {
			p.fail("want %s, found %q", w, p.found())
		}
		b := p.block("{", "}")
		b.args = args
		o.regions = append(o.regions, b)
	}
}

// computation reads "(%0, …) in_shardings=[…] out_shardings=[…] manual_axes={…} (%a: type, …) {…} : types".
func (p *parser) computation(o *op) {
	if p.peek() == '<' { // the name of a named computation
		p.skip()
	}
	p.list("(", ")", func() { o.in = append(o.in, p.use()) })
	for p.isWord() {
		w := p.word()
		p.expect("=")
		a := &attr{}
		switch w {
		case "in_shardings", "out_shardings":
			p.list("[", "]", func() { a.list = append(a.list, &attr{sharding: p.sharding()}) })
		case "manual_axes":
			p.list("{", "}", func() { a.list = append(a.list, &attr{text: p.text()}) })
		default:
			a = p.attr()
		}
		o.attrs[w] = a
	}
	args := p.blockArgs()
	b := p.block("{", "}")
	b.args = args
	o.regions = []*block{b}
	if p.peek() == '{' {
		p.into(o, p.dict())
	}
	p.expect(":")
	p.prettyTypes(o)
}
