package stablehlo

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// These constants limit the size of a text.
const (
	maxDepth = 200     // maximum nesting of regions and attributes
	maxOps   = 1 << 18 // operations in the text
	maxRank  = 64
)

// typ is a type. For types other than tensors of elements that graphs support, only the text is stored.
type typ struct {
	dt    graph.DType
	shape []int64
	other string
	// narrow is the name of an integer type that graphs do not support. Integers of this type are stored as i64, and
	// must be known.
	narrow string
	// complex reports that elements have a real and an imaginary part, both of type dt.
	complex bool
}

func (t typ) String() string {
	if t.other != "" {
		return t.other
	}
	var b strings.Builder
	for _, d := range t.shape {
		fmt.Fprintf(&b, "%dx", d)
	}
	elem := string(t.dt)
	switch {
	case t.narrow != "":
		elem = t.narrow
	case t.complex:
		elem = "complex<" + elem + ">"
	case t.dt == graph.Bool:
		elem = "i1"
	}
	return "tensor<" + b.String() + elem + ">"
}

// arg is a parameter of a function or block.
type arg struct {
	name  string
	t     typ
	attrs map[string]*attr
}

// block is the only block of a region.
type block struct {
	args []arg
	ops  []*op
}

// op is an operation.
type op struct {
	name    string
	line    int
	in      []string // names of operands, "0#1" for the second of several results
	out     []string
	words   []string // words and symbols of the pretty form, in order
	attrs   map[string]*attr
	regions []*block
	types   []typ // types of the results
}

// function is a function.
type function struct {
	name    string
	line    int
	args    []arg
	results []arg // the results' types; their names are empty
	body    *block
}

// module holds the definitions in a text.
type module struct {
	funcs  map[string]*function
	order  []*function
	meshes map[string]*mesh
}

// failure is the value with which the parser and the builder panic. Read returns its error.
type failure struct{ err error }

// parser parses text by recursive descent. It panics with a failure.
type parser struct {
	attributes
	count int
}

// newParser returns a parser of a text.
func newParser(name, src string) *parser {
	p := &parser{}
	p.name, p.src, p.lines, p.aliases = name, src, []int{0}, map[string]*attr{}
	p.module = &module{funcs: map[string]*function{}, meshes: map[string]*mesh{}}
	for i := range len(src) {
		if src[i] == '\n' {
			p.lines = append(p.lines, i+1)
		}
	}
	return p
}

// scanner reads words and punctuation from the text.
type scanner struct {
	name, src string
	at        int
	lines     []int // offsets at which lines begin
	depth     int
	module    *module
}

// line returns the number of the line that contains an offset.
func (p *scanner) line(at int) int {
	return sort.SearchInts(p.lines, at+1)
}

func (p *scanner) fail(format string, args ...any) {
	line := p.line(min(p.at, len(p.src)))
	column := min(p.at, len(p.src)) - p.lines[line-1] + 1
	panic(failure{fmt.Errorf("%s:%d:%d: %w: %s", p.name, line, column, ErrMalformed, fmt.Sprintf(format, args...))})
}

// deeper increments the nesting depth. The returned function decrements it.
func (p *scanner) deeper() func() {
	if p.depth++; p.depth > maxDepth {
		p.fail("it nests more than %d deep", maxDepth)
	}
	return func() { p.depth-- }
}

// space skips white space and comments.
func (p *scanner) space() {
	for p.at < len(p.src) {
		switch c := p.src[p.at]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			p.at++
		case strings.HasPrefix(p.src[p.at:], "//"):
			for p.at < len(p.src) && p.src[p.at] != '\n' {
				p.at++
			}
		default:
			return
		}
	}
}

// peek returns the next character, or 0 at the end of the text.
func (p *scanner) peek() byte {
	p.space()
	if p.at == len(p.src) {
		return 0
	}
	return p.src[p.at]
}

// accept skips s if the text continues with it, and reports whether it did.
func (p *scanner) accept(s string) bool {
	p.space()
	if strings.HasPrefix(p.src[p.at:], s) {
		p.at += len(s)
		return true
	}
	return false
}

func (p *scanner) expect(s string) {
	if !p.accept(s) {
		p.fail("want %q, found %q", s, p.found())
	}
}

// found describes the next token, for error messages.
func (p *scanner) found() string {
	p.space()
	if p.at == len(p.src) {
		return "the end"
	}
	end := p.at
	for end < len(p.src) && end < p.at+20 && p.src[end] != '\n' {
		end++
	}
	return p.src[p.at:end]
}

func isLetter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isName(c byte) bool { return isLetter(c) || isDigit(c) || c == '.' || c == '$' }

// isWord reports whether the next token is a word.
func (p *scanner) isWord() bool { return isLetter(p.peek()) }

// word reads a word, which may contain dots: "stablehlo.add".
func (p *scanner) word() string {
	if !p.isWord() {
		p.fail("want a word, found %q", p.found())
	}
	from := p.at
	for p.at < len(p.src) && isName(p.src[p.at]) {
		p.at++
	}
	return p.src[from:p.at]
}

// nextWord returns the next word without consuming it, or "" if the next token is not a word.
func (p *scanner) nextWord() string {
	if !p.isWord() {
		return ""
	}
	at := p.at
	w := p.word()
	p.at = at
	return w
}

// acceptWord skips the word w if it is next, and reports whether it did.
func (p *scanner) acceptWord(w string) bool {
	if p.nextWord() != w {
		return false
	}
	p.word()
	return true
}

// bare reads the name after a sign such as % or @. A name consists of letters, digits and some punctuation, or is a
// string.
func (p *scanner) bare() string {
	if p.at < len(p.src) && p.src[p.at] == '"' {
		return p.text()
	}
	from := p.at
	for p.at < len(p.src) && (isName(p.src[p.at]) || p.src[p.at] == '-' && !strings.HasPrefix(p.src[p.at:], "->")) {
		p.at++
	}
	if p.at == from {
		p.fail("want a name, found %q", p.found())
	}
	return p.src[from:p.at]
}

// symbol reads "@name".
func (p *scanner) symbol() string {
	p.expect("@")
	return p.bare()
}

// text reads a string.
func (p *scanner) text() string {
	p.expect(`"`)
	var b strings.Builder
	for p.at < len(p.src) && p.src[p.at] != '"' {
		c := p.src[p.at]
		p.at++
		if c != '\\' {
			b.WriteByte(c)
			continue
		}
		if p.at == len(p.src) {
			break
		}
		c = p.src[p.at]
		p.at++
		switch c {
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '"', '\\':
			b.WriteByte(c)
		default:
			if p.at == len(p.src) {
				p.fail("a string has no end")
			}
			x, err := strconv.ParseUint(p.src[p.at-1:p.at+1], 16, 8)
			if err != nil {
				p.fail("a string has \\%c", c)
			}
			p.at++
			b.WriteByte(byte(x))
		}
	}
	if p.at == len(p.src) {
		p.fail("a string has no end")
	}
	p.at++
	return b.String()
}

// integer reads a whole number.
func (p *scanner) integer() int64 {
	p.space()
	from := p.at
	if p.at < len(p.src) && p.src[p.at] == '-' {
		p.at++
	}
	for p.at < len(p.src) && isDigit(p.src[p.at]) {
		p.at++
	}
	n, err := strconv.ParseInt(p.src[from:p.at], 10, 64)
	if err != nil {
		p.at = from
		p.fail("want a whole number, found %q", p.found())
	}
	return n
}

// list calls f for each element of a comma-separated list between open and end.
func (p *scanner) list(open, end string, f func()) {
	p.expect(open)
	if p.accept(end) {
		return
	}
	for {
		f()
		if p.accept(end) {
			return
		}
		p.expect(",")
	}
}

// skip skips a bracketed text including its brackets, and returns it.
func (p *scanner) skip() string {
	p.space()
	from := p.at
	var open []byte
	for p.at < len(p.src) {
		switch c := p.src[p.at]; c {
		case '"':
			p.text()
			continue
		case '(', '[', '{', '<':
			if open = append(open, c); len(open) > maxDepth {
				p.fail("it nests more than %d deep", maxDepth)
			}
		case '-':
			if strings.HasPrefix(p.src[p.at:], "->") {
				p.at++
			}
		case ')', ']', '}', '>':
			if len(open) == 0 || strings.IndexByte("([{<", open[len(open)-1]) != strings.IndexByte(")]}>", c) {
				p.fail("%q closes nothing", c)
			}
			open = open[:len(open)-1]
		}
		p.at++
		if len(open) == 0 {
			return p.src[from:p.at]
		}
	}
	p.fail("a bracket is not closed")
	return ""
}

// location skips "loc(…)".
func (p *scanner) location() {
	if p.nextWord() == "loc" {
		p.word()
		p.skip()
	}
}

// dtypes holds the element types that graphs support.
var dtypes = map[string]graph.DType{"i1": graph.Bool, "i32": graph.I32, "i64": graph.I64, "f16": graph.F16,
	"bf16": graph.BF16, "f32": graph.F32, "f64": graph.F64}

// narrow holds the smallest and the largest number of each integer type that graphs do not have.
var narrow = map[string][2]float64{"i8": {-128, 127}, "i16": {-32768, 32767}, "ui8": {0, 255}, "ui16": {0, 65535},
	"ui32": {0, 1<<32 - 1}, "i2": {-2, 1}, "ui2": {0, 3}, "i4": {-8, 7}, "ui4": {0, 15}, "ui64": {0, 1 << 53}}

// isType reports whether the text continues with a type.
func (p *scanner) isType() bool {
	switch c := p.peek(); {
	case c == '!' || c == '(':
		return true
	case !isLetter(c):
		return false
	}
	w := p.nextWord()
	if dtypes[w] != "" || w == "tensor" || w == "tuple" || w == "index" || w == "none" || w == "complex" ||
		w == "vector" || w == "memref" {
		return true
	}
	digits := strings.TrimLeft(w, "suibf")
	return digits != w && digits != "" && isDigit(digits[0])
}

// typ reads a type.
func (p *attributes) typ() typ {
	defer p.deeper()()
	p.space()
	from := p.at
	if p.peek() == '(' { // a function type
		p.list("(", ")", func() { p.typ() })
		if p.accept("->") {
			p.typ()
		}
		return typ{other: p.src[from:p.at]}
	}
	if p.accept("!") {
		p.bare()
		if p.at < len(p.src) && p.src[p.at] == '<' {
			p.skip()
		}
		return typ{other: p.src[from:p.at]}
	}
	w := p.word()
	if w != "tensor" {
		if p.at < len(p.src) && p.src[p.at] == '<' {
			p.skip()
		}
		return typ{other: w}
	}
	p.expect("<")
	t := typ{shape: []int64{}}
	for {
		c := p.peek()
		if !isDigit(c) {
			break
		}
		t.shape = append(t.shape, p.integer())
		if p.at == len(p.src) || p.src[p.at] != 'x' {
			p.fail("want x and a type of elements, found %q", p.found())
		}
		p.at++
	}
	if len(t.shape) > maxRank {
		p.fail("a tensor has %d dimensions; the limit is %d", len(t.shape), maxRank)
	}
	elem := p.at
	for p.at < len(p.src) && isName(p.src[p.at]) {
		p.at++
	}
	name := p.src[elem:p.at]
	if name == "complex" && p.accept("<") {
		name, t.complex = p.bare(), true
		p.accept(">")
	}
	dt, ok := dtypes[name]
	ok = ok && (!t.complex || dt == graph.F32 || dt == graph.F64)
	if _, is := narrow[name]; is {
		dt, ok, t.narrow = graph.I64, true, name
	}
	if ok && p.accept(">") {
		t.dt = dt
		return t
	}
	// The type has a form like "tensor<?x4xf32>", "tensor<4xf8E5M2>" or "tensor<4xf32, #encoding>".
	p.at = from + len("tensor")
	p.skip()
	return typ{other: p.src[from:p.at]}
}

// arrowTypes reads the types after "->": one type, or several in parentheses.
func (p *attributes) arrowTypes() []typ {
	if p.peek() != '(' {
		return []typ{p.typ()}
	}
	list := []typ{}
	p.list("(", ")", func() { list = append(list, p.typ()) })
	return list
}

// file reads a whole text.
func (p *parser) file() *module {
	p.items(func() bool { return p.peek() == 0 })
	return p.module
}

// items reads the contents of a module until end returns true.
func (p *parser) items(end func() bool) {
	defer p.deeper()()
	for !end() {
		if p.peek() == '#' {
			p.alias()
			continue
		}
		if p.peek() == '"' {
			p.genericItem()
			continue
		}
		switch w := p.word(); w {
		case "module", "builtin.module":
			if p.peek() == '@' {
				p.symbol()
			}
			if p.acceptWord("attributes") {
				p.dict()
			}
			p.expect("{")
			p.items(func() bool { return p.accept("}") })
			p.location()
		case "func.func", "func":
			p.function()
		case "sdy.mesh":
			name := p.symbol()
			p.expect("=")
			p.module.meshes[name] = p.mesh()
			if p.peek() == '{' {
				p.dict()
			}
			p.location()
		default:
			p.at -= len(w)
			p.fail("want a module, a function or a mesh, found %q", p.found())
		}
	}
}

// alias reads "#name = attribute".
func (p *parser) alias() {
	p.expect("#")
	name := p.bare()
	p.expect("=")
	if p.nextWord() == "loc" {
		p.location()
		return
	}
	p.aliases[name] = p.attr()
}

// genericItem reads a module, function or mesh in generic form.
func (p *parser) genericItem() {
	at := p.at
	name := p.text()
	switch name {
	case "builtin.module":
		p.expect("(")
		p.expect(")")
		if p.accept("<") {
			p.dict()
			p.expect(">")
		}
		p.expect("(")
		p.expect("{")
		p.items(func() bool { return p.accept("}") })
		p.expect(")")
		if p.peek() == '{' {
			p.dict()
		}
		p.expect(":")
		p.typ()
		p.location()
	case "func.func", "sdy.mesh":
		line := p.line(at)
		o := &op{name: name, line: line, attrs: map[string]*attr{}}
		p.generic(o)
		sym := o.attrs["sym_name"]
		if sym == nil {
			p.fail("%s has no sym_name", name)
		}
		if name == "sdy.mesh" {
			if o.attrs["mesh"] == nil || o.attrs["mesh"].mesh == nil {
				p.fail("the mesh has no axes")
			}
			p.module.meshes[sym.text] = o.attrs["mesh"].mesh
			return
		}
		p.genericFunction(o, sym.text)
	default:
		p.at = at
		p.fail("want a module, a function or a mesh, found %q", p.found())
	}
}

// genericFunction converts the generic form of a function.
func (p *parser) genericFunction(o *op, name string) {
	f := &function{name: name, line: o.line}
	ft := o.attrs["function_type"]
	if ft == nil || ft.typ == nil {
		p.fail("function %s has no type", name)
	}
	sub := &parser{}
	sub.name, sub.src, sub.lines = p.name, ft.typ.other, []int{0}
	sub.list("(", ")", func() { f.args = append(f.args, arg{t: sub.typ()}) })
	sub.expect("->")
	for _, t := range sub.arrowTypes() {
		f.results = append(f.results, arg{t: t})
	}
	attrsOf := func(key string, list []arg) {
		if a := o.attrs[key]; a != nil && len(a.list) == len(list) {
			for i, d := range a.list {
				list[i].attrs = d.dict
			}
		}
	}
	attrsOf("arg_attrs", f.args)
	attrsOf("res_attrs", f.results)
	if len(o.regions) == 1 && len(o.regions[0].ops) > 0 {
		f.body = o.regions[0]
		if len(f.body.args) != len(f.args) {
			p.fail("function %s has %d parameters, but its block has %d", name, len(f.args), len(f.body.args))
		}
		for i, a := range f.body.args {
			f.args[i].name = a.name
		}
	}
	p.define(f)
}

func (p *scanner) define(f *function) {
	if p.module.funcs[f.name] != nil {
		p.fail("function %s is defined twice", f.name)
	}
	p.module.funcs[f.name] = f
	p.module.order = append(p.module.order, f)
}

// function reads a function after the keyword func.
func (p *parser) function() {
	f := &function{line: p.line(p.at)}
	for p.isWord() { // public, private
		p.word()
	}
	f.name = p.symbol()
	p.list("(", ")", func() {
		a := arg{}
		if p.peek() == '%' {
			p.accept("%")
			a.name = p.bare()
			p.expect(":")
		}
		a.t = p.typ()
		if p.peek() == '{' {
			a.attrs = p.dict()
		}
		p.location()
		f.args = append(f.args, a)
	})
	if p.accept("->") {
		one := func() {
			r := arg{t: p.typ()}
			if p.peek() == '{' {
				r.attrs = p.dict()
			}
			p.location()
			f.results = append(f.results, r)
		}
		if p.peek() == '(' {
			p.list("(", ")", one)
		} else {
			r := arg{t: p.typ()}
			f.results = append(f.results, r)
		}
	}
	if p.acceptWord("attributes") {
		p.dict()
	}
	if p.peek() == '{' {
		f.body = p.block("{", "}")
		f.body.args = nil
	}
	p.location()
	p.define(f)
}

// block reads a region.
func (p *parser) block(open, end string) *block {
	defer p.deeper()()
	b := &block{}
	p.expect(open)
	if p.peek() == '^' {
		p.accept("^")
		p.bare()
		if p.peek() == '(' {
			b.args = p.blockArgs()
		}
		p.expect(":")
	}
	for !p.accept(end) {
		if p.peek() == '^' {
			p.fail("a region has several blocks")
		}
		b.ops = append(b.ops, p.op())
	}
	return b
}

// blockArgs reads "(%a: type, …)".
func (p *attributes) blockArgs() []arg {
	list := []arg{}
	p.list("(", ")", func() {
		p.expect("%")
		a := arg{name: p.bare()}
		p.expect(":")
		a.t = p.typ()
		p.location()
		list = append(list, a)
	})
	return list
}

// use reads an operand: "%name" or "%name#1".
func (p *scanner) use() string {
	p.expect("%")
	name := p.bare()
	if p.at < len(p.src) && p.src[p.at] == '#' {
		p.at++
		name = fmt.Sprintf("%s#%d", name, p.integer())
	}
	return name
}

// op reads an operation.
func (p *parser) op() *op {
	defer p.deeper()()
	if p.count++; p.count > maxOps {
		p.fail("it has more than %d operations", maxOps)
	}
	o := &op{attrs: map[string]*attr{}}
	p.space()
	o.line = p.line(p.at)
	if p.peek() == '%' {
		for {
			p.expect("%")
			name := p.bare()
			if p.accept(":") {
				n := p.integer()
				if n < 1 || n > 1<<16 {
					p.fail("%%%s has %d results", name, n)
				}
				for i := range n {
					o.out = append(o.out, fmt.Sprintf("%s#%d", name, i))
				}
			} else {
				o.out = append(o.out, name)
			}
			if p.accept("=") {
				break
			}
			p.expect(",")
		}
	}
	if p.peek() == '"' {
		o.name = p.text()
		p.generic(o)
	} else {
		o.name = p.word()
		p.pretty(o)
	}
	p.location()
	if len(o.types) != len(o.out) && !(len(o.out) == 0 && len(o.types) == 1) {
		p.fail("%s has %d results, but %d result types", o.name, len(o.out), len(o.types))
	}
	return o
}

// generic reads the generic form of an operation after its name.
func (p *parser) generic(o *op) {
	p.list("(", ")", func() { o.in = append(o.in, p.use()) })
	if p.accept("<") {
		p.into(o, p.dict())
		p.expect(">")
	}
	if p.peek() == '(' {
		p.list("(", ")", func() { o.regions = append(o.regions, p.block("{", "}")) })
	}
	if p.peek() == '{' {
		p.into(o, p.dict())
	}
	p.expect(":")
	p.list("(", ")", func() { p.typ() })
	p.expect("->")
	o.types = p.arrowTypes()
}

func (p *scanner) into(o *op, d map[string]*attr) {
	for k, v := range d {
		o.attrs[k] = v
	}
}
