package kernels

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// word allocates a counter with an initial value in a bench's memory.
func (b *bench) word(v int64) nvlib.Ptr {
	at := b.alloc(8)
	binary.LittleEndian.PutUint64(b.mem[at-memoryAt:], uint64(v))
	return at
}

func (b *bench) read(at nvlib.Ptr) int64 {
	return int64(binary.LittleEndian.Uint64(b.mem[at-memoryAt:]))
}

// enqueue adds to a bench the launch that a method of Library returns.
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

func TestFlagJoin(t *testing.T) {
	b := newBench(t)
	flag, other, abort := b.word(1), b.word(0), b.word(0)
	list := b.alloc(24)
	for i, v := range []uint64{2, uint64(flag), uint64(other)} {
		binary.LittleEndian.PutUint64(b.mem[int(list-memoryAt)+8*i:], v)
	}
	var faults []nvlib.Ptr
	join := func(list nvlib.Ptr, count int64, timeout time.Duration) {
		f := b.alloc(FaultBytes)
		clear(b.mem[f-memoryAt:][:FaultBytes])
		faults = append(faults, f)
		b.enqueue(func(l *Library) (Step, error) {
			return l.Join(Target{}, Join{List: list, Flag: flag, Count: count, Abort: abort, Timeout: timeout, Fault: f, Tag: 9})
		}, flagJoin(nil).code, 1)
	}
	join(0, 1, 0)                   // already raised: consumes 1
	join(list, 0, 0)                // raises both, consumes nothing
	join(list, 2, 0)                // again, and consumes 2
	join(list, 0, 0)                // the flag is 1
	join(0, 3, 20*time.Microsecond) // waits for more raises than there are; sets the abort word
	join(0, 2, 0)                   // ended by the abort word
	join(0, 1, 0)                   // does not need to wait, so it is not aborted
	b.run()
	if v, o := b.read(flag), b.read(other); v != 0 || o != 3 {
		t.Errorf("flags %d and %d, want 0 and 3", v, o)
	}
	if b.read(abort) == 0 {
		t.Error("the timeout did not set the abort word")
	}
	for i, kind := range []FaultKind{NoFault, NoFault, NoFault, NoFault, FaultTimeout, FaultAborted, NoFault} {
		f, ok := ReadFault(b.mem[faults[i]-memoryAt:])
		if ok != (kind != NoFault) || f.Kind != kind {
			t.Errorf("join %d: %v, %v", i, f, ok)
		}
		if ok && (f.Tag != 9 || f.Words[1] != 1 || f.Words[0] != int64(7-i)) {
			t.Errorf("join %d reports %+v", i, f)
		}
	}
	if f, _ := ReadFault(b.mem[faults[4]-memoryAt:]); f.Words[2] <= 20_000 || !strings.Contains(f.String(), "for a flag to reach 3") {
		t.Errorf("the wait that timed out reports %v", f)
	}
	for _, j := range []Join{{Count: -1}, {Timeout: -1}} {
		if _, err := New(&fake{}, nil).Join(Target{}, j); err == nil {
			t.Errorf("%+v was accepted", j)
		}
	}
}

// TestWired tests the kernels of Raise and Await in launches with different arguments.
func TestWired(t *testing.T) {
	b := newBench(t)
	word, other, abort, none := b.word(5), b.word(-1), b.word(0), b.word(0)
	wired := func(make func(*Library, Target) (Step, error), c code, args ...nvlib.Ptr) {
		t.Helper()
		b.enqueue(func(l *Library) (Step, error) {
			s, err := make(l, Target{})
			if n := len(s.Params[0]); err == nil && n != 8*len(args) {
				t.Fatalf("%d bytes of arguments for %d words", n, len(args))
			}
			if s.Shape.Block != [3]uint32{32, 1, 1} || s.Shape.Grid != [3]uint32{1, 1, 1} {
				t.Errorf("%s is launched as %+v", c.symbol, s.Shape)
			}
			return s, err
		}, c, 1)
		w := b.launches[len(b.launches)-1].args
		for i, a := range args {
			w[i] = uint64(a)
		}
	}
	raise := func(at nvlib.Ptr, by int64) {
		wired((*Library).Raise, wiredLaunch("raise", "RaiseArgs", raiseWords).code, at, nvlib.Ptr(by))
	}
	var faults []nvlib.Ptr
	words := nvlib.Ptr(1)
	await := func(at nvlib.Ptr, least int64, abort nvlib.Ptr, timeout time.Duration) {
		f := b.alloc(FaultBytes)
		clear(b.mem[f-memoryAt:][:FaultBytes])
		faults = append(faults, f)
		wired((*Library).Await, wiredLaunch("await", "AwaitArgs", awaitWords).code,
			at, nvlib.Ptr(least), abort, nvlib.Ptr(timeout), f, 9, words)
	}
	await(word, 5, none, time.Hour) // already reached
	raise(word, 3)
	raise(other, 1<<40)
	await(word, 8, none, time.Hour)            // the value is reached; the wait does not change the word
	await(word, 7, none, time.Hour)            // exceeded
	await(other, 1<<40-1, none, time.Hour)     // a value above 32 bits, from a negative one
	await(word, 9, abort, 20*time.Microsecond) // the value is never reached; sets the abort word
	await(other, 1<<40, abort, time.Hour)      // ended by the abort word
	await(word, 8, abort, 0)                   // does not need to wait, so it is not aborted
	several, flag := b.alloc(3*WordBytes), b.word(0)
	clear(b.mem[several-memoryAt:][:3*WordBytes])
	for i := range nvlib.Ptr(3) {
		raise(several+WordBytes*i, 2+int64(i))
	}
	words = 3
	await(several, 9, none, time.Hour)                                  // the sum of the words
	await(several, 10, abort, 0)                                        // more than the sum
	for _, j := range []Join{{Flag: several, Words: 3}, {Flag: flag}} { // Join subtracts only from a flag of one word
		raise(flag, 4)
		j.Count = 4
		b.enqueue(func(l *Library) (Step, error) { return l.Join(Target{}, j) }, flagJoin(nil).code, 1)
	}
	b.run()
	if n, f := b.read(several), b.read(flag); n != 2 || f != 4 {
		t.Errorf("after joins the first of several words is %d and the flag %d, want 2 and 4", n, f)
	}
	if w, o := b.read(word), b.read(other); w != 8 || o != 1<<40-1 {
		t.Errorf("words %d and %d, want 8 and %d", w, o, int64(1<<40-1))
	}
	if b.read(abort) == 0 || b.read(none) != 0 {
		t.Errorf("the abort words are %d after a timeout, and %d", b.read(abort), b.read(none))
	}
	for i, want := range []struct {
		kind       FaultKind
		least, now int64
	}{{}, {}, {}, {}, {FaultTimeout, 9, 8}, {FaultAborted, 1 << 40, 1<<40 - 1}, {}, {}, {FaultAborted, 10, 9}} {
		f, ok := ReadFault(b.mem[faults[i]-memoryAt:])
		if ok != (want.kind != NoFault) || f.Kind != want.kind {
			t.Errorf("wait %d: %v, %v", i, f, ok)
		}
		if ok && (f.Tag != 9 || f.Words[0] != want.least || f.Words[1] != want.now) {
			t.Errorf("wait %d reports %+v, want %+v", i, f, want)
		}
	}
	if f, _ := ReadFault(b.mem[faults[4]-memoryAt:]); f.Words[2] <= 20_000 {
		t.Errorf("the wait that timed out reports %v", f)
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
	if _, ok := ReadFault(make([]byte, 47)); ok {
		t.Error("a fault of 47 bytes")
	}
	half := make([]byte, FaultBytes)
	half[0] = byte(FaultTimeout) // begun, but not complete
	if _, ok := ReadFault(half); ok {
		t.Error("half a fault was read")
	}
	for _, f := range []Fault{{Kind: FaultRange, Words: [3]int64{7, 5, 2}}, {Kind: FaultAborted}, {Kind: 99}} {
		if f.String() == "" {
			t.Error(f.Kind)
		}
	}
	if s := (Fault{Kind: FaultRange, Words: [3]int64{7, 5, 2}}).String(); s != "id 7 (number 2) is outside 0 to 4, the rows of the table" {
		t.Error(s)
	}
}
