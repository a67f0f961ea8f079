// Package device declares the interface of machines: devices with ordered streams, events between streams, counters
// that peers raise, memory that peers can access, and a few kinds of launches. It contains no machine, only the
// interfaces and the checks that all machines share.
package device

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// ErrUnsupported reports that a machine lacks a feature. Errors that wrap it name the feature and a way out.
var ErrUnsupported = errors.New("not supported by this machine")

// ErrDeviceLost is wrapped by errors about a device that failed and that this process cannot use again. They name the
// device, the failure and the way out. It is never ErrUnsupported.
var ErrDeviceLost = errors.New("the device is lost: this process can no longer use it")

// ErrOutOfMemory is wrapped by errors about a device, or the host for pinned memory, that has less free memory than
// requested. Freeing memory may help, unless the error is ErrTooLarge too. nvlib.Error, which this package does not
// import, matches it by its method Is.
var ErrOutOfMemory error = outOfMemory{}

type outOfMemory struct{}

func (outOfMemory) Error() string { return "out of memory" }

// OutOfMemory lets the Is methods of errors in other packages recognise this error.
func (outOfMemory) OutOfMemory() {}

// ErrTooLarge is an ErrOutOfMemory for a request that is larger than the whole memory, so that freeing memory cannot
// help.
var ErrTooLarge error = tooLarge{}

type tooLarge struct{}

func (tooLarge) Error() string { return "the request is larger than the whole memory" }

func (tooLarge) Is(target error) bool { return target == ErrOutOfMemory }

// ErrAborted is wrapped by every error that a world returns after Abort.
var ErrAborted = errors.New("aborted")

// Machine opens worlds.
type Machine interface {
	// Name returns the name of the machine's Kind.
	Name() string
	Caps() Caps
	// Open opens a world of ranks devices. When ctx ends, the world aborts. Open returns ErrDeviceLost if a fault has made
	// a device unusable in this process.
	Open(ctx context.Context, ranks int) (World, error)
	// DryRun returns a world of the given number of ranks without opening it, which would take long. Its memory and
	// streams are only names, valid for views and for members of its teams. Its teams support only Supports and
	// PrepareAhead. It must not be used otherwise, and need not be closed. DryRun returns ErrUnsupported on machines
	// without dry runs.
	DryRun(ranks int) (World, error)
	// Capturing reports whether work on a stream of the caller is being captured instead of run.
	// While it is, no plan can be loaded.
	Capturing(stream uintptr) (bool, error)
	// Peers returns the processes over which the machine's worlds are spread; nil if there is only this process. All of
	// these processes open the same worlds, in one order.
	Peers() *world.World
}

// Caps describes the features of a machine.
type Caps struct {
	MaxRanks int
	// MoreRanks describes, for users, what MaxRanks depends on; empty if it is fixed.
	MoreRanks string
	// OnHost reports that devices are threads of the process, which share the host's processors and memory. Many ranks are
	// slow, and they use host memory.
	OnHost     bool
	DTypes     []ir.DType
	Graphs     bool // World.Capture is supported
	Virtual    bool // scheduled: there is no real time, and the order of work is drawn at random
	Concurrent bool // streams run concurrently
	Chains     bool // Prepare supports kernels with Links, and GEMMs with Relu
	Deadlocks  bool // Sync reports a *Deadlock by itself, without a deadline
	Traces     bool // observers receive marks
	// DeviceClocks reports that each device times marks by its own clock, which is synchronised with the world's clock
	// only to within microseconds.
	DeviceClocks bool
	Precompile   bool // PrepareAhead has an effect
	HostCalls    bool // Stream.Call is supported
	Poison       bool // Memory.Poison is supported
	Borrows      bool // Device.Borrow is supported
	Moves        bool // Device.PrepareMove is supported, between devices with peer access
}

// World is a set of devices that can access each other's counters and, in copies and in kernels that permit it, each
// other's shared memory.
type World interface {
	Ranks() int
	Device(rank int) Device
	// Local reports whether this process drives a rank's device. For other ranks, this process has only the names and the
	// memory that peers share, so that every process lays out memory in the same way. Work that is enqueued on these ranks
	// is ignored here and executed by their processes.
	Local(rank int) bool
	// Node returns the node of a rank's device, counted from 0. Nodes share no memory: work on a stream can access memory
	// and counters only of its own node, except for launches of a team by Transport.
	Node(rank int) int
	// Sync waits until all work issued so far has finished on every device. Otherwise it returns a *Fault, a *Deadlock or
	// the context's error.
	Sync(ctx context.Context) error
	// Do calls f, which uses the world, and returns nil after f has returned. If a call of the machine's driver does not
	// return, Do abandons the world soon after ctx has ended, and returns the error. The caller must then no longer access
	// anything that f uses, and f does nothing more that uses the world.
	Do(ctx context.Context, f func()) error
	// Abort makes every wait, on streams and on the host, return ErrAborted without delay. It may be called concurrently;
	// only the first cause is recorded.
	Abort(cause error)
	// Close aborts running work and frees everything. Memory on a lost device is freed when the process ends. Calls on a
	// closed world return an error.
	Close() error

	// Batch calls issue, which enqueues all of a batch of work on the world's streams. Until it returns, no world of the
	// machine does anything that could prevent the first part of the batch from ending.
	Batch(issue func() error) error
	// Stage allocates buffers for uploads and downloads of the given sizes in bytes, the given number of times, so that
	// issuing these transfers allocates no memory.
	Stage(transfers []int64, times int) error
	// Capture calls issue, once or several times, and records the work that issue enqueues on the world's streams instead
	// of running it. Each call must enqueue the same work. Each launch raises counters as the work does. A wait that was
	// satisfied before the recording is satisfied at each launch.
	//
	// The world must be idle, and no other goroutine may issue work meanwhile. Waits for work that is not issued inside,
	// uploads, downloads and host calls are errors, which may end the world. After a launch has ended, an observer
	// receives the marks of Begin and End; after several launches without a Sync between them, it receives those of the
	// last one. Capture requires Caps.Graphs. In a world with peers, waits for counters in every recording are for the
	// values of the first recording.
	Capture(issue func() error) (Graph, error)
	// Settle is called in all processes after everything has been prepared. The processes agree on choices that each has
	// made by measurement and that must be the same in all of them. Settle returns descriptions of other choices that must
	// be the same, so that the caller can compare them.
	Settle(ctx context.Context) ([]string, error)
	// Observe sets the observer of marks; nil removes it. No work may be in flight. An observer may cost time; without
	// one, the errors of a failed world may be less precise about the position.
	Observe(o Observer)

	// Profile starts the range that a profiler of the process captures, and makes the profiler show work with the names of
	// the marks in which it was issued, or of mark -1 for a graph. A nil names ends the range. No work may be in flight.
	// Profile returns ErrUnsupported if the machine supports no profiler.
	Profile(names func(id int64) string) error

	// OpenCalls opens calls on memory and streams of the caller. It returns ErrUnsupported on machines without such
	// streams.
	OpenCalls() (Calls, error)
	// Callers opens work in order with streams of the caller. It returns ErrUnsupported on machines without such streams.
	Callers() (Callers, error)

	Teams
	Status
}

// Status is the information that a world reports about itself.
type Status interface {
	// Held returns the memory that the world holds as long as it is open: operands, staging, workspaces, buffers of
	// transfers and memory of teams. It does not include the memory that the driver and NCCL allocate for code, graphs and
	// connections. It is zero if the machine does not report it.
	Held() Held
	// Standings returns, for each stream with work, what the stream does or waits for. It may be called concurrently, and
	// does not wait for work. It returns nil if the machine does not report it.
	Standings() []Standing
	// Guesses returns the names of the GEMMs that use the library's first guess, because there was no memory to time other
	// algorithms in this world or in an earlier one of the process.
	Guesses() []string
	// Apart returns the reason why a rank has no access to a peer's memory; nil if it has access. Copies between such
	// ranks, and reads of kernels from each other, use a slower host-staged path; operations that need more than that
	// decline.
	Apart(rank, peer int) error
	// Detours returns, for each reason, a line that lists the devices without peer access to each other; nil if there are
	// none.
	Detours() []string
}

// Device is one rank's device.
type Device interface {
	Rank() int
	// Alloc allocates memory, aligned to 256 bytes. Peers may access it if kind is Shared. Its contents are undefined (and
	// poisoned on a scheduled CPU).
	Alloc(bytes int64, kind MemKind) (Memory, error)
	NewStream(opts StreamOptions) (Stream, error)
	NewEvent() (Event, error)
	// NewCounters allocates n 64-bit counters with value zero that any device may raise.
	NewCounters(n int) (Counters, error)
	// Prepare prepares a kernel for launching: it compiles the kernel, chooses an algorithm, allocates workspace, and runs
	// the kernel once if a measurement is needed.
	Prepare(k Kernel) (Launch, error)
	// PrepareAhead starts work that Prepare of the same kernel needs, such as compilation, and returns without waiting.
	// Prepare reports any error.
	PrepareAhead(k Kernel)
	// PrepareCopy prepares for Copy of the same views on a stream of the device, so that issuing the copy compiles
	// nothing.
	PrepareCopy(dst, src View) error
	// PrepareMove prepares a kernel that does the same as Copy of the same views, with at most the given number of blocks,
	// or 0 for a number that suits the machine. The views have no gaps. It returns ErrUnsupported if no kernel can access
	// both.
	PrepareMove(dst, src View, blocks int) (Launch, error)
	// Borrow returns a handle to m, memory of the same device in another world of the machine. The handle is Private,
	// valid only for this rank and as long as m is allocated. It need not be freed; Free does not affect m. Borrow returns
	// ErrUnsupported if m belongs to another device or is pinned.
	Borrow(m Memory) (Memory, error)
}

// MemKind is a kind of memory.
type MemKind uint8

// These are the kinds of memory.
const (
	Private MemKind = iota // only this device accesses it
	Shared                 // peers copy from and to it
	Pinned                 // host memory that the device can access
)

// Memory is a contiguous block of memory of one device.
type Memory interface {
	Bytes() int64
	// Free frees the memory; no issued work may still use it.
	Free() error
	// Address returns a device pointer, or a host pointer if the device is the host; 0 if there is no address that others
	// could use.
	Address() uintptr
	// Host returns the bytes of the memory if it is memory of this process, and nil otherwise.
	Host() []byte
	// Poison overwrites bytes with a pattern that makes later reads conspicuous: NaNs, large integers. It requires
	// Caps.Poison.
	Poison(off, n int64)
}

// View describes a tensor in memory. Shape and Strides count elements, Off counts bytes.
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

// StreamOptions holds the name of a stream and its priority: +1 high, 0, -1 low.
type StreamOptions struct {
	Name     string
	Priority int
}

// Stream executes work in order. Its methods only enqueue work; World.Sync returns later errors. The methods of a
// stream must not be called concurrently.
type Stream interface {
	Name() string
	Launch(l Launch) error
	// Copy copies src to dst. They have equal shape and dtype and any strides, and each may be shared memory of a peer.
	Copy(dst, src View) error
	// Upload and Download copy between dense host bytes and device memory. The host bytes must not be changed or read
	// until the work has finished.
	Upload(dst View, src []byte) error
	Download(dst []byte, src View) error
	// Record makes e represent all work issued to s so far. Wait makes later work of s wait for the work that e
	// represented when Wait was called. Waiting for an event that was never recorded is an error.
	Record(e Event) error
	Wait(e Event) error
	// Signal increments c[elem], by the amount by, after all earlier work of s, whose writes are
	// then visible to streams that wait for the counter. c may belong to a peer.
	Signal(c Counters, elem int, by int64) error
	// WaitCounter makes later work of s wait until c[elem] >= least. c must belong to this device.
	WaitCounter(c Counters, elem int, least int64) error
	// Begin and End bracket the work of one command for the trace. id is chosen by the caller and passed to the world's
	// observer.
	Begin(id int64) error
	End(id int64) error
	// Call calls a Go function in stream order. It requires Caps.HostCalls.
	Call(f func()) error
	// PrepareLaunches reserves the resources that launches of the list need on the stream, so that issuing them allocates
	// no memory.
	PrepareLaunches(list []Launch) error
}

// Event is recorded on one stream and awaited on others.
type Event interface{ Release() }

// Counters is an array of 64-bit counters on one device, which are only ever raised.
type Counters interface {
	Len() int
	Release()
}

// Observer receives the times at which commands began and ended, in nanoseconds since the world was opened. Its methods
// are called concurrently.
type Observer interface {
	Began(rank int, stream string, id int64, ns int64)
	Ended(rank int, stream string, id int64, ns int64)
}

// Graph is a recorded sequence of work that replays as one launch.
type Graph interface {
	// Launch enqueues the graph after all work issued so far on any stream, and before all later work on any stream.
	Launch(ctx context.Context) error
	// Close frees the graph; no launch of it may still run.
	Close() error
	// Forms returns the names of the forms in which the graph can be launched. All forms give the same results, and only a
	// measurement can find the fastest. The first one is used until Choose selects another. It returns nil if there is
	// only one form.
	Forms() []string
	Choose(form int)
	// Keep selects a form permanently and frees the other forms; no launch may be running.
	Keep(form int) error
}

// Fault is a failure of work on a device.
type Fault struct {
	Rank   int
	Stream string
	ID     int64 // the innermost Begin mark; -1 for none
	Last   int64 // if greater than ID, the mark is one from ID to Last
	Err    error
}

// Error returns a message that names the rank, the stream and the cause.
func (f *Fault) Error() string {
	return fmt.Sprintf("rank %d, stream %s: %v", f.Rank, f.Stream, f.Err)
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// ErrDeadlock matches every *Deadlock in errors.Is.
var ErrDeadlock = errors.New("deadlock")

// Is reports whether target is ErrDeadlock.
func (d *Deadlock) Is(target error) bool { return target == ErrDeadlock }

// Deadlock reports that work remains but no stream can continue.
type Deadlock struct{ Blocked []Blocked }

// Blocked describes the first unfinished work of a stream that cannot continue.
type Blocked struct {
	Rank   int
	Stream string
	ID     int64  // the innermost Begin mark; -1 for none
	On     string // what it waits for: "counter 3 ≥ 2 (now 1)"
}

// Error returns a message that lists up to eight blocked streams.
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
