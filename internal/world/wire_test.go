package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// FuzzDecode checks that any packet is decoded to a message or an error, and that encoding and decoding the message
// again does not change it.
func FuzzDecode(f *testing.F) {
	for _, packet := range [][]byte{
		hello{protocol, "run", 3, member{Rank: 1, PID: 2, Host: "host"}}.encode(), encodeReady(), encodeBye(),
		agreement{7, "step", []byte("value")}.encode(), export{"key"}.encode(),
		pulse{1, 2, 3, 1, [pulseTexts]string{"step", "call", "place", "error"}}.encode(), wanted{1, 2}.encode(),
		data{3, []byte("bytes")}.append(nil),
		arrival{hello{protocol, "run", 3, member{Rank: 1, PID: 2, Host: "host"}}, "node", "::1:5"}.encode(),
		encodeCause(cause{Peer: &PeerError{Rank: 1, PID: 2, Host: "h", Why: "why"}}),
		encodeCause(cause{Disagree: &DisagreeError{What: "what",
			Values: []Value{{Rank: 0, Value: "a"}, {Rank: 1, Value: "b"}}}}),
		{kindAgreement, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255}, []byte("h{"), []byte("xnull"),
	} {
		f.Add(packet)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		m, err := decode(packet)
		if err != nil {
			return
		}
		var again []byte
		switch m := m.(type) {
		case hello:
			again = m.encode()
		case aborted:
			again = encodeCause(m.cause)
			_ = m.cause.err().Error()
		case ready:
			again = encodeReady()
		case bye:
			again = encodeBye()
		case agreement:
			again = m.encode()
		case export:
			again = m.encode()
		case pulse:
			again = m.encode()
		case arrival:
			again = m.encode()
		case wanted:
			again = m.encode()
		case data:
			again = m.append(nil)
		}
		if len(again) > maxMessage {
			return // JSON may become longer when it is encoded again, for example if a text is invalid UTF-8
		}
		m2, err := decode(again)
		if err != nil {
			t.Fatalf("%q is decoded as %#v, which is encoded as %q: %v", packet, m, again, err)
		}
		switch m.(type) {
		case agreement, pulse, wanted, data:
			if !reflect.DeepEqual(m, m2) {
				t.Fatalf("%#v becomes %#v", m, m2)
			}
		}
	})
}

// FuzzCause checks that no contents of the page cause a crash.
func FuzzCause(f *testing.F) {
	f.Add([]byte(`{"Peer":{"Rank":1}}`), uint64(19), uint32(1))
	f.Add([]byte(`{"Disagree":{"Values":[{},{}]}}`), uint64(1)<<63, uint32(5))
	f.Fuzz(func(t *testing.T, text []byte, length uint64, by uint32) {
		p, err := newPage(1)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		copyIn(p.slot(0)[slotCause:], text[:min(len(text), maxCause)])
		word(p.slot(0), slotLength).Store(length)
		p.abortWord().Store(by)
		c, ok := p.cause()
		if by == 0 && !ok {
			return
		}
		if !ok || c.err() == nil || c.err().Error() == "" {
			t.Fatalf("%v, %v", c, ok)
		}
	})
}

// TestMatches compares descriptions of steps with records on a page: equal ones, those that differ in one byte or in
// length, those that are too long for a record, and those of steps that have no record.
func TestMatches(t *testing.T) {
	p, err := newPage(2)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.separate(1) // on another node
	step := uint64(0)
	for _, what := range []string{"", "a", "12345678", "123456789", "all_reduce of bf16[524288] sum",
		strings.Repeat("long ", 40)} {
		for rank := range 2 {
			step++
			mine := p.record(rank, step, entry{what: what, call: "all_reduce", place: "train.py:33"})
			if e, ok := p.recorded(rank, step); !ok || e != mine {
				t.Errorf("%q is recorded as %q", mine, e)
			}
			if !p.matches(rank, step, mine.what) {
				t.Errorf("%q does not match its record", what)
			}
			others := []string{mine.what + "x", mine.what + "\x00", "x" + mine.what}
			for i := range mine.what {
				others = append(others, mine.what[:i], mine.what[:i]+"\x00"+mine.what[i+1:])
			}
			for _, other := range others {
				if p.matches(rank, step, other) {
					t.Errorf("the record of %q matches %q", what, other)
				}
			}
			if !p.matches(rank, step+ringSteps, "another") || !p.matches(rank, step-ringSteps, "another") {
				t.Error("a step without a record differs")
			}
		}
	}
	// A record in place of another one has only its own texts.
	p.record(0, 1, entry{what: "a long description", call: "a call", place: "a place"})
	for _, e := range []entry{{what: "a short one"}, {what: "a short one", call: "c"}, {what: "a short", place: "p"}} {
		step += ringSteps
		p.record(0, step, e)
		if got, ok := p.recorded(0, step); !ok || got != e || !p.matches(0, step, e.what) ||
			p.matches(0, step, "a long description") {
			t.Errorf("got %q, want %q", got, e)
		}
	}
}

func TestDisagreeError(t *testing.T) {
	e := &DisagreeError{What: "the plan", Values: []Value{{Rank: 0, Value: "a"}, {Rank: 1, Value: "b"},
		{Rank: 2, Value: "a"}, {Rank: 3, Value: "a"}, {Rank: 4, Value: "a"}, {Rank: 6, Value: "a"}}}
	if want := "ranks disagree on the plan: rank 1 has b, the others (ranks 0, 2-4, 6) have a"; e.Error() != want {
		t.Errorf("got %q, want %q", e, want)
	}
}

// TestCauseFits checks that a cause of any size fits in one message and keeps the process at fault and the reason.
func TestCauseFits(t *testing.T) {
	many := &DisagreeError{What: "the plan"}
	for r := range MaxProcesses {
		many.Values = append(many.Values, Value{Rank: r, Value: strings.Repeat("x", MaxValue) + fmt.Sprint(r%2)})
	}
	all := &DisagreeError{What: strings.Repeat("w", MaxValue)}
	for r := range MaxProcesses {
		all.Values = append(all.Values, Value{Rank: r, Value: strings.Repeat(fmt.Sprint(r, " "), 1000)})
	}
	for name, err := range map[string]error{
		"peer":     &PeerError{Rank: 3, PID: 4, Host: strings.Repeat("h", 5000), Why: strings.Repeat("\xff\"", 5000)},
		"other":    fmt.Errorf("wrapped: %w", errors.New(strings.Repeat("e", 9000))),
		"disagree": many,
		"all":      all,
	} {
		c := causeOf(member{Rank: 3, PID: 4, Host: "h", Outer: 3}, err)
		packet := encodeCause(c)
		if len(packet) > maxMessage {
			t.Errorf("%s: the message is too long: %d bytes", name, len(packet))
		}
		m, err := decode(packet)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		switch got := m.(aborted).cause.err().(type) {
		case *PeerError:
			if got.Rank != 3 || got.PID != 4 || len(got.Why) < 100 {
				t.Errorf("%s: %.200v", name, got)
			}
		case *DisagreeError:
			if len(got.Values) < 2 || got.Values[0].Value == got.Values[1].Value && name == "all" {
				t.Errorf("%s: %.200v", name, got)
			}
		default:
			if name != "all" {
				t.Errorf("%s: %v", name, got)
			}
		}
		p, err := newPage(2)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if _, own := p.abort(0, c); !own {
			t.Errorf("%s: the cause is not reported as the first", name)
		}
		if first, ok := p.cause(); !ok || !reflect.DeepEqual(aborted{first}, m) {
			t.Errorf("%s: the page contains %v, %v", name, first, ok)
		}
		if first, own := p.abort(1, cause{}); own || !reflect.DeepEqual(aborted{first}, m) {
			t.Errorf("%s: a second cause replaces the first", name)
		}
	}
}

func TestOwners(t *testing.T) {
	w := &World{mesh: &mesh{o: Options{Size: 3}}}
	for _, tc := range []struct {
		ranks int
		want  []int
	}{{3, []int{0, 1, 2}}, {7, []int{0, 0, 1, 1, 2, 2, 2}}, {6, []int{0, 0, 1, 1, 2, 2}}} {
		if got, err := w.Owners(tc.ranks); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%d ranks: %v, %v; want %v", tc.ranks, got, err, tc.want)
		}
	}
	if got, err := w.Owners(2); err == nil {
		t.Errorf("2 ranks for 3 processes: %v", got)
	}
}

// TestOne tests a world of one process, which is supported on every system.
func TestOne(t *testing.T) {
	ctx := context.Background()
	w, err := Join(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	values, err := w.Agree(ctx, "load", []byte("x"))
	if err != nil || len(values) != 1 || !bytes.Equal(values[0], []byte("x")) {
		t.Errorf("got %q, %v", values, err)
	}
	if err := errors.Join(w.Same(ctx, "x", "y"), w.Step("run")); err != nil {
		t.Error(err)
	}
	c, err := w.NewCounters("c", 2)
	if err != nil {
		t.Fatal(err)
	}
	added := make(chan struct{})
	go func() {
		defer close(added)
		c.Add(1, 3)
	}()
	if err := c.Wait(ctx, 1, 3, 0); err != nil || c.Load(0) != 0 {
		t.Errorf("Wait returns %v; counter 0 is %d", err, c.Load(0))
	}
	<-added
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.Import(ctx, 0, "c"); err == nil {
		t.Error("imports from itself")
	}
	if err := w.Leave(); err != nil {
		t.Error(err)
	}
	if err := w.Step("more"); !errors.Is(err, ErrLeft) {
		t.Errorf("a step after Leave: %v", err)
	}
	for _, o := range []Options{{Size: 2, Rank: 2, ID: "x"}, {Size: 2, Rank: -1, ID: "x"}, {Size: 2},
		{Size: MaxProcesses + 1, ID: "x"},
		{Size: 4, LocalSize: 2, ID: "x"}} {
		if w, err := Join(ctx, o); err == nil {
			t.Errorf("%+v joins: %v", o, w)
		}
	}
}
