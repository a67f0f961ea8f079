package grad

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// This file decides which values of the forward pass are computed again so that the kept values fit a budget of memory.

// BudgetError reports a budget that is less than Least, the minimum memory that the backward pass needs.
type BudgetError struct{ Budget, Least int64 }

func (e *BudgetError) Error() string {
	return fmt.Sprintf("the gradients need at least %d bytes of the forward pass on each rank, but the budget is %d", e.Least, e.Budget)
}

// within differentiates a function so that the kept values take at most opts.Budget bytes on a rank. It selects the
// values that are computed again in the order of their cost for each byte that is saved.
func within(in *ir.Info, opts Options) (*gradder, error) {
	b, ds := ir.Bind(in, ir.Binding{Func: opts.Func, Dims: opts.Dims})
	if ds.HasErrors() {
		return nil, ds
	}
	derived := func(again map[string]bool) (*gradder, []kept, int64, error) {
		o := opts
		o.again = again
		g, err := derive(in, o)
		if err != nil {
			return nil, nil, 0, err
		}
		list, err := g.keptValues(b)
		sum := int64(0)
		for _, k := range list {
			sum += k.bytes
		}
		return g, list, sum, err
	}
	best, list, sum, err := derived(map[string]bool{})
	if err != nil || sum <= opts.Budget {
		return best, err
	}
	// To compute a value again, the backward pass needs the operands of its operation. These are then kept.
	order, known := []string{}, map[string]bool{}
	least := sum
	for {
		slices.SortStableFunc(list, func(x, y kept) int { return cmp.Compare(x.cost, y.cost) })
		next := slices.IndexFunc(list, func(k kept) bool { return k.bytes > 0 && !known[k.name] && k.again })
		if next < 0 {
			return nil, &BudgetError{opts.Budget, least}
		}
		// All values of equal cost are added in one step, so that long programs do not take much time.
		cost := list[next].cost
		for _, k := range list {
			if k.again && k.bytes > 0 && !known[k.name] && k.cost == cost {
				known[k.name] = true
				order = append(order, k.name)
			}
		}
		if best, list, sum, err = derived(known); err != nil {
			return nil, err
		}
		if least = min(least, sum); sum <= opts.Budget {
			break
		}
	}
	// The last group of values that was added may be larger than necessary.
	lo, hi := 0, len(order)
	for lo < hi {
		mid := (lo + hi) / 2
		some := map[string]bool{}
		for _, name := range order[:mid] {
			some[name] = true
		}
		g, _, sum, err := derived(some)
		if err != nil {
			return nil, err
		}
		if sum <= opts.Budget {
			best, hi = g, mid
		} else {
			lo = mid + 1
		}
	}
	return best, nil
}

// kept is a value of the forward pass that is kept for the backward pass.
type kept struct {
	name  string
	bytes int64   // size on one rank, for all iterations
	cost  float64 // cost of computing the value again, for each byte
	again bool    // whether the value can be computed again
}

// keptValues lists the values of the forward pass that the backward pass uses, except parameters and views.
func (g *gradder) keptValues(b *ir.Bound) (list []kept, err error) {
	add := func(name string, t *ir.Type, def *ir.Stmt) error {
		bytes, err := localBytes(b, t)
		if err != nil {
			return err
		}
		k := kept{name: name, bytes: bytes, again: def != nil && def.Op != ir.OpFor && def.Op != ir.OpClaim &&
			g.attentions[def] == nil && alone(def)}
		if k.again {
			if k.cost, err = g.cost(b, def); err != nil {
				return err
			}
		}
		list = append(list, k)
		return nil
	}
	seen := map[string]bool{}
	for name, as := range g.top.avail {
		def := g.root.defs[name]
		if as != name {
			continue
		}
		for def != nil && def.Op.Info().Class == ir.ClassView && def.Op != ir.OpClaim { // a view needs no memory: its operand is kept
			name = def.Args[0].Name
			def = g.root.defs[name]
		}
		if def != nil && def.Op != ir.OpClaim && !seen[name] {
			seen[name] = true
			if err := add(name, g.types[name], def); err != nil {
				return nil, err
			}
		}
	}
	var stacks func(f *forward) error
	stacks = func(f *forward) error {
		for name, stack := range f.stacks {
			if err := add(name, g.types[stack], f.defs[name]); err != nil {
				return err
			}
		}
		for _, inner := range f.inner {
			if err := stacks(inner); err != nil {
				return err
			}
		}
		return nil
	}
	err = stacks(g.root)
	slices.SortFunc(list, func(x, y kept) int { return cmp.Compare(x.name, y.name) })
	return list, err
}

// cost estimates the cost of an operation for each byte of its result. The unit is one access of memory: a
// multiplication and addition in a product costs half a unit, and communication costs ten units.
func (g *gradder) cost(b *ir.Bound, def *ir.Stmt) (float64, error) {
	inner := func(arg, dim int) (float64, error) { // the extent of an operand's dim-th last dimension
		dims := g.types[def.Args[arg].Name].Dims
		if dim > len(dims) {
			return 1, nil
		}
		v, err := dims[len(dims)-dim].Extent.Eval(b.Env(0, nil))
		return float64(v), err
	}
	switch def.Op {
	case ir.OpLinear, ir.OpMatmul:
		k, err := inner(1, 1)
		if def.Op == ir.OpMatmul && def.Word("tb", "false") != "true" {
			k, err = inner(1, 2)
		}
		return 30 + k/2, err
	case ir.OpAttention:
		keys, err := inner(1, 3)
		return 30 + keys, err
	case ir.OpReshard, ir.OpAllGather, ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllToAll:
		return 20, nil
	case ir.OpSoftmax, ir.OpRMSNorm, ir.OpRMSNormDX, ir.OpLayerNorm:
		return 4, nil
	}
	if free(def.Op) {
		return 0, nil
	}
	if g.cheap(def) {
		return float64(1 + len(def.Args)), nil
	}
	return 10, nil
}

// localBytes returns the size in bytes of a rank's part of a value.
func localBytes(b *ir.Bound, t *ir.Type) (int64, error) {
	n := t.DType.Size()
	for _, d := range t.Dims {
		v, err := d.Extent.Eval(b.Env(0, nil))
		if err != nil {
			return 0, err
		}
		for _, axis := range d.Axes {
			if size, ok := b.AxisSize(axis); ok {
				v = (v + size - 1) / size
			}
		}
		n *= v
	}
	return n, nil
}
