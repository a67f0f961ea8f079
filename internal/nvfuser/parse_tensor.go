package nvfuser

import (
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

var dtypes = map[string]ir.DType{
	"": ir.F32, "float": ir.F32, "double": ir.F64, "__half": ir.F16, "__bfloat": ir.BF16,
	"int": ir.I32, "int64_t": ir.I64, "nvfuser_index_t": ir.I64, "index_t": ir.I64,
}

// atTensor reports whether the next tokens are a tensor: "T3_g_float[…".
func (c *words) atTensor() bool {
	t := c.tok.text
	return c.tok.kind == tokWord && len(t) > 1 && t[0] == 'T' && isDigit(t[1]) && c.peekAfter().text == "["
}

// tensor reads "T3_g_float[iS0{i0}, rS1{4}] (DeviceMesh{0 1})".
func (c *cursor) tensor() *tensor {
	t := &tensor{pos: c.pos()}
	if !c.atTensor() {
		c.expected("a tensor")
		return t
	}
	t.id, t.dtype = c.tensorName(c.advance().text)
	c.want("[")
	for !c.bad && !c.is("]") {
		t.axes = append(t.axes, c.axis())
		if !c.got(",") {
			break
		}
	}
	c.want("]")
	if c.is("(") && c.peekAfter().text == "DeviceMesh" {
		c.advance()
		c.advance()
		t.mesh = c.devices("{", "}")
		c.want(")")
	}
	return t
}

// tensorName splits a name such as "T3_g___bfloat" into the tensor's number, kind of memory and dtype. If the name
// contains no dtype, as in early dumps, the dtype is f32.
func (c *words) tensorName(text string) (string, ir.DType) {
	id, rest, _ := strings.Cut(text, "_")
	if _, err := strconv.ParseUint(id[1:], 10, 31); err != nil {
		c.fail("\"" + brief(text) + "\" is not the name of a tensor")
		return id, ir.F32
	}
	_, dtype, _ := strings.Cut(rest, "_")
	d, ok := dtypes[dtype]
	if !ok {
		c.fail("the element type " + brief(dtype) + " is not supported: use float, double, __half, __bfloat, int " +
			"or int64_t")
	}
	return id, d
}

// axis reads "ideviceIdx.x1{i2}", "?S13{( … )}rf" or "bS3{1}".
func (c *cursor) axis() axis {
	a := axis{pos: c.pos()}
	text := c.word("an axis")
	if text == "" {
		return a
	}
	digits := len(text)
	for digits > 1 && isDigit(text[digits-1]) {
		digits--
	}
	num, err := strconv.ParseUint(text[digits:], 10, 31)
	a.kind, a.par, a.num = text[0], text[1:digits], int(num)
	if err != nil || !strings.ContainsRune("irb?", rune(a.kind)) || a.par == "" {
		c.fail("\"" + brief(text) + "\" is not an axis; axes are written like iS0, rS1, bS2, ideviceIdx.x3 and " +
			"istreamIdx4")
		return a
	}
	c.want("{")
	a.extent = c.scalar()
	c.want("}")
	for c.got("rf") || c.got("_p") {
	}
	return a
}

// devices reads "{0 2 3}".
func (c *cursor) devices(open, end string) *mesh {
	m := &mesh{pos: c.pos()}
	c.want(open)
	seen := map[int64]bool{}
	for !c.bad && !c.is(end) {
		if c.is("{") {
			c.fail("the device mesh has more than one dimension; only meshes of one dimension are supported")
			return m
		}
		v, err := strconv.ParseInt(c.tok.text, 10, 64)
		switch {
		case err != nil:
			c.expected("a device")
		case v < 0 || v >= ir.MaxRanks || seen[v]:
			c.fail("device " + brief(c.tok.text) + " is out of range or listed twice")
		default:
			seen[v] = true
			m.devices = append(m.devices, v)
			c.advance()
			c.got(",")
		}
	}
	c.want(end)
	if len(m.devices) == 0 && !c.bad {
		c.fail("the device mesh has no devices")
	}
	return m
}
