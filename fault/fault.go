// Package fault defines the errors of hocket that carry data, such as the rank that failed and the values that
// differ. Errors that hocket's functions return wrap them, so errors.As finds them.
package fault

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/ranklist"
)

// PeerError says which process ended a world of processes, or for which process the others waited until a time
// limit.
type PeerError struct {
	Rank int    // rank of the process, as its launcher numbers processes
	PID  int    // 0 if the process never joined
	Host string // "" if the process never joined
	Why  string // the reason, for example "its process ended" or "stalled: …"
}

// Error returns a message with the process and the reason.
func (e *PeerError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("rank %d: %s", e.Rank, e.Why)
	}
	return fmt.Sprintf("rank %d (pid %d on %s): %s", e.Rank, e.PID, e.Host, e.Why)
}

// Value is one process's value of something that should be equal in all processes.
type Value struct {
	Rank  int
	Value string
	// Call names the function that the process's program called, and At is the position of the call. They are empty if
	// unknown. Call and At may differ between processes that have equal values.
	Call, At string `json:",omitempty"`
	PID      int    `json:",omitempty"` // 0 if unknown
	Host     string `json:",omitempty"`
}

// String returns the call and its position. If the call is unknown, it returns the value.
func (v Value) String() string {
	switch {
	case v.Call == "":
		return v.Value
	case v.At == "":
		return v.Call
	}
	return v.Call + " at " + v.At
}

// DisagreeError says that processes have different values of something that must be equal: the program, the plan,
// the version, a table, or the order of loads and runs.
type DisagreeError struct {
	What   string
	Values []Value // by rank; processes from which no value was received are absent
}

// Error returns a message that names what differs, and which processes have which value. The message shows the
// processes' call instead of the value if the call is known and no process with another value made it. If all processes
// but one agree, the process that differs comes first.
func (e *DisagreeError) Error() string {
	groups := e.Groups()
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
		case calledAlone(groups, group):
			text = "called " + first.String()
		case first.At != "":
			text += ", called at " + first.At
		}
		list = append(list, who+" "+text)
	}
	return fmt.Sprintf("ranks disagree on %s: %s", e.What, strings.Join(list, ", "))
}

// calledAlone reports whether the call of a group is known and no other group has made the same call, so that the call
// shows the difference.
func calledAlone(groups [][]Value, group []Value) bool {
	call := group[0].Call
	same := 0
	for _, g := range groups {
		if g[0].Call == call {
			same++
		}
	}
	return call != "" && same == 1
}

// Odd returns the rank of the one process that differs from all others, which have equal values. It returns -1 if
// there is no such process, or if there are fewer than three processes.
func (e *DisagreeError) Odd() int {
	groups := e.Groups()
	if i := e.odd(groups); i >= 0 {
		return groups[i][0].Rank
	}
	return -1
}

// odd returns the group of the one process that differs from all others. It considers only processes whose call or
// position is known.
func (e *DisagreeError) odd(groups [][]Value) int {
	if len(groups) != 2 || len(e.Values) < 3 {
		return -1
	}
	return slices.IndexFunc(groups, func(g []Value) bool { return len(g) == 1 })
}

// Groups returns groups of equal values, in the order of each group's first rank.
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

// MismatchError says that two ranks hold different contents of one block of an output, although the signature's
// layout says that they are copies. If Proved is not set, the usual cause is a wait that the program lacks.
type MismatchError struct {
	Output         string
	RankA, RankB   int
	Index          []int64 // index, in the global tensor, of the first differing element
	ValueA, ValueB float64
	Count          int64 // number of elements that differ
	// Proved reports that the plan of the run was proved, so no wait is missing. Three causes are then left. The
	// program makes ranks compute different elements: the proof does not check that blocks which a layout declares to
	// be copies are equal. Or a device tensor had different copies before the run. Or a device computed wrongly.
	Proved bool
}

// Error returns a message with the output, the ranks and the first element that differs.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("output %s: ranks %d and %d should hold the same elements, but %d differ; "+
		"the first, at %v, is %v on rank %d and %v on rank %d",
		e.Output, e.RankA, e.RankB, e.Count, e.Index, e.ValueA, e.RankA, e.ValueB, e.RankB)
}
