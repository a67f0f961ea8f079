package kernels

import (
	"encoding/binary"
	"fmt"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// Signal returns the step that adds by to the 64-bit counter at the address, a
// peer's perhaps: whoever sees the new value sees all earlier writes of the
// stream too.
func (l *Library) Signal(t Target, counter nvlib.Ptr, by int64) (Step, error) {
	var args words
	args.addr(counter)
	args.ints(by)
	return l.step(t.Arch, orderly("signal", "SignalArgs", 1, args))
}

// WaitFor is a bounded wait on the device.
type WaitFor struct {
	Counter nvlib.Ptr // of the device itself
	Least   int64
	// Abort is a word of 8 bytes that ends the wait when it is not 0, in memory
	// that the host or a peer writes; 0: none.
	Abort nvlib.Ptr
	// Timeout ends the wait, and then sets the abort word; 0: never.
	Timeout time.Duration
	// Fault is the address of five words of device memory, at first 0, that
	// tell how a wait ended badly (see ReadFault); 0: nothing is told. Tag is
	// the caller's.
	Fault nvlib.Ptr
	Tag   uint64
}

// Wait returns the step that keeps a stream waiting until the counter is at
// least that, or the wait has to end.
func (l *Library) Wait(t Target, w WaitFor) (Step, error) {
	if w.Timeout < 0 {
		return Step{}, fmt.Errorf("a timeout of %v", w.Timeout)
	}
	var args words
	args.addr(w.Counter)
	args.ints(w.Least)
	args.addr(w.Abort)
	args.ints(w.Timeout.Nanoseconds())
	args.addr(w.Fault)
	args.bits(w.Tag)
	return l.step(t.Arch, orderly("wait", "WaitArgs", 1, args))
}

// abortMost is how many abort words one step sets.
const abortMost = 64

// Abort returns the step that sets abort words, at most 64. It waits for nothing.
func (l *Library) Abort(t Target, abortWords ...nvlib.Ptr) (Step, error) {
	if len(abortWords) > abortMost {
		return Step{}, fmt.Errorf("%d abort words, at most %d", len(abortWords), abortMost)
	}
	var args words
	args.ints(int64(len(abortWords)))
	args.addr(abortWords...)
	for len(args) < 1+abortMost {
		args.addr(0)
	}
	return l.step(t.Arch, orderly("raiseAbort", "AbortArgs", 1, args))
}

// Poison returns the step that overwrites bytes at an address with 8 bytes of
// pattern again and again, as they lie at addresses divisible by 8: 0x7fff in
// each half-word reads as NaN in every float type.
func (l *Library) Poison(t Target, at nvlib.Ptr, bytes int64, pattern uint64) (Step, error) {
	if bytes < 0 {
		return Step{}, fmt.Errorf("poisoning %d bytes", bytes)
	}
	var args words
	args.addr(at)
	args.ints(bytes)
	args.bits(pattern)
	return l.step(t.Arch, orderly("poison", "PoisonArgs", blocksFor(max(1, ceil(bytes, 8))), args))
}

func orderly(function, args string, blocks uint32, w words) launch {
	return launch{blocks: blocks, args: w, code: code{files: []string{"sync"}, symbol: symbol(function), args: args, body: function}}
}

// Fault is what a kernel reported.
type Fault struct {
	Kind FaultKind
	Tag  uint64
	// Timeout and aborted wait: what was waited for, the counter then, and
	// nanoseconds waited. Range: the id, the number of rows, and which of the
	// ids it was.
	Words [3]int64
}

// FaultKind says what happened.
type FaultKind uint64

// Kinds of faults.
const (
	NoFault      FaultKind = 0
	FaultTimeout FaultKind = 2
	FaultAborted FaultKind = 4
	FaultRange   FaultKind = 6
)

// FaultBytes is the size of a fault's five words.
const FaultBytes = 40

// ReadFault reads the words that a kernel may have written. false: none did, or
// not all of them are there yet.
func ReadFault(b []byte) (Fault, bool) {
	if len(b) < FaultBytes {
		return Fault{}, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	if word(0)&1 == 0 {
		return Fault{}, false
	}
	f := Fault{Kind: FaultKind(word(0) &^ 1), Tag: word(1)}
	for i := range f.Words {
		f.Words[i] = int64(word(2 + i))
	}
	return f, true
}

// String says what happened in words.
func (f Fault) String() string {
	switch f.Kind {
	case FaultTimeout, FaultAborted:
		how := "gave up waiting"
		if f.Kind == FaultAborted {
			how = "was told to stop waiting"
		}
		return fmt.Sprintf("%s for counter ≥ %d after %v: it was %d", how, f.Words[0], time.Duration(f.Words[2]), f.Words[1])
	case FaultRange:
		return fmt.Sprintf("id %d (number %d) is outside 0..%d, the rows of the table", f.Words[0], f.Words[2], f.Words[1])
	}
	return fmt.Sprintf("fault %d", f.Kind)
}
