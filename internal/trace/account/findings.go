package account

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/ranklist"
	"hocket.example/hocket/internal/trace"
)

// Finding describes something that cost time.
type Finding struct {
	// Kind is one of
	//   - "late": ranks waited in a collective for a late rank
	//   - "signal": a rank waited for a signal
	//   - "transfer": a transfer was slower than similar ones
	//   - "exposed": data moved while nothing was computed
	Kind string `json:"kind"`
	// Rank is the rank for which the others waited, or the rank to which the exposed time or the slow transfer belongs.
	// Rank is -1 if the profile does not identify the rank.
	Rank  int    `json:"rank"`
	Op    string `json:"op"`
	Index int    `json:"index"` // index of the collective; -1 if there is none or there are several
	// US is the time in microseconds that was lost: the longest wait, the time beyond that of other transfers, or the
	// exposed time.
	US   float64 `json:"us"`
	Text string  `json:"text"` // a verdict of one line
	// Details are the numbers and causes, one in each line.
	Details []string `json:"details"`
}

// find lists the causes of lost time.
func (a *accounting) find() {
	a.r.waited()
	a.signals()
	a.transfers()
	a.exposures()
	a.r.sortFindings()
}

func (r *Report) sortFindings() {
	slices.SortStableFunc(r.Findings, func(x, y Finding) int { return cmp.Compare(y.US, x.US) })
}

// waited adds the collectives in which a rank waited.
func (r *Report) waited() {
	for i := range r.Collectives {
		if c := &r.Collectives[i]; c.Late != nil {
			text, details := c.words()
			r.Findings = append(r.Findings, Finding{"late", c.Late.Rank, c.Op, c.Index, c.Late.US, text, details})
		}
	}
}

func (a *accounting) found(kind string, rank int, op string, index int, ns int64, text string, details ...string) {
	a.r.Findings = append(a.r.Findings, Finding{kind, rank, op, index, us(ns), text, details})
}

// lines returns the clauses of a text, which semicolons separate.
func lines(text string) []string { return strings.Split(text, "; ") }

// mostSignals is the largest number of waits for signals that are explained. If there are more waits for signals, only
// the longest ones are explained.
const mostSignals = 100

// signals adds the waits for signals of other ranks.
func (a *accounting) signals() {
	var list []stretch
	for i := range a.t.Events {
		e := &a.t.Events[i]
		if !e.Waits() || e.Tie == nil || e.Tie.Counter == "" {
			continue
		}
		s := stretch{isSignal, e.Start, e.End, i, a.chain().Released(i)}
		if s.by >= 0 && a.compared() {
			s.hi = min(s.hi, a.t.Events[s.by].End)
		}
		if s.long() > a.residual() {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(x, y stretch) int { return cmp.Compare(y.long(), x.long()) })
	for _, s := range list[:min(len(list), mostSignals)] {
		e := &a.t.Events[s.event]
		where := fmt.Sprintf("rank %d waited %s at %s", a.t.ID(e.Rank), short(s.long()), cmp.Or(e.Detail, e.Name))
		if s.by < 0 {
			a.found("signal", -1, e.Name, -1, s.long(), where+" for a signal of an unknown rank")
			continue
		}
		sender := a.t.ID(a.t.Events[s.by].Rank)
		where += fmt.Sprintf(" for a signal of rank %d", sender)
		if !a.compared() {
			a.found("signal", sender, e.Name, -1, s.long(), where,
				fmt.Sprintf("clocks are not compared, so the activity of rank %d in that time is unknown", sender))
			continue
		}
		rank, why := a.meantime(s)
		a.found("signal", rank, e.Name, -1, s.long(), where, lines(why)...)
	}
}

// doing is a stretch of the time of rank. The field via is the rank that waited for a signal of rank, or -1 if none
// did.
type doing struct {
	stretch
	rank, via int
}

// mostTurns is the maximum length of a chain of ranks that wait for each other's signals.
const mostTurns = 16

// during returns the activities for which the sender of a signal had to wait between two times. If the sender
// itself waited for a signal of another rank, it returns the activities of that rank instead.
func (a *tracer) during(signal int, from, to int64, via, turns int) []doing {
	var out []doing
	parts, _ := a.back(signal, from)
	rank := a.t.Events[signal].Rank
	for _, p := range parts {
		if p.hi = min(p.hi, to); p.hi <= p.lo {
			continue
		}
		if p.kind == isSignal && p.by >= 0 && turns > 0 {
			out = append(out, a.during(p.by, p.lo, p.hi, rank, turns-1)...)
			continue
		}
		out = append(out, doing{p, rank, via})
	}
	return out
}

// meantime describes the activities of other ranks while one rank waited for a signal. meantime returns the rank with
// the longest activities.
func (a *tracer) meantime(s stretch) (rank int, why string) {
	type key struct {
		rank, via int
		what      what
	}
	sums, longest := map[key]int64{}, map[key]stretch{}
	for _, p := range a.during(s.by, s.lo, s.hi, -1, mostTurns) {
		k := key{p.rank, p.via, a.whatOf(p.stretch)}
		sums[k] += p.long()
		if m, ok := longest[k]; !ok || p.long() > m.long() {
			longest[k] = p.stretch
		}
	}
	keys := slices.SortedFunc(maps.Keys(sums), func(x, y key) int {
		return cmp.Or(cmp.Compare(sums[y], sums[x]), cmp.Compare(x.rank, y.rank), cmp.Compare(x.via, y.via),
			strings.Compare(x.what.kind, y.what.kind), strings.Compare(x.what.name, y.what.name))
	})
	rank = a.t.ID(a.t.Events[s.by].Rank)
	var texts []string
	for i, k := range keys {
		if len(texts) == 2 || sums[k] < max(s.long()/5, 1) {
			break
		}
		if i == 0 {
			rank = a.t.ID(k.rank)
		}
		texts = append(texts, a.did(k.rank, k.via, k.what, sums[k], longest[k]))
	}
	if len(texts) == 0 {
		return rank, fmt.Sprintf("nothing that rank %d did before it takes a fifth of that", rank)
	}
	return rank, strings.Join(texts, "; ")
}

// did describes what a rank did during a part of the time for which another rank waited.
func (a *tracer) did(rank, via int, k what, ns int64, longest stretch) string {
	who := fmt.Sprintf("rank %d", a.t.ID(rank))
	if via >= 0 {
		who += fmt.Sprintf(", for whose signal rank %d waited,", a.t.ID(via))
	}
	name := a.t.Events[longest.event].Name
	switch k.kind {
	case isWork:
		return fmt.Sprintf("%s was in %s for %s of that%s", who, name, short(ns), a.elsewhere(longest.event))
	case isTransfer:
		return fmt.Sprintf("%s was in %s for %s of that%s", who, transferOf(name), short(ns),
			a.elsewhere(longest.event))
	case isPeer:
		x := &a.r.Collectives[k.group]
		return fmt.Sprintf("%s waited %s of that for rank %d in %s %d of %d", who, short(ns), k.by, x.Op, x.Nth, x.OfOp)
	case isGap:
		_, why := a.idleBefore(longest)
		return fmt.Sprintf("nothing ran on the stream of %s for %s of that, %s before %s%s", who, short(ns),
			short(longest.long()), name, why)
	case isSignal:
		return fmt.Sprintf("%s waited %s of that for a signal of an unknown rank", who, short(ns))
	}
	if k.kind == isLag {
		return fmt.Sprintf("waits of %s continued for %s of that after the events they waited for had ended; the "+
			"trace does not say why",
			who, short(ns))
	}
	return fmt.Sprintf("%s waited %s of that for other streams, of which the trace shows nothing", who, short(ns))
}

// barrier is the name of the collective that moves no data.
const barrier = "barrier"

// transferOf returns a name for the part of a collective after all members have entered it.
func transferOf(name string) string {
	if name == barrier {
		return name
	}
	return "the transfer of " + name
}

// elsewhere compares an event with the events of the same statement, iteration and run on other ranks.
func (a *tracer) elsewhere(i int) string {
	e := &a.t.Events[i]
	if e.Detail == "" || a.t.Source != "" {
		return ""
	}
	if a.same == nil {
		a.same = map[statement][]int{}
		for j := range a.t.Events {
			x := &a.t.Events[j]
			k := statement{x.Run, x.Name, x.Detail}
			a.same[k] = append(a.same[k], j)
		}
	}
	var others ends
	for _, j := range a.same[statement{e.Run, e.Name, e.Detail}] {
		if x := &a.t.Events[j]; x.Rank != e.Rank {
			others.add(x.Duration())
		}
	}
	if others.n == 0 {
		return ""
	}
	return fmt.Sprintf(", which took %s there, and at most %s on other ranks", short(e.Duration()), short(others.hi))
}

// statement is a key for the commands of one statement in one iteration of one run.
type statement struct {
	run          int64
	name, detail string
}

// A transfer is called slow if it takes at least slowTimes as long as the median of the others, and at least
// slowLeast nanoseconds longer.
const (
	slowTimes = 1.5
	slowLeast = 5_000
)

// sameSize identifies transfers that can be compared.
type sameSize struct {
	op      string
	bytes   int64
	members int
}

// link holds the transfers between the same ranks that have the same operation and size.
type link struct {
	name  string
	rank  int // the rank that sends; -1 for a collective
	times []int64
	index []int // indices of the transfers: of collectives, or of events

	median, others int64 // median of the times, and the largest median of the other links, or -1 if there are no others
}

// compare computes the fields median and others of the links.
func compare(all map[string]*link) {
	most, second := int64(-1), int64(-1)
	for _, l := range all {
		sorted := slices.Sorted(slices.Values(l.times))
		l.median = sorted[(len(sorted)-1)/2]
		if l.median > most {
			most, second = l.median, most
		} else {
			second = max(second, l.median)
		}
	}
	for _, l := range all {
		if l.others = most; l.median == most {
			l.others = second
		}
	}
}

// transfers adds findings about transfers that took longer than others of the same size. A finding is about all
// transfers between the same ranks, or about a single transfer.
func (a *accounting) transfers() {
	all := map[sameSize]map[string]*link{}
	add := func(k sameSize, name string, rank int, ns int64, index int) {
		if all[k] == nil {
			all[k] = map[string]*link{}
		}
		l := all[k][name]
		if l == nil {
			l = &link{name: name, rank: rank}
			all[k][name] = l
		}
		l.times, l.index = append(l.times, ns), append(l.index, index)
	}
	for g := range a.r.Collectives {
		c := &a.r.Collectives[g]
		if c.TransferUS == nil || c.Op == barrier {
			continue
		}
		a.uneven(c, g)
		if c.Bytes == nil || *c.Bytes <= 0 {
			continue
		}
		var members []int
		for _, m := range c.ByRank {
			members = append(members, m.Rank)
		}
		for _, s := range a.shares[g] {
			if e := &a.t.Events[s.event]; e.Start+s.wait == a.arrival(g) && s.wait == 0 {
				add(sameSize{c.Op, *c.Bytes, len(members)}, "among ranks "+ranklist.String(members), -1, s.transfer, g)
				break
			}
		}
	}
	for i := range a.t.Events {
		e := &a.t.Events[i]
		if e.Class != trace.Comm || e.Tie == nil || e.Tie.Peer < 0 || e.Bytes <= 0 {
			continue
		}
		from, to := a.t.ID(e.Rank), e.Tie.Peer
		if e.Name == "get" {
			from, to = to, from
		}
		add(sameSize{e.Name, e.Bytes, 0}, fmt.Sprintf("from rank %d to rank %d", from, to), from, e.Duration(), i)
	}
	keys := slices.SortedFunc(maps.Keys(all), func(x, y sameSize) int {
		return cmp.Or(strings.Compare(x.op, y.op), cmp.Compare(x.bytes, y.bytes), cmp.Compare(x.members, y.members))
	})
	for _, k := range keys {
		compare(all[k])
		for _, name := range slices.Sorted(maps.Keys(all[k])) {
			a.slowLink(k, all[k][name])
		}
	}
}

// arrival returns the time at which the last member entered a collective.
func (a *tracer) arrival(g int) int64 { return a.t.Events[a.lastOf(g)].Start }

// slow reports whether a transfer that takes ns nanoseconds is slow, if other transfers take others nanoseconds.
func (a *accounting) slow(ns, others int64) bool {
	return float64(ns) > slowTimes*float64(others) && ns-others > slowLeast+a.residual()
}

// slowLink compares the transfers of a link with those of other links. If the link is not slow in comparison, it
// compares the transfers of the link with each other.
func (a *accounting) slowLink(k sameSize, l *link) {
	if own, other := l.median, l.others; other >= 0 && a.slow(own, other) {
		var sum int64
		for _, ns := range l.times {
			sum += max(ns-other, 0)
		}
		a.excess(k.op, sum)
		a.found("transfer", l.rank, k.op, -1, sum,
			fmt.Sprintf("transfers %s are slow", l.name),
			fmt.Sprintf("%s of %d bytes took %s in the median of %d", k.op, k.bytes, short(own), len(l.times)),
			fmt.Sprintf("and between other ranks at most %s in the median", short(other)))
		return
	}
	if len(l.times) < 4 {
		return
	}
	median := l.median
	for i, ns := range l.times {
		if !a.slow(ns, median) {
			continue
		}
		a.excess(k.op, ns-median)
		if l.rank < 0 {
			c := &a.r.Collectives[l.index[i]]
			a.found("transfer", -1, k.op, c.Index, ns-median,
				fmt.Sprintf("%s %d of %d has a slow transfer", c.Op, c.Nth, c.OfOp),
				short(ns)+" after all ranks had entered",
				fmt.Sprintf("and %s in the median of %d of %d bytes", short(median), len(l.times), k.bytes))
			continue
		}
		e := &a.t.Events[l.index[i]]
		a.found("transfer", l.rank, k.op, -1, ns-median,
			fmt.Sprintf("a transfer %s is slow", l.name),
			fmt.Sprintf("%s took %s", cmp.Or(e.Detail, e.Name), short(ns)),
			fmt.Sprintf("and %s in the median of %d of %d bytes between them", short(median), len(l.times), k.bytes))
	}
}

// uneven adds a finding about a collective in which the transfer took longer on one member than on all others.
func (a *accounting) uneven(c *Collective, g int) {
	var longest, next int64
	rank := -1
	for _, s := range a.shares[g] {
		if s.transfer > longest {
			longest, next, rank = s.transfer, longest, a.t.Events[s.event].Rank
		} else {
			next = max(next, s.transfer)
		}
	}
	if rank < 0 || len(a.shares[g]) < 2 || !trace.EndsTogether(c.Op) || !a.slow(longest, next) {
		return
	}
	a.excess(c.Op, longest-next)
	a.found("transfer", a.t.ID(rank), c.Op, c.Index, longest-next,
		fmt.Sprintf("%s %d of %d has a slow transfer on rank %d", c.Op, c.Nth, c.OfOp, a.t.ID(rank)),
		short(longest)+" there after all ranks had entered",
		fmt.Sprintf("and at most %s on the others", short(next)))
}

// excess adds ns to that part of an operation's time that slow transfers explain.
func (a *accounting) excess(op string, ns int64) {
	if a.slowNS == nil {
		a.slowNS = map[string]int64{}
	}
	a.slowNS[op] += ns
}

// exposures adds, for each operation, a finding about transfers during which no kernel ran. The finding names the rank
// with the longest time of this kind.
func (a *accounting) exposures() {
	n := a.t.Ranks
	compute := make([][]trace.Interval, n)
	type stream struct {
		rank int
		name string
	}
	computes := map[stream]bool{}
	key := func(e *trace.Event) stream { return stream{e.Rank, e.Stream} }
	moving := map[string][][]trace.Interval{}
	alone := map[string][]bool{} // whether the streams of an operation on a rank run no kernels, by operation and rank
	for i := range a.t.Events {
		if e := &a.t.Events[i]; e.Class == trace.Compute && e.End > e.Start {
			compute[e.Rank] = append(compute[e.Rank], trace.Interval{Lo: e.Start, Hi: e.End})
			computes[key(e)] = true
		}
	}
	for i := range a.t.Events {
		e := &a.t.Events[i]
		if e.Class != trace.Comm || e.Name == barrier || !a.known(i) {
			continue
		}
		if moving[e.Name] == nil {
			moving[e.Name], alone[e.Name] = make([][]trace.Interval, n), make([]bool, n)
		}
		moving[e.Name][e.Rank] = append(moving[e.Name][e.Rank], trace.Interval{Lo: e.Start + a.r.waits[i], Hi: e.End})
		if !computes[key(e)] {
			alone[e.Name][e.Rank] = true
		}
	}
	for r := range compute {
		compute[r] = trace.Union(compute[r])
	}
	if a.bare {
		return // the profile may not contain any kernels
	}
	for _, op := range slices.Sorted(maps.Keys(moving)) {
		rank, most, whole := -1, int64(0), int64(0)
		for r, list := range moving[op] {
			all := trace.Union(list)
			if bare := without(all, compute[r]); bare > most {
				rank, most, whole = r, bare, trace.Length(all)
			}
		}
		odd := a.oddOnes(op, compute)
		if rank < 0 {
			continue
		}
		cost := most - a.slowNS[op] - odd
		if cost <= max(a.residual(), 0) {
			continue
		}
		how := "is not overlapped"
		if most < whole {
			how = "is overlapped in part"
		}
		details := []string{fmt.Sprintf("on rank %d no kernel ran during %s of the %s in which it moved data",
			a.t.ID(rank), short(most), short(whole))}
		if !alone[op][rank] {
			details = append(details, "its streams there run kernels, too, one after the other")
		}
		a.found("exposed", a.t.ID(rank), op, -1, cost, op+" "+how, details...)
	}
}

// oddOnes applies to operations most of whose collectives are overlapped. oddOnes adds findings about the collectives
// of the operation op that are not overlapped, and returns their exposed time.
func (a *accounting) oddOnes(op string, compute [][]trace.Interval) int64 {
	type one struct {
		g, rank       int
		bare, whole   int64
		shareOfHidden float64
	}
	var list []one
	for g := range a.r.Collectives {
		if c := &a.r.Collectives[g]; c.Op != op || c.TransferUS == nil {
			continue
		}
		o := one{g: g, rank: -1}
		for _, s := range a.shares[g] {
			e := &a.t.Events[s.event]
			bare := s.transfer - trace.Covered(trace.Interval{Lo: e.End - s.transfer, Hi: e.End}, compute[e.Rank])
			if o.rank < 0 || bare > o.bare {
				o.rank, o.bare, o.whole = e.Rank, bare, s.transfer
			}
		}
		if o.whole > 0 {
			o.shareOfHidden = 1 - float64(o.bare)/float64(o.whole)
			list = append(list, o)
		}
	}
	if len(list) < 4 {
		return 0
	}
	var shares []float64
	for _, o := range list {
		shares = append(shares, o.shareOfHidden)
	}
	slices.Sort(shares)
	median := shares[(len(shares)-1)/2]
	if median < 0.5 {
		return 0
	}
	var sum int64
	for _, o := range list {
		if o.shareOfHidden > 0.1 || o.bare <= slowLeast+a.residual() {
			continue
		}
		sum += o.bare
		c := &a.r.Collectives[o.g]
		a.found("exposed", a.t.ID(o.rank), op, c.Index, o.bare,
			fmt.Sprintf("%s %d of %d is not overlapped", op, c.Nth, c.OfOp),
			fmt.Sprintf("on rank %d no kernel ran during %s of its transfer of %s", a.t.ID(o.rank), short(o.bare),
				short(o.whole)),
			fmt.Sprintf("kernels overlapped at least %.0f %% of half of the %d", math.Floor(100*median), len(list)))
	}
	return sum
}
