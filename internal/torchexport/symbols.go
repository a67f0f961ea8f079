package torchexport

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Symbol is an extent that may vary between runs, for example the number of tokens. The export does not fix its
// value.
type Symbol struct {
	Name     string // name in the export: "s70"
	Min, Max int64  // range of values for which the export is valid; Max is 0 if there is no upper limit
	Hint     int64  // value when the model was exported; 0 if unknown
	// Least is the least value with which the exported program runs in torch. Least differs from Min if Min is 2: torch
	// traces 0 and 1 differently from larger extents, and therefore records 2 for dimensions that may be smaller.
	Least int64
}

// expr is an expression over symbols in the notation of sympy.
type expr struct {
	Text string `json:"expr_str"`
	Hint *struct {
		AsInt *int64 `json:"as_int"`
	} `json:"hint"`
}

// Symbols lists the symbols on which extents of the program depend, in the order of their names.
func (a *Archive) Symbols() ([]Symbol, error) {
	g := &a.program.GraphModule.Graph
	var extents []symInt
	for _, name := range slices.Sorted(maps.Keys(g.TensorValues)) {
		if meta := g.TensorValues[name]; meta != nil {
			extents = append(extents, meta.Sizes...)
		}
	}
	extents = slices.AppendSeq(extents, maps.Values(g.SymIntValues))
	found := symbols{}
	for _, s := range extents {
		if s.AsExpr == nil {
			continue
		}
		if err := found.note(s.AsExpr); err != nil {
			return nil, err
		}
	}
	var list []Symbol
	for _, name := range slices.Sorted(maps.Keys(found)) {
		s := found[name]
		if r := a.program.RangeConstraints[name]; r != nil {
			if r.MinVal != nil && *r.MinVal > s.Min {
				s.Min, s.Least = *r.MinVal, *r.MinVal
			}
			if r.MaxVal != nil && *r.MaxVal < maxExtent {
				s.Max = *r.MaxVal
			}
		}
		if s.Max != 0 && s.Max < s.Min {
			return nil, unsupported("no value is possible for symbol %q, whose range is from %d to %d", clip(name),
				s.Min, s.Max)
		}
		list = append(list, *s)
	}
	return list, nil
}

// symbols are the symbols in expressions, by name.
type symbols map[string]*Symbol

// note adds the symbols of an expression. The hint of an expression that is a symbol is the symbol's.
func (found symbols) note(text json.RawMessage) error {
	var names []string
	e, _, err := evaluate(text, func(name string) (int64, bool) {
		if found[name] == nil {
			found[name] = &Symbol{Name: name, Min: 2}
		}
		names = append(names, name)
		return 2, true
	})
	if err == nil && len(names) == 1 && strings.HasPrefix(e.Text, "Symbol(") && e.Hint != nil && e.Hint.AsInt != nil {
		found[names[0]].Hint = *e.Hint.AsInt
	}
	return err
}

// evaluate reads an expression and computes its value.
func evaluate(text json.RawMessage, value func(symbol string) (int64, bool)) (e expr, v int64, err error) {
	if err := json.Unmarshal(text, &e); err != nil {
		return e, 0, malformed("an expression: %w", err)
	}
	v, err = (&exprParser{text: e.Text, value: value}).parse()
	return e, v, err
}

// resolve computes the program's extents from the given values of symbols.
func (b *builder) resolve(values map[string]int64) error {
	number := func(s *symInt) error {
		if s.AsExpr == nil {
			return nil
		}
		_, v, err := evaluate(s.AsExpr, func(name string) (int64, bool) { v, ok := values[name]; return v, ok })
		s.AsInt = &v
		return err
	}
	g := &b.program.GraphModule.Graph
	for _, meta := range g.TensorValues {
		if meta == nil {
			continue
		}
		for _, s := range meta.extents() {
			if err := number(s); err != nil {
				return err
			}
		}
	}
	b.numbers = map[string]int64{}
	for name, s := range g.SymIntValues {
		if err := number(&s); err != nil {
			return err
		}
		if s.AsInt != nil {
			b.numbers[name] = *s.AsInt
		}
	}
	return nil
}

// extents lists the places of the extents, the strides and the offset of a tensor.
func (m *tensorMeta) extents() (list []*symInt) {
	for _, of := range [][]symInt{m.Sizes, m.Strides} {
		for i := range of {
			list = append(list, &of[i])
		}
	}
	if m.StorageOffset != nil {
		list = append(list, m.StorageOffset)
	}
	return list
}

// named returns the value of an integer that the program computes from extents, if s refers to one.
func (c *arguments) named(s symInt) (int64, bool) {
	if s.AsInt != nil {
		return *s.AsInt, true
	}
	n, ok := c.numbers[s.AsName]
	return n, ok
}

// exprParser evaluates an expression in the notation of sympy's srepr: Mul(Integer(2), Symbol('s0', integer=True)).
type exprParser struct {
	text  string
	at    int
	deep  int
	value func(symbol string) (int64, bool)
}

func (p *exprParser) parse() (int64, error) {
	v, err := p.expr()
	if err == nil && strings.TrimSpace(p.text[p.at:]) != "" {
		err = p.wrong()
	}
	return v, err
}

func (p *exprParser) wrong() error { return malformed("expression %q", clip(p.text)) }

// word reads a name or number.
func (p *exprParser) word() string {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
	from := p.at
	for p.at < len(p.text) && (p.text[p.at] == '_' || p.text[p.at] == '.' || p.text[p.at] == '-' ||
		p.text[p.at] >= '0' &&
			p.text[p.at] <= '9' || p.text[p.at]|0x20 >= 'a' && p.text[p.at]|0x20 <= 'z') {
		p.at++
	}
	return p.text[from:p.at]
}

func (p *exprParser) next(c byte) bool {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *exprParser) expr() (int64, error) {
	if p.deep++; p.deep > 50 {
		return 0, p.wrong()
	}
	defer func() { p.deep-- }()
	name := p.word()
	if n, err := strconv.ParseInt(name, 10, 64); err == nil {
		return n, nil
	}
	if !p.next('(') {
		return 0, p.wrong()
	}
	switch name = name[strings.LastIndexByte(name, '.')+1:]; name {
	case "Integer":
		n, err := strconv.ParseInt(p.word(), 10, 64)
		if err != nil || !p.next(')') {
			return 0, p.wrong()
		}
		return n, nil
	case "Symbol":
		if !p.next('\'') {
			return 0, p.wrong()
		}
		symbol := p.word()
		for p.at < len(p.text) && p.text[p.at] != ')' { // skips sympy's assumptions about the symbol
			p.at++
		}
		v, ok := p.value(symbol)
		switch {
		case !p.next(')'):
			return 0, p.wrong()
		case !ok:
			return 0, unsupported("no value is given for the extent %q", clip(symbol))
		}
		return v, nil
	}
	var args []int64
	for {
		v, err := p.expr()
		if err != nil {
			return 0, err
		}
		if args = append(args, v); p.next(')') {
			break
		}
		if !p.next(',') {
			return 0, p.wrong()
		}
	}
	return p.apply(name, args)
}

// apply evaluates a function of sympy for integer arguments.
func (p *exprParser) apply(name string, args []int64) (int64, error) {
	v := args[0]
	for i, a := range args[1:] {
		switch {
		case name == "Add":
			v += a
		case name == "Mul":
			if a != 0 && (v*a)/a != v {
				return 0, p.wrong()
			}
			v *= a
		case name == "Pow" && a >= 0 && a <= 4 && len(args) == 2:
			v = 1
			for range a {
				if v *= args[0]; v > maxExtent*maxExtent || args[0] > maxExtent || args[0] < 0 {
					return 0, p.wrong()
				}
			}
		case name == "Max":
			v = max(v, a)
		case name == "Min":
			v = min(v, a)
		case i == 0 && (name == "FloorDiv" || name == "Mod" || name == "PythonMod") && a > 0 && v >= 0 &&
			len(args) == 2:
			if name == "FloorDiv" {
				v /= a
			} else {
				v %= a
			}
		default:
			return 0, unsupported("an extent with the expression %q", clip(p.text))
		}
		if v > maxExtent*maxExtent || v < -maxExtent*maxExtent {
			return 0, p.wrong()
		}
	}
	return v, nil
}
