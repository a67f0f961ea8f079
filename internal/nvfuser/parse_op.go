package nvfuser

import (
	"strconv"
	"strings"
)

// definition reads a statement "T3 = op(…)" with any kind of operation.
func (c *cursor) definition(s *stmt) {
	s.out = c.tensor()
	c.want("=")
	if c.tok.kind == tokWord && c.peekAfter().text == "(" && !c.atNumber() {
		c.function(s)
	} else {
		c.infix(s)
	}
	c.got(";")
}

// function reads "op(operands, attributes)".
func (c *cursor) function(s *stmt) {
	pos := c.pos()
	s.kind, s.op = stCompute, c.advance().text
	c.want("(")
	switch s.op {
	case "ALLOCATE":
		c.allocate(s)
	case "select", "HirAliasSelect":
		c.selection(s)
	case "ShardByStream":
		s.kind = stShard
		s.in = append(s.in, operand{t: c.tensor()})
		c.want(",")
		c.attribute("stream_index", func() { s.index = c.scalar() })
	case "slice":
		c.slice(s)
	case "reduction":
		c.reduce(s)
	case "broadcast", "squeeze":
		s.in = append(s.in, operand{t: c.tensor()})
		c.want(",")
		c.attribute("flags", func() { s.flags = c.booleans() })
	case "Set", "SegmenterSet", "Set.Permute":
		s.in = append(s.in, operand{t: c.tensor()})
		for c.got(",") { // skips the arguments that determine how the copy is cached
			c.word("an attribute")
			c.want("=")
			c.word("its value")
		}
	default:
		if !knownOp(s.op) && !c.bad {
			c.failAt(pos, "the operation "+brief(s.op)+" is not supported")
			return
		}
		c.operands(s)
	}
	c.want(")")
}

func (c *words) attribute(name string, value func()) {
	c.want(name)
	c.want("=")
	if !c.bad {
		value()
	}
}

func (c *cursor) operands(s *stmt) {
	for !c.bad && !c.is(")") {
		s.in = append(s.in, c.operand())
		if !c.got(",") {
			break
		}
	}
}

// infix reads "T1 + T2", "T1 * double(0.5)" or "-T1".
func (c *cursor) infix(s *stmt) {
	s.kind = stCompute
	if c.got("-") {
		s.op, s.in = "neg", []operand{c.operand()}
		return
	}
	s.in = append(s.in, c.operand())
	switch c.tok.text {
	case "+", "-", "*", "/":
		s.op = c.advance().text
		s.in = append(s.in, c.operand())
	default:
		if c.tok.kind == tokEnd || c.is(";") {
			s.op = "Set"
			return
		}
		c.expected("an operator: + - * /")
	}
}

// atNumber reports whether the next tokens are a number: "0.5", "double(0.5)".
func (c *words) atNumber() bool {
	_, isType := dtypes[c.tok.text]
	return c.tok.kind == tokNumber || c.tok.kind == tokWord && isType
}

func (c *cursor) operand() operand {
	pos := c.pos()
	if !c.atNumber() && !c.is("-") {
		return operand{t: c.tensor(), pos: pos}
	}
	if c.tok.kind == tokWord {
		c.advance()
		c.want("(")
		v := c.float()
		c.want(")")
		return operand{num: v, pos: pos}
	}
	return operand{num: c.float(), pos: pos}
}

func (c *words) float() float64 {
	sign := 1.0
	if c.got("-") {
		sign = -1
	}
	v, err := strconv.ParseFloat(strings.TrimRight(c.tok.text, "fLl"), 64)
	if err != nil || c.tok.kind != tokNumber {
		c.expected("a number")
		return 0
	}
	c.advance()
	return sign * v
}

// allocate reads "buffer=…, mem_type=…, size=…, zero_init=…, …".
func (c *cursor) allocate(s *stmt) {
	s.kind = stAllocate
	for !c.bad && !c.is(")") {
		key := c.word("a field's name")
		c.want("=")
		switch key {
		case "buffer":
			if pos, x := c.pos(), c.tensor(); !c.bad && s.out != nil && x.id != s.out.id {
				c.failAt(pos, "this ALLOCATE has the buffer "+x.id+" but assigns it to "+s.out.id)
			}
		case "size":
			s.size = c.scalar()
		case "zero_init":
			s.zero = c.boolean()
		case "resets_to_zero":
			s.zero = c.boolean() || s.zero
		case "mem_type", "alias":
			c.word("a value")
		default:
			if !c.bad {
				c.fail("ALLOCATE has the field " + brief(key) + ", which is not supported")
			}
		}
		if !c.got(",") {
			break
		}
	}
}

func (c *words) boolean() bool {
	if c.got("true") {
		return true
	}
	c.want("false")
	return false
}

func (c *words) booleans() []bool {
	var list []bool
	c.want("{")
	for !c.bad && !c.is("}") {
		list = append(list, c.boolean())
		if !c.got(",") {
			break
		}
	}
	c.want("}")
	return list
}

// selection reads "T0, axis = iS0{i0}, index = i104".
func (c *cursor) selection(s *stmt) {
	s.kind = stAlias
	s.in = append(s.in, operand{t: c.tensor()})
	c.want(",")
	c.attribute("axis", func() { s.axis = c.axis().num })
	c.want(",")
	c.attribute("index", func() { s.index = c.scalar() })
}

// slice reads "T0, { {lo, hi, step} … }".
func (c *cursor) slice(s *stmt) {
	s.kind = stSlice
	s.in = append(s.in, operand{t: c.tensor()})
	c.want(",")
	c.want("{")
	for !c.bad && c.got("{") {
		var x sliceRange
		x.lo = c.scalar()
		c.want(",")
		x.hi = c.scalar()
		c.want(",")
		x.step = c.scalar()
		c.want("}")
		c.got(",")
		s.ranges = append(s.ranges, x)
	}
	c.want("}")
}

// reduce reads "T0, op = add, initial value = float(0), allreduce = false".
func (c *cursor) reduce(s *stmt) {
	s.in = append(s.in, operand{t: c.tensor()})
	c.want(",")
	c.attribute("op", func() { s.op = "reduction." + c.word("an operation") })
	for c.got(",") {
		switch key := c.word("an attribute"); key {
		case "initial":
			c.want("value")
			c.want("=")
			c.initial(s.op)
		default:
			c.want("=")
			c.word("its value")
		}
	}
}

// initial reads the initial value of a reduction: "float(0)", "float(-inf)", "-inf". The initial value must be the
// neutral element of the reduction's operation.
func (c *words) initial(op string) {
	pos, text := c.pos(), ""
	for depth := 0; c.tok.kind != tokEnd && (depth > 0 || !c.is(",") && !c.is(")")); c.advance() {
		depth += depthOf(c.tok.text)
		text += c.tok.text
	}
	number := strings.TrimSuffix(text[strings.LastIndex(text, "(")+1:], ")")
	if v, err := strconv.ParseFloat(number, 64); !c.bad && (err != nil || !neutral(op, v)) {
		c.failAt(pos, "this reduction has the initial value "+brief(text)+"; only its neutral element is supported")
	}
}

// leastHuge is the largest finite number of the narrowest floating-point type. In types without infinities, the largest
// number is printed in place of infinity.
const leastHuge = 65504

// neutral reports whether the initial value v leaves the result of the reduction unchanged.
func neutral(op string, v float64) bool {
	switch op {
	case "reduction.max", "reduction.fmax":
		return v <= -leastHuge
	case "reduction.min", "reduction.fmin":
		return v >= leastHuge
	}
	return v == 0 // the neutral element of a sum; unsupported operations are refused elsewhere
}
