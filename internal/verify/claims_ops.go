package verify

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// computed returns the content of the result of an operation on tensors of one rank. A fact about an operand is also
// true for the result, provided that the result depends on the operand. The result does not depend on it in these
// cases: a sum over no elements, a product with zeros, and the relu of numbers that are never positive.
func (c *claims) computed(s *ir.Stmt) content {
	args := c.info.Operands[s]
	in := c.all(args)
	if slices.Contains(in, unwritten) {
		return unwritten // another check reports the error
	}
	var out content
	own := ^facts(0)
	for _, k := range in {
		own &= k.own
	}
	switch s.Op {
	case ir.OpReshard, ir.OpIota: // ranks may have different parts of an iota
		return content{}
	case ir.OpFill:
		return constants
	case ir.OpCopy, ir.OpCast, ir.OpExpand:
		out = in[0]
	case ir.OpGelu, ir.OpSilu, ir.OpRope:
		out = in[0]
		out.depends &^= positive
	case ir.OpNeg:
		out = c.turned(s, in[0])
	case ir.OpScale:
		switch by := s.Attr("by"); {
		case by.IsNum && by.Num > 0:
			out = in[0]
		case by.IsNum && by.Num < 0:
			out = c.turned(s, in[0])
		}
	case ir.OpRelu:
		if in[0].depends&(signed|positive) != 0 {
			out = in[0]
			out.depends = out.depends&^signed | positive
		}
	case ir.OpExp, ir.OpRsqrt:
		out = c.turned(s, in[0])
		out.depends = out.depends&^signed | positive
	case ir.OpSoftmax, ir.OpArgmax: // if the dimension has one element, the result is constant
		if c.several(s, args[0]) {
			out = c.turned(s, in[0])
			out.depends = out.depends&^signed | positive
		}
	case ir.OpSum, ir.OpMean, ir.OpMax, ir.OpMin:
		if c.longer(args[0], allDims, 0) {
			out = in[0]
		}
	case ir.OpAdd:
		out = c.sum(in[0], in[1])
	case ir.OpSub:
		out = c.sum(in[0], c.turned(s, in[1]))
	case ir.OpMul:
		out = c.product(in[0], in[1])
		out.depends &^= signed | cancels(in[0], in[1])
		if args[0] == args[1] && args[0].Root().Count == nil { // a square
			out.depends |= positive
		}
	case ir.OpDiv:
		by := c.turned(s, in[1])
		out = c.product(in[0], by)
		out.depends &^= signed | cancels(in[0], by)
	case ir.OpLinear, ir.OpMatmul:
		inner := len(args[1].Type.Dims) - 1
		if s.Op == ir.OpMatmul && s.Word("tb", "false") != "true" {
			inner--
		}
		if c.longer(args[1], inner, 0) {
			out = c.product(in[0], in[1])
		}
		if args[0].Root() == args[1].Root() {
			out.depends &^= signed
		}
		switch len(in) {
		case 3:
			out = c.sum(out, in[2])
		case 4:
			out = c.product(c.product(out, in[2]), in[3])
		}
	case ir.OpConcat:
		out = in[0]
		for _, k := range in {
			out = out.and(k)
		}
	case ir.OpRMSNorm:
		out = c.product(in[0], in[1])
	case ir.OpLayerNorm:
		if c.several(s, args[0]) {
			out = c.product(in[0], in[1])
		}
		out.depends &^= positive
		out = c.sum(out, in[2])
	case ir.OpAttention: // with one key, the softmax weights are constant; without keys, the result is constant
		masked := len(args) > 3 && !args[len(args)-1].Type.DType.IsInt() // a mask may exclude keys
		if !masked && c.longer(args[1], len(args[1].Type.Dims)-3, 0) && (len(in) < 4 || in[3].depends&varies != 0) {
			out = in[2]
		}
	case ir.OpEmbedding:
		if in[0].depends&varies != 0 {
			out = in[1]
		}
	case ir.OpIndexCopy: // rows may be skipped
		into := c.know(c.info.Into[s])
		out, own = in[0].and(into), own&into.own
	case ir.OpReduceSlots:
		lo, errLo := s.Exprs[0].Eval(c.everywhere())
		hi, errHi := s.Exprs[1].Eval(c.everywhere())
		if s.Word("resume", "false") == "true" {
			out = c.know(c.info.Into[s])
			own &= out.own
		} else if errLo == nil && errHi == nil && lo < hi {
			out = in[0]
		}
	}
	out.own = own
	return out
}

// turned returns the content that results from k if statement s negates or inverts the elements.
func (c *claims) turned(s *ir.Stmt, k content) content {
	k.depends &^= positive
	k.via = c.passed(k.via, s)
	return k
}

// sum returns the content of a + b. The sum has the facts of both terms, except for those axes on which the terms may
// cancel each other.
func (c *claims) sum(a, b content) content {
	both := a.depends & b.depends & positive
	return content{(a.depends|b.depends)&^(positive|cancels(a, b)) | both, a.own & b.own, c.union(a.via, b.via)}
}

// product returns the content of a · b. The product has the facts of a if b is not always zero, and the facts of b if a
// is not always zero.
func (c *claims) product(a, b content) content {
	out := content{0, a.own & b.own, c.union(a.via, b.via)}
	if a.depends&b.depends&varies != 0 {
		out.depends = (a.depends|b.depends)&^positive | a.depends&b.depends&positive
	}
	return out
}

// cancels returns the axes on which both a and b depend and on which they may cancel: one of them was negated or
// inverted by statements that did not act on the other.
func cancels(a, b content) facts {
	if a.via == b.via && a.via != anyWay {
		return 0
	}
	return a.depends & b.depends & onAxes
}

// These constants are numbers of sets of statements that negated or inverted the data on which a tensor depends. Such a
// set is called a way.
const (
	noWay  = 0
	anyWay = -1 // the set is not known, for example after a loop that negates data
)

// ways assigns numbers to the sets of statements that negated or inverted data.
type ways struct {
	of   map[string]int
	list [][]int
	stmt map[*ir.Stmt]int
}

func newWays() *ways {
	return &ways{of: map[string]int{"[]": 0}, list: [][]int{nil}, stmt: map[*ir.Stmt]int{}}
}

func (c *claims) passed(way int, s *ir.Stmt) int {
	w := c.ways
	id, ok := w.stmt[s]
	if !ok {
		id = len(w.stmt)
		w.stmt[s] = id
	}
	if way == anyWay || slices.Contains(w.list[way], id) {
		return anyWay
	}
	return w.number(append(slices.Clone(w.list[way]), id))
}

func (c *claims) union(a, b int) int {
	switch {
	case a == b || b == noWay:
		return a
	case a == noWay:
		return b
	case a == anyWay || b == anyWay:
		return anyWay
	}
	return c.ways.number(slices.Concat(c.ways.list[a], c.ways.list[b]))
}

// maxWay limits the number of statements in a set of the type ways.
const maxWay = 64

func (w *ways) number(ids []int) int {
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) > maxWay {
		return anyWay
	}
	key := fmt.Sprint(ids)
	n, ok := w.of[key]
	if !ok {
		n = len(w.list)
		w.of[key], w.list = n, append(w.list, ids)
	}
	return n
}

// several reports whether the extent of x along the axis of s, by default the last dimension, is certain to exceed 1.
func (c *claims) several(s *ir.Stmt, x *ir.Sym) bool {
	axis := int64(len(x.Type.Dims)) - 1
	if a := s.Attr("axis"); a != nil {
		var err error
		if axis, err = a.Exprs[0].Eval(c.everywhere()); err != nil {
			return false
		}
	}
	return c.longer(x, int(axis), 1)
}

// allDims selects every dimension of a tensor.
const allDims = -1

// longer reports whether the local extent of dimension dim of x, or of every dimension for allDims, is certain to
// exceed n.
func (c *claims) longer(x *ir.Sym, dim int, n int64) bool {
	t := *x.Type
	switch {
	case dim >= len(t.Dims) || dim < allDims:
		return false
	case dim != allDims:
		t.Dims = t.Dims[dim : dim+1]
	}
	shape, err := c.b.LocalShape(&t, c.b.Env(c.rank, onRank{c, c.rank}))
	return err == nil && !slices.ContainsFunc(shape, func(e int64) bool { return e <= n })
}
