package kernels

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// A chain is a sequence of elementwise operations (links). One kernel computes it, and is generated from the links.
// Each operand is read once. The result of a link stays in registers for the next links, and is rounded as if it had
// been stored. The results are stored in pieces. A piece is stored after the same pieces of all operands have been
// read, so a result may be in the memory of an operand.

// chaining is the state while the kernel of a chain is generated.
type chaining struct {
	*job
	device.Chain
	outs     []Operand  // the results: of the links in Stored, and of the last link
	types    []ir.DType // result types of the links
	values   []uint64   // constants
	functors []string   // definitions of the different operations in the sources
	text     strings.Builder
}

func chain(j *job, op device.Chain, stored []Operand) ([]launch, error) {
	if len(op.Links) == 0 {
		return nil, fmt.Errorf("a chain without operations")
	}
	if len(stored) != len(op.Stored) {
		return nil, fmt.Errorf("%d results are given for %d stored links", len(stored), len(op.Stored))
	}
	c := &chaining{job: j, Chain: op, outs: append(slices.Clone(stored), j.Out)}
	for i, in := range j.Ins {
		if !slices.Equal(in.Shape, j.Out.Shape) {
			return nil, fmt.Errorf("operand %d has shape %v, but the result has shape %v", i, in.Shape, j.Out.Shape)
		}
	}
	if len(j.Ins) == 0 {
		return nil, fmt.Errorf("a chain without operands")
	}
	for i := range op.Links {
		if err := c.link(i, &op.Links[i]); err != nil {
			return nil, fmt.Errorf("link %d, %s: %w", i, op.Links[i].Op, err)
		}
	}
	for i, link := range c.links() {
		switch out := c.outs[i]; {
		case link < 0 || link >= len(op.Links) || i > 0 && link <= c.links()[i-1]:
			return nil, fmt.Errorf("result %d is of link %d of %d: stored links must be in ascending order, the last link last", i,
				link, len(op.Links))
		case c.types[link] != out.DType:
			return nil, fmt.Errorf("link %d computes %s, but the result has type %s", link, c.types[link], out.DType)
		case !slices.Equal(out.Shape, j.Out.Shape):
			return nil, fmt.Errorf("result %d has shape %v, but the last one has shape %v", i, out.Shape, j.Out.Shape)
		case out.check() != nil:
			return nil, fmt.Errorf("result %d: %w", i, out.check())
		}
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	return c.launches()
}

// links returns the indices of the links whose results are stored.
func (c *chaining) links() []int {
	return append(c.Stored[:len(c.Stored):len(c.Stored)], len(c.Links)-1)
}

// link generates the code of link i.
func (c *chaining) link(i int, l *device.Link) error {
	var args []string
	from := l.DType
	for k, a := range l.Args {
		name, dt, err := c.operand(i, a)
		if err != nil {
			return err
		}
		if k > 0 && dt != from {
			return fmt.Errorf("the operands have different types, %s and %s", from, dt)
		}
		from = dt
		args = append(args, fmt.Sprintf("Num<%s>::get(%s)", ctype(dt), name))
	}
	f, err := c.functor(l, from)
	if err != nil {
		return err
	}
	if f.text != "" && !slices.Contains(c.functors, f.text) {
		c.functors = append(c.functors, f.text)
	}
	numbers := []string{"A()"} // the kernel's arrays need at least one element
	for k := range f.values {
		numbers = append(numbers[:k], fmt.Sprintf("Const<A>::of(c[%d])", len(c.values)+k))
	}
	c.values = append(c.values, f.values...)
	to := ctype(l.DType)
	fmt.Fprintf(&c.text, "      %s r%d;\n      {\n        typedef Num<%s>::Acc A;\n        const A x[] = {%s}, n[] = {%s};\n        r%d = %s::finish<%s>(%s::of(x, n));\n      }\n",
		to, i, ctype(from), strings.Join(args, ", "), strings.Join(numbers, ", "), i, f.name, to, f.name)
	c.types = append(c.types, l.DType)
	return nil
}

// operand returns the name in the source, and the type, of an operand of link i.
func (c *chaining) operand(i, arg int) (string, ir.DType, error) {
	switch {
	case arg >= 0 && arg < len(c.Ins):
		return fmt.Sprintf("p%d.v[v]", arg), c.Ins[arg].DType, nil
	case arg < 0 && ^arg < i:
		return fmt.Sprintf("r%d", ^arg), c.types[^arg], nil
	}
	return "", 0, fmt.Errorf("there is no operand %d", arg)
}

// functor returns the functor (the operation in the sources) of link l.
func (c *chaining) functor(l *device.Link, from ir.DType) (functor, error) {
	switch {
	case (l.Op == ir.OpCast || l.Op == ir.OpCopy) && len(l.Args) != 1:
		return functor{}, fmt.Errorf("the operation has %d operands, but needs 1", len(l.Args))
	case l.Op == ir.OpCast && from != l.DType:
		return functor{name: "OpCast"}, nil
	case from != l.DType:
		return functor{}, fmt.Errorf("the operands have type %s, but the result has type %s", from, l.DType)
	case l.Op == ir.OpCast || l.Op == ir.OpCopy:
		return functor{name: "OpSame"}, nil
	case len(l.Args) == 0:
		return functor{}, fmt.Errorf("%w: an operation without operands cannot be part of a chain", device.ErrUnsupported)
	}
	return functorOf(l.Op, l.Numbers, len(l.Args), l.DType)
}

// launches plans one launch. In a one-dimensional tensor, the elements at the end for which wide accesses are
// impossible get a second launch, as in headAndTail.
func (c *chaining) launches() ([]launch, error) {
	all := slices.Concat(c.outs, c.Ins)
	strides := make([][]int64, len(all))
	for i, o := range all {
		strides[i] = o.Strides
	}
	axes := shared(c.Out.Shape, strides...)
	if len(axes) == 0 { // a single element
		axes = []axis{{1, slices.Repeat([]int64{1}, len(all))}}
	}
	return headAndTail(axes, all, c.launch)
}

func (c *chaining) launch(axes []axis, all []Operand, v int64) (launch, error) {
	axes, err := padded(axes, len(all))
	if err != nil {
		return launch{}, err
	}
	n, results, rank, consts := len(c.Ins), len(c.outs), len(axes), max(len(c.values), 1)
	axes, total := pieces(axes, v)
	var args words
	for _, o := range all {
		args.addr(o.Addr)
	}
	for i := range consts {
		if i < len(c.values) {
			args.bits(c.values[i])
		} else {
			args.bits(0)
		}
	}
	args.ints(total)
	args.ints(extents(axes)...)
	for o := range all {
		args.ints(column(axes, o)...)
	}
	if len(args)*8 > argsMost {
		return launch{}, tooLongError{len(args) * 8}
	}
	piece := c.piece()
	label, hash := strings.ReplaceAll(device.Name(c.Chain), "+", "_"), fnv.New32a()
	hash.Write([]byte(piece)) // a write to a hash never fails
	name := symbol(label[:min(len(label), 80)], ctype(c.Out.DType), fmt.Sprintf("%08x_r%dv%d%s%s", hash.Sum32(), rank, v, denseMark(axes), indexType(total)))
	return launch{blocks: blocksFor(total), args: args, code: code{
		files: []string{"map", "chain"}, functors: c.functors,
		own:    fmt.Sprintf("\nstruct Of_%s {\n%s};\n", name, piece),
		symbol: name,
		args:   fmt.Sprintf("ChainArgs<%d, %d, %d, %d>", n, results, consts, rank),
		body: fmt.Sprintf("chain<Of_%s, %d, %d, %d, %d, %d, %t, %s>", name, n, results, consts, rank, v, dense(axes),
			indexType(total)),
	}}, nil
}

// piece returns the source of the function that computes one piece.
func (c *chaining) piece() string {
	var s strings.Builder
	s.WriteString("  template <int V, bool DENSE> DEV void piece(const u64* out, const u64* in, const u64* c, const i64* at, const i64* stride) {\n")
	for i, in := range c.Ins {
		t := ctype(in.DType)
		fmt.Fprintf(&s, "    const Pack<%s, V> p%d = load<%s, V, DENSE>((const %s*)in[%d] + at[%d], stride[%d]);\n", t, i, t, t, i, i, i)
	}
	var keep, store strings.Builder
	for i, link := range c.links() {
		t := ctype(c.outs[i].DType)
		fmt.Fprintf(&s, "    Pack<%s, V> y%d;\n", t, i)
		fmt.Fprintf(&keep, "      y%d.v[v] = r%d;\n", i, link)
		fmt.Fprintf(&store, "    *(Pack<%s, V>*)((%s*)out[%d] + at[%d]) = y%d;\n", t, t, i, len(c.Ins)+i, i)
	}
	fmt.Fprintf(&s, "#pragma unroll\n    for (int v = 0; v < V; v++) {\n%s%s    }\n%s  }\n", c.text.String(), keep.String(), store.String())
	return s.String()
}
