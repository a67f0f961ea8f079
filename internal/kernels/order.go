package kernels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Join raises flags, peers' perhaps, and then waits for one of the device's own:
// words of 8 bytes, at first 0, that count what was raised and not taken yet.
// Whoever sees a flag raised sees all earlier writes of the stream too.
type Join struct {
	// List is the address, in memory of the device, of a number of flags, at most
	// JoinMost, and their addresses; 0: none. It is read at each launch.
	List nvlib.Ptr
	// Count is taken from Flag once it is there; 0: nothing is waited for.
	Flag  nvlib.Ptr
	Count int64
	// Abort is a word of 8 bytes that ends the wait when it is not 0, in memory
	// that the host or a peer writes; 0: none.
	Abort nvlib.Ptr
	// Timeout ends the wait, and then sets the abort word; 0: never.
	Timeout time.Duration
	// Fault is the address of six words of device memory, initially 0 except for the bell, that report why a wait
	// failed (see ReadFault). If Fault is 0, nothing is reported. Tag is the caller's.
	Fault nvlib.Ptr
	Tag   uint64
}

// JoinMost is how many flags a Join raises.
const JoinMost = 31

// Join returns the step that does j: one warp of few registers, which finds room
// beside a product of matrices.
func (l *Library) Join(t Target, j Join) (Step, error) {
	if j.Timeout < 0 || j.Count < 0 {
		return Step{}, fmt.Errorf("taking %d from a flag with a timeout of %v", j.Count, j.Timeout)
	}
	var args words
	args.addr(j.List, j.Flag)
	args.ints(j.Count)
	args.addr(j.Abort)
	args.ints(j.Timeout.Nanoseconds())
	args.addr(j.Fault)
	args.bits(j.Tag)
	w := flagJoin(args)
	s, err := l.step(t.Arch, w)
	s.Shape.Block[0] = uint32(w.code.threads)
	return s, err
}

func flagJoin(w words) launch {
	l := orderly("join", "JoinArgs", 1, w)
	l.code.threads = JoinMost + 1
	return l
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
	return launch{blocks: blocks, args: w,
		code: code{files: []string{"sync"}, symbol: symbol(function), args: args, body: function}}
}

// Fault is what a kernel reported.
type Fault struct {
	Kind FaultKind
	Tag  uint64
	// Timeout and aborted wait: what was waited for, the counter then, and
	// nanoseconds waited. Range: the id, the number of rows, and which of the
	// ids it was. Counts: which member's and which of them, above 32 bits; the
	// number; and what it has to do with, with the reason above 60 bits.
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
	FaultCounts  FaultKind = 8
	// FaultPosition, FaultTwice, FaultLength: the number, what it must be below, or at most, and which
	// element of its operand it is.
	FaultPosition FaultKind = 10
	FaultTwice    FaultKind = 12
	FaultLength   FaultKind = 14
	// FaultWritten: the argument, and the element of it that a kernel has changed.
	FaultWritten FaultKind = 16
	// FaultOutside: the argument, and how many bytes behind its end, or before its begin, a kernel has written.
	FaultOutside FaultKind = 18
	// FaultIndex: the index, what it must be below, and which element of the indices it is.
	FaultIndex FaultKind = 20
	// FaultAdded: the id, the rows of the whole result, and which row of the operand has it.
	FaultAdded FaultKind = 24
	// FaultGroups: the count, how many rows there are, and which element of the counts it is.
	FaultGroups FaultKind = 22
)

// FaultBytes is the size of a fault's six words, and FaultBell where the last of them is, the address
// of a word of host memory that whoever reports sets to 1; 0 for none.
const FaultBytes, FaultBell = 48, 40

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
		return fmt.Sprintf("%s for a flag of %d after %v: it was %d", how, f.Words[0], time.Duration(f.Words[2]),
			f.Words[1])
	case FaultRange:
		return fmt.Sprintf("id %d (number %d) is outside 0..%d, the rows of the table", f.Words[0], f.Words[2],
			f.Words[1])
	case FaultCounts:
		return f.counts()
	case FaultPosition:
		return fmt.Sprintf("position %d (element %d of the positions) is outside 0..%d", f.Words[0], f.Words[2],
			f.Words[1])
	case FaultGroups:
		return fmt.Sprintf("count %d (element %d of the counts) is negative, or takes more rows than are left of %d",
			f.Words[0], f.Words[2], f.Words[1])
	case FaultAdded:
		return fmt.Sprintf("id %d (number %d) is outside 0..%d, the rows of the result", f.Words[0], f.Words[2],
			f.Words[1])
	case FaultIndex:
		return fmt.Sprintf("index %d (element %d of the indices) is outside 0..%d", f.Words[0], f.Words[2], f.Words[1])
	case FaultTwice:
		return fmt.Sprintf("position %d (element %d of the positions) is given twice", f.Words[0], f.Words[2])
	case FaultWritten:
		return fmt.Sprintf("it writes argument %d (element %d of it), which the launch says it reads: write into or inout in front of it", f.Words[0], f.Words[1])
	case FaultOutside:
		if f.Words[1] < 0 {
			return fmt.Sprintf("it writes %d bytes before the first of argument %d", -f.Words[1], f.Words[0])
		}
		return fmt.Sprintf("it writes beyond the end of argument %d, by %d bytes or more", f.Words[0], f.Words[1]+1)
	case FaultLength:
		return fmt.Sprintf("length %d (element %d of the lengths) is outside 0..%d, the keys that are kept", f.Words[0],
			f.Words[2], f.Words[1])
	}
	return fmt.Sprintf("fault %d", f.Kind)
}

// Err is the error for a report, which says why: a *device.ContentError if it is about an element of an operand.
func (f Fault) Err(why string) error {
	e := &device.ContentError{Element: f.Words[2], Value: f.Words[0], Text: why}
	switch f.Kind {
	case FaultRange:
		e.Op = ir.OpEmbedding
	case FaultGroups:
		e.Op = ir.OpGroupedLinear
	case FaultAdded:
		e.Op = ir.OpIndexAdd
	case FaultIndex:
		e.Op = ir.OpTakeAlong
	case FaultPosition, FaultTwice:
		e.Op = ir.OpIndexCopy
	case FaultLength:
		e.Op = ir.OpAttention
	default:
		return errors.New(why)
	}
	return e
}

// counts says what is wrong with the counts of an uneven collective.
func (f Fault) counts() string {
	member, index, number := f.Words[0]>>32, f.Words[0]&0xffffffff, f.Words[1]
	limit := f.Words[2] & (1<<60 - 1)
	switch f.Words[2] >> 60 {
	case 1:
		return fmt.Sprintf("counts[%d] of member %d of the team is %d, with operands of %d rows", index, member, number,
			limit)
	case 2:
		return fmt.Sprintf("counts[%d] of member %d of the team is %d, and another member's is not: they must be the same", index, member, number)
	case 3:
		return fmt.Sprintf("the counts of member %d of the team take %d rows from an operand of %d", member, number,
			limit)
	}
	return fmt.Sprintf("member %d of the team gets %d rows, and its result has room for %d", member, number, limit)
}

// Words of the arguments of Raise and Await, which are changed for every launch.
const (
	raiseWords = 2 // address, and what is added
	awaitWords = 6 // address, least value, abort word, nanoseconds, and as in Join fault and tag
)

// Raise returns the step that adds to a word of 8 bytes, possibly in a peer's memory, after all earlier work of its
// stream. Its arguments are words for SetWord: the address, and the summand.
func (l *Library) Raise(t Target) (Step, error) {
	return l.step(t.Arch, wiredLaunch("raise", "RaiseArgs", raiseWords))
}

// Await returns the step that waits until a word of the device's own is at least some value, and takes nothing of
// it. Its arguments are words for SetWord: the address, the value, the address of the abort word, the time in
// nanoseconds, and the address and the tag of a fault, all as in Join.
func (l *Library) Await(t Target) (Step, error) {
	return l.step(t.Arch, wiredLaunch("await", "AwaitArgs", awaitWords))
}

func wiredLaunch(function, args string, n int) launch {
	l := orderly(function, args, 1, make(words, n))
	l.code.files = []string{"sync", "wired"}
	l.code.block = 32
	return l
}
