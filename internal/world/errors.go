package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/fault"
)

// ErrLeft is the error that methods of a world return after Leave.
var ErrLeft = errors.New("this process has left the world")

// ErrWentOn is wrapped by the error of a wait for an action that another process will not perform, because that process
// has already continued beyond it.
var ErrWentOn = errors.New("another process has already continued")

// ErrInterrupted is the cause with which a library cancels the context of a call that its user has interrupted.
var ErrInterrupted = errors.New("interrupted")

// These errors are public, in package fault.
type (
	PeerError     = fault.PeerError
	DisagreeError = fault.DisagreeError
	Value         = fault.Value
)

// member identifies a process of a world.
type member struct {
	Rank int
	PID  int
	Host string
	// Outer is the process's rank in the world to which its group belongs. Outer equals Rank if the world is not a
	// group.
	Outer int `json:"-"`
}

// failed returns an error that blames a member.
func (m member) failed(format string, args ...any) *PeerError {
	return &PeerError{Rank: m.Outer, PID: m.PID, Host: m.Host, Why: fmt.Sprintf(format, args...)}
}

// cause describes why a world ended, in the form in which processes send it to each other.
type cause struct {
	Peer     *PeerError     `json:",omitempty"`
	Disagree *DisagreeError `json:",omitempty"`
}

// maxCause is the largest size of an encoded cause, which must fit in a message and in the page.
const maxCause = 4000

// causeOf converts an error of the process self to the form that is sent to others. An error of an unknown type is
// attributed to that process.
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
	return cause{Peer: &PeerError{Rank: self.Outer, PID: self.PID, Host: self.Host, Why: err.Error()}}
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
		if limit == 0 { // there are so many ranks that no text fits
			return []byte("{}")
		}
	}
}

// shorten cuts each text to limit bytes. If the result is still too long, it keeps only the first and the last of the
// processes with equal values.
func (c cause) shorten(limit int) cause {
	short := func(s string) string {
		if limit < len("…") {
			return ""
		}
		return cutText(s, limit)
	}
	if c.Peer != nil {
		p := *c.Peer
		p.Why, p.Host = short(p.Why), short(p.Host)
		return cause{Peer: &p}
	}
	if c.Disagree == nil {
		return c
	}
	d := DisagreeError{What: short(c.Disagree.What)}
	for _, group := range c.Disagree.Groups() {
		if limit < maxCause/8 && len(group) > 2 {
			group = []Value{group[0], group[len(group)-1]}
		}
		for _, v := range group {
			v.Value, v.Call, v.At, v.Host = short(v.Value), short(v.Call), short(v.At), short(v.Host)
			d.Values = append(d.Values, v)
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
