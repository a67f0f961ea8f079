// Package device declares what hocket needs of a machine: devices with ordered streams, events between streams,
// counters that peers raise, memory that peers can address, and a few launches. It contains no machine, only the
// interfaces and the checks that all machines share.
package device

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// ErrUnsupported says that a machine cannot do what was asked; errors that
// wrap it name the feature and the way out.
var ErrUnsupported = errors.New("not supported by this machine")

// ErrDeviceLost is wrapped by errors about a device that failed and that this process cannot use again. They name the
// device, the failure and the way out. It is never ErrUnsupported.
var ErrDeviceLost = errors.New("the device is lost to this process")

// ErrOutOfMemory is wrapped by errors about a device, or the host for pinned memory, that has less free memory than
// requested. Freeing memory may help, unless the error is ErrTooLarge too. nvlib.Error, which this package does not
// import, matches it by its method Is.
var ErrOutOfMemory error = outOfMemory{}

type outOfMemory struct{}

func (outOfMemory) Error() string { return "out of memory" }

// OutOfMemory lets the Is methods of errors in other packages recognise this error.
func (outOfMemory) OutOfMemory() {}

// ErrTooLarge is the ErrOutOfMemory of what asks for more than there is at all, whatever
// others give back.
var ErrTooLarge error = tooLarge{}

type tooLarge struct{}

func (tooLarge) Error() string { return "more memory than there is at all" }

func (tooLarge) Is(target error) bool { return target == ErrOutOfMemory }

// ErrAborted is wrapped by every error that a world returns after Abort.
var ErrAborted = errors.New("aborted")

// Machine makes worlds.
type Machine interface {
	// Name is that of its Kind.
	Name() string
	Caps() Caps
	// Open makes a world of ranks devices. The world's context ends when ctx
	// does: then it aborts. A device that a fault has left beyond use in this
	// process gives ErrDeviceLost.
	Open(ctx context.Context, ranks int) (World, error)
	// DryRun returns a world of so many ranks that nothing was opened for, which takes long:
	// its memory and streams are names, good for views and members of its teams, and its
	// teams are for Supports and PrepareAhead. Nothing of it may be used otherwise, and
	// nothing need be given back. Unsupported where a machine knows nothing of worlds that
	// are not open.
	DryRun(ranks int) (World, error)
	// Capturing reports whether work on a stream of the caller's is recorded and not run: then nothing can be loaded.
	Capturing(stream uintptr) (bool, error)
	// Peers are the processes that the machine's worlds spread over; nil for this one alone. Then
	// all of them open the same worlds, in one order.
	Peers() *world.World
}

// Caps tells what a machine can do.
type Caps struct {
	MaxRanks int
	// MoreRanks says for people what MaxRanks follows from; empty where nothing changes it.
	MoreRanks string
	// OnHost: devices are threads of the process, which share the host's processors and memory. Many ranks are
	// slow, and what they take is memory of the host.
	OnHost     bool
	DTypes     []ir.DType
	Graphs     bool // World.Capture works
	Virtual    bool // scheduled: time stands still, order is drawn at random
	Concurrent bool // streams run at the same time
	Chains     bool // Prepare takes kernels with Links, and products with Relu
	Deadlocks  bool // Sync reports a *Deadlock by itself, without a deadline
	Traces     bool // observers are told of marks
	// DeviceClocks: marks are timed by each device's own clock, which is tied to the
	// world's to within microseconds only.
	DeviceClocks bool
	Precompile   bool // PrepareAhead begins something
	HostCalls    bool // Stream.Call works
	Poison       bool // Memory.Poison works
	Borrows      bool // Device.Borrow works
	Moves        bool // Device.PrepareMove works, between devices that reach each other
}

// World is a set of devices that reach each other's counters and, by copies and
// kernels that say so, each other's shared memory.
type World interface {
	Ranks() int
	Device(rank int) Device
	// Local reports whether this process drives a rank's device. Of the others there are the names, and
	// what peers share, so that every process lays memory out alike; work that is given to them is theirs
	// to do, and is nothing here.
	Local(rank int) bool
	// Node returns the node of a rank's device, from 0. Nodes share no memory: what a stream is given reaches
	// memory and counters of its own node alone, but for launches of a team by Transport.
	Node(rank int) int
	// Sync waits until all work issued so far has finished on every device,
	// or returns why it cannot: a *Fault, a *Deadlock, the context's error.
	Sync(ctx context.Context) error
	// Do calls f, which uses the world, and returns nil once f has returned. Where a call of
	// the machine's driver does not return it gives the world up, with the error that it
	// returns, soon once ctx has ended: then the caller must leave alone what f uses, and f
	// does no more but what it did without the world.
	Do(ctx context.Context, f func()) error
	// Abort makes every wait, on streams and host, return ErrAborted soon.
	// It is safe from any goroutine; only the first cause is kept.
	Abort(cause error)
	// Close aborts what still runs and frees everything; what lay on a device
	// that is lost goes when the process ends. A closed world answers every call
	// with an error.
	Close() error

	// Batch calls issue, which gives work to the world's streams, the whole of it:
	// until it returns no world of the machine does what could keep the work that
	// was issued first from ending.
	Batch(issue func() error) error
	// Stage makes buffers ahead of uploads and downloads of so many bytes each,
	// that many times all of them: then issuing those takes no memory.
	Stage(transfers []int64, times int) error
	// Capture calls issue, once or more often, and records the work that issue gives to the world's streams instead of
	// running it. Each call must give the same work. Each launch raises counters as the work does; a wait that was
	// satisfied before the recording is satisfied at each launch.
	//
	// The world must be idle, and no other goroutine may issue work meanwhile. Waits for work that is not issued
	// within, uploads, downloads and host calls are errors, which may end the world. An observer gets marks of Begin
	// and End after a launch has ended; of several launches without a Sync between them, those of the last. Needs
	// Caps.Graphs. In a world with peers, waits for counters are, in every recording, for the values of the first.
	Capture(issue func() error) (Graph, error)
	// Settle is called once all is prepared, in all processes alike: what each has chosen by measurement, and
	// all must have alike, they agree on. It returns what else they must have alike, to be compared.
	Settle(ctx context.Context) ([]string, error)
	// Observe sets who is told of marks; nil stops. Not while work is in flight. It may
	// cost time; without it a world that fails may know less well where.
	Observe(o Observer)

	// Profile begins what a profiler of the process captures, and has it show work by the names of the marks
	// that it was issued in, or of mark -1 for a graph. nil ends that. Not while work is in flight.
	// Unsupported where no profiler would look.
	Profile(names func(id int64) string) error

	// OpenCalls begins calls on memory and streams of the caller's. Unsupported where a machine has no such streams.
	OpenCalls() (Calls, error)
	// Callers puts work between that of streams of the caller's. Unsupported likewise.
	Callers() (Callers, error)

	Teams
	Status
}

// Status is what a world tells of itself.
type Status interface {
	// Held counts what the world takes for as long as it lives: operands, staging,
	// workspaces, buffers of transfers, teams' memory. It does not know what the
	// driver and NCCL take by themselves, for code, graphs and connections. Zero where
	// the machine does not tell.
	Held() Held
	// Standings says of each stream with work what it does or waits for. It is safe from any
	// goroutine, and does not wait for work. None where the machine does not tell.
	Standings() []Standing
	// Guesses names the GEMMs that run by the library's first guess for want of
	// memory to time others in, by this world or one before it in the process.
	Guesses() []string
	// Apart returns why a rank has no access to a peer's memory, nil where it has. Copies
	// between them, and what kernels read of each other, then go by a detour that takes
	// longer; what needs more than that declines.
	Apart(rank, peer int) error
	// Detours says which devices are apart and why, a line for each reason; nothing
	// where none are.
	Detours() []string
}

// Device is one rank's device.
type Device interface {
	Rank() int
	// Alloc reserves bytes, aligned to 256. Peers may address it when kind is
	// Shared. Contents are undefined (and poisoned on a scheduled CPU).
	Alloc(bytes int64, kind MemKind) (Memory, error)
	NewStream(opts StreamOptions) (Stream, error)
	NewEvent() (Event, error)
	// NewCounters makes n 64-bit counters at zero that any device may raise.
	NewCounters(n int) (Counters, error)
	// Prepare makes a kernel ready to launch: compiles it, picks an
	// algorithm, reserves workspace, runs it once where that matters.
	Prepare(k Kernel) (Launch, error)
	// PrepareAhead begins what Prepare of the same kernel will need, such as compiling, and
	// returns at once. Whether it helps, and what is wrong, Prepare shows.
	PrepareAhead(k Kernel)
	// PrepareCopy makes ready what Copy of the same views will need on a stream of
	// the device, so that issuing it compiles nothing.
	PrepareCopy(dst, src View) error
	// PrepareMove makes ready a kernel of at most so many blocks, 0 for as many as suit
	// the machine, that does what Copy of the same views does. They have no gaps.
	// Unsupported where no kernel reaches both.
	PrepareMove(dst, src View, blocks int) (Launch, error)
	// Borrow returns memory that stands for m, which is of the same device in another
	// world of the machine: Private, for this rank alone, and no longer than m is there.
	// It need not be freed; Free leaves m as it is. Unsupported where m is another
	// device's, or pinned.
	Borrow(m Memory) (Memory, error)
}

// MemKind is a kind of memory.
type MemKind uint8

// Kinds of memory.
const (
	Private MemKind = iota // this device's
	Shared                 // peers copy to and from it
	Pinned                 // host memory that the device reaches
)

// Memory is a stretch of memory of one device.
type Memory interface {
	Bytes() int64
	// Free gives it back; nothing issued may still use it.
	Free() error
	// Address is a device pointer, or the host's where the device is the host; 0 where
	// there is none to give others.
	Address() uintptr
	// Host is all of it where it is the process's own memory, else nil.
	Host() []byte
	// Poison overwrites bytes with a pattern that makes a later read show: NaNs, large
	// integers. Needs Caps.Poison.
	Poison(off, n int64)
}

// View is a tensor in memory. Shape and Strides count elements, Off bytes.
type View struct {
	Mem     Memory
	Off     int64
	DType   ir.DType
	Shape   []int64
	Strides []int64
}

// Elements returns the number of elements.
func (v View) Elements() int64 {
	n := int64(1)
	for _, e := range v.Shape {
		n *= e
	}
	return n
}

// Launch is a prepared kernel.
type Launch interface{ Release() }

// StreamOptions name a stream and give its priority: +1 high, 0, -1 low.
type StreamOptions struct {
	Name     string
	Priority int
}

// Stream runs what it is given in order. Calls only enqueue; what goes wrong
// later comes out of World.Sync. A stream's methods are for one goroutine at
// a time.
type Stream interface {
	Name() string
	Launch(l Launch) error
	// Copy copies src to dst: equal shape and dtype, any strides, either may
	// be a peer's shared memory.
	Copy(dst, src View) error
	// Upload and Download copy between dense host bytes and device memory.
	// The host bytes must stay untouched until the work has finished.
	Upload(dst View, src []byte) error
	Download(dst []byte, src View) error
	// Record makes e stand for all work issued to s so far; Wait makes later
	// work of s wait for what e stood for when Wait was called. Waiting for an
	// event never recorded is an error.
	Record(e Event) error
	Wait(e Event) error
	// Signal adds by to c[elem] after all earlier work of s, whose writes are
	// then visible to whoever waits; c may be a peer's.
	Signal(c Counters, elem int, by int64) error
	// WaitCounter makes later work of s wait until c[elem] >= least; c must be
	// this device's own.
	WaitCounter(c Counters, elem int, least int64) error
	// Begin and End bracket one command's work for the trace; id is the
	// caller's, what is passed to the world's observer.
	Begin(id int64) error
	End(id int64) error
	// Call calls a Go function in stream order. Needs Caps.HostCalls.
	Call(f func()) error
	// PrepareLaunches reserves what launches of the list will need on the stream, so
	// that issuing them takes no memory.
	PrepareLaunches(list []Launch) error
}

// Event is recorded on one stream and waited for on others.
type Event interface{ Release() }

// Counters are 64-bit counters on one device, only ever raised.
type Counters interface {
	Len() int
	Release()
}

// Observer gets the times at which commands began and ended, in nanoseconds
// since the world was opened. Calls come from many goroutines.
type Observer interface {
	Began(rank int, stream string, id int64, ns int64)
	Ended(rank int, stream string, id int64, ns int64)
}

// Graph is a recorded sequence of work that replays as one launch.
type Graph interface {
	// Launch enqueues the graph behind all work issued so far, on any stream;
	// work issued later, on any stream, comes behind it.
	Launch(ctx context.Context) error
	// Close gives it back; no launch of it may still run.
	Close() error
	// Forms names the ways in which the graph can be launched, with the same results; which
	// is the fastest only measuring can tell. The first is taken until Choose says
	// otherwise. Nothing where there is one way only.
	Forms() []string
	Choose(form int)
	// Keep chooses for good and gives the other forms back; no launch may run.
	Keep(form int) error
}

// Fault is a failure of work on a device.
type Fault struct {
	Rank   int
	Stream string
	ID     int64 // the innermost Begin mark; -1 for none
	Last   int64 // where greater than ID, the mark is one from ID to Last
	Err    error
}

// Error names the rank, the stream and the cause.
func (f *Fault) Error() string {
	return fmt.Sprintf("rank %d, stream %s: %v", f.Rank, f.Stream, f.Err)
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// ErrDeadlock is what every *Deadlock is.
var ErrDeadlock = errors.New("deadlock")

// Is reports whether target is ErrDeadlock.
func (d *Deadlock) Is(target error) bool { return target == ErrDeadlock }

// Deadlock says that nothing can run any more though work is left.
type Deadlock struct{ Blocked []Blocked }

// Blocked is the head of one stream that cannot go on.
type Blocked struct {
	Rank   int
	Stream string
	ID     int64  // the innermost Begin mark; -1 for none
	On     string // what it waits for: "counter 3 ≥ 2 (now 1)"
}

// Error lists up to eight blocked streams.
func (d *Deadlock) Error() string {
	s := "deadlock: no stream can continue"
	for i, b := range d.Blocked {
		if i == 8 {
			return s + fmt.Sprintf("; and %d more streams", len(d.Blocked)-i)
		}
		s += fmt.Sprintf("; rank %d, stream %s waits for %s", b.Rank, b.Stream, b.On)
	}
	return s
}
