package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrLeft is what a world returns after Leave.
var ErrLeft = errors.New("this process has left the world")

// ErrWentOn is wrapped by the error of a wait for what another process has given up to do.
var ErrWentOn = errors.New("another process has gone on")

// PeerError says which process ended the world, or which one is waited for in vain.
type PeerError struct {
	Rank int    // the process, as its launcher counts
	PID  int    // 0 if the process never joined
	Host string // "" if the process never joined
	Why  string // "its process ended", "stalled: …"
}

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

// DisagreeError says that processes have different values where all must have the same.
type DisagreeError struct {
	What   string
	Values []Value // by rank; processes that were not heard are absent
}

func (e *DisagreeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ranks disagree on %s: ", e.What)
	for i, group := range e.groups() {
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
		fmt.Fprintf(&b, "ranks %s have %s", listRanks(ranks), group[0].Value)
	}
	return b.String()
}

// groups returns the values, those that are equal together, in the order of their first ranks.
func (e *DisagreeError) groups() (out [][]Value) {
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

// listRanks writes ranks in ascending order: "0-3, 5".
func listRanks(ranks []int) string {
	var b strings.Builder
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		if j == i {
			fmt.Fprint(&b, ranks[i])
		} else {
			fmt.Fprintf(&b, "%d-%d", ranks[i], ranks[j])
		}
		i = j + 1
	}
	return b.String()
}

// cause is why a world ended, as processes tell each other.
type cause struct {
	Peer     *PeerError     `json:",omitempty"`
	Disagree *DisagreeError `json:",omitempty"`
}

// maxCause bounds an encoded cause: it must fit a message and the page.
const maxCause = 4000

// causeOf turns an error of the process self into what others are told: an error of no
// known type is one of that process.
func causeOf(self member, err error) cause {
	var peer *PeerError
	var disagree *DisagreeError
	switch {
	case errors.As(err, &disagree):
		return cause{Disagree: disagree}
	case errors.As(err, &peer):
		return cause{Peer: peer}
	case err == nil:
		err = errors.New("aborted")
	}
	return cause{Peer: &PeerError{Rank: self.Rank, PID: self.PID, Host: self.Host, Why: err.Error()}}
}

func (c cause) err() error {
	switch {
	case c.Disagree != nil:
		return c.Disagree
	case c.Peer != nil:
		return c.Peer
	}
	return errors.New("the world was aborted")
}

// encode returns at most maxCause bytes: long texts are shortened.
func (c cause) encode() []byte {
	for limit := maxCause; ; limit /= 2 {
		text, err := json.Marshal(c.shorten(limit))
		if err == nil && len(text) <= maxCause {
			return text
		}
		if limit == 0 { // more ranks than fit
			return []byte("{}")
		}
	}
}

// shorten cuts texts to limit bytes, and, where that alone does not do, leaves the first and
// the last process of those with equal values.
func (c cause) shorten(limit int) cause {
	cut := func(s string) string {
		if len(s) <= limit {
			return s
		}
		return strings.ToValidUTF8(s[:limit], "") + "…"
	}
	if c.Peer != nil {
		p := *c.Peer
		p.Why, p.Host = cut(p.Why), cut(p.Host)
		return cause{Peer: &p}
	}
	if c.Disagree == nil {
		return c
	}
	d := DisagreeError{What: cut(c.Disagree.What)}
	for _, group := range c.Disagree.groups() {
		if limit < maxCause/8 && len(group) > 2 {
			group = []Value{group[0], group[len(group)-1]}
		}
		for _, v := range group {
			d.Values = append(d.Values, Value{v.Rank, cut(v.Value)})
		}
	}
	slices.SortFunc(d.Values, func(a, b Value) int { return a.Rank - b.Rank })
	return cause{Disagree: &d}
}

func decodeCause(text []byte) (cause, error) {
	var c cause
	if len(text) > maxCause {
		return c, errors.New("a cause that is too long")
	}
	err := json.Unmarshal(text, &c)
	return c, err
}
