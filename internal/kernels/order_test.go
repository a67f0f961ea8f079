package kernels

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// word is a counter in a bench's memory.
func (b *bench) word(v int64) nvlib.Ptr {
	at := b.alloc(8)
	binary.LittleEndian.PutUint64(b.mem[at-memoryAt:], uint64(v))
	return at
}

func (b *bench) read(at nvlib.Ptr) int64 {
	return int64(binary.LittleEndian.Uint64(b.mem[at-memoryAt:]))
}

// enqueue adds the launch that a method of Library made.
func (b *bench) enqueue(make func(l *Library) (Step, error), c code, blocks uint32) {
	b.t.Helper()
	s, err := make(New(&fake{version: "1"}, nil))
	if err != nil {
		b.t.Fatal(err)
	}
	if s.Symbol != c.symbol {
		b.t.Fatalf("%s, not %s", s.Symbol, c.symbol)
	}
	w := launch{code: c, blocks: blocks}
	for p := s.Params[0]; len(p) > 0; p = p[8:] {
		w.args = append(w.args, binary.LittleEndian.Uint64(p))
	}
	b.launches = append(b.launches, w)
}

func TestSignalAndWait(t *testing.T) {
	b := newBench(t)
	counter, abort := b.word(3), b.word(0)
	var faults []nvlib.Ptr
	waitFor := func(least int64, timeout time.Duration) {
		f := b.alloc(FaultBytes)
		clear(b.mem[f-memoryAt:][:FaultBytes])
		faults = append(faults, f)
		b.enqueue(func(l *Library) (Step, error) {
			return l.Wait(Target{}, WaitFor{Counter: counter, Least: least, Abort: abort, Timeout: timeout, Fault: f, Tag: 9})
		}, orderly("wait", "WaitArgs", 1, nil).code, 1)
	}
	waitFor(3, 0) // there already
	b.enqueue(func(l *Library) (Step, error) { return l.Signal(Target{}, counter, 2) }, orderly("signal", "SignalArgs", 1, nil).code, 1)
	waitFor(5, 0)
	waitFor(6, 20*time.Microsecond) // never comes; sets the abort word
	waitFor(7, 0)                   // ends by it
	waitFor(5, 0)                   // needs not wait, so is not aborted
	b.run()
	if v := b.read(counter); v != 5 {
		t.Errorf("counter %d, want 5", v)
	}
	if b.read(abort) == 0 {
		t.Error("running out of time did not set the abort word")
	}
	for i, kind := range []FaultKind{NoFault, NoFault, FaultTimeout, FaultAborted, NoFault} {
		f, ok := ReadFault(b.mem[faults[i]-memoryAt:])
		if ok != (kind != NoFault) || f.Kind != kind {
			t.Errorf("wait %d: %v, %v", i, f, ok)
		}
		if ok && (f.Tag != 9 || f.Words[1] != 5 || f.Words[0] != int64(4+i)) {
			t.Errorf("wait %d reports %+v", i, f)
		}
	}
	if f, _ := ReadFault(b.mem[faults[2]-memoryAt:]); f.Words[2] <= 20_000 || !strings.Contains(f.String(), "counter ≥ 6") {
		t.Errorf("the wait that ran out of time reports %v", f)
	}
}

func TestAbort(t *testing.T) {
	b := newBench(t)
	a, c, other := b.word(0), b.word(0), b.word(0)
	b.enqueue(func(l *Library) (Step, error) { return l.Abort(Target{}, a, c) }, orderly("raiseAbort", "AbortArgs", 1, nil).code, 1)
	b.run()
	if b.read(a) == 0 || b.read(c) == 0 || b.read(other) != 0 {
		t.Error(b.read(a), b.read(c), b.read(other))
	}
	if _, err := New(&fake{}, nil).Abort(Target{}, make([]nvlib.Ptr, abortMost+1)...); err == nil {
		t.Error("too many words were taken")
	}
}

func TestPoison(t *testing.T) {
	b := newBench(t)
	const size = 256
	type span struct{ off, n int64 }
	spans := []span{{0, 64}, {3, 50}, {1, 3}, {7, 1}, {5, 0}, {2, 13}, {8, 8}}
	var at []nvlib.Ptr
	for _, s := range spans {
		p := b.alloc(size)
		clear(b.mem[p-memoryAt:][:size])
		at = append(at, p)
		b.enqueue(func(l *Library) (Step, error) { return l.Poison(Target{}, p+nvlib.Ptr(s.off), s.n, 0x0807060504030201) },
			orderly("poison", "PoisonArgs", 1, nil).code, 1)
	}
	b.run()
	for i, s := range spans {
		for k, v := range b.mem[at[i]-memoryAt:][:size] {
			want := byte(0)
			if int64(k) >= s.off && int64(k) < s.off+s.n {
				want = byte(k%8 + 1)
			}
			if v != want {
				t.Errorf("%+v: byte %d is %d, want %d", s, k, v, want)
				break
			}
		}
	}
}

func TestFaultWords(t *testing.T) {
	if _, ok := ReadFault(make([]byte, 39)); ok {
		t.Error("a fault of 39 bytes")
	}
	half := make([]byte, FaultBytes)
	half[0] = byte(FaultTimeout) // claimed, not yet filled in
	if _, ok := ReadFault(half); ok {
		t.Error("half a fault was read")
	}
	for _, f := range []Fault{{Kind: FaultRange, Words: [3]int64{7, 5, 2}}, {Kind: FaultAborted}, {Kind: 99}} {
		if f.String() == "" {
			t.Error(f.Kind)
		}
	}
	if s := (Fault{Kind: FaultRange, Words: [3]int64{7, 5, 2}}).String(); s != "id 7 (number 2) is outside 0..5, the rows of the table" {
		t.Error(s)
	}
}
