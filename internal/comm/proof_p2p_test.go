package comm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/tape"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// mail records sends and receives on a tape: each rank has one stream with a list of groups. The operands of a group's
// sends are written before the group and overwritten right after it. The results of its receives are read right after
// it and then overwritten. In addition, each rank writes a note (a word of memory) when a transfer begins, and reads
// the other rank's note when its group has ended. The reads of notes are free of races only if a transfer ends after
// both ranks have begun it.
type mail struct {
	t       testing.TB
	tape    *tape.Tape
	streams []device.Stream
	pairs   []Pair
	opened  *Pairs
	groups  [][]*Group // by rank
	posts   [][][]Post // by rank
	notes   [2][]device.View
	reads   [2][]device.View
	each    int  // number of commands of one run
	trivial bool // whether a transfer has no elements, or has one rank as source and destination
}

const mailRuns = 2

func newMail(t testing.TB, ranks int) *mail {
	m := &mail{t: t, tape: tape.New(ranks), groups: make([][]*Group, ranks), posts: make([][][]Post, ranks)}
	for r := range ranks {
		s, err := m.tape.Device(r).NewStream(device.StreamOptions{Name: "s"})
		must(t, err)
		m.streams = append(m.streams, s)
	}
	return m
}

// pair adds a transfer of the given number of elements.
func (m *mail) pair(from, to int, elems int64) int {
	m.trivial = m.trivial || from == to || elems == 0
	at := func(rank int, kind device.MemKind, n int64) device.View {
		return packed(m.tape.Alloc(rank, 4*n, kind, fmt.Sprintf("transfer %d, rank %d", len(m.pairs), rank)), 0, ir.F32, []int64{n})
	}
	m.pairs = append(m.pairs, Pair{SrcRank: from, DstRank: to, Src: at(from, device.Shared, elems), Dst: at(to, device.Private, elems)})
	for side, rank := range [2]int{from, to} {
		m.notes[side] = append(m.notes[side], at(rank, device.Shared, mailRuns))
		m.reads[side] = append(m.reads[side], at(rank, device.Private, mailRuns))
	}
	return len(m.pairs) - 1
}

func (m *mail) post(rank int, posts ...Post) { m.posts[rank] = append(m.posts[rank], posts) }

func (m *mail) open() {
	m.t.Helper()
	var err error
	m.opened, err = OpenPairs(m.tape, m.pairs)
	must(m.t, err)
	for r, list := range m.posts {
		for _, posts := range list {
			m.groups[r] = append(m.groups[r], group(m.t, m.opened, r, m.streams[r], posts...))
		}
	}
}

// play issues the runs; each omits the command with index skip.
func (m *mail) play(skip int) *plan.Plan {
	m.t.Helper()
	m.tape.Rewind()
	for run := range int64(mailRuns) {
		for r, s := range m.streams {
			for k, g := range m.groups[r] {
				m.tape.At("rank %d, group %d, run %d", r, k, run)
				m.issue(s, g, m.posts[r][k], run)
			}
		}
	}
	m.each = len(m.tape.Cmds) / mailRuns
	if skip >= 0 {
		for run := mailRuns - 1; run >= 0; run-- {
			m.tape.Cmds = slices.Delete(m.tape.Cmds, run*m.each+skip, run*m.each+skip+1)
		}
	}
	return m.tape.Plan()
}

func (m *mail) issue(s device.Stream, g *Group, posts []Post, run int64) {
	m.t.Helper()
	side := func(p Post) (int, device.View) {
		if p.Send {
			return 0, m.pairs[p.Pair].Src
		}
		return 1, m.pairs[p.Pair].Dst
	}
	of := func(v device.View) device.View { return flat(v, run, run+1) }
	for _, p := range posts {
		k, v := side(p)
		m.tape.Write(s, v)
		m.tape.Write(s, of(m.notes[k][p.Pair]))
	}
	must(m.t, g.Issue(0, run))
	for _, p := range posts {
		k, v := side(p)
		must(m.t, s.Copy(of(m.reads[k][p.Pair]), of(m.notes[1-k][p.Pair])))
		if !p.Send {
			must(m.t, s.Download(nil, v))
		}
		m.tape.Write(s, v)
	}
}

// transfers returns correct sets of sends and receives, by name.
func transfers(t testing.TB) map[string]*mail {
	all := map[string]*mail{}
	for n := 1; n <= 5; n++ {
		ring, everybody, line := newMail(t, n), newMail(t, n), newMail(t, n)
		ends := make([][]Post, n)
		for i := range n {
			p := ring.pair(i, (i+1)%n, int64(2*i+n%2))
			ring.post(i, Post{Pair: p, Send: true}, Post{Pair: (i + n - 1) % n})
			for k := range n {
				if k == i {
					continue
				}
				p := everybody.pair(i, k, int64(1+(i+2*k)%4))
				ends[i] = append(ends[i], Post{Pair: p, Send: true})
				ends[k] = append(ends[k], Post{Pair: p})
			}
		}
		for i := range n - 1 { // each rank passes on the data that it received, twice
			for range 2 {
				p := line.pair(i, i+1, 3)
				line.post(i, Post{Pair: p, Send: true})
				line.post(i+1, Post{Pair: p})
			}
		}
		for i := range n {
			everybody.post(i, ends[i]...)
			everybody.post(i)
		}
		all[fmt.Sprint("ring of ", n)], all[fmt.Sprint("everybody to everybody of ", n)], all[fmt.Sprint("line of ", n)] = ring, everybody, line
	}
	for seed := range uint64(16) {
		rng := rand.New(rand.NewPCG(seed, 31))
		n := 2 + rng.IntN(4)
		m := newMail(t, n)
		for range 3 { // rounds, each with one group that has all ranks
			posts := make([][]Post, n)
			for range rng.IntN(2 * n) {
				from, to := rng.IntN(n), rng.IntN(n)
				if seed%2 == 0 && from == to {
					continue
				}
				p := m.pair(from, to, rng.Int64N(4)|int64(1-seed%2))
				posts[from] = append(posts[from], Post{Pair: p, Send: true})
				posts[to] = append(posts[to], Post{Pair: p})
			}
			for r := range n {
				m.post(r, posts[r]...)
			}
		}
		all[fmt.Sprint("drawn by ", seed)] = m
	}
	return all
}

// TestTransfersAreProved proves groups of sends and receives, and refutes the same groups with one wait, record or
// signal removed.
func TestTransfersAreProved(t *testing.T) {
	mistakes := 0
	for name, m := range transfers(t) {
		m.open()
		whole := m.play(-1)
		proved(t, whole, name)
		if m.trivial {
			continue // some waits are implied by other waits
		}
		for i, c := range whole.Cmds[:m.each] {
			switch c.Kind {
			case plan.WaitCounter, plan.WaitEvent, plan.Record, plan.Signal:
			default:
				continue
			}
			mistakes++
			if v := verify.Plan(m.play(i), verify.Options{FaultsOnly: true}); v.Verdict != verify.Refuted {
				t.Errorf("%s without command %d, %s of rank %d, %s: %v", name, i, c.Kind, c.Rank, whole.Sites[c.Site].Text, v.Verdict)
			}
		}
	}
	if mistakes < 500 {
		t.Errorf("%d mistakes", mistakes)
	}
	t.Logf("%d mistakes", mistakes)
}

// TestFacingSendsAreRefuted checks that the verifier reports the deadlock of two ranks that send to each other.
func TestFacingSendsAreRefuted(t *testing.T) {
	m := newMail(t, 2)
	for i := range 2 {
		m.pair(i, 1-i, 3)
	}
	for i := range 2 {
		m.post(i, Post{Pair: i, Send: true})
		m.post(i, Post{Pair: 1 - i})
	}
	m.open()
	if v := verify.Plan(m.play(-1), verify.Options{}); v.Verdict != verify.Refuted || v.Findings[0].Kind != verify.KindDeadlock {
		t.Errorf("%v: %+v", v.Verdict, v.Findings)
	}
}
