package grad

import (
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// formula is a parsed rule of an elementwise operation, such as "mul %dy, (cos %a)". A formula is an operation whose
// operands are names or formulas.
type formula struct {
	op   ir.Op
	name string // name of an operand; op is then InvalidOp
	args []*formula
	by   string // the value of by=: a number, the name of an attribute of the operation, or such a name with the suffix "-1" for the attribute minus 1
}

// parseFormula parses a rule in the notation of ir.OpInfo.Gradients. Rules are constants in the Op table, so an error
// is an error in the table. If a rule has an error, parseFormula returns nil; a test checks that every rule can be
// parsed.
func parseFormula(text string) *formula {
	p := &formulaParser{text: text}
	f := p.expr()
	if p.bad || p.rest() != "" {
		return nil
	}
	return f
}

type formulaParser struct {
	text string
	bad  bool
}

func (p *formulaParser) rest() string {
	p.text = strings.TrimLeft(p.text, " ")
	return p.text
}

func (p *formulaParser) word() string {
	p.rest()
	n := strings.IndexAny(p.text, " (),")
	if n < 0 {
		n = len(p.text)
	}
	w := p.text[:n]
	p.text = p.text[n:]
	return w
}

func (p *formulaParser) expr() *formula {
	w := p.word()
	if name, ok := strings.CutPrefix(w, "%"); ok {
		return &formula{name: name}
	}
	op, ok := ir.ParseOp(w)
	f := &formula{op: op}
	p.bad = p.bad || !ok
	for !p.bad {
		switch {
		case strings.HasPrefix(p.rest(), "("):
			p.text = p.text[1:]
			f.args = append(f.args, p.expr())
			p.bad = p.bad || !strings.HasPrefix(p.rest(), ")")
			p.text = strings.TrimPrefix(p.text, ")")
		case strings.HasPrefix(p.text, "by="):
			f.by = strings.TrimPrefix(p.word(), "by=")
		case strings.HasPrefix(p.text, "%"):
			f.args = append(f.args, p.expr())
		default:
			p.bad = true
		}
		if !strings.HasPrefix(p.rest(), ",") {
			break
		}
		p.text = p.text[1:]
	}
	return f
}

// names is an iterator: it calls see with each name in a formula.
func (f *formula) names(see func(string)) {
	if f.op == ir.InvalidOp {
		see(f.name)
	}
	for _, a := range f.args {
		a.names(see)
	}
}

// elementwise differentiates a statement according to its operation's row in the Op table.
func elementwise(c *call) {
	for i, text := range c.s.Op.Info().Gradients {
		if i >= len(c.s.Args) || !c.wants(i) || text == "" {
			continue
		}
		if by := c.s.Attr("by"); c.s.Op == ir.OpPow && by.IsNum && by.Num == 0 {
			continue // the result is constant, and the formula would multiply 0 by an infinite power at 0
		}
		f := parseFormula(text)
		if f == nil {
			panic("grad: the rule of " + c.s.Op.String() + " cannot be read: " + text)
		}
		x := contribution{name: c.dy, typ: c.dyType}
		if f.op != ir.InvalidOp {
			env := map[string]string{}
			f.names(func(n string) {
				if _, ok := env[n]; !ok {
					env[n] = c.meaning(n)
				}
			})
			x = contribution{name: c.formula(f, c.g.fresh("d"+c.y), env, false)}
		}
		if skip := len(c.dyType.Dims) - c.dims(i); skip > 0 {
			x = contribution{name: c.sumLeading(x.name, skip)}
		}
		c.give(i, x)
	}
}

// meaning returns the name of the value that a name in a formula denotes.
func (c *statement) meaning(name string) string {
	if i := strings.Index("abc", name); i >= 0 && len(name) == 1 && i < len(c.s.Args) {
		return c.arg(i)
	}
	switch name {
	case "y":
		return c.result()
	case "dy":
		return c.dy
	}
	if v, err := strconv.ParseFloat(name, 64); err == nil {
		return c.g.constant(v, c.dyType.DType)
	}
	a := c.s.Attr(name)
	value := ir.Attr{Name: "value", Kind: ir.AttrNumber, Exprs: a.Exprs, Num: a.Num, IsNum: a.IsNum}
	if a.IsNum {
		return c.g.constant(a.Num, c.dyType.DType)
	}
	return c.op(ir.OpFill, &ir.Type{DType: c.dyType.DType}, []ir.Attr{value})
}

// formula adds the statements that compute a formula, and returns the name of the formula's value. Operands that are
// formulas become nested operations.
func (c *statement) formula(f *formula, name string, env map[string]string, nested bool) string {
	s := stmt(c.s.Pos, f.op, name, nil, nil)
	s.Nested = nested
	for i, a := range f.args {
		arg := env[a.name]
		if a.op != ir.InvalidOp {
			arg = name + "." + strconv.Itoa(i)
			if c.g.names[arg] {
				arg = c.g.fresh(arg)
			}
			c.g.names[arg] = true
			c.formula(a, arg, env, true)
		}
		s.Args = append(s.Args, ir.Place{Pos: c.s.Pos, Name: arg})
	}
	if f.by != "" {
		s.Attrs = []ir.Attr{c.factor(f.by)}
	}
	c.add(s)
	return name
}

// factor returns the attribute by= of an operation in a formula.
func (c *statement) factor(by string) ir.Attr {
	if v, err := strconv.ParseFloat(by, 64); err == nil {
		return ir.NumberAttr("by", v)
	}
	name, less := strings.CutSuffix(by, "-1")
	a := *c.s.Attr(name)
	a.Name = "by"
	switch {
	case !less:
	case a.IsNum:
		a.Num--
	default:
		a.Exprs = []*ir.Expr{ir.Sub(a.Exprs[0], ir.Int(1))}
	}
	return a
}

// sumLeading adds a sum over the first n dimensions.
func (c *statement) sumLeading(name string, n int) string {
	return c.op(ir.OpSum, nil, []ir.Attr{axes(0, n)}, name)
}

// axes returns the attribute that lists the dimensions from lo to hi.
func axes(lo, hi int) ir.Attr {
	var list []*ir.Expr
	for i := lo; i < hi; i++ {
		list = append(list, ir.Int(int64(i)))
	}
	return ir.ExprsAttr("axis", list...)
}
