package comm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/tape"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// scene records on a tape the operations that channels issue, and the accesses of a program before and after each
// collective: operands are written before it, results are read after it, and then operands and results are overwritten.
// In addition, each member writes a note (a word of memory) when it begins a collective. Its peers read the note after
// they have ended the collective. The reads of notes are free of races only if the collective provides the ordering of
// rule S5, also for tensors without elements.
type scene struct {
	t     testing.TB
	tape  *tape.Tape
	rigs  []*rig
	notes []device.Memory // by rank: the notes that the rank writes, and the memory into which it reads other ranks' notes
	reads []device.Memory
	noted int64 // the number of notes that each rank has written
}

// mostNotes is the largest number of instances in all runs of a scene.
const mostNotes = 1024

func newScene(t testing.TB, ranks int) *scene {
	s := &scene{t: t, tape: tape.New(ranks)}
	for r := range ranks {
		s.notes = append(s.notes, s.tape.Alloc(r, 4*mostNotes, device.Shared, "the notes that it begins"))
		s.reads = append(s.reads, s.tape.Alloc(r, 4*mostNotes*int64(ranks), device.Private, "what it reads of peers' notes"))
	}
	return s
}

// channel adds a channel of a team.
func (s *scene) channel(name string, team []int, specs []spec) *rig {
	s.t.Helper()
	r := newRig(s.t, s.tape, name, team, specs)
	s.rigs = append(s.rigs, r)
	return r
}

// play issues the given number of runs and returns them as a plan.
func (s *scene) play(runs int64) *plan.Plan {
	s.t.Helper()
	s.tape.Rewind()
	s.noted = 0
	for run := range runs {
		for _, r := range s.rigs {
			for i := range r.specs {
				s.tape.At("%s %d, run %d: %s by %s", r.streams[0].Name(), i, run, r.specs[i].op, r.ch.Algorithm(i))
				s.issue(r, i, run)
			}
			r.jobs = nil
		}
	}
	return s.tape.Plan()
}

func (s *scene) issue(r *rig, i int, run int64) {
	s.t.Helper()
	if s.noted == mostNotes {
		s.t.Fatal("too many instances")
	}
	note := func(rank int) device.View { return packed(s.notes[rank], 4*s.noted, ir.I32, []int64{1}) }
	for me, rank := range r.team {
		s.tape.Write(r.streams[me], note(rank))
	}
	r.issue(i, run)
	for me, rank := range r.team {
		for from, peer := range r.team {
			if from != me && r.ch.insts[i].source(me, from) {
				place := packed(s.reads[rank], 4*(s.noted*int64(len(s.notes))+int64(peer)), ir.I32, []int64{1})
				r.must(r.streams[me].Copy(place, note(peer)))
			}
		}
	}
	s.noted++
}

// proved checks that the verifier finds no fault in a plan, and that the plan does not require streams that run
// concurrently.
func proved(t testing.TB, p *plan.Plan, what string) {
	t.Helper()
	r := verify.Plan(p, verify.Options{})
	if r.Verdict != verify.Proved || !r.SerialSafe {
		t.Errorf("%s: %v (%s), serial-safe %v", what, r.Verdict, r.Reason, r.SerialSafe)
		for i := range min(len(r.Findings), 3) {
			t.Log(findingText(p, &r.Findings[i]))
		}
	}
}

func findingText(p *plan.Plan, f *verify.Finding) string {
	lines := []string{f.Kind + ": " + f.Message}
	for _, a := range f.Acts {
		c := &p.Cmds[a.Cmd]
		lines = append(lines, fmt.Sprintf("  %d' rank %d, %s, %s: %s %s", a.Run, c.Rank, p.Streams[c.Stream].Name, p.Sites[c.Site].Text, c.Kind, a.What))
	}
	return strings.Join(append(lines, f.Why), "\n")
}

// TestSchedulesAreProved proves every schedule with every collective that it supports, for teams of 2 to 5 members. The
// instances run one after the other, over runs without a barrier. The instances have no elements, one element, odd
// sizes and sizes of several pieces, have output and input in the same and in different memory, and have shared and
// private operands.
func TestSchedulesAreProved(t *testing.T) {
	for _, name := range Schedules() {
		for n := 2; n <= 5; n++ {
			took := 0
			for o, op := range collectives {
				var specs []spec
				for k, shape := range [][]int64{{1}, {7, 3}, {0, 4}, {45}, {2, 1, 5}} {
					for over := range numOverlaps {
						specs = append(specs, spec{op: op, red: ir.Sum, dt: ir.ArithmeticTypes()[(k+o)%6], n: n, shape: shape, axis: k % len(shape), split: (k + o) % len(shape),
							root: k % n, shift: 1 + k%(n-1), hole: k%2 == 1, overlap: over, algo: name, shared: over != onTop || k%2 == 0,
							unevenSpec: unevenSpec{counted: k%2 == 0, room: int64(3 * k), seed: uint64(k)}})
					}
				}
				s := newScene(t, n)
				r := s.channel("s", teamOf(n), specs)
				for i := range specs {
					if r.ch.Algorithm(i) == name {
						took++
					}
				}
				proved(t, s.play(2), fmt.Sprintf("%s by %s, %d members", op, name, n))
			}
			if took < 12 {
				t.Errorf("%s ran only %d instances of %d members", name, took, n)
			}
		}
	}
}

// TestMixedSchedulesAreProved proves random sequences of all schedules, which run concurrently on two channels of one
// team and on one channel of a part of the team.
func TestMixedSchedulesAreProved(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 21))
		n := 2 + rng.IntN(4)
		s := newScene(t, n)
		s.channel("a", teamOf(n), randomSpecs(rng, n, 1+rng.IntN(6)))
		s.channel("b", teamOf(n), randomSpecs(rng, n, 1+rng.IntN(4)))
		if n > 2 {
			team := rng.Perm(n)[:2+rng.IntN(n-2)]
			s.channel("c", team, randomSpecs(rng, len(team), 1+rng.IntN(3)))
		}
		proved(t, s.play(3), fmt.Sprint("seed ", seed))
	}
}

// mutant is a schedule with one mistake.
type mutant struct {
	inst, member, step int
	kind               string
	s                  step
}

// mutants returns all small mistakes in the steps of one member: an omitted wait or signal, a wait for one signal
// fewer, and a signal issued before the operation that it announces.
func mutants(ch *Channel, member int) []mutant {
	var list []mutant
	for i := range ch.insts {
		steps := ch.plans[i][member]
		for k, st := range steps {
			add := func(kind string) { list = append(list, mutant{i, member, k, kind, st}) }
			switch {
			case st.kind == stepAwait:
				add("no wait")
				add("too early a wait")
			case st.kind == stepTell:
				add("no signal")
				if k > 0 && (steps[k-1].kind == stepCopy || steps[k-1].kind == stepReduce) {
					add("too early a signal")
				}
			}
		}
	}
	return list
}

// apply makes the mistake, and returns a function that undoes it.
func (m mutant) apply(ch *Channel) (undo func()) {
	was := ch.plans[m.inst][m.member]
	steps := slices.Clone(was)
	switch m.kind {
	case "no wait", "no signal":
		steps = slices.Delete(steps, m.step, m.step+1)
	case "too early a wait":
		steps[m.step].least--
	default:
		steps[m.step-1], steps[m.step] = steps[m.step], steps[m.step-1]
	}
	ch.plans[m.inst][m.member] = steps
	return func() { ch.plans[m.inst][m.member] = was }
}

// meets reports whether op is a collective whose members all wait for each other (S5).
func meets(op ir.Op) bool {
	switch op {
	case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute:
		return false
	}
	return true
}

// mayBeHarmless reports whether a schedule may be correct in spite of the mistake. If all members wait for each other's
// data, these waits may imply the waits for a half of staging or slots. A signal may be issued before a copy that it
// does not announce.
func (m mutant) mayBeHarmless(op ir.Op, n int) bool {
	switch m.kind {
	case "no signal":
		return false
	case "too early a signal":
		return true
	}
	return int(m.s.elem) >= n && meets(op)
}

// TestProofNeedsEveryStep makes each possible small mistake in each schedule and checks that it is refuted. If the
// verifier proves a mutant (a schedule with a mistake), the mistake must be one that may be harmless, and the mutant
// must give right results in every order that the scheduled CPU machine draws.
func TestProofNeedsEveryStep(t *testing.T) {
	if *onCUDA {
		t.Skip("this test runs only on the CPU machine")
	}
	const n = 3
	seeds := int64(8)
	if testing.Short() {
		seeds = 1
	}
	total, harmless := 0, 0
	for _, name := range Schedules() {
		for _, op := range collectives {
			x := spec{op: op, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{7, 3}, shift: 1, algo: name, shared: true, unevenSpec: unevenSpec{room: 9, seed: 5, counted: true}}
			specs := []spec{x, x, x}
			s := newScene(t, n)
			r := s.channel("s", teamOf(n), specs)
			if r.ch.Algorithm(0) != name {
				continue
			}
			for member := range n {
				for _, m := range mutants(r.ch, member) {
					undo := m.apply(r.ch)
					v := verify.Plan(s.play(2), verify.Options{FaultsOnly: true})
					undo()
					if total++; v.Verdict == verify.Refuted {
						continue
					}
					harmless++
					if what := fmt.Sprintf("%s by %s: %s, step %d of member %d in instance %d", op, name, m.kind, m.step, member, m.inst); v.Verdict != verify.Proved || !m.mayBeHarmless(op, n) {
						t.Errorf("%s: %v", what, v.Verdict)
					} else if someSeedShows(t, seeds, specs, func(ch *Channel) { m.apply(ch) }) {
						t.Errorf("%s: %v, and wrong in an order of the scheduled CPU", what, v.Verdict)
					}
				}
			}
			proved(t, s.play(2), fmt.Sprintf("%s by %s", op, name))
		}
	}
	if total < 3000 || harmless > total/8 {
		t.Errorf("%d mistakes, of which %d are proved", total, harmless)
	}
	t.Logf("%d mistakes, of which %d are proved", total, harmless)
}
