package verify

import (
	"fmt"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// This file builds the text of findings.

func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}

func streamName(p *plan.Plan, stream int32) string {
	return fmt.Sprintf("rank %d %s", p.Streams[stream].Rank, p.Streams[stream].Name)
}

// place returns the stream, the rank and the iteration of an act, as text.
func place(ix *index, a Act) string {
	c := ix.cmd(a)
	s := streamName(ix.p, c.Stream)
	if len(c.Iter) > 0 {
		words := make([]string, len(c.Iter))
		for i, v := range c.Iter {
			words[i] = strconv.FormatInt(v, 10)
		}
		s += ", iteration " + strings.Join(words, ".")
	}
	return s
}

// subject returns the name of the operation that performs an act. For an upload or read-back, the result names the
// caller.
func subject(ix *index, a Act) string {
	c := ix.cmd(a)
	switch c.Kind {
	case plan.Input:
		return "the caller's upload of %" + ix.p.Inputs[c.IO].Name
	case plan.Output:
		return "the caller's use of the result %" + strings.TrimPrefix(ix.p.Outputs[c.IO].Name, "%")
	}
	if op := ix.p.Sites[c.Site].Op; op != ir.InvalidOp {
		return op.String()
	}
	return c.Kind.String()
}

func line(ix *index, a Act) string {
	pos := ix.p.Sites[ix.cmd(a).Site].Pos
	if !pos.Valid() {
		return "a statement that lowering inserted"
	}
	return fmt.Sprintf("line %d", pos.Line)
}

// findings returns the faults that the method touch has found, as findings with text, at most maxFindings of each kind.
// The result untold is the number of places of the faults that are not returned.
func (m *memory) findings() (out []Finding, untold int) {
	raced := map[[2]int32]bool{}
	for _, r := range m.order {
		raced[[2]int32{m.siteOf(r.a), m.ix.p.Buffers[r.bufB].Site}] = true
		raced[[2]int32{m.siteOf(r.b), m.ix.p.Buffers[r.bufB].Site}] = true
		if len(out) < maxFindings {
			out = together(out, m.tellRace(r))
		} else {
			untold += r.count
		}
	}
	for _, b := range m.unread {
		if raced[[2]int32{m.siteOf(b.at), m.ix.p.Buffers[b.buf].Site}] || len(out) >= 2*maxFindings {
			untold += b.count
			continue // a race that is already reported explains the missing write
		}
		out = append(out, m.tellBlank(b))
	}
	if len(out) == 0 { // findings about lifetimes are less specific than those about bytes
		for _, t := range m.turnOrder[:min(len(m.turnOrder), maxFindings)] {
			out = append(out, m.tellTurn(t))
		}
	}
	return out, untold
}

// together adds a finding. If one edge would repair both the new finding and an earlier one, it adds the places of the
// new finding to the earlier one.
func together(fs []Finding, f Finding) []Finding {
	for i := range fs {
		if o := &fs[i]; edgeOf(o.Help) == edgeOf(f.Help) && o.Unsure == f.Unsure && len(o.Acts) > 1 && len(f.Acts) > 1 {
			o.Count += f.Count
			return fs
		}
	}
	return append(fs, f)
}

// edgeOf shortens a help text to the part that identifies the proposed edge. One statement repairs all findings with
// the same edge, because one fork orders all later work on its stream.
func edgeOf(help string) string {
	if edge, _, ok := strings.Cut(help, " before line"); ok && strings.HasPrefix(help, "fork it: ") {
		return edge
	}
	return help
}

func (m *memory) siteOf(e epoch) int32 { return m.ix.p.Cmds[m.ix.act(e).Cmd].Site }

func verb(write bool) string {
	if write {
		return "writes"
	}
	return "reads"
}

// does describes how an act accesses a rank's buffer.
func (m *memory) does(a Act, write bool, buf, rank int32) string {
	s := verb(write) + " " + m.ix.p.Buffers[buf].Name
	if m.ix.cmd(a).Rank != rank {
		s += fmt.Sprintf(" of rank %d", rank)
	}
	return s
}

func (m *memory) tellRace(r *race) Finding {
	ix, p := m.ix, m.ix.p
	a, b := ix.act(r.a), ix.act(r.b)
	a.What, b.What = m.does(a, r.writeA, r.bufA, r.rank), m.does(b, r.writeB, r.bufB, r.rank)
	f := Finding{Kind: KindRace, Acts: []Act{a, b}, Count: r.count, Unsure: r.rough}
	if r.inside {
		f.Acts = f.Acts[:1]
		f.Message = fmt.Sprintf("%s reads bytes of %s that it writes itself (%s)", subject(ix, a), p.Buffers[r.bufB].Name, place(ix, a))
		f.Help = "write to another buffer, or copy the operand first"
		return f
	}
	if r.bufA != r.bufB {
		f.Kind = KindReuse
	}
	f.Message = fmt.Sprintf("%s (%s) and %s (%s%s) may run at the same time: one %s, the other %s",
		subject(ix, a), place(ix, a), subject(ix, b), place(ix, b), nextRun(a, b), a.What, b.What)
	f.Why = m.whyNot(r, a, b)
	f.Help = m.repair(r, a, b)
	f.Picture = picture(ix, a, b)
	return f
}

func nextRun(a, b Act) string {
	if a.Run < b.Run {
		return ", of the next run"
	}
	return ""
}

// whyNot explains why act a is not ordered before act b. It names the last command of a's stream for which b's
// stream has waited.
func (m *memory) whyNot(r *race, a, b Act) string {
	ix := m.ix
	from, to := streamName(ix.p, r.a.stream), streamName(ix.p, r.b.stream)
	if r.upTo == 0 {
		return fmt.Sprintf("nothing orders the two ops: before %s, %s has not waited for any work of %s", line(ix, b), to, from)
	}
	last := ix.act(epoch{r.a.stream, r.upTo})
	return fmt.Sprintf("nothing orders the two ops: %s has waited for %s only up to %s at %s, which precedes %s", to, from, subject(ix, last), line(ix, last), line(ix, a))
}

// repair describes the smallest edge (a wait, a signal or a barrier) that orders act a before act b, and the
// position at which it must be inserted.
func (m *memory) repair(r *race, a, b Act) string {
	ix := m.ix
	ca, cb := ix.cmd(a), ix.cmd(b)
	sa, sb := ix.p.Streams[ca.Stream].Name, ix.p.Streams[cb.Stream].Name
	switch {
	case ca.Rank == cb.Rank && (cb.Kind == plan.Input || cb.Kind == plan.Output || a.Run < b.Run && sb == "main"):
		return fmt.Sprintf("join it: wait %s on main before the return", sa)
	case ca.Rank == cb.Rank && sa == "main" && (a.Run < b.Run || ca.Kind == plan.Input):
		return fmt.Sprintf("fork it: wait main on %s before %s", sb, line(ix, b))
	case ca.Rank == cb.Rank && a.Run < b.Run:
		return fmt.Sprintf("join and fork: wait %s on main before the return, and wait main on %s before %s", sa, sb, line(ix, b))
	case ca.Rank == cb.Rank:
		return fmt.Sprintf("wait %s on %s before %s", sa, sb, line(ix, b))
	case a.Run < b.Run:
		return fmt.Sprintf("rank %d may still be in the previous run: add a barrier at the start, or a signal (a credit) from rank %d after %s for which rank %d waits before %s",
			ca.Rank, ca.Rank, line(ix, a), cb.Rank, line(ix, b))
	}
	return fmt.Sprintf("signal from rank %d after %s, and wait for that counter on rank %d's %s before %s", ca.Rank, line(ix, a), cb.Rank, sb, line(ix, b))
}

func (m *memory) tellBlank(b *blank) Finding {
	ix := m.ix
	at := ix.act(b.at)
	at.What = m.does(at, false, b.buf, b.rank)
	name := ix.p.Buffers[b.buf].Name
	f := Finding{Kind: KindUnwritten, Acts: []Act{at}, Count: b.count, Unsure: b.rough,
		Message: fmt.Sprintf("%s reads bytes of %s that were never written (%s)", subject(ix, at), name, place(ix, at)),
		Help:    "write the bytes before, or add the word zero to the alloc"}
	if b.owner >= 0 {
		over := ix.act(b.last)
		over.What = "overwrites them as " + ix.p.Buffers[b.owner].Name
		f.Kind, f.Acts = KindClobbered, append(f.Acts, over)
		f.Message = fmt.Sprintf("%s reads bytes of %s that were last written as %s, by %s (%s)", subject(ix, at), name, ix.p.Buffers[b.owner].Name, subject(ix, over), place(ix, over))
		f.Help = "the plan places two buffers on the same bytes while both are in use: " + name + " is used later than it was planned for"
	}
	return f
}

// diagnostic returns a diagnostic that reports a finding.
func (r *Result) diagnostic(prog *ir.Program, f *Finding) *ir.Diagnostic {
	pos := ir.Pos{}
	main := 0 // index of the act whose position the diagnostic has
	for i, a := range f.Acts {
		if p := r.posOf(a); p.Valid() {
			pos, main = p, i
			if k := r.Plan.Cmds[a.Cmd].Kind; k != plan.Input && k != plan.Output {
				break
			}
		}
	}
	d := prog.Diag(f.Kind, pos, "%s", f.Message)
	if f.Warning {
		d.Severity = ir.Warning
	}
	for i, a := range f.Acts {
		if i == main && len(f.Acts) > 1 && a.What == "" || len(f.Acts) == 1 {
			continue
		}
		c := &r.Plan.Cmds[a.Cmd]
		d.Notes = append(d.Notes, ir.Note{Pos: r.posOf(a), Message: fmt.Sprintf("%s: %s%s", streamName(r.Plan, c.Stream), a.What, runWord(a))})
	}
	if f.Why != "" {
		d.Notes = append(d.Notes, ir.Note{Message: f.Why})
	}
	if f.Picture != "" {
		d.Notes = append(d.Notes, ir.Note{Message: "the two streams, time going down (' marks the next run):\n" + strings.TrimRight(f.Picture, "\n")})
	}
	if f.Count > 1 && !f.Warning && f.Kind != KindDeadlock {
		d.Notes = append(d.Notes, ir.Note{Message: "the same fault occurs in " + count(f.Count-1, "other place")})
	}
	d.Help = f.Help
	return d
}

func runWord(a Act) string {
	if a.Run > 0 {
		return ", in the next run"
	}
	return ""
}

func (r *Result) posOf(a Act) ir.Pos { return r.Plan.Sites[r.Plan.Cmds[a.Cmd].Site].Pos }
