package comm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
)

// Policy defines how to choose algorithms for collectives that do not pin one. The zero value chooses the fastest
// known algorithm for each collective.
type Policy struct {
	// Algorithm is the name of the algorithm to try first.
	Algorithm string
	// Fixed makes a collective compute the same bits for every message size. The collective then uses one algorithm for
	// all sizes. For a size that this algorithm does not support, it uses another algorithm that computes the same
	// bits.
	Fixed bool
	// Sparing prefers algorithms that need little memory in addition to the operands.
	Sparing bool
}

// Dispatch chooses the algorithms for the collectives of one world. A choice depends only on the instance, the table
// and the policy, so all ranks choose the same.
type Dispatch struct {
	world  device.World
	teams  device.Teams       // nil if the world has no teams
	own    []device.Algorithm // the algorithms of teams
	known  []device.Algorithm // all algorithms; see Algorithms
	caps   device.Caps
	table  *Table // may be nil
	policy Policy
}

// NewDispatch returns the dispatch of a world. The table may be nil. The table may have been measured on another
// machine: entries that this machine does not support are skipped.
func NewDispatch(w device.World, caps device.Caps, t *Table, p Policy) *Dispatch {
	d := &Dispatch{world: w, caps: caps, table: t, policy: p, own: w.TeamAlgorithms()}
	if len(d.own) > 0 {
		d.teams = w
	}
	d.known = slices.Concat(infos(schedules), d.own)
	if w.Transport() != "" {
		d.known = append(d.known, infos(crossers)...)
	}
	d.policy.Algorithm = current(device.Tuning{Algo: p.Algorithm}, d.known).Algo
	return d
}

// Table returns the table that d uses, or nil if it uses none.
func (d *Dispatch) Table() *Table { return d.table }

// Algorithms returns the names that the attribute algorithm= accepts in this world. They include schedules, the
// machine's own algorithms and, if the world has several nodes, the algorithms between nodes.
func (d *Dispatch) Algorithms() []string { return device.AlgorithmNames(d.known) }

// Info returns the description of the algorithm with the given name. If the world does not have the algorithm, the
// description contains only the fields that the table records.
func (d *Dispatch) Info(name string) device.Algorithm {
	for i := range d.known {
		if d.known[i].Name == name {
			return d.known[i]
		}
	}
	return d.table.info(name)
}

// Libraries returns the names of the algorithms that belong to the vendor's library. They are the reference with which
// other algorithms are compared.
func (d *Dispatch) Libraries() []string {
	return device.AlgorithmNames(slices.DeleteFunc(slices.Clone(d.known), func(a device.Algorithm) bool { return !a.Library }))
}

// Scheduler returns the name of the algorithm that executes schedules of other tools, or "" if the machine has none.
func (d *Dispatch) Scheduler() string {
	for i := range d.known {
		if d.known[i].Scheduled {
			return d.known[i].Name
		}
	}
	return ""
}

// Check returns an error unless there is an algorithm with the given name.
func (d *Dispatch) Check(name string) error { return check(name, d.known) }

// CheckName is like Dispatch.Check, for a kind of machine whose world is not open yet. own lists the algorithms of the
// kind. The algorithms between nodes are known if there are several processes.
func CheckName(name string, own []device.Algorithm, processes bool) error {
	known := slices.Concat(infos(schedules), own)
	if processes {
		known = append(known, infos(crossers)...)
	}
	return check(name, known)
}

func check(name string, known []device.Algorithm) error {
	all := device.AlgorithmNames(known)
	name = current(device.Tuning{Algo: name}, known).Algo
	if !slices.Contains(all, name) {
		return fmt.Errorf("unknown algorithm %q; the algorithms are %s", name, strings.Join(all, ", "))
	}
	return nil
}

// Choice describes how an instance is run and why.
type Choice struct {
	Tuning device.Tuning
	// By is the source of the choice: "pinned", "policy", "table" or "default".
	By string
	// Declined lists the preferred algorithms that were not used, each with the reason.
	Declined []string
}

// choice is a Choice together with the schedule or the launches that implement it.
type choice struct {
	Choice
	rest     []candidate // further candidates, in case the choice cannot be prepared
	schedule Algorithm   // the schedule that runs the instance; nil if launches of the channel's team run it
	launches []device.Launch
	normed   bool // the launches also do the add and the norm of Instance.Norm
}

// candidate is an algorithm with launch parameters; the machine may decline it.
type candidate struct {
	tuning device.Tuning
	by     string
}

// choose returns the first candidate that supports the instance in. It calls the function open to open the channel's
// team.
func (d *Dispatch) choose(in *Instance, open func() (device.Team, error)) (*choice, error) {
	if in.Pin.Algo != "" {
		in.Pin = current(in.Pin, d.known)
		if err := d.Check(in.Pin.Algo); err != nil {
			return nil, fmt.Errorf("%s: %w", in.Op, err)
		}
	}
	return d.first(in, d.candidates(in), nil, open)
}

func (d *Dispatch) first(in *Instance, list []candidate, declined []string, open func() (device.Team, error)) (*choice, error) {
	for i, c := range list {
		a, err := d.accept(in, c.tuning, open)
		if err == nil {
			return &choice{Choice: Choice{Tuning: c.tuning, By: c.by, Declined: declined}, schedule: a, rest: list[i+1:]}, nil
		}
		if in.Pin.Algo != "" {
			return nil, fmt.Errorf("%s: algorithm %s: %w", in.Op, c.tuning.Algo, err)
		}
		declined = append(declined, fmt.Sprintf("%s: %v", c.tuning.Algo, err))
	}
	return nil, fmt.Errorf("%s: no algorithm supports it: %s", in.Op, strings.Join(declined, "; "))
}

// accept returns the schedule that t names, or nil if t names one of the machine's own algorithms.
// It returns an error if that algorithm cannot run the instance.
func (d *Dispatch) accept(in *Instance, t device.Tuning, open func() (device.Team, error)) (Algorithm, error) {
	if i := slices.IndexFunc(d.own, func(a device.Algorithm) bool { return a.Name == t.Algo }); i >= 0 {
		if in.nodes != nil && t.Algo != d.world.Transport() {
			return nil, in.otherNodes()
		}
		if err := d.own[i].Check(&in.Collective); err != nil {
			return nil, err
		}
		team, err := open()
		if err != nil {
			return nil, err
		}
		return nil, team.Supports(t, &in.Collective)
	}
	a := schedule(t.Algo)
	if a == nil {
		return nil, fmt.Errorf("%w: this machine has no algorithm of that name", device.ErrUnsupported)
	}
	if in.nodes != nil && !slices.Contains(crossers, a) {
		return nil, in.otherNodes()
	}
	return a, supports(a, in, d.caps)
}

// otherNodes returns an error if the members are on several nodes, which means that an algorithm
// that needs shared memory cannot run the instance.
func (in *Instance) otherNodes() error {
	for m, node := range in.nodes {
		if node != in.nodes[0] {
			return fmt.Errorf("%w: it needs all members on one node, but member 0 is on node %d and member %d on node %d",
				device.ErrUnsupported, in.nodes[0], m, node)
		}
	}
	return nil
}

// candidates returns algorithms that may run the instance, the best one first. The last candidate supports every
// collective.
func (d *Dispatch) candidates(in *Instance) []candidate {
	if in.Pin.Algo != "" {
		return []candidate{{in.capped(d.launched(in, in.Pin)), "pinned"}}
	}
	var list []candidate
	if name := d.policy.Algorithm; name != "" {
		list = append(list, candidate{in.capped(d.launched(in, device.Tuning{Algo: name})), "policy"})
	}
	hosted := in.apart && d.world.HostShared()
	// the table's measurements were made with peer access
	if len(in.Parts) > 1 && in.Message() > 0 && in.nodes == nil && !hosted {
		for _, t := range in.modestFirst(d.table.best(in, d.policy.Fixed)) {
			list = append(list, candidate{in.capped(t), "table"})
		}
	}
	byDefault := func(name string) { list = append(list, candidate{device.Tuning{Algo: name}, "default"}) }
	if in.nodes != nil {
		byDefault(d.world.Transport())
		byDefault(crossers[0].Info().Name)
		return list
	}
	if hosted && !d.policy.Fixed {
		for _, name := range d.Libraries() {
			byDefault(name)
		}
	}
	if !d.policy.Fixed {
		byDefault(usual(in).Info().Name)
	}
	byDefault(schedules[0].Info().Name)
	if d.policy.Sparing {
		for _, a := range infos(schedules) {
			if a.Sparing() {
				byDefault(a.Name)
			}
		}
		slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(d.rank(a), d.rank(b)) })
	}
	return list
}

// rank returns 0 for candidates that need little memory, and for candidates that the policy names. It returns 1 for
// all others.
func (d *Dispatch) rank(c candidate) int {
	if a := d.Info(c.tuning.Algo); c.by == "policy" || a.Sparing() {
		return 0
	}
	return 1
}

// Launches returns the tunings of the machine's own algorithms for the instance, the best one first: those of the
// table, followed by all others.
func (d *Dispatch) Launches(in *Instance) (list []device.Tuning) {
	if d.teams == nil {
		return nil
	}
	in.apart = in.apart || d.world.HostShared()
	own := device.AlgorithmNames(d.own)
	named := map[string]bool{}
	for _, c := range d.candidates(in) {
		if slices.Contains(own, c.tuning.Algo) {
			list, named[c.tuning.Algo] = append(list, c.tuning), true
		}
	}
	for _, name := range own {
		if !named[name] {
			list = append(list, device.Tuning{Algo: name})
		}
	}
	return list
}

// modestFirst sorts list by the number of blocks by which each tuning exceeds in.CTAs. Tunings that were measured
// within this limit are first.
func (in *Instance) modestFirst(list []device.Tuning) []device.Tuning {
	if in.CTAs == 0 {
		return list
	}
	slices.SortStableFunc(list, func(a, b device.Tuning) int {
		return cmp.Compare(in.excess(a), in.excess(b))
	})
	return list
}

// capped returns t with its number of blocks limited to in.CTAs.
func (in *Instance) capped(t device.Tuning) device.Tuning {
	if in.CTAs > 0 && schedule(t.Algo) == nil && (t.Blocks == 0 || t.Blocks > in.CTAs) {
		t.Blocks = in.CTAs
	}
	return t
}

// excess returns the number of blocks by which t exceeds in.CTAs. A tuning that does not set a number of blocks counts
// as the largest excess.
func (in *Instance) excess(t device.Tuning) int {
	switch {
	case t == in.capped(t):
		return 0
	case t.Blocks == 0:
		return math.MaxInt
	}
	return t.Blocks - in.CTAs
}

// launched returns t with the launch parameters that the table has for its algorithm, if t sets only the name.
func (d *Dispatch) launched(in *Instance, t device.Tuning) device.Tuning {
	if t != (device.Tuning{Algo: t.Algo}) {
		return t
	}
	for _, b := range d.table.best(in, false) {
		if b.Algo == t.Algo {
			return b
		}
	}
	return t
}

// nodes returns the members' nodes, or nil if all members are on one node.
func (d *Dispatch) nodes(members []Member) []int {
	list, several := make([]int, len(members)), false
	for i, m := range members {
		list[i] = d.world.Node(m.Rank)
		several = several || list[i] != list[0]
	}
	if !several {
		return nil
	}
	return list
}

// apart reports whether any two members lack peer access to each other.
func (d *Dispatch) apart(members []Member) bool {
	for i := range members {
		for k := range i {
			if d.world.Apart(members[k].Rank, members[i].Rank) != nil {
				return true
			}
		}
	}
	return false
}

// usual returns the default schedule for machines without a table; nil if no schedule is a default
// for the instance.
func usual(in *Instance) Algorithm {
	for _, a := range slices.Backward(schedules) {
		if info := a.Info(); info.Check(&in.Collective) == nil && a.Usual(in) {
			return a
		}
	}
	return schedules[0]
}
