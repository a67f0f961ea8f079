package eval

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// claim is the conversion of the ranks' buffers to one global value. It reads the buffer of each rank when the
// corresponding task of the rank runs. Claims are made for claim statements, for returns, for arguments of calls, and
// for inout parameters at the end of the function.
type claim struct {
	*value
	parts map[int]*array // block of each rank
}

func (m *machine) newClaim(name string, t *ir.Type, env ir.Env) (*claim, error) {
	shape, err := m.b.GlobalShape(t, env)
	if err != nil {
		return nil, err
	}
	c := &claim{parts: map[int]*array{}}
	c.value = &value{m: m, name: name, typ: t, shape: shape,
		own: func(rank int) *array { return c.parts[rank] }}
	c.from = func() (*array, error) { return c.assemble(m.b.Devices(t)) }
	if len(t.Partial) > 0 {
		c.from = c.total
		c.part = func(rank int) (*array, error) { return c.assemble(c.alike(rank)) }
	}
	return c, nil
}

// claimed issues this rank's part of the claim of operand i of statement s.
func (r *queues) claimed(s *ir.Stmt, i int, t *ir.Type) (*value, error) {
	k := part{s, i}
	c := r.frame.claims[k]
	if c == nil {
		made, err := r.m.newClaim(s.Args[i].Name, t, r.env)
		if err != nil {
			return nil, err
		}
		c = entry(&r.frame.claims, k, func() *claim { return made })
	}
	if !r.m.b.Holds(t, r.id) {
		return c.value, nil
	}
	v, err := r.tensor(&s.Args[i])
	if err != nil {
		return nil, err
	}
	local, err := r.m.localShape(t, c.shape)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(local, v.shape) {
		return nil, &finding{kind: "type", message: fmt.Sprintf("%%%s has shape %v on rank %d, but the type %v "+
			"requires %v there", c.name, v.shape, r.id, t, local)}
	}
	c.issue(r, s, v)
	return c.value, nil
}

func (c *claim) issue(r *queues, s *ir.Stmt, v view) {
	r.issue(s, func() error {
		a, err := v.read()
		var f *finding
		if errors.As(err, &f) && f.kind == "lifetime" && s.Op == ir.OpClaim {
			f.help = "before the claim, write the buffer and wait for the stream that writes it"
		}
		c.parts[r.id] = a
		return err
	}, v)
}

// alike lists the ranks whose coordinates on the partial axes, over which the value is a partial sum, equal those of
// rank.
func (c *claim) alike(rank int) []int {
	key := c.m.coords(c.typ, rank)
	var out []int
	for _, r := range c.m.b.Devices(c.typ) {
		if c.m.coords(c.typ, r) == key {
			out = append(out, r)
		}
	}
	return out
}

// assemble returns the tensor that the ranks' blocks form. The copies of a block on several ranks must be equal bit for
// bit.
func (c *claim) assemble(ranks []int) (*array, error) {
	local, err := c.m.localShape(c.typ, c.shape)
	if err != nil {
		return nil, err
	}
	out := newArray(c.typ.DType, c.shape)
	first := map[string]int{}
	for _, r := range ranks {
		a := c.parts[r]
		if a == nil {
			return nil, &pending{fmt.Sprintf("rank %d to claim its part of %%%s", r, c.name)}
		}
		lo := c.m.b.Offset(c.typ, local, r)
		key := fmt.Sprint(lo)
		if f, seen := first[key]; seen {
			if err := c.agree(f, r); err != nil {
				return nil, err
			}
			continue
		}
		first[key] = r
		out.put(dense(c.shape).box(lo, local), a)
	}
	return out, nil
}

func (c *claim) agree(r, s int) error {
	a, b := c.parts[r], c.parts[s]
	for i := range a.len() {
		if !a.same(b, i) {
			return &finding{kind: "layout", message: fmt.Sprintf("%%%s is %v, so ranks %d and %d hold the same block, but at local index %v they have %v and %v",
				c.name, c.typ, r, s, unflatten(a.shape, i), a.float(i), b.float(i)), help: "a result that differs between ranks needs another layout, or a collective"}
		}
		a.e[i] = max(a.e[i], b.e[i])
	}
	return nil
}

// total reduces the claimed contributions of the ranks. A sum remains the unrounded total of a partial sum. Other
// reductions need no further rounding.
func (c *claim) total() (*array, error) {
	var all []*array
	for _, r := range c.m.b.Team(partialAxes(c.typ), c.m.b.Devices(c.typ)[0]) {
		a, err := c.assemble(c.alike(r))
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	if c.typ.Partial[0].Red != ir.Sum || c.typ.DType.IsInt() {
		return reduceArrays(c.typ.Partial[0].Red, all, true)
	}
	out := newArray(c.typ.DType, c.shape)
	out.mag = make([]float64, out.len())
	for i := range out.len() {
		out.f[i], out.e[i], out.mag[i] = contributionsAt(all, i)
	}
	return out, nil
}
