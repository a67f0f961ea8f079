package compile

import (
	"fmt"
	"strings"
	"sync"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// maxTuned bounds how many lowered forms auto keeps.
const maxTuned = 64

// autoCache keeps auto's lowered forms by binding.
type autoCache struct {
	mu    sync.Mutex
	forms map[string]*lower.Result
}

// Machines lists the machines that Options.Machine names without a file.
func Machines() []string { return machine.Names() }

// MachineFor returns the description that auto predicts with for what runs on
// the named device machine. Of GPUs one kind is described so far; the others
// have more in common with it than with the CPU machine. What the dispatcher knows of
// collectives is of the machine itself: see Options.Device.
func MachineFor(device string) string {
	if device == "cuda" {
		return "h200x4"
	}
	return "cpu"
}

// CheckMachine reports an Options.Machine that cannot be used.
func CheckMachine(name string) error {
	_, err := machine.Load(name)
	return err
}

// described returns the description that predictions are made with.
func (u *Unit) described() (*machine.Description, error) {
	if u.opts.Machine == "" {
		return machine.Load("cpu")
	}
	return machine.Load(u.opts.Machine)
}

// machine returns the description with the dispatch table that so many ranks use, if
// there is one: what a collective takes, it is asked first.
func (u *Unit) machine(ranks int) (*machine.Description, *comm.Found, error) {
	m, err := u.described()
	if err != nil {
		return nil, nil, err
	}
	var found comm.Found
	if u.opts.Device != nil {
		found = comm.FindOn(u.opts.Device, ranks)
	} else {
		found = comm.FindFor(m.GPU, ranks)
	}
	if found.Table != nil {
		m.Times = &found
	}
	m.Nodes, err = u.nodes(ranks)
	return m, &found, err
}

// nodes returns the ranks' nodes; nil for one.
func (u *Unit) nodes(ranks int) ([]int, error) {
	if n := u.opts.Nodes; n > 1 {
		if ranks < n {
			return nil, fmt.Errorf("%d ranks on %d nodes: each node needs at least one", ranks, n)
		}
		list := make([]int, ranks)
		for r := range list {
			list[r] = (r*n + n - 1) / ranks
		}
		return list, nil
	}
	if u.opts.Device == nil || u.opts.Device.Peers() == nil || u.opts.Device.Peers().Nodes() == 1 {
		return nil, nil
	}
	s, err := u.opts.Device.Peers().Spread(ranks)
	if err != nil {
		return nil, err
	}
	list := make([]int, ranks)
	for r := range list {
		list[r] = s.Node(r)
	}
	return list, nil
}

// LoweredFor returns the lowered form for a binding: the same for all, but
// with auto, whose choice depends on the dims and the number of ranks.
func (u *Unit) LoweredFor(b ir.Binding) (*lower.Result, error) {
	bound, err := u.Bind(b)
	if err != nil || u.opts.Strategy != Auto {
		return u.Lowered, err
	}
	u.chosen.mu.Lock()
	defer u.chosen.mu.Unlock()
	k := key(bound)
	if res := u.chosen.forms[k]; res != nil {
		return res, nil
	}
	m, _, err := u.machine(bound.Ranks)
	if err != nil {
		return nil, err
	}
	p := &predictor{bound: bound, machine: m}
	res, err := u.lower(p.choose)
	if err != nil {
		return nil, err
	}
	u.chosen.keep(k, res)
	return res, nil
}

// choose takes the best estimate, and sequential where none can be made: of a
// pair in a function that the dims were not bound for.
func (p *predictor) choose(pair *lower.Pair) lower.Strategy {
	es, err := p.estimates(pair)
	if err != nil {
		return lower.Strategy{}
	}
	return best(es).strategy
}

// Overlapped lists the pairs that are overlapped in the function bound by b
// and in those that it calls, a line each: "line 8: all_gather + linear: exchange".
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

// Overlapped is a pair of communication and GEMM that is overlapped.
type Overlapped struct {
	Line     int32  // of the text
	Value    string // the collective's result; what lowering makes of the pair is named after it, with a dot
	Pair     string // "all_gather + linear"
	Strategy string // "chunked(4)"
}

// String returns a line for people.
func (o Overlapped) String() string {
	return fmt.Sprintf("line %d: %s: %s", o.Line, o.Pair, o.Strategy)
}

// DescriptionFor returns the shipped description that fits a device machine with so many ranks best: of
// its model of GPU, and of as many ranks where there is one. fits is false where none is of that model;
// it is then the one that auto predicts with.
func DescriptionFor(dev device.Machine, ranks int) (d *machine.Description, fits bool, err error) {
	if d, err = machine.Load(MachineFor(dev.Name())); err != nil || d.GPU == "" {
		return d, err == nil, err
	}
	w, err := dev.DryRun(ranks)
	if err != nil {
		return nil, false, err
	}
	identity := w.Identity()
	for _, name := range machine.Names() {
		other, err := machine.Load(name)
		if err != nil {
			return nil, false, err
		}
		if other.GPU != "" && strings.HasPrefix(identity, other.GPU) && (!fits || other.Ranks == ranks) {
			d, fits = other, true
		}
	}
	return d, fits, nil
}
