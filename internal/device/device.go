// Package device declares the interface of machines: devices with ordered streams, events between streams, counters
// that peers raise, memory that peers can access, and a few kinds of launches. It contains only the interfaces and the
// checks that all machines share; the machines are in other packages.
package device

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// ErrUnsupported reports that a machine lacks a feature. Errors that wrap it name the feature and a remedy.
var ErrUnsupported = errors.New("not supported by this machine")

// ErrDeviceLost is wrapped by errors about a failed device that this process cannot use again. These errors name the
// device, the failure and a remedy. They never wrap ErrUnsupported.
var ErrDeviceLost = errors.New("the device is lost: this process can no longer use it")

// ErrOutOfMemory and ErrTooLarge are the same errors as in package fault.
var (
	ErrOutOfMemory = fault.ErrOutOfMemory
	ErrTooLarge    = fault.ErrTooLarge
)

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
	// DryRun returns a world of the given number of ranks without opening the devices, which would take long. The
	// memory and streams of such a world are only names, which may be used in views and as members of the world's
	// teams. The teams support only Supports and PrepareAhead. No other use of the world is permitted, and it need not
	// be closed. Machines without dry runs return ErrUnsupported.
	DryRun(ranks int) (World, error)
	// Capturing reports whether a stream of the caller is being captured into a graph. No plan can be loaded during a
	// capture.
	Capturing(stream uintptr) (bool, error)
	// Exchange describes how the processes of a node exchange data between their devices; "" if that is not known.
	Exchange() string
	// Peers returns the processes that share the machine's worlds; nil if there is only this process. All of these
	// processes open the same worlds in the same order.
	Peers() *world.World
}

// Caps describes the features of a machine.
type Caps struct {
	MaxRanks int
	// MoreRanks describes, for users, how MaxRanks can be raised; empty if MaxRanks is fixed.
	MoreRanks string
	// OnHost reports that devices are threads of the process, which share the host's processors and memory. Programs
	// with many ranks are slow on such devices, and their memory is host memory.
	OnHost     bool
	DTypes     []ir.DType
	Graphs     bool // World.Capture is supported
	Virtual    bool // the machine is simulated: there is no real time, and the order of work is drawn at random
	Concurrent bool // streams run concurrently
	Chains     bool // Prepare supports kernels with Links, and GEMMs with Relu
	// ScaleColumns reports that linears read scales of blocks of x without a copy if they are stored by columns.
	ScaleColumns bool
	Deadlocks    bool // Sync reports a *Deadlock by itself, without a deadline
	Traces       bool // observers receive marks
	// DeviceClocks reports that each device times marks with a separate clock. These clocks are synchronised with the
	// world's clock only to within microseconds.
	DeviceClocks bool
	Precompile   bool // PrepareAhead has an effect
	HostCalls    bool // Stream.Call is supported
	Poison       bool // Memory.Poison is supported
	Borrows      bool // Device.Borrow is supported
	Moves        bool // Device.PrepareMove is supported, between devices with peer access
}

// World is a set of devices. A device can access the counters of the other devices. In copies, and in kernels that
// permit it, it can also access their shared memory.
type World interface {
	Ranks() int
	Device(rank int) Device
	// Local reports whether this process drives a rank's device. For other ranks, this process has only names and the
	// memory that peers share, so that memory is laid out in the same way in every process. This process ignores work
	// that is enqueued on these ranks; their own processes execute it.
	Local(rank int) bool
	// Node returns the node of a rank's device, counted from 0. Nodes share no memory: work on a stream can access
	// memory and counters only on the stream's node. The exception is a team's launch that uses the algorithm
	// Transport.
	Node(rank int) int
	// HostShared reports whether Shared memory is host memory, because devices of different processes have no peer
	// access. Kernels are slow on such memory, so only data that peers access should be there.
	HostShared() bool
	// Sync waits until all work issued so far has finished on every device. If the work does not finish, Sync returns a
	// *Fault, a *Deadlock or the context's error.
	Sync(ctx context.Context) error
	// Do calls f, which uses the world, and returns nil after f has returned. If a driver call inside f does not
	// return, Do abandons the world soon after ctx has ended, and returns an error. The caller must then no longer
	// access any data that f uses, and f makes no further calls on the world. If ctx is made by Here, f runs in the
	// goroutine of the caller, and Do does not return before f, even if the world is abandoned.
	Do(ctx context.Context, f func()) error
	// Abort makes every wait, on streams and on the host, return ErrAborted without delay. It may be called concurrently;
	// only the first cause is recorded.
	Abort(cause error)
	// Close aborts running work and frees everything. Memory on a lost device is freed when the process ends. Calls on a
	// closed world return an error.
	Close() error

	// Batch calls issue, which enqueues a batch of work on the world's streams. Until issue returns, no world of the
	// machine makes a driver call that could prevent the already issued part of the batch from finishing.
	Batch(issue func() error) error
	// Stage allocates buffers for uploads and downloads, so that issuing these transfers allocates no memory.
	// transfers lists their sizes in bytes; times is the number of buffers of each size.
	Stage(transfers []int64, times int) error
	// Capture calls issue, once or several times, and records the work that issue enqueues on the world's streams
	// instead of running it. Each call must enqueue the same work. Each launch of the graph raises counters as the
	// recorded work does. A wait that was already satisfied before the recording is also satisfied at each launch.
	//
	// The world must be idle, and no other goroutine may issue work during Capture. Uploads, downloads, host calls,
	// and waits for work that issue does not enqueue are errors, and may end the world. After one launch has ended, an
	// observer receives the marks of Begin and End. After several launches without a Sync between them, the observer
	// receives the marks of the last launch. Capture requires Caps.Graphs. In a world with peers, the waits for
	// counters in every recording wait for the values of the first recording.
	Capture(issue func() error) (Graph, error)
	// Settle is called in all processes after all preparations. It makes the processes agree on choices that each
	// process has made by measurement and that must be equal in all processes. It returns descriptions of further
	// choices that must be equal, so that the caller can compare them.
	Settle(ctx context.Context) ([]string, error)
	// Observe sets the observer of marks; nil removes it. No work may be in flight. An observer may make execution
	// slower. Without an observer, the errors of a failed world may name the position of the failure less precisely.
	Observe(o Observer)

	// Profile starts the range that a profiler of the process captures. The profiler then labels work with names of
	// the marks in which the work was issued; names(-1) is the label of a graph. A nil names ends the range. No work
	// may be in flight. Profile returns ErrUnsupported if the machine supports no profiler.
	Profile(names func(id int64) string) error

	// OpenCalls returns a Calls, which runs collectives on memory and streams of the caller. It returns ErrUnsupported
	// on machines without streams of the caller.
	OpenCalls() (Calls, error)
	// Callers returns a Callers, which orders work with streams of the caller. It returns ErrUnsupported on machines
	// without streams of the caller.
	Callers() (Callers, error)

	Teams
	Status
}

// Status is the information that a world reports about itself.
type Status interface {
	// Held returns the size of the memory that the world keeps allocated while it is open: operands, staging,
	// workspaces, buffers of transfers and memory of teams. The size does not include memory that the driver and NCCL
	// allocate for code, graphs and connections. It is zero if the machine does not report it.
	Held() Held
	// Standings returns, for each stream with work, what the stream does or waits for. It may be called concurrently, and
	// does not wait for work. It returns nil if the machine does not report it.
	Standings() []Standing
	// Guesses returns the names of the GEMMs that use the first algorithm that the library suggests. These GEMMs were
	// not timed, because memory for timing was missing in this world or in an earlier world of the process.
	Guesses() []string
	// Apart returns the reason why a rank has no access to a peer's memory; nil if it has access. Between such ranks,
	// copies and the loads of kernels use a slower path through host memory. Operations that need other access are
	// declined.
	Apart(rank, peer int) error
	// Detours lists the pairs of devices without peer access, as one line for each reason; nil if there are none.
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
	// Prepare prepares a kernel for launching: it compiles the kernel, chooses an algorithm and allocates workspace.
	// If the choice needs a measurement, Prepare also runs the kernel.
	Prepare(k Kernel) (Launch, error)
	// PrepareAhead starts work that Prepare of the same kernel needs, such as compilation, and returns without waiting.
	// Prepare reports any error.
	PrepareAhead(k Kernel)
	// PrepareCopy does in advance what Copy of the same views on a stream of the device needs, so that issuing the copy
	// compiles nothing.
	PrepareCopy(dst, src View) error
	// PrepareMove prepares a kernel with the same effect as Copy of the same views. blocks limits the number of thread
	// blocks; with 0 the machine chooses the number. The views must have no gaps. PrepareMove returns ErrUnsupported
	// if no kernel can access both views.
	PrepareMove(dst, src View, blocks int) (Launch, error)
	// Borrow returns a handle to m, which is memory of the same device in another world of the machine. The handle is
	// Private, and valid only on this rank and while m is allocated. The handle need not be freed, and freeing it does
	// not free m. Borrow returns ErrUnsupported if m belongs to another device or is pinned.
	Borrow(m Memory) (Memory, error)
}

// MemKind is a kind of memory.
type MemKind uint8

// These are the kinds of memory.
const (
	Private MemKind = iota // only this device accesses it
	Shared                 // peers may copy from and to memory of this kind
	Pinned                 // pinned host memory, which the device can access
)

// Memory is a contiguous block of memory of one device.
type Memory interface {
	Bytes() int64
	// Free frees the memory; no issued work may still use it.
	Free() error
	// Address returns a device pointer, or a host pointer if the device is the host. It returns 0 if the memory has no
	// address that callers outside the machine can use.
	Address() uintptr
	// Host returns the bytes of the memory if this process can access them, and nil otherwise.
	Host() []byte
	// Poison overwrites bytes with a pattern that makes later reads easy to notice, such as NaNs and large integers.
	// It requires Caps.Poison.
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

// Stream executes work in order. The methods of a stream only enqueue work; World.Sync returns errors of the execution.
// The methods of a stream must not be called concurrently.
type Stream interface {
	Name() string
	Launch(l Launch) error
	// Copy copies src to dst. The views have equal shapes and dtypes. Their strides may be arbitrary, and each view
	// may be shared memory of a peer.
	Copy(dst, src View) error
	// Upload and Download copy between dense host bytes and device memory. The host bytes must not be changed or read
	// until the work has finished.
	Upload(dst View, src []byte) error
	Download(dst []byte, src View) error
	// Record makes e represent all work issued to s so far. Wait makes later work of s wait for the work that e
	// represented when Wait was called. Waiting for an event that was never recorded is an error.
	Record(e Event) error
	Wait(e Event) error
	// Signal adds by to c[elem] after all earlier work of s. The writes of that work are then visible to streams that
	// wait for the counter. c may belong to a peer.
	Signal(c Counters, elem int, by int64) error
	// WaitCounter makes later work of s wait until c[elem] >= least. c must belong to this device.
	WaitCounter(c Counters, elem int, least int64) error
	// Begin and End mark the begin and end of one command's work in the trace. The caller chooses id, which the world's
	// observer receives.
	Begin(id int64) error
	End(id int64) error
	// Call makes the stream call a Go function after its earlier work. It requires Caps.HostCalls.
	Call(f func()) error
	// PrepareLaunches reserves the resources that the stream needs for the launches in list, so that issuing them
	// allocates no memory.
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
	// Launch enqueues the graph. The graph runs after all work issued so far, and before all work issued later, on all
	// streams.
	Launch(ctx context.Context) error
	// Close frees the graph; no launch of it may still run.
	Close() error
	// Forms returns the names of the forms in which the graph can be launched. All forms compute the same results, but
	// their speed can be found only by measurement. The first form is used until Choose selects another. Forms returns
	// nil if the graph can be launched in one form only.
	Forms() []string
	Choose(form int)
	// Keep selects a form permanently and frees the other forms; no launch may be running.
	Keep(form int) error
}

// Fault is a failure of work on a device.
type Fault struct {
	Rank   int
	Stream string
	ID     int64 // id of the innermost Begin mark; -1 for none
	Last   int64 // if greater than ID, the failed mark is one of ID to Last
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
	ID     int64  // id of the innermost Begin mark; -1 for none
	On     string // the condition that the stream waits for, for example "counter 3 ≥ 2 (now 1)"
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
