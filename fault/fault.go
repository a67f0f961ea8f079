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
}

// DisagreeError says that processes have different values where all must have the same:
// another program, plan, version or table, or another order of loads and runs.
type DisagreeError struct {
	What   string
	Values []Value // by rank; processes that were not heard are absent
}

// Error names what differs, and who has what.
func (e *DisagreeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ranks disagree on %s: ", e.What)
	for i, group := range e.Groups() {
		if i > 0 {
			b.WriteString(", ")
		}
		if len(group) == 1 {
			fmt.Fprintf(&b, "rank %d has %s", group[0].Rank, group[0].Value)
			continue
		}
		var ranks []int
		for _, v := range group {
			ranks = append(ranks, v.Rank)
		}
		fmt.Fprintf(&b, "ranks %s have %s", ranklist.String(ranks), group[0].Value)
	}
	return b.String()
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
