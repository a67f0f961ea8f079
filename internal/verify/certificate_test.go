package verify_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/certify/issue"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// TestCertificates issues certificates for random programs and the examples. The certificates of proved plans must be
// accepted, and must be rejected after one claim in them is made false. No certificate may exist for a refuted plan.
// The certificate of the proved plan from which a refuted plan was made must be rejected for the refuted plan.
func TestCertificates(t *testing.T) {
	n, seed := longtest.Of(250, 6000), longtest.Seed(t)
	proved, refuted, corrupted := 0, 0, 0
	try := func(name string, p *plan.Plan, r *rand.Rand) {
		t.Helper()
		right := verify.Plan(p, verify.Options{FaultsOnly: true}).Verdict == verify.Proved
		s, err := certify.Plan(p)
		var c *certify.Certificate
		if err == nil {
			c, err = issue.Certificate(s)
		}
		if err == nil {
			err = certify.Check(s, c)
		}
		if (err == nil) != right {
			t.Fatalf("%s: proved is %v, and the certificate: %v", name, right, err)
		}
		if !right {
			refuted++
			return
		}
		proved++
		for range 20 {
			bad, what := corrupt(t, r, s, c)
			if err := certify.Check(s, bad); err == nil {
				t.Fatalf("%s: accepted with %s", name, what)
			}
			corrupted++
		}
	}
	for i := range n {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		text := newRandomProgram(r, 2+r.IntN(5)/4, 1+r.IntN(3), r.IntN(3)).text()
		prog, ds := ir.Parse("random.hkt", text)
		if ds.HasErrors() {
			t.Fatalf("%v\n%s", ds, text)
		}
		if _, p, err := build(prog, ir.Binding{}); err == nil {
			try(fmt.Sprintf("program %d of seed %d\n%s", i, seed, text), p, r)
		}
	}
	for name, prog := range examples(t) {
		for _, strategy := range []string{"", "exchange"} {
			if _, p, err := buildBy(prog, ir.Binding{}, strategy); err == nil {
				r := rand.New(rand.NewPCG(seed, 1))
				try(name+" "+strategy, p, r)
				for range longtest.Of(20, 400) { // without one of its waits
					i := r.IntN(len(p.Cmds))
					switch p.Cmds[i].Kind {
					case plan.WaitEvent, plan.WaitCounter:
						try(fmt.Sprintf("%s %s without command %d", name, strategy, i), verify.LeftOut(p, int32(i)), r)
					}
				}
			}
		}
	}
	t.Logf("%d proved, %d refuted, %d corruptions", proved, refuted, corrupted)
	if proved < n/4 || refuted < n/20 {
		t.Errorf("%d proved and %d refuted of %d", proved, refuted, n)
	}
}

// corrupt returns a copy of a certificate in which one claim is false, and describes that claim.
func corrupt(t *testing.T, r *rand.Rand, s *certify.Statement, c *certify.Certificate) (*certify.Certificate, string) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	bad := &certify.Certificate{}
	if err := json.Unmarshal(text, bad); err != nil {
		t.Fatal(err)
	}
	at := func(n int) int { return r.IntN(n) }
	for {
		switch r.IntN(7) {
		case 0:
			digits := []byte(bad.Plan)
			digits[at(len(digits))] = 'x'
			bad.Plan = string(digits)
			return bad, "another plan"
		case 1: // every event runs exactly once, so an order that omits or repeats one is false
			i := at(len(bad.Order))
			bad.Order = append(bad.Order[:i], bad.Order[i+1:]...)
			return bad, fmt.Sprintf("entry %d of the order left out", i)
		case 2:
			i := at(len(bad.Order))
			bad.Order = append(bad.Order, bad.Order[i])
			return bad, fmt.Sprintf("entry %d of the order twice", i)
		case 3: // each add belongs to one event, so a match with another event is false
			if len(bad.Matches) > 0 {
				i := at(len(bad.Matches))
				bad.Matches[i] = (bad.Matches[i] + 1 + int32(at(len(s.Events)-1))) % int32(len(s.Events))
				return bad, fmt.Sprintf("match %d changed", i)
			}
		case 4: // an event that is later in the order does not precede this event
			if len(bad.Clocks) > 0 {
				i := at(len(bad.Clocks))
				late := later(s, c, bad.Clocks[i].Event)
				if len(late) > 0 {
					e := late[at(len(late))]
					bad.Clocks[i].Of[e[0]] = e[1]
					return bad, fmt.Sprintf("the clock of event %d claims %d", bad.Clocks[i].Event, e)
				}
			}
		case 5:
			if len(bad.Reuses) > 0 {
				i := at(len(bad.Reuses))
				last := bad.Reuses[i].Of
				for chain := range last {
					last[chain] += 1 + int32(at(len(s.Events)-1))
					break
				}
				return bad, fmt.Sprintf("reuse %d changed", i)
			}
		case 6: // the reversed order is false if it runs a wait before the add that it needs
			for i := range bad.Order {
				j := len(bad.Order) - 1 - i
				if i < j {
					bad.Order[i], bad.Order[j] = bad.Order[j], bad.Order[i]
				}
			}
			if !executes(s, bad.Order) {
				return bad, "the order reversed"
			}
			bad.Order = append(bad.Order[:0], c.Order...)
		}
	}
}

// later returns the events that follow a given event in the order, as pairs of chain and position.
func later(s *certify.Statement, c *certify.Certificate, event int32) [][2]int32 {
	var out [][2]int32
	chains, done, seen := make([][]int32, s.Chains), make([]int, s.Chains), false
	for i := range s.Events {
		chains[s.Events[i].Chain] = append(chains[s.Events[i].Chain], int32(i))
	}
	for _, o := range c.Order {
		for range o[1] {
			id := chains[o[0]][done[o[0]]]
			done[o[0]]++
			if seen && o[0] != s.Events[event].Chain {
				out = append(out, [2]int32{o[0], int32(done[o[0]])})
			}
			seen = seen || id == event
		}
	}
	return out
}

// executes reports whether all waits are satisfied if events run in the given order.
func executes(s *certify.Statement, order [][2]int32) bool {
	count, done := map[int32]int32{}, make([]int, s.Chains)
	chains := make([][]int32, s.Chains)
	for i := range s.Events {
		chains[s.Events[i].Chain] = append(chains[s.Events[i].Chain], int32(i))
	}
	for _, o := range order {
		for range o[1] {
			e := &s.Events[chains[o[0]][done[o[0]]]]
			done[o[0]]++
			for _, w := range e.Waits {
				if count[w.Counter] < w.N {
					return false
				}
			}
			for _, a := range e.Adds {
				count[a.Counter]++
			}
		}
	}
	return true
}

// TestBytesOfCertificates changes random bytes of certificates. An accepted certificate must be a different encoding of
// the same certificate, or must make only true claims: its order can execute, its matches and reuses are those of the
// original, and its clocks do not exceed the complete clocks, which the test computes.
func TestBytesOfCertificates(t *testing.T) {
	r := rand.New(rand.NewPCG(longtest.Seed(t), 3))
	tried, same, weaker := 0, 0, 0
	for name, prog := range examples(t) {
		_, p, err := build(prog, ir.Binding{})
		if err != nil || verify.Plan(p, verify.Options{FaultsOnly: true}).Verdict != verify.Proved {
			continue
		}
		s, err := certify.Plan(p)
		if err != nil {
			t.Fatal(err)
		}
		c, err := issue.Certificate(s)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		judge := func(changed []byte) {
			tried++
			bad, err := certify.Parse(changed)
			if err != nil || certify.Check(s, bad) != nil {
				return
			}
			if reflect.DeepEqual(bad, c) {
				same++
				return
			}
			weaker++
			if !executes(s, bad.Order) || !slices.Equal(bad.Matches, c.Matches) || !reflect.DeepEqual(bad.Reuses, c.Reuses) {
				t.Errorf("%s: another order, match or reuse is accepted", name)
			}
			whole := wholeClocks(s, bad.Order)
			for _, k := range bad.Clocks {
				for chain, n := range k.Of {
					if n > 0 && (chain < 0 || int(chain) >= 2*s.Chains || whole[k.Event][int(chain)%s.Chains] < n) {
						t.Errorf("%s: the clock of event %d claims %d of chain %d, which is false, and is accepted", name, k.Event,
							n, chain)
					}
				}
			}
		}
		for range longtest.Of(60, 2000) {
			changed := slices.Clone(text)
			for range 1 + r.IntN(2) {
				changed[r.IntN(len(changed))] = byte(32 + r.IntN(95))
			}
			judge(changed)
		}
		for range min(len(c.Clocks), longtest.Of(20, 500)) { // random bytes rarely decrease a number
			less, err := certify.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			k := &less.Clocks[r.IntN(len(less.Clocks))]
			if len(k.Of) == 0 {
				continue
			}
			threads := slices.Sorted(maps.Keys(k.Of))
			if of := threads[r.IntN(len(threads))]; k.Of[of] > 0 {
				k.Of[of]--
			}
			changed, err := json.Marshal(less)
			if err != nil {
				t.Fatal(err)
			}
			judge(changed)
		}
	}
	t.Logf("%d tried; accepted: %d written otherwise, %d that claim less or as much", tried, same, weaker)
	if tried < 100 || weaker == 0 {
		t.Errorf("%d tried, %d accepted that claim less", tried, weaker)
	}
}

// wholeClocks computes, for each event, how many events of each chain precede it. The given order of events must be
// executable.
func wholeClocks(s *certify.Statement, order [][2]int32) [][]int32 {
	chains, done, adds := make([][]int32, s.Chains), make([]int, s.Chains), make([][]int32, s.Counters)
	for i := range s.Events {
		chains[s.Events[i].Chain] = append(chains[s.Events[i].Chain], int32(i))
	}
	now, out := make([][]int32, s.Chains), make([][]int32, len(s.Events))
	for c := range now {
		now[c] = make([]int32, s.Chains)
	}
	for _, o := range order {
		for range o[1] {
			c := o[0]
			id := chains[c][done[c]]
			done[c]++
			for _, w := range s.Events[id].Waits {
				for i := int32(0); i < w.N && !w.Blind; i++ {
					for k, n := range out[adds[w.Counter][i]] {
						now[c][k] = max(now[c][k], n)
					}
				}
			}
			now[c][c] = int32(done[c])
			out[id] = slices.Clone(now[c])
			for _, a := range s.Events[id].Adds {
				adds[a.Counter] = append(adds[a.Counter], id)
			}
		}
	}
	return out
}

// TestOperandsThatShareBytes checks a product that overwrites the buffer that it reads, where two buffers with
// different names are on the same bytes.
func TestOperandsThatShareBytes(t *testing.T) {
	const text = `mesh tp[1]
func f(%x: f32[4, 4], %w: f32[4, 4]) -> f32[4, 4] {
  %a = copy %x
  %y = linear %a, %w
  return %y
}
`
	prog, ds := ir.Parse("shared.hkt", text)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	_, p, err := build(prog, ir.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := certified(p); err != nil {
		t.Fatal(err)
	}
	product := slices.IndexFunc(p.Cmds, func(c plan.Cmd) bool { return c.Kind == plan.Compute && c.Op == ir.OpLinear })
	c := &p.Cmds[product]
	p.Buffers[c.Outs[0].Buf].Offset = p.Buffers[c.Ins[0].Buf].Offset
	if verify.Plan(p, verify.Options{FaultsOnly: true}).Verdict == verify.Proved {
		t.Error("it is proved")
	}
	if _, err := certified(p); err == nil || !strings.Contains(err.Error(), "is not ordered after the read") {
		t.Errorf("its certificate: %v", err)
	}
}

// certified returns a certificate for a plan, after it has checked that the certificate is accepted.
func certified(p *plan.Plan) (*certify.Certificate, error) {
	s, err := certify.Plan(p)
	if err != nil {
		return nil, err
	}
	c, err := issue.Certificate(s)
	if err != nil {
		return nil, err
	}
	return c, certify.Check(s, c)
}
