// Package fault has the errors of hocket that carry facts: who, where, what against what. They
// are found in what its functions return by errors.As.
package fault

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/ranklist"
)

// PeerError says which process ended a world of processes, or which one is waited for in vain.
type PeerError struct {
	Rank int    // the process, as its launcher counts
	PID  int    // 0 if the process never joined
	Host string // "" if the process never joined
	Why  string // "its process ended", "stalled: …"
}

// Error names the process, and says what is wrong with it.
func (e *PeerError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("rank %d: %s", e.Rank, e.Why)
	}
	return fmt.Sprintf("rank %d (pid %d on %s): %s", e.Rank, e.PID, e.Host, e.Why)
}

// Value is what one process has where processes disagree.
type Value struct {
	Rank  int
	Value string
	// Call is what the process's program called, and At the place of the call; empty where that is not known. They may
	// differ where values are equal.
	Call, At string `json:",omitempty"`
	PID      int    `json:",omitempty"` // 0 if it is not known
	Host     string `json:",omitempty"`
}

// String returns the call and its place, or the value where no call is known.
func (v Value) String() string {
	switch {
	case v.Call == "":
		return v.Value
	case v.At == "":
		return v.Call
	}
	return v.Call + " at " + v.At
}

// DisagreeError says that processes have different values where all must have the same:
// another program, plan, version or table, or another order of loads and runs.
type DisagreeError struct {
	What   string
	Values []Value // by rank; processes that were not heard are absent
}

// Error names what differs, and who has what. Where the ranks called different things it names the calls; where all
// but one agree, that one comes first.
func (e *DisagreeError) Error() string {
	groups := e.Groups()
	called := calledDifferently(groups)
	odd := e.odd(groups)
	if odd >= 0 {
		groups[0], groups[odd] = groups[odd], groups[0]
	}
	var list []string
	for i, group := range groups {
		var ranks []int
		for _, v := range group {
			ranks = append(ranks, v.Rank)
		}
		first := group[0]
		who, verb := "ranks "+ranklist.String(ranks), "have"
		if len(group) == 1 {
			who, verb = fmt.Sprintf("rank %d", first.Rank), "has"
		}
		switch {
		case odd < 0:
		case i == 0 && first.PID != 0:
			who += fmt.Sprintf(" (pid %d on %s)", first.PID, first.Host)
		case i > 0:
			who = "the others (" + who + ")"
		}
		text := verb + " " + first.Value
		switch {
		case called:
			text = "called " + first.String()
		case first.At != "":
			text += ", called at " + first.At
		}
		list = append(list, who+" "+text)
	}
	return fmt.Sprintf("ranks disagree on %s: %s", e.What, strings.Join(list, ", "))
}

// calledDifferently reports whether the calls of the groups are known, and no two are equal.
func calledDifferently(groups [][]Value) bool {
	seen := map[string]bool{}
	for _, g := range groups {
		if g[0].Call == "" || seen[g[0].Call] {
			return false
		}
		seen[g[0].Call] = true
	}
	return true
}

// Odd returns the process that differs from all others, which have one value: a rank, or -1 where there is none, or
// there are fewer than three.
func (e *DisagreeError) Odd() int {
	groups := e.Groups()
	if i := e.odd(groups); i >= 0 {
		return groups[i][0].Rank
	}
	return -1
}

// odd returns the group of the one process that differs from all others whose call or place is known.
func (e *DisagreeError) odd(groups [][]Value) int {
	if len(groups) != 2 || len(e.Values) < 3 {
		return -1
	}
	return slices.IndexFunc(groups, func(g []Value) bool { return len(g) == 1 })
}

// Groups returns the values, those that are equal together, in the order of their first ranks.
func (e *DisagreeError) Groups() (out [][]Value) {
	for _, v := range e.Values {
		i := slices.IndexFunc(out, func(g []Value) bool { return g[0].Value == v.Value })
		if i < 0 {
			out = append(out, []Value{v})
		} else {
			out[i] = append(out[i], v)
		}
	}
	return out
}

// MismatchError says that two ranks hold different contents of one block of an
// output, though the signature's layout says that they are copies: mostly a wait that the
// program lacks, unless it is Proved.
type MismatchError struct {
	Output         string
	RankA, RankB   int
	Index          []int64 // global index of the first element that differs
	ValueA, ValueB float64
	Count          int64 // elements that differ
	// Proved says that the plan of the run was proved: then no wait is missing. Either the
	// program has ranks compute what differs, since what a layout claims of them is not
	// proved, or copies differed that a device tensor had before, or a device computed
	// wrongly.
	Proved bool
}

// Error names the output, the ranks and the first element.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("output %s: ranks %d and %d should hold the same elements, but %d differ; "+
		"the first, at %v, is %v on rank %d and %v on rank %d",
		e.Output, e.RankA, e.RankB, e.Count, e.Index, e.ValueA, e.RankA, e.ValueB, e.RankB)
}
