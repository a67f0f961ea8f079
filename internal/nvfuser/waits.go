package nvfuser

import (
	"slices"

	"hocket.example/hocket/ir"
)

// posted is a communication that a Wait may name.
type posted struct {
	stream streamRef
	pos    ir.Pos
	// reads and writes are the names of its tensors.
	reads, writes string
	// under are the conditions that it was posted under.
	under  []string
	waited bool
	parts  []*posted // of what completes together
}

// post notes a communication.
func (t *translator) post(s *stmt, reads, writes string) *posted {
	p := &posted{stream: t.current(s.pos), pos: s.pos, reads: reads, writes: writes, under: slices.Clone(t.under)}
	t.posted[s.id] = p
	t.communications, t.pending = append(t.communications, p), append(t.pending, p)
	return p
}

// waitComm translates Wait: nothing on the stream that the communication runs
// on, a wait for that stream on another.
func (t *translator) waitComm(s *stmt) {
	p := t.posted[s.id]
	if p == nil {
		t.errorf(s.pos, "communication %s is waited for and was not posted", s.id).Help = "it must stand above its Wait"
		return
	}
	for _, x := range append(p.parts, p) {
		t.done(x)
	}
	if p.stream.key != t.current(s.pos).key {
		t.waitFor(p.stream, s.pos)
	}
}

// done notes that a communication has been waited for on this way.
func (t *translator) done(p *posted) {
	p.waited = true
	t.pending = slices.DeleteFunc(slices.Clone(t.pending), func(x *posted) bool { return x == p })
}

// nvFuser runs a communication beside the stream that posts it. Here it runs in order, so a
// dump in which a Wait is missing would be proved and give right results, and be wrong all
// the same: these say so.

// tooEarly warns where a tensor is used that a communication may still be working on.
func (t *translator) tooEarly(x *tensor, write bool) {
	if t.posting {
		return
	}
	for _, p := range t.pending {
		if p.writes != x.id && !(write && p.reads == x.id) {
			continue
		}
		d := t.warn(x.pos, x.id+" is used here, and not every way from its communication has a Wait")
		d.Notes = append(d.Notes, ir.Note{Pos: p.pos, Message: "it is posted here"})
		t.done(p)
	}
}

// unwaited warns of communications that nothing waits for, or not on every way.
func (t *translator) unwaited() {
	for _, p := range t.communications {
		switch {
		case !p.waited:
			t.warn(p.pos, "no Wait follows this communication")
		case slices.Contains(t.pending, p):
			t.warn(p.pos, "a Wait follows this communication, but not on every way")
		}
	}
}

func (t *translator) warn(pos ir.Pos, message string) *ir.Diagnostic {
	d := t.errorf(pos, "%s", message)
	d.Severity = ir.Warning
	d.Help = "here it runs on the current stream, in order; nvFuser runs it beside that, and what reads its result needs the Wait"
	return d
}

// eitherPending are the communications that wait for their Wait behind a conditional: those
// that do on one of its ways, but for those that were posted under the same condition.
func (t *translator) eitherPending(s *stmt, a, b []*posted) []*posted {
	condition := s.index.String()
	ways := map[*posted]int{}
	for _, p := range slices.Concat(a, b) {
		ways[p]++
	}
	var out []*posted
	for _, p := range slices.Concat(a, b) {
		if n := ways[p]; n == 2 || n == 1 && !(p.waited && slices.Contains(p.under, condition)) {
			out = append(out, p)
		}
		ways[p] = 0 // once
	}
	return out
}
