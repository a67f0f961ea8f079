package account

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hocket.example/hocket/internal/trace"
)

// steps adds n steps of two kernels and an all_reduce on one stream to the simulated program. The function change is
// called before each step, and may change or add commands.
func steps(p *player, n int, transfer int64, change func(step int)) {
	for step := range n {
		first := len(p.cmds)
		for r := range p.ranks {
			p.work(r, "main", "gemm", 100_000)
			p.work(r, "main", "gelu", 30_000)
		}
		p.collective("main", "all_reduce", 1<<20, transfer)
		_ = first
		change(step)
	}
}

// last returns the last command with the given name on a rank.
func (p *player) last(rank int, name string) *cmd {
	for i := len(p.cmds) - 1; i >= 0; i-- {
		if p.cmds[i].rank == rank && p.cmds[i].name == name {
			return &p.cmds[i]
		}
	}
	return nil
}

// overlapped adds n steps to the simulated program. The all_reduces of these steps run on a separate stream during the
// kernels of the next step. Only in step bare, the main stream waits for the all_reduce immediately.
func overlapped(p *player, n, bare int) {
	for step := range n {
		for r := range p.ranks {
			p.work(r, "main", "gemm", 100_000)
			p.waitStream(r, "comm", "main")
		}
		p.collective("comm", "all_reduce", 1<<20, 60_000)
		if step == bare {
			for r := range p.ranks {
				p.waitStream(r, "main", "comm")
			}
		}
	}
}

// exchange adds n rounds to the simulated program, in which each rank puts data to one neighbour while it computes. A
// rank waits for the signal of the other neighbour in each round, or only after the last round.
func exchange(p *player, n int, each bool, change func(round int)) {
	for round := range n {
		for r := range p.ranks {
			peer := (r + 1) % p.ranks
			p.work(r, "main", "linear", 80_000)
			p.waitStream(r, "push", "main")
			p.put(r, "push", peer, 1<<16, 20_000)
			p.signal(r, "push", fmt.Sprintf("%%here[%d]", r), peer)
		}
		change(round)
		for r := range p.ranks {
			if !each && round+1 < n {
				continue
			}
			p.waitCounter(r, "main", fmt.Sprintf("%%here[%d]", (r+p.ranks-1)%p.ranks), int64(round+1))
			p.work(r, "main", "gelu", 30_000)
		}
	}
}

// scenario is a simulated program with one known cause of delay, and the finding that the report must contain.
type scenario struct {
	name   string
	torch  bool
	play   func(p *player)
	ranks  int
	kind   string // of the finding
	rank   int    // the rank that is blamed; -1 for none
	op     string // of the finding
	index  int    // the collective; -1 for none
	cause  string // of a "late" finding: the kind of its first cause
	by     string // the operation that the first cause names
	text   string // a part of the sentence
	amount float64
}

func scenarios() []scenario {
	var list []scenario
	for _, torch := range []bool{true, false} {
		gap := "gap"
		if torch {
			gap = "host"
		}
		for k, at := range []struct{ ranks, rank, step int }{{2, 1, 3}, {4, 2, 1}, {3, 0, 5}} {
			late := func(change func(p *player)) func(p *player) {
				return func(p *player) {
					steps(p, 7, 60_000, func(step int) {
						if step == at.step {
							change(p)
						}
					})
				}
			}
			x := scenario{torch: torch, ranks: at.ranks, kind: "late", rank: at.rank, op: "all_reduce", index: at.step,
				amount: 700}
			x.name, x.cause, x.by = "slow kernel", "kernel", []string{"gemm", "gelu", "gemm"}[k]
			x.text = x.by + " took "
			name := x.by
			x.play = late(func(p *player) { p.last(at.rank, name).long += 700_000 })
			list = append(list, x)

			x.name, x.cause, x.by, x.text = "late rank", gap, "gelu", ", before gelu"
			if torch {
				x.text = ", which its host issued "
			}
			x.play = late(func(p *player) {
				if c := p.last(at.rank, "gelu"); torch {
					c.host, c.call = 700_000, []string{"", "aten::nonzero", "cudaStreamSynchronize"}[k]
				} else {
					c.gap = 700_000
				}
			})
			list = append(list, x)
		}
		list = append(list,
			scenario{name: "a kernel of one rank", torch: torch, ranks: 2, kind: "late", rank: 0, op: "all_reduce",
				index: 4,
				cause: "alone", by: "spin", text: "spin ran there for ", amount: 400,
				play: func(p *player) {
					for step := range 6 {
						for r := range p.ranks {
							p.work(r, "main", "gemm", 100_000)
							if r == 0 && step == 4 {
								p.work(r, "main", "spin", 400_000)
							}
						}
						p.collective("main", "all_reduce", 1<<20, 60_000)
					}
				}},
			scenario{name: "slow transfer", torch: torch, ranks: 2, kind: "transfer", rank: -1, op: "all_reduce",
				index: 2,
				text:  "all_reduce 3 of 6 has a slow transfer: ", amount: 540,
				play: func(p *player) {
					steps(p, 6, 60_000, func(step int) {
						for i := range p.cmds {
							if c := &p.cmds[i]; step == 2 && c.group == 2 {
								c.long = 600_000
							}
						}
					})
				}},
			scenario{name: "slow transfer of four", torch: torch, ranks: 4, kind: "transfer", rank: -1,
				op: "all_reduce", index: 5,
				text: "all_reduce 6 of 8 has a slow transfer: ", amount: 340,
				play: func(p *player) {
					steps(p, 8, 60_000, func(step int) {
						for i := range p.cmds {
							if c := &p.cmds[i]; step == 5 && c.group == 5 {
								c.long = 400_000
							}
						}
					})
				}},
			scenario{name: "no overlap at all", torch: torch, ranks: 2, kind: "exposed", rank: -2, op: "all_reduce",
				index: -1,
				text:  "all_reduce is not overlapped: ", amount: 8 * 200,
				play: func(p *player) { steps(p, 8, 200_000, func(int) {}) }},
			scenario{name: "one is not overlapped", torch: torch, ranks: 2, kind: "exposed", rank: -2, op: "all_reduce",
				index: 3,
				text:  "all_reduce 4 of 8 is not overlapped: ", amount: 60,
				play: func(p *player) { overlapped(p, 8, 3); endUnder(p) }},
			scenario{name: "one of four ranks' is not overlapped", torch: torch, ranks: 4, kind: "exposed", rank: -2,
				op: "all_reduce", index: 6, text: "all_reduce 7 of 9 is not overlapped: ", amount: 60,
				play: func(p *player) { overlapped(p, 9, 6); endUnder(p) }},
			scenario{name: "late under overlap", torch: torch, ranks: 2, kind: "late", rank: 1, op: "all_reduce",
				index: 4,
				cause: "kernel", by: "gemm", text: "gemm took ", amount: 500,
				play: func(p *player) {
					for step := range 7 {
						for r := range p.ranks {
							c := p.work(r, "main", "gemm", 100_000)
							if step == 4 && r == 1 {
								c.long += 500_000
							}
							p.waitStream(r, "comm", "main")
						}
						p.collective("comm", "all_reduce", 1<<20, 60_000)
					}
					endUnder(p)
				}})
	}
	for _, at := range []struct{ ranks, rank int }{{4, 2}, {3, 0}} {
		list = append(list, scenario{name: "slow link", ranks: at.ranks, kind: "transfer", rank: at.rank, op: "put",
			index:  -1,
			text:   fmt.Sprintf("transfers from rank %d to rank %d are slow: ", at.rank, (at.rank+1)%at.ranks),
			amount: 5 * 40,
			play: func(p *player) {
				exchange(p, 5, false, func(int) { p.last(at.rank, "put").long += 40_000 })
			}})
	}
	list = append(list,
		scenario{name: "slow link that is waited for", ranks: 4, kind: "signal", rank: 1, op: "wait", index: -1,
			text: " was in the transfer of put for ", amount: 400,
			play: func(p *player) {
				exchange(p, 4, true, func(round int) {
					if round == 2 {
						p.last(1, "put").long += 400_000
					}
				})
			}},
		scenario{name: "slow kernel before a signal", ranks: 4, kind: "signal", rank: 3, op: "wait", index: -1,
			text: " was in linear for ", amount: 600,
			play: func(p *player) {
				exchange(p, 4, true, func(round int) {
					if round == 1 {
						p.last(3, "linear").long += 600_000
					}
				})
			}},
		scenario{name: "late rank before a signal", ranks: 3, kind: "signal", rank: 2, op: "wait", index: -1,
			text: "for a signal of rank 2: nothing ran on the stream of rank 2 for ", amount: 500,
			play: func(p *player) {
				exchange(p, 4, true, func(round int) {
					if round == 2 {
						p.last(2, "linear").gap += 500_000
					}
				})
			}})
	return list
}

// endUnder adds kernels during which the last all_reduces run, so that these are overlapped, too.
func endUnder(p *player) {
	for r := range p.ranks {
		p.work(r, "main", "gemm", 100_000)
	}
}

// TestKnownCauses checks traces with one known cause of delay. The first sentence that blames a rank must name that
// cause, with its rank, operation and size. No other rank or operation may be blamed for a fifth of the delay or more.
// No sentence may say anything that does not follow from the events.
func TestKnownCauses(t *testing.T) {
	list := scenarios()
	if len(list) < 30 {
		t.Fatalf("%d scenarios", len(list))
	}
	for n, x := range list {
		name := x.name
		if x.torch {
			name += ", torch"
		}
		t.Run(fmt.Sprint(n, " ", name), func(t *testing.T) {
			p := newPlayer(x.ranks, uint64(n))
			x.play(p)
			read := own
			if x.torch {
				read = kineto
			}
			r := read(t, t.TempDir(), p.play())
			if r.Untold != "" || len(r.Findings) == 0 {
				t.Fatalf("untold: %q; %+v", r.Untold, r.Problems)
			}
			if err := newFacts(r).all(r); err != nil {
				t.Error(err)
			}
			x.check(t, r)
			if t.Failed() {
				t.Log(words(t, r))
			}
		})
	}
}

// check fails the test unless the cause is named and nothing else is blamed.
func (x *scenario) check(t *testing.T, r *Report) {
	t.Helper()
	blamed := 0
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Kind == "exposed" && x.kind != "exposed" { // it is true, and blames no rank
			continue
		}
		if x.rank != -2 && (f.Rank != x.rank || f.Kind == "late" && f.Index != x.index) && f.US > x.amount/5 {
			t.Errorf("rank %d is blamed too: %s", f.Rank, sentence(f))
		}
		if x.kind == "exposed" && f.Kind != "exposed" && f.US > x.amount/5 {
			t.Errorf("rank %d is blamed although no rank differs: %s", f.Rank, sentence(f))
		}
		if blamed++; blamed > 1 {
			continue
		}
		if f.Kind != x.kind || f.Op != x.op || f.Index != x.index || !strings.Contains(sentence(f), x.text) {
			t.Errorf("first %+v; want %s of rank %d, %s %d: … %s …", f, x.kind, x.rank, x.op, x.index, x.text)
		}
		near(t, "its cost", f.US, x.amount, x.amount/5+30)
		if x.kind != "late" {
			continue
		}
		l := r.Collectives[f.Index].Late
		if c := l.Causes[0]; len(l.Causes) != 1 || c.Kind != x.cause || c.Op != x.by || c.Rank != x.rank {
			t.Errorf("causes %+v; want %s of %s on rank %d alone", l.Causes, x.cause, x.by, x.rank)
		} else {
			near(t, "what it explains", c.US, x.amount, x.amount/5+30)
		}
	}
	if blamed == 0 {
		t.Errorf("nothing is blamed")
	}
}

// TestClocksApart checks the report on devices with separate clocks that have no collective by which the clocks could
// be compared, as under the strategy exchange on GPUs. Waits for signals must count as idle time for signals, and no
// sentence may compare times of two ranks.
func TestClocksApart(t *testing.T) {
	p := newPlayer(4, 1)
	exchange(p, 4, true, func(round int) {
		if round == 1 {
			p.last(3, "linear").long += 600_000
		}
	})
	tr := p.play()
	for i := range tr.Events {
		e := &tr.Events[i]
		e.Start, e.End = e.Start+int64(e.Rank)*1e12, e.End+int64(e.Rank)*1e12
	}
	tr.Clocks = []int{0, 1, 2, 3}
	r := own(t, t.TempDir(), tr)
	if err := newFacts(r).all(r); err != nil {
		t.Error(err)
	}
	near(t, "the longest rank", r.SpanUS, 1_200, 300)
	near(t, "rank 0, idle for signals", r.Idle[0].SignalUS, 600, 200)
	if x := r.Idle[0]; x.EventUS > 50 || x.HostUS > 0 {
		t.Errorf("rank 0 waited for signals: %+v", x)
	}
	if f := r.Findings[0]; f.Kind != "signal" || !strings.Contains(sentence(&f), "clocks are not compared") ||
		r.Critical != nil {
		t.Errorf("%+v, %+v", f, r.Critical)
	}
}

// TestSentencesOfCorpus checks the sentences about real profiles.
func TestSentencesOfCorpus(t *testing.T) {
	for _, name := range []string{"tp-mlp-ar", "tp-mlp-ar-late", "tp-mlp-agrs", "row-parallel-streams"} {
		r := accounted(t, corpus(t, "kineto/"+name+".rank*.json.gz")...)
		if err := newFacts(r).all(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, f := range r.Findings {
			if f.Kind == "late" && f.US > 300 && strings.Contains(sentence(&f), "unknown") {
				t.Errorf("%s: %s", name, sentence(&f))
			}
			for i, line := range append([]string{f.Text}, f.Details...) {
				if n := len(strings.Fields(line)); n > []int{12, 20}[min(i, 1)] {
					t.Errorf("%s: a line of %d words: %s", name, n, line)
				}
			}
		}
	}
}

// TestSentencesOfRandomPrograms checks that a report on any program says nothing that does not follow from the events.
func TestSentencesOfRandomPrograms(t *testing.T) {
	kinds := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlayer(rapid.IntRange(2, 4).Draw(rt, "ranks"), rapid.Uint64().Draw(rt, "seed"))
		streams := []string{"main", "comm", "%s[1]"}[:rapid.IntRange(1, 3).Draw(rt, "streams")]
		raised := map[string]int64{}
		draw := func(n int) int { return p.rng.IntN(n) }
		for range rapid.IntRange(1, 60).Draw(rt, "commands") {
			r, s := draw(p.ranks), streams[draw(len(streams))]
			long := int64(1_000) << draw(10)
			switch draw(9) {
			case 0, 1, 2:
				c := p.work(r, s, []string{"gemm", "gelu", "a b", "spin"}[draw(4)], long)
				if draw(4) == 0 {
					c.gap = int64(1_000) << draw(10)
				}
				if draw(4) == 0 {
					c.host, c.call = int64(1_000)<<draw(10), []string{"", "aten::x"}[draw(2)]
				}
			case 3:
				for r := range p.ranks {
					p.work(r, s, "gemm", 20_000)
				}
			case 4, 5:
				p.collective(s, []string{"all_reduce", "all_gather", "barrier"}[draw(3)], 1<<(10+draw(2)),
					int64(1_000)<<draw(8))
			case 6:
				p.waitStream(r, s, streams[draw(len(streams))])
			case 7:
				peer := (r + 1 + draw(p.ranks-1)) % p.ranks
				p.put(r, s, peer, 1<<(10+draw(2)), long)
				k := fmt.Sprintf("%%c%d[%d]", slices.Index(streams, s),
					r) // each counter is signalled by one stream, so that its signals end in order
				p.signal(r, s, k, peer)
				if raised[fmt.Sprint(peer, k)]++; draw(2) == 0 {
					p.waitCounter(peer, streams[draw(len(streams))], k, raised[fmt.Sprint(peer, k)])
				}
			case 8:
				k := fmt.Sprintf("%%c%d[%d]", draw(len(streams)), (r+1)%p.ranks)
				if n := raised[fmt.Sprint(r, k)]; n > 0 {
					p.waitCounter(r, s, k, 1+int64(draw(int(n))))
				}
			}
		}
		tr := p.play()
		if len(tr.Events) == 0 {
			return
		}
		if rapid.Bool().Draw(rt, "torch") {
			tr.Source = "kineto"
			tr.Events = slices.DeleteFunc(tr.Events, func(e trace.Event) bool { return e.Class == trace.Sync })
			for i := range tr.Events {
				e := &tr.Events[i]
				e.Tie = nil
				if e.Group != trace.NoGroup {
					e.Call = &trace.Call{Group: "g", Seq: int64(e.Group), In: 1, Out: 1}
				}
			}
		} else {
			tr.Host = nil
			for i := range tr.Events {
				tr.Events[i].Issued = 0
			}
		}
		if len(tr.Events) == 0 {
			return
		}
		r := Of(tr, 0)
		if err := newFacts(r).all(r); err != nil {
			rt.Fatal(err)
		}
		for _, f := range r.Findings {
			kinds[f.Kind]++
			if f.Kind == "late" {
				for _, c := range r.Collectives[f.Index].Late.Causes {
					kinds["late: "+c.Kind]++
				}
			}
		}
	})
	for _, k := range []string{"late: kernel", "late: alone", "late: host", "late: gap", "late: transfer",
		"late: overlap", "late: begins", "signal", "transfer", "exposed"} {
		if kinds[k] == 0 && !testing.Short() { // with -short, rapid draws too few programs for all kinds
			t.Errorf("no sentence of kind %s among %v", k, kinds)
		}
	}
	t.Log(kinds)
}
