// Package account computes how the time of a run was spent. The package matches the collectives of a trace across
// ranks, and converts the times of all ranks to one clock. The package divides the time of each rank in a collective
// into waiting and transfer, and finds which rank was late and why. docs/trace.md defines the numbers in a report.
package account

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/trace"
)

// Report describes how the time of a run was spent. Times are in microseconds.
type Report struct {
	Source string `json:"source"` // the tool that recorded the trace: "hocket", "kineto", "nsys" or "flight"
	Ranks  int    `json:"ranks"`
	// Absent lists the ranks of the job without a profile, if the profiles state the number of ranks in the job.
	Absent      []int        `json:"absent_ranks,omitempty"`
	Alignment   Alignment    `json:"alignment"`
	Collectives []Collective `json:"collectives"`
	Exposed     Exposed      `json:"exposed"`
	// StartSkew is the part of the waiting that is caused only by profiles of ranks that begin at different times; nil
	// if there is none.
	StartSkew *StartSkew `json:"start_skew,omitempty"`
	Problems  []Problem  `json:"problems"`
	// Findings are the causes of lost time, the most expensive first.
	Findings []Finding `json:"findings"`

	SpanUS   float64   `json:"span_us"` // from the first start to the last end of an event on any rank
	Idle     []Idle    `json:"idle,omitempty"`
	Critical *Critical `json:"critical,omitempty"`
	Steps    *Steps    `json:"steps,omitempty"`
	Ops      []Op      `json:"ops,omitempty"`

	// Untold is the reason why waiting cannot be separated from transfer. Untold is empty if they are separated.
	Untold string `json:"untold,omitempty"`

	ids          []int // numbers of the ranks, ascending
	pointToPoint int   // number of sends and receives of flight records and of other programs' profiles
	trace        *trace.Trace
	waits        map[int]int64
}

// Trace returns the events with times of one clock, and the waiting time of each event for which it is known, by the
// event's index. Trace returns nil for flight records. The caller must not change the events.
func (r *Report) Trace() (*trace.Trace, map[int]int64) { return r.trace, r.waits }

// Collective is one collective, with the parts of all of its ranks.
type Collective struct {
	Index int    `json:"index"` // index of the collective in the order in which collectives started, from 0
	Op    string `json:"op"`
	Group string `json:"group"`
	// Bytes is the size of the largest buffer that a member passes in or receives, or null if that is unknown.
	Bytes      *int64   `json:"bytes"`
	TransferUS *float64 `json:"transfer_us"`
	SkewUS     *float64 `json:"skew_us"` // null if the times of the members cannot be compared
	Late       *Late    `json:"late"`
	ByRank     []Member `json:"by_rank"`
	// GBs is Bytes divided by the transfer time. BusGBs is the rate at which each link of a ring would transfer its
	// part of the bytes. The unit of both is 10⁹ bytes per second.
	GBs    float64 `json:"gb_s,omitempty"`
	BusGBs float64 `json:"bus_gb_s,omitempty"`
	// The collective is number Nth, from 1, of the OfOp collectives with the same operation.
	Nth  int `json:"nth"`
	OfOp int `json:"of_op"`
	// Seq is the number of the call in its group, from 1, as torch counts and prints it (collective_seq_id). Seq is set
	// only for flight records.
	Seq *int64 `json:"seq,omitempty"`
}

// Label identifies the collective in tables and sentences: "all_reduce 5", which is the fifth all_reduce in the order
// of starts. In flight records it is "all_reduce, call 5", which is the fifth call of its group.
func (c *Collective) Label() string {
	if c.Seq != nil {
		return fmt.Sprintf("%s, call %d", c.Op, *c.Seq)
	}
	return fmt.Sprintf("%s %d", c.Op, c.Nth)
}

// Late describes the rank for which the other ranks waited in a collective.
type Late struct {
	Rank  int     `json:"rank"`
	US    float64 `json:"us"`    // the longest time for which another rank waited for the late rank
	After string  `json:"after"` // why the rank was late, if the profile shows it: the joined texts of Causes
	// Since names the last earlier collective that both compared ranks had left, at whose end the comparison begins.
	// Since is empty if there is none.
	Since string `json:"since,omitempty"`
	// Causes are activities of the late rank that the longest waiting rank did not have. The activity that explains
	// most of the delay is first.
	Causes []Cause `json:"causes,omitempty"`
}

// Member is one rank's part in a collective.
type Member struct {
	Rank       int      `json:"rank"`
	StartUS    float64  `json:"start_us"` // time when the rank entered the collective, from the start of the trace
	WaitUS     *float64 `json:"wait_us"`  // its waiting, without StartSkewUS
	TransferUS *float64 `json:"transfer_us"`
	// StartSkewUS is the part of the waiting that is start skew. See StartSkew.
	StartSkewUS float64 `json:"start_skew_us,omitempty"`
}

// StartSkew describes the waiting that is caused only by profiles that begin at different times. The profile of a rank
// begins with the first event on its device. A rank may enter a collective before the profile of the rank that arrives
// last has begun. Of its waiting, the time by which that profile begins later than its own is then start skew.
type StartSkew struct {
	US     float64 `json:"us"`      // from the time when the first profile begins to the time when the last one begins
	Rank   int     `json:"rank"`    // the rank whose profile begins last
	From   int     `json:"from"`    // the rank whose profile begins first
	WaitUS float64 `json:"wait_us"` // start skew summed over all ranks; no other number in the report includes it

	beforeUS float64 // sum over all ranks of the time before their own profiles begin
}

// Exposed is communication during which the same rank computed nothing, summed over the ranks. TotalUS is the sum of
// its parts WaitUS, TransferUS and UnknownUS. WaitUS and TransferUS are nil if the whole time is in UnknownUS.
type Exposed struct {
	WaitUS     *float64      `json:"wait_us"`
	TransferUS *float64      `json:"transfer_us"`
	UnknownUS  float64       `json:"unknown_us"` // the part in which waiting and transfer cannot be separated
	TotalUS    float64       `json:"total_us"`
	HiddenUS   float64       `json:"hidden_us"` // communication during which the rank also computed
	ByRank     []RankExposed `json:"by_rank"`
}

// RankExposed is the part of Exposed that belongs to one rank.
type RankExposed struct {
	Rank       int      `json:"rank"`
	WaitUS     *float64 `json:"wait_us"`
	TransferUS *float64 `json:"transfer_us"`
	UnknownUS  float64  `json:"unknown_us"`
	TotalUS    float64  `json:"total_us"`
	HiddenUS   float64  `json:"hidden_us"`
	ComputeUS  float64  `json:"compute_us"`
}

// Problem is an error in the run, or a reason why something is unknown. A late rank in a timeline is not a Problem but
// a Finding.
type Problem struct {
	Kind string `json:"kind"` // "size", "order", "dtype", "missing", "alignment", "runs"; in flight records "late", "open"
	Rank int    `json:"rank"`
	Text string `json:"text"`
}

// Op is the number and the total time of all events with one name.
type Op struct {
	Name   string  `json:"name"`
	Class  string  `json:"class"`
	Count  int     `json:"count"`
	TimeUS float64 `json:"time_us"`
}

// DefaultBound is the largest permitted distance between the ends of one collective on different ranks, in
// nanoseconds. If the distance is larger, the clocks of the ranks do not agree.
const DefaultBound = 50_000

// accounting is a report that is being computed.
type accounting struct {
	tracer
	origin int64
	slowNS map[string]int64 // the part of each operation's time that slow transfers explain, in nanoseconds
}

// Of computes the report for a trace. bound is the largest error of the clocks, in nanoseconds, up to which waiting is
// separated from transfer; 0 means DefaultBound. Of sorts the trace, shifts its times to one clock, and sets the fields
// Run and Group of its events to those of the report.
func Of(t *trace.Trace, bound int64) *Report {
	if bound <= 0 {
		bound = DefaultBound
	}
	r := &Report{Source: t.Source, Ranks: t.Ranks, Collectives: []Collective{}, Problems: []Problem{},
		Findings: []Finding{}, trace: t,
		waits: map[int]int64{}}
	if r.Source == "" {
		r.Source = "hocket"
	}
	a := &accounting{}
	a.t, a.r, a.bound, a.outlier = t, r, bound, map[int]bool{}
	t.Sort()
	a.match()
	a.align()
	a.renumber() // shifting times may change the order in which collectives start
	for i := range t.Ranks {
		r.ids = append(r.ids, t.ID(i))
	}
	for id := range t.World {
		if _, given := slices.BinarySearch(r.ids, id); !given { // ranks are sorted by their numbers
			r.Absent = append(r.Absent, id)
		}
	}
	lo, hi := t.Bounds()
	a.origin = lo
	r.SpanUS = us(hi - lo)
	if !a.compared() {
		r.SpanUS = us(a.longest())
	}
	r.Untold = a.untold
	for i := range t.Events {
		if c := t.Events[i].Call; c != nil && c.PointToPoint {
			r.pointToPoint++
		}
	}
	a.lanes = a.byRank()
	a.bare = !slices.ContainsFunc(a.t.Events, func(e trace.Event) bool { return e.Class == trace.Compute })
	a.split()
	a.skewed()
	a.blame()
	a.expose()
	a.idle()
	a.critical()
	a.steps()
	a.find()
	for _, o := range t.Totals() {
		r.Ops = append(r.Ops, Op{Name: o.Name, Class: o.Class.String(), Count: o.Count, TimeUS: us(o.Time)})
	}
	return r
}

// compared reports whether the times of different ranks can be compared.
func (a *matching) compared() bool { return a.exact() || a.untold == "" || a.t.Ranks < 2 }

// longest returns the longest duration of the trace on any rank. The duration of a rank is measured by the rank's
// own clock.
func (a *accounting) longest() int64 {
	var most int64
	ranks := make([]ends, a.t.Ranks)
	for i := range a.t.Events {
		e := &a.t.Events[i]
		x := &ranks[e.Rank]
		x.add(e.Start)
		x.add(e.End)
		most = max(most, x.hi-x.lo)
	}
	return most
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

func (a *matching) problem(kind string, rank int, format string, args ...any) {
	a.r.Problems = append(a.r.Problems, Problem{Kind: kind, Rank: rank, Text: fmt.Sprintf(format, args...)})
}

// share divides one member's time in a collective into waiting and transfer.
type share struct {
	event          call
	wait, transfer int64
	skew           int64 // the part of the waiting that is start skew
	told           bool
}

// split separates waiting from transfer in every collective.
func (a *accounting) split() {
	ofOp := map[string]int{}
	for g, list := range a.members {
		shares := a.sharesOf(list)
		a.shares = append(a.shares, shares)
		e := &a.t.Events[list[0]]
		ofOp[e.Name]++
		c := Collective{Index: g, Op: e.Name, Nth: ofOp[e.Name]}
		if e.Call != nil {
			c.Group = a.groupOf(e.Call)
		}
		var starts ends
		last := 0
		for k, s := range shares {
			m := &a.t.Events[s.event]
			starts.add(m.Start + s.skew)
			if m.Start > a.t.Events[shares[last].event].Start {
				last = k
			}
			if b := m.Bytes; b > 0 && (c.Bytes == nil || b > *c.Bytes) {
				c.Bytes = &b
			}
			x := Member{Rank: a.t.ID(m.Rank), StartUS: us(m.Start - a.origin)}
			if s.told {
				a.r.waits[s.event] = s.wait
				wait, transfer := us(s.wait-s.skew), us(s.transfer)
				x.WaitUS, x.TransferUS, x.StartSkewUS = &wait, &transfer, us(s.skew)
			}
			c.ByRank = append(c.ByRank, x)
		}
		if len(shares) > 1 && a.compared() && a.onePart(list) {
			skew := us(starts.hi - starts.lo)
			c.SkewUS = &skew
		}
		if shares[last].told {
			c.TransferUS = c.ByRank[last].TransferUS
			c.bandwidth(len(shares))
			a.late(&c, shares, last)
		}
		a.r.Collectives = append(a.r.Collectives, c)
	}
	for i := range a.r.Collectives {
		c := &a.r.Collectives[i]
		c.OfOp = ofOp[c.Op]
	}
}

// sharesOf separates the waiting of each member of a collective from its transfer, if that is possible.
func (a *accounting) sharesOf(list []call) []share {
	told := a.untold == "" && len(list) > 1 && len(list) >= a.size(list) && a.onePart(list) && !a.far(list)
	last := &a.t.Events[list[0]]
	for _, i := range list {
		if e := &a.t.Events[i]; e.Start > last.Start {
			last = e
		}
	}
	arrival := last.Start
	out := make([]share, len(list))
	for k, i := range list {
		e := &a.t.Events[i]
		begun := min(arrival, e.End)
		out[k] = share{event: i, wait: begun - e.Start, transfer: e.End - begun, told: told}
		if begins := a.lanes[last.Rank].begin(); told && a.separately() && e.Start < begins {
			out[k].skew = min(begins-a.lanes[e.Rank].begin(), begun-e.Start)
		}
	}
	return out
}

// separately reports whether the ranks were profiled separately, so that their profiles may begin at different times.
// If the profile contains only communication, separately returns false: the first event is then not the beginning of
// the profile.
func (a *accounting) separately() bool { return a.t.Source != "" && !oneClock(a.t.Clocks) && !a.bare }

// skewed adds up the start skew of all members.
func (a *accounting) skewed() {
	x := &StartSkew{}
	for _, list := range a.shares {
		for _, s := range list {
			x.WaitUS += us(s.skew)
		}
	}
	if x.WaitUS == 0 {
		return
	}
	first, last := -1, -1
	for r := range a.lanes {
		if len(a.lanes[r].events) == 0 {
			continue
		}
		x.beforeUS += us(a.lanes[r].begin() - a.origin)
		if last < 0 || a.lanes[r].begin() > a.lanes[last].begin() {
			last = r
		}
	}
	for r := range a.lanes { // all parts begin at the same time, so the largest start skew is in the part of last
		if len(a.lanes[r].events) > 0 && a.partOf(r) == a.partOf(last) &&
			(first < 0 || a.lanes[r].begin() < a.lanes[first].begin()) {
			first = r
		}
	}
	x.US = us(a.lanes[last].begin() - a.lanes[first].begin())
	x.Rank, x.From = a.t.ID(last), a.t.ID(first)
	a.r.StartSkew = x
}

// commonUS returns the time from the moment when the profiles of all ranks have begun to the end of the trace.
func (r *Report) commonUS() float64 {
	if r.StartSkew == nil {
		return r.SpanUS
	}
	return r.SpanUS - r.StartSkew.US
}

// ranksUS returns the sum over all ranks of the time in the span, without start skew.
func (r *Report) ranksUS() float64 {
	whole := r.SpanUS * float64(max(r.Ranks, 1))
	if x := r.StartSkew; x != nil {
		whole -= x.beforeUS + x.WaitUS
	}
	return whole
}

// size returns the number of members of a collective, or 0 if it is unknown.
func (a *matching) size(list []call) int {
	if c := a.t.Events[list[0]].Call; c != nil {
		return len(c.Members)
	}
	return 0
}

// far reports whether the ends of a collective on different ranks are too far apart for its members to belong
// together.
func (a *matching) far(list []call) bool {
	return !a.exact() && trace.EndsTogether(a.t.Events[list[0]].Name) && a.apart(list) > a.bound
}

// residual returns the largest error, in nanoseconds, that a difference between the times of two ranks can have.
func (a *tracer) residual() int64 {
	if a.r.Alignment.ResidualUS == nil {
		return 0
	}
	return int64(*a.r.Alignment.ResidualUS * 1e3)
}

// late records the rank for which the others waited, if a rank waited for longer than the error of the clocks.
func (a *accounting) late(c *Collective, shares []share, last int) {
	var most int64
	for k, s := range shares {
		if k != last {
			most = max(most, s.wait-s.skew)
		}
	}
	if most > a.residual() {
		c.Late = &Late{Rank: c.ByRank[last].Rank, US: us(most)}
	}
}

// bandwidth computes the rates of a collective with n members. The bus factor is the part of the bytes that each link
// of a ring carries, as in nccl-tests.
func (c *Collective) bandwidth(n int) {
	if c.Bytes == nil || c.TransferUS == nil || *c.TransferUS <= 0 {
		return
	}
	c.GBs = float64(*c.Bytes) / *c.TransferUS / 1e3
	factor := 1.0
	switch c.Op {
	case "all_reduce":
		factor = 2 * float64(n-1) / float64(n)
	case "all_gather", "reduce_scatter", "all_to_all":
		factor = float64(n-1) / float64(n)
	}
	c.BusGBs = c.GBs * factor
}
