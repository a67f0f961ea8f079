package compile

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// maxTuned is the maximum number of lowered forms in an autoCache.
const maxTuned = 64

// autoCache caches the lowered forms that auto chose, keyed by binding.
type autoCache struct {
	mu    sync.Mutex
	forms map[string]*lower.Result
}

// Machines returns the names of the built-in machine descriptions, which Options.Machine accepts.
func Machines() []string { return machine.Names() }

// CheckMachine returns an error if name is not a usable value of Options.Machine.
func CheckMachine(name string) error {
	_, err := machine.Load(name)
	return err
}

// machine returns the machine description for predictions with the given number of ranks, including the nodes of these
// ranks. It also returns the dispatch table that the predictions use, or nil. For the times of collectives, the table
// has precedence over the description.
func (u *Unit) machine(ranks int) (*machine.Description, *comm.Found, error) {
	nodes, err := u.nodes(ranks)
	if err != nil {
		return nil, nil, err
	}
	var found comm.Found
	if u.opts.Device != nil {
		found = comm.FindOn(u.opts.Device, ranks)
	}
	var m *machine.Description
	switch {
	case u.opts.Machine == "" && u.opts.Device != nil:
		m, _, err = fit(u.opts.Device, found.Identity, ranks, nodes)
	case u.opts.Machine == "":
		m, err = machine.OfHost()
	default:
		m, err = machine.Load(u.opts.Machine)
	}
	if err != nil {
		return nil, nil, err
	}
	if u.opts.Device == nil {
		found = comm.FindFor(m.GPU, ranks)
	}
	if found.Table != nil {
		m.Times = &found
	}
	if m.Nodes = nodes; nodes != nil && u.opts.Across != nil {
		m.Across = u.opts.Across
	}
	return m, &found, nil
}

// nodes returns the node of each rank, or nil if all ranks are on one node.
func (u *Unit) nodes(ranks int) ([]int, error) {
	if n := u.opts.Nodes; n > 1 {
		if ranks < n {
			return nil, fmt.Errorf("%d ranks cannot run on %d nodes: each node needs at least one rank", ranks, n)
		}
		list := make([]int, ranks)
		for r := range list {
			list[r] = (r*n + n - 1) / ranks
		}
		return list, nil
	}
	if u.opts.Device == nil {
		return nil, nil
	}
	return nodesOf(u.opts.Device, ranks)
}

// nodesOf returns the node of each rank of a device machine, or nil if all are on one node.
func nodesOf(dev device.Machine, ranks int) ([]int, error) {
	if dev.Peers() == nil || dev.Peers().Nodes() == 1 {
		return nil, nil
	}
	s, err := dev.Peers().Spread(ranks)
	if err != nil {
		return nil, err
	}
	list := make([]int, ranks)
	for r := range list {
		list[r] = s.Node(r)
	}
	return list, nil
}

// LoweredFor returns the lowered form for a binding. The lowered form is the same for all bindings, with three
// exceptions. With auto, the lowered form depends on the dims and the number of ranks. With delayed, the sizes of
// reductions decide which of them share a collective. With exchange, the lowered form depends on whether the dims need
// blocks of different sizes (ragged blocks).
func (u *Unit) LoweredFor(b ir.Binding) (*lower.Result, error) {
	bound, err := u.Bind(b)
	if err != nil || u.opts.Strategy != Auto && !u.delays() && !ragged(bound, u.Lowered.Choices) {
		return u.Lowered, err
	}
	u.chosen.mu.Lock()
	defer u.chosen.mu.Unlock()
	k := key(bound)
	if res := u.chosen.forms[k]; res != nil {
		return res, nil
	}
	choose, err := u.chooser(bound)
	if err != nil {
		return nil, err
	}
	var res *lower.Result
	switch {
	case u.opts.Strategy == Auto:
		res, err = u.auto(choose, bound, b)
	case u.delays():
		res, err = u.lower(always(lower.Strategy{}), buckets(bound))
	default:
		res, err = u.lower(choose, nil)
	}
	if err != nil {
		return nil, err
	}
	u.chosen.keep(k, res)
	return res, nil
}

// delays reports whether the strategy is delayed.
func (u *Unit) delays() bool { return u.opts.Strategy == lower.Strategy{Delayed: true}.String() }

// auto lowers the program with the given chooser. If the whole program is predicted to be faster with delayed
// reductions, auto delays them, including those of pairs.
func (u *Unit) auto(choose func(*lower.Pair) lower.Strategy, bound *ir.Bound, b ir.Binding) (*lower.Result, error) {
	plain, err := u.lower(choose, nil)
	if err != nil {
		return nil, err
	}
	var best float64
	fastest := plain
	for _, pairs := range []func(*lower.Pair) lower.Strategy{choose, always(lower.Strategy{})} {
		form, err := u.lower(pairs, buckets(bound))
		if err != nil {
			return nil, err
		}
		if form.Groups == 0 {
			continue
		}
		if best == 0 {
			if best, err = u.timeOf(plain, b); err != nil || best == 0 {
				return plain, nil // the caller plans the form again, and then reports the error
			}
		}
		if t, err := u.timeOf(form, b); err == nil && t > 0 && t < best {
			best, fastest = t, form
		}
	}
	return fastest, nil
}

// timeOf returns the predicted time of a lowered form, or 0 if it is too large for a prediction.
func (u *Unit) timeOf(form *lower.Result, b ir.Binding) (float64, error) {
	p, err := u.planOf(form, b)
	if err != nil {
		return 0, err
	}
	return u.Time(p)
}

// chooser returns the function that chooses the strategy of each pair of operations of the bound program.
func (u *Unit) chooser(bound *ir.Bound) (func(*lower.Pair) lower.Strategy, error) {
	if u.opts.Strategy == Auto {
		m, _, err := u.machine(bound.Ranks)
		if err != nil {
			return nil, err
		}
		return (&predictor{bound: bound, machine: m}).choose, nil
	}
	st, err := lower.ParseStrategy(u.opts.Strategy)
	return func(pair *lower.Pair) lower.Strategy { return fitting(bound, pair, st) }, err
}

// ragged reports whether the dims require blocks of different sizes (ragged blocks) in an exchange that was lowered
// without them.
func ragged(bound *ir.Bound, choices []lower.Choice) bool {
	return slices.ContainsFunc(choices, func(c lower.Choice) bool {
		return fitting(bound, &c.Pair, c.Strategy) != c.Strategy
	})
}

// SameForAll reports whether res is the lowered form for all values of a dim. The result is false if auto chose
// strategies by the dims. It is also false if an exchange cuts rows into blocks and the number of rows depends on the
// dim, because the blocks are ragged for some values. It is also false if reductions were combined by their sizes.
func (u *Unit) SameForAll(res *lower.Result, dim string) bool {
	return res.Groups == 0 && !slices.ContainsFunc(res.Choices, func(c lower.Choice) bool {
		counts := false
		c.Pair.To.Dims[c.Pair.Rows].Extent.Walk(func(e *ir.Expr) { counts = counts || e.Kind == ir.ExprName && e.Name == dim })
		return u.opts.Strategy == Auto || counts && c.Strategy.Kind == lower.Exchange && c.Pair.Comm == ir.OpAllReduce
	})
}

// choose returns the strategy with the best estimate for a pair. If the pair is in a function whose dims are not bound,
// no estimate can be made, and choose returns sequential.
func (p *predictor) choose(pair *lower.Pair) lower.Strategy {
	es, err := p.estimates(pair)
	if err != nil {
		return lower.Strategy{}
	}
	return fitting(p.bound, pair, best(es).strategy)
}

// Overlapped returns the pairs that are overlapped in the function that b binds and in the functions that it calls.
// Each pair is described by one line: "line 8: all_gather + linear: exchange".
func (u *Unit) Overlapped(b ir.Binding) ([]Overlapped, error) {
	bound, err := u.Bind(b)
	if err != nil {
		return nil, err
	}
	res, err := u.LoweredFor(b)
	if err != nil {
		return nil, err
	}
	fns := reached(u.Source.Prog, bound.Func)
	var out []Overlapped
	for i := range res.Choices {
		c := &res.Choices[i]
		if fns[c.Pair.Func] && c.Strategy.Kind != lower.Sequential {
			out = append(out, Overlapped{c.Pair.Pos.Line, c.Pair.Value, c.Pair.String(), c.Strategy.String()})
		}
	}
	return out, nil
}

// Overlapped describes a pair of communication and GEMM that is overlapped.
type Overlapped struct {
	Line     int32  // line of the program's text
	Value    string // name of the collective's result; values that lowering adds for the pair have this name, a dot and a suffix
	Pair     string // "all_gather + linear"
	Strategy string // "chunked(4)"
}

// String returns the description as one line of text.
func (o Overlapped) String() string {
	return fmt.Sprintf("line %d: %s: %s", o.Line, o.Pair, o.Strategy)
}

// DescriptionFor returns the shipped description with which predictions for a number of ranks on a device machine are
// made by default. If the description is for another GPU model, fits is false.
func DescriptionFor(dev device.Machine, ranks int) (d *machine.Description, fits bool, err error) {
	nodes, err := nodesOf(dev, ranks)
	if err != nil {
		return nil, false, err
	}
	return fit(dev, comm.FindOn(dev, ranks).Identity, ranks, nodes)
}

// fit returns the result of DescriptionFor for ranks on the given nodes, in a world with the given identity. All
// processes of a world get the same result, because the identity begins with the GPU model of the first rank.
func fit(dev device.Machine, identity string, ranks int, nodes []int) (d *machine.Description, fits bool, err error) {
	if dev.Caps().OnHost {
		d, err = machine.OfHost()
		return d, err == nil, err
	}
	return machine.Fit(model(identity), ranks, nodes)
}

// model returns the GPU model with which the identity of a world begins.
func model(identity string) string {
	m, _, _ := strings.Cut(identity, ",")
	return m
}
