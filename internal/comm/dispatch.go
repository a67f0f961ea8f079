package comm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
)

// Policy says how collectives that pin no algorithm are run; the zero value is
// the fastest way known for each.
type Policy struct {
	// Algorithm names the one to try first.
	Algorithm string
	// Fixed runs a collective in the same way whatever its size, or in one that
	// gives the same bits where that one cannot.
	Fixed bool
	// Sparing tries first what takes little memory besides the operands.
	Sparing bool
}

// Dispatch chooses how the collectives of one world are run. What it chooses
// follows from the instance, the table and the policy alone, so all ranks agree.
type Dispatch struct {
	world  device.World
	teams  device.Teams       // nil where the world has none
	own    []device.Algorithm // of teams
	known  []device.Algorithm // all: see Algorithms
	caps   device.Caps
	table  *Table // nil for none
	policy Policy
}

// NewDispatch makes the dispatch of a world. The table may be nil, or be made
// on another machine: what this one cannot do is passed over.
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

// Table returns what it looks things up in; nil for nothing.
func (d *Dispatch) Table() *Table { return d.table }

// Algorithms returns all names that algorithm= takes in this world: schedules, the machine's own, and where it has
// several nodes those between nodes.
func (d *Dispatch) Algorithms() []string { return device.AlgorithmNames(d.known) }

// Info describes the algorithm of a name: of one that the world does not have as far as the table does.
func (d *Dispatch) Info(name string) device.Algorithm {
	for i := range d.known {
		if d.known[i].Name == name {
			return d.known[i]
		}
	}
	return d.table.info(name)
}

// Libraries lists the algorithms of the machine's vendor, which others are compared with.
func (d *Dispatch) Libraries() []string {
	return device.AlgorithmNames(slices.DeleteFunc(slices.Clone(d.known), func(a device.Algorithm) bool { return !a.Library }))
}

// Scheduler names the algorithm that executes schedules of other tools; empty where the machine has none.
func (d *Dispatch) Scheduler() string {
	for i := range d.known {
		if d.known[i].Scheduled {
			return d.known[i].Name
		}
	}
	return ""
}

// Check returns an error unless there is an algorithm of that name.
func (d *Dispatch) Check(name string) error {
	all := d.Algorithms()
	name = current(device.Tuning{Algo: name}, d.known).Algo
	if !slices.Contains(all, name) {
		return fmt.Errorf("there is no algorithm %q; there are %s", name, strings.Join(all, ", "))
	}
	return nil
}

// Choice is how an instance is run and why.
type Choice struct {
	Tuning device.Tuning
	// By is who chose: "pinned", "policy", "table", "default".
	By string
	// Declined lists what would have come first, and why it did not.
	Declined []string
}

// choice is a Choice with what it takes to carry it out.
type choice struct {
	Choice
	rest     []candidate // what comes next should it turn out not to work
	schedule Algorithm   // nil: launches of the channel's team
	launches []device.Launch
	normed   bool // launches do what follows too
}

// candidate is a way that may be declined.
type candidate struct {
	tuning device.Tuning
	by     string
}

// choose returns the first candidate that supports in. open opens the channel's
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
	return nil, fmt.Errorf("%s: no algorithm takes it: %s", in.Op, strings.Join(declined, "; "))
}

// accept returns the schedule that t names, or nil for one of the machine's own;
// an error where in cannot be run so.
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
		return nil, fmt.Errorf("%w: it has none of that name", device.ErrUnsupported)
	}
	if in.nodes != nil && !slices.Contains(crossers, a) {
		return nil, in.otherNodes()
	}
	return a, supports(a, in, d.caps)
}

// otherNodes is why an algorithm whose members reach each other's memory cannot run in.
func (in *Instance) otherNodes() error {
	for m, node := range in.nodes {
		if node != in.nodes[0] {
			return fmt.Errorf("%w: its members reach each other's memory, and member 0 is on node %d, member %d on node %d",
				device.ErrUnsupported, in.nodes[0], m, node)
		}
	}
	return nil
}

// candidates lists the ways to run in, the best first, and last one that takes
// everything.
func (d *Dispatch) candidates(in *Instance) []candidate {
	if in.Pin.Algo != "" {
		return []candidate{{in.capped(d.launched(in, in.Pin)), "pinned"}}
	}
	var list []candidate
	if name := d.policy.Algorithm; name != "" {
		list = append(list, candidate{in.capped(d.launched(in, device.Tuning{Algo: name})), "policy"})
	}
	if len(in.Parts) > 1 && in.Message() > 0 && in.nodes == nil { // tables are measured within a node
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

// rank is 0 for what takes little memory or was asked for, and else 1.
func (d *Dispatch) rank(c candidate) int {
	if a := d.Info(c.tuning.Algo); c.by == "policy" || a.Sparing() {
		return 0
	}
	return 1
}

// Launches lists the machine's own ways to run in, the best first: those of the table, and then all others.
func (d *Dispatch) Launches(in *Instance) (list []device.Tuning) {
	if d.teams == nil {
		return nil
	}
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

// modestFirst puts tunings that keep to the bound on blocks by themselves before
// those that have to be launched otherwise than they were measured, and of these
// first those that lose the fewest blocks.
func (in *Instance) modestFirst(list []device.Tuning) []device.Tuning {
	if in.CTAs == 0 {
		return list
	}
	slices.SortStableFunc(list, func(a, b device.Tuning) int {
		return cmp.Compare(in.excess(a), in.excess(b))
	})
	return list
}

// capped is t with no more blocks than in may take.
func (in *Instance) capped(t device.Tuning) device.Tuning {
	if in.CTAs > 0 && schedule(t.Algo) == nil && (t.Blocks == 0 || t.Blocks > in.CTAs) {
		t.Blocks = in.CTAs
	}
	return t
}

// excess is how many blocks more than in may take t is known to have; of one that
// says no number they are the most.
func (in *Instance) excess(t device.Tuning) int {
	switch {
	case t == in.capped(t):
		return 0
	case t.Blocks == 0:
		return math.MaxInt
	}
	return t.Blocks - in.CTAs
}

// launched completes a tuning that says only the name with how the table would
// launch that algorithm.
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

// nodes returns the members' nodes, nil where they are on one.
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

// apart reports whether two members are.
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

// usual returns the schedule for machines that nobody has measured.
func usual(in *Instance) Algorithm {
	for _, a := range slices.Backward(schedules) {
		if info := a.Info(); info.Check(&in.Collective) == nil && a.Usual(in) {
			return a
		}
	}
	return schedules[0]
}
