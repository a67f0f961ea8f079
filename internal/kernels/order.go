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

// Join describes a kernel that raises flags, which may be in peers' memory, and then waits for a flag on its device. A
// flag is a word of 8 bytes, initially 0. It counts the raises for which no kernel has waited yet. A thread that
// observes a raised flag also observes all earlier writes of the stream that raised the flag.
type Join struct {
	// List is the address of a list in device memory: the number of flags to raise, at most JoinMost, followed by their
	// addresses. If List is 0, no flags are raised. The list is read at each launch.
	List nvlib.Ptr
	// The kernel waits until Flag has reached Count, and then subtracts Count. If Count is 0, the kernel does not wait.
	Flag  nvlib.Ptr
	Count int64
	// Words is the number of words of Flag, at distances of WordBytes, if other GPUs cannot add to its memory
	// atomically. Each GPU then adds to a separate word, the value of Flag is the sum of the words, and the kernel does
	// not subtract Count. If Words is 0, Flag is one word, to which all GPUs add.
	Words int64
	// Abort is the address of a word of 8 bytes in memory that the host or a peer writes. If the word is not 0, the
	// wait ends. An Abort of 0 means that there is no such word.
	Abort nvlib.Ptr
	// Timeout limits the duration of the wait; 0 means no limit. A wait that times out sets the abort word.
	Timeout time.Duration
	// Fault is the address of six words of device memory, initially 0 except for the bell, in which a failed wait
	// reports its reason (see ReadFault). If Fault is 0, a failed wait reports nothing. Tag identifies the caller in a
	// fault report.
	Fault nvlib.Ptr
	Tag   uint64
}

// WordBytes is the distance of the words of a flag or of a counter, in bytes.
const WordBytes = 32

// JoinMost is the largest number of flags that a Join raises.
const JoinMost = 31

// Join returns the step that executes j: a kernel of one warp with few registers, which fits on a multiprocessor
// together with a GEMM.
func (l *Library) Join(t Target, j Join) (Step, error) {
	if j.Timeout < 0 || j.Count < 0 || j.Words < 0 {
		return Step{}, fmt.Errorf("the wait for a flag has the count %d, the timeout %v and %d words; none may be negative", j.Count,
			j.Timeout, j.Words)
	}
	var args words
	args.addr(j.List, j.Flag)
	args.ints(j.Count)
	args.addr(j.Abort)
	args.ints(j.Timeout.Nanoseconds())
	args.addr(j.Fault)
	args.bits(j.Tag)
	args.ints(j.Words)
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

// Poison returns the step that overwrites memory with repetitions of the 8 bytes of pattern, aligned to addresses
// divisible by 8. The pattern 0x7fff in each half-word is a NaN in every float type.
func (l *Library) Poison(t Target, at nvlib.Ptr, bytes int64, pattern uint64) (Step, error) {
	if bytes < 0 {
		return Step{}, fmt.Errorf("cannot poison %d bytes: the size is negative", bytes)
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

// Fault is a report of a kernel: a wait that failed, or data that is invalid.
type Fault struct {
	Kind FaultKind
	Tag  uint64
	// Words holds the details of the fault. For FaultTimeout and FaultAborted they are the awaited value, the value of
	// the counter at that time, and the nanoseconds waited. For FaultRange they are the id, the number of rows, and the
	// index of the id. For FaultCounts the first word has the member (above 32 bits) and the index of the count, the
	// second the number, the third the limit, with the reason above 60 bits.
	Words [3]int64
}

// FaultKind is the kind of a fault.
type FaultKind uint64

// These constants are the kinds of faults. Their comments list the details in Fault.Words.
const (
	NoFault      FaultKind = 0
	FaultTimeout FaultKind = 2
	FaultAborted FaultKind = 4
	FaultRange   FaultKind = 6
	FaultCounts  FaultKind = 8
	// Words of FaultPosition, FaultTwice and FaultLength: the value, its limit, and the index of the element in its
	// operand. The value must be below the limit; a length may be equal to it.
	FaultPosition FaultKind = 10
	FaultTwice    FaultKind = 12
	FaultLength   FaultKind = 14
	// Words of FaultWritten: the argument, and the index of its element that a kernel has changed.
	FaultWritten FaultKind = 16
	// Words of FaultOutside: the argument, and the distance in bytes of a kernel's write from the argument's end,
	// negative for a write before its begin.
	FaultOutside FaultKind = 18
	// Words of FaultIndex: the index, its limit, and the index of the element in the indices.
	FaultIndex FaultKind = 20
	// Words of FaultAdded: the id, the number of rows of the whole result, and the index of the operand's row with the
	// id.
	FaultAdded FaultKind = 24
	// Words of FaultGroups: the count, the number of rows, and the index of the element in the counts.
	FaultGroups FaultKind = 22
)

// FaultBytes is the size in bytes of the six words of a fault. FaultBell is the offset of the last one, which holds the
// address of a word of host memory that the reporting kernel sets to 1; 0 for none.
const FaultBytes, FaultBell = 48, 40

// ReadFault decodes the words of a fault, which a kernel may have written. It returns false if no report has been
// written completely.
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

// String returns a description of the fault.
func (f Fault) String() string {
	switch f.Kind {
	case FaultTimeout, FaultAborted:
		how := "gave up waiting"
		if f.Kind == FaultAborted {
			how = "was aborted while waiting"
		}
		return fmt.Sprintf("%s for a flag to reach %d after %v: it was %d", how, f.Words[0], time.Duration(f.Words[2]),
			f.Words[1])
	case FaultRange:
		return fmt.Sprintf("id %d (number %d) is outside 0 to %d, the rows of the table", f.Words[0], f.Words[2],
			f.Words[1]-1)
	case FaultCounts:
		return f.counts()
	case FaultPosition:
		return fmt.Sprintf("position %d (element %d of the positions) is outside 0 to %d", f.Words[0], f.Words[2],
			f.Words[1]-1)
	case FaultGroups:
		return fmt.Sprintf("count %d (element %d of the counts) is negative, or takes more rows than are left of %d",
			f.Words[0], f.Words[2], f.Words[1])
	case FaultAdded:
		return fmt.Sprintf("id %d (number %d) is outside 0 to %d, the rows of the result", f.Words[0], f.Words[2],
			f.Words[1]-1)
	case FaultIndex:
		return fmt.Sprintf("index %d (element %d of the indices) is outside 0 to %d", f.Words[0], f.Words[2], f.Words[1]-1)
	case FaultTwice:
		return fmt.Sprintf("position %d (element %d of the positions) is given twice", f.Words[0], f.Words[2])
	case FaultWritten:
		return fmt.Sprintf("it writes element %[2]d of argument %[1]d, which the launch declares as read only: declare the "+
			"argument with into or inout", f.Words[0], f.Words[1])
	case FaultOutside:
		if f.Words[1] < 0 {
			return fmt.Sprintf("it writes %d bytes before the start of argument %d", -f.Words[1], f.Words[0])
		}
		return fmt.Sprintf("it writes beyond the end of argument %d, by at least %d bytes", f.Words[0], f.Words[1]+1)
	case FaultLength:
		return fmt.Sprintf("length %d (element %d of the lengths) is outside 0 to %d, the keys that are kept", f.Words[0],
			f.Words[2], f.Words[1])
	}
	return fmt.Sprintf("fault %d", f.Kind)
}

// Err returns the error for a fault whose description is why: a *device.ContentError if the fault is about an element
// of an operand.
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

// counts returns a description of a fault in the counts of an uneven collective.
func (f Fault) counts() string {
	member, index, number := f.Words[0]>>32, f.Words[0]&0xffffffff, f.Words[1]
	limit := f.Words[2] & (1<<60 - 1)
	switch f.Words[2] >> 60 {
	case 1:
		return fmt.Sprintf("counts[%d] of member %d of the team is %d, with operands of %d rows", index, member, number,
			limit)
	case 2:
		return fmt.Sprintf("counts[%d] of member %d of the team is %d, but another member has a different value: all "+
			"members must have equal counts", index, member, number)
	case 3:
		return fmt.Sprintf("the counts of member %d of the team take %d rows from an operand of %d", member, number,
			limit)
	}
	return fmt.Sprintf("member %d of the team gets %d rows, and its result has room for %d", member, number, limit)
}

// These constants are the numbers of words in the arguments of the kernels of Raise and Await. The words are changed
// for every launch.
const (
	raiseWords = 2 // words: the address, and the value to add
	awaitWords = 7 // see Await
)

// Raise returns the step of a kernel that adds to a word of 8 bytes, which may be in a peer's memory, after all earlier
// work of its stream. The kernel's arguments are set by SetWord: the address and the summand.
func (l *Library) Raise(t Target) (Step, error) {
	return l.step(t.Arch, wiredLaunch("raise", "RaiseArgs", raiseWords))
}

// Await returns the step of a kernel that waits until the sum of words, at distances of WordBytes, is at least a given
// value. It does not change the words. The kernel's arguments are set by SetWord: the address, the value, the address
// of the abort word, the time limit in nanoseconds, the address and the tag of a fault, all as in Join, and the number
// of words.
func (l *Library) Await(t Target) (Step, error) {
	return l.step(t.Arch, wiredLaunch("await", "AwaitArgs", awaitWords))
}

func wiredLaunch(function, args string, n int) launch {
	l := orderly(function, args, 1, make(words, n))
	l.code.files = []string{"sync", "wired"}
	l.code.block = 32
	return l
}
