// Package image resolves plans on a machine.
//
// An Image is a loaded plan: a world, its memory, and a list of commands with everything that the plan refers to:
// views, prepared launches, streams, events and channels of collectives. After Build has returned, only the internal
// state of the machine's objects changes until Close.
//
// Build works in stages. Each stage is a function of the results of earlier stages: streams, events and counters
// (build.go); parameters that can remain on the devices (params.go); locations of buffers (memory.go); channels and
// pairs (channels.go); launches that execute several commands (groups.go); commands (commands.go). Relocate resolves
// commands again for single runs (relocate.go).
package image

import (
	"errors"
	"log/slog"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/fuse"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
)

// ErrBudget is wrapped by the error for a plan that needs more device memory than Options.MaxArena.
var ErrBudget = errors.New("more than the budget")

// UnknownAlgorithm reports that Options.Algorithm is not the name of an algorithm, and lists the names.
type UnknownAlgorithm struct{ Err error }

// ErrAlgorithm matches every *UnknownAlgorithm in errors.Is.
var ErrAlgorithm = errors.New("this machine has no such algorithm")

// Is reports whether target is ErrAlgorithm.
func (e *UnknownAlgorithm) Is(target error) bool { return target == ErrAlgorithm }

// Error returns a message that lists the names.
func (e *UnknownAlgorithm) Error() string { return e.Err.Error() }

// CheckAlgorithm returns an error for a name that no algorithm has on a kind of machine. It accepts all names for kinds
// that are not registered: their worlds know the algorithms. processes reports whether there are several processes.
func CheckAlgorithm(name, kind string, processes bool) error {
	k, err := device.KindNamed(kind)
	if name == "" || err != nil {
		return nil
	}
	if err := comm.CheckName(name, k.Algorithms, processes); err != nil {
		return &UnknownAlgorithm{err}
	}
	return nil
}

// Options configures how a plan is resolved; the zero value is usable.
type Options struct {
	// Logger receives progress messages at debug level; may be nil.
	Logger *slog.Logger
	// MaxArena is the largest device memory in bytes that a rank may reserve for its arena and for the staging of
	// collectives together; 0 means no limit.
	MaxArena int64
	// Algorithm names the algorithm to try first for collectives that do not pin one. If it is empty, the fastest known
	// algorithm is used.
	Algorithm string
	// Fixed restricts the algorithms to those whose result bits depend neither on the batch size nor on measurements:
	// see device.Linear.Fixed and comm.Policy.
	Fixed bool
	// Gather makes every process receive the output blocks of the other processes. At the end of a batch the processes
	// then wait for each other. Without Gather, a global output exists only in a process whose ranks hold all its
	// elements; see exec.Result.Local.
	Gather bool
	// MadeOf returns lines that say from which program and options the plan was made; may be nil. If plans of processes
	// differ, the error has the first line that differs.
	MadeOf func() []string
	// Sparing prefers algorithms of collectives that need little memory in addition to the operands.
	Sparing bool
	// Timed makes Build fail with a *device.TrialError if there is too little memory to time the algorithms of a GEMM.
	// Without Timed, the GEMM uses the first algorithm that the library suggests.
	Timed bool
	// Store holds the parameters that Weights names, and shares them with other programs; it may be nil. Weights that
	// are arguments of runs do not use the store.
	Store   *resident.Weights
	Weights map[string]bool
	// Resident stores parameters in device tensors, if the plan's commands can use them in place. Runs must then have
	// these tensors as arguments and, for inout parameters, also as results. The tensors must outlive the image.
	Resident map[string]*resident.DeviceTensor
	// NoChains runs each command by itself, even if the machine could run several as one kernel. The result bits are the
	// same.
	NoChains bool
	// CheckLaunches detects undeclared reads and writes of the user's kernels, on machines that do not always do so.
	CheckLaunches bool
}

// Image is a plan resolved on a machine.
type Image struct {
	Plan  *plan.Plan
	World device.World
	Caps  device.Caps

	// Inputs and Outputs are the plan's inputs and outputs, without absent blocks. Blocks of all inputs are numbered
	// consecutively, and so are blocks of all outputs.
	Inputs, Outputs []plan.IO
	// FirstBlock holds, by parameter, the index of the input's first block. For an input without blocks it is the index of
	// the next input's first block.
	FirstBlock map[string]int

	Streams []device.Stream
	Cmds    []Command // resolved commands, by the index of the command in the plan
	// Own lists, in order, the commands that this process issues: the commands of its own ranks.
	Own []int
	// Groups maps the index of each command that is executed by a launch of several commands to its Group.
	Groups map[int]*Group

	// columns holds the buffers of scales that are stored by columns: see fuse.ScalesByColumns.
	columns map[[2]int32]bool
	late    []bool // by stream: see lateStreams

	// Uploads holds, by input, the commands that upload it, one for each rank, if runs need not repeat the upload
	// because the input remains unchanged on the devices. The entry is nil for an input that commands write to.
	Uploads [][]int
	// Residents holds, by input, the device tensor that contains it, or nil. Stays reports, by output block, whether
	// the block is computed in its device tensor, so that no copy is needed.
	Residents []*resident.DeviceTensor
	Stays     []bool
	// MovableIn and MovableOut report, by input and output block, whether a run may use the caller's memory for the
	// block: see Relocate.
	MovableIn, MovableOut []bool
	// Shared holds, by input, its weight in Options.Store, or nil.
	Shared []*resident.Weight

	// Algorithms holds the algorithms of the plan's collectives.
	Algorithms []string
	// Guesses names the GEMMs whose algorithm was not timed (see device.Status).
	Guesses []string
	// PassedOver is the reason why an existing tuned table of collectives was not used; empty if the table was used.
	PassedOver string

	opts     Options
	held     *device.Held // the largest Held of all processes, after the load; nil if there is only one process
	memory   memory
	channels []*comm.Channel
}

// Command is a resolved plan.Cmd, with only the data that are needed to issue it.
type Command struct {
	Kind   plan.Kind
	Marked bool // whether marks bracket the command
	Stream device.Stream
	// for Compute: the launch, or nil if there is nothing to compute; for Copy: the launch, if a kernel copies
	Launch   device.Launch
	Dst, Src device.View // Copy; Input: Dst; Output: Src
	Event    device.Event
	Counters device.Counters
	Elem     int
	Value    int64 // for WaitCounter: the value to wait for in run 0
	PerRun   int64
	Channel  *comm.Channel
	Seq      int
	Part     int // for Collective: index of the member; for Input and Output: index of the block
	Group    *comm.Group
}

// Group is a group of commands that one launch executes.
type Group struct {
	Members []int
	Name    string // the names of the members' operations, for example "silu+mul"
	// kernel returns the kernel of the launch, with its operands in a builder's image; nil for a team's launch.
	kernel func(*builder) device.Kernel
}

// Close closes the world, frees all memory, and returns borrowed weights to their store.
func (im *Image) Close() error {
	errs := []error{im.World.Close()}
	for i, w := range im.Shared {
		if w != nil {
			errs = append(errs, im.opts.Store.Give(w))
			im.Shared[i] = nil
		}
	}
	return errors.Join(errs...)
}

// Held returns the memory that the image has allocated. If its world is spread over processes, Held returns the value
// of the process that had allocated the most memory when the image was loaded, so that all processes choose the same
// plans to unload.
func (im *Image) Held() device.Held {
	if im.held != nil {
		return *im.held
	}
	return im.World.Held()
}

// Logger returns Options.Logger, or a logger that discards.
func (im *Image) Logger() *slog.Logger { return im.opts.Logger }

// ArenaBytes returns the size of each rank's arena: the plan's arena without the buffers that are stored elsewhere.
func (im *Image) ArenaBytes() int64 { return im.memory.arenaBytes(im.Plan) }

// StagingBytes returns the memory that collectives reserve on the rank that reserves most.
func (im *Image) StagingBytes() int64 { return im.memory.staging }

// stored reports whether a buffer is in the store. No kernel writes a buffer in the store; only an upload before the
// kernels of a run does.
func (im *Image) stored(buf int32) bool {
	for i, w := range im.Shared {
		if w != nil && im.Inputs[i].Parts[0].Ref.Buf == buf {
			return true
		}
	}
	return false
}

// unwritten reports whether a buffer is a device tensor that runs read but do not write. The caller may write it before
// a run, on the stream on which the run is enqueued.
func (im *Image) unwritten(buf int32) bool {
	for i, t := range im.Residents {
		if t != nil && !im.Inputs[i].Inout && im.Inputs[i].Parts[0].Ref.Buf == buf {
			return true
		}
	}
	return false
}

// lateStreams reports, by stream, whether the first kernel of a run begins only when all earlier work on the stream
// has ended, including the caller's. A kernel of a collective may begin earlier. Later kernels begin after the first
// one has begun, even if they begin before their predecessors have ended.
func lateStreams(p *plan.Plan) []bool {
	late, known := make([]bool, len(p.Streams)), make([]bool, len(p.Streams))
	for i := range p.Cmds {
		c := &p.Cmds[i]
		kernel := c.Kind == plan.Compute && writes(c)
		if !known[c.Stream] && (kernel || c.Kind == plan.Collective || c.Kind == plan.Group) {
			known[c.Stream], late[c.Stream] = true, kernel
		}
	}
	return late
}

// WorksIn reports whether the input or output with the given name is stored in t.
func (im *Image) WorksIn(name string, t *resident.DeviceTensor) bool {
	for i, r := range im.Residents {
		if r == t && im.Inputs[i].Name == name {
			return true
		}
	}
	return false
}

// View returns the view of r in the image's memory.
func (im *Image) View(r plan.Ref) device.View {
	b := &im.Plan.Buffers[r.Buf]
	v := device.View{DType: r.DType, Shape: r.Shape, Strides: r.Strides}
	if im.columns[[2]int32{r.Rank, r.Buf}] {
		v.Strides = byColumns(r.Shape)
	}
	if lent := im.memory.lent[place{r.Rank, r.Buf}]; lent != nil {
		v.Mem, v.Off = lent, r.Off
		return v
	}
	if b.Space == plan.Host {
		v.Mem, v.Off = im.memory.host[r.Rank], b.Offset+r.Off
		return v
	}
	v.Mem, v.Off = im.memory.arenas[r.Rank], b.Offset-im.memory.gapsBelow(b.Offset)+r.Off
	return v
}

// byColumns returns the strides of a dense tensor whose last dimension varies slowest, and whose other dimensions are in
// row-major order.
func byColumns(shape []int64) []int64 {
	strides, step := make([]int64, len(shape)), int64(1)
	for d := len(shape) - 2; d >= 0; d-- {
		strides[d], step = step, step*shape[d]
	}
	strides[len(shape)-1] = step
	return strides
}

// Views returns the views of all refs.
func (im *Image) Views(refs ...plan.Ref) []device.View {
	vs := make([]device.View, len(refs))
	for i, r := range refs {
		vs[i] = im.View(r)
	}
	return vs
}

// memory records where the buffers are on each rank.
type memory struct {
	arenas []device.Memory
	host   []device.Memory // by rank: memory of buffers in host memory; nil if the rank has no such buffer
	// lent holds the memory of blocks in the store or in device tensors, and of buffers of a private arena that peers
	// access.
	lent    map[place]device.Memory
	gaps    []gap // gaps that lent blocks leave in the plan's arena, sorted by offset
	staging int64 // size of the staging of collectives, on the rank where it is largest
}

// place identifies a buffer of a rank.
type place struct{ rank, buf int32 }

// gap is an interval of bytes of the plan's arena that the image's arena omits.
type gap struct{ at, bytes int64 }

// arenaBytes returns the size of the image's arena.
func (m *memory) arenaBytes(p *plan.Plan) int64 { return p.ArenaBytes - m.gapsBelow(p.ArenaBytes) }

// gapsBelow returns the total size of the gaps below an offset in the plan's arena.
func (m *memory) gapsBelow(at int64) int64 {
	sum := int64(0)
	for _, g := range m.gaps {
		if g.at >= at {
			break
		}
		sum += g.bytes
	}
	return sum
}

// builder is an Image under construction, together with data that only the stages of its construction use.
type builder struct {
	im      *Image
	machine string // the machine's name

	events   []device.Event
	counters [][]device.Counters // indexed by counter of the plan, then by rank
	pairs    *comm.Pairs
	// by collective: all_reduces that a team may fuse with the add and the rms_norm after them
	found map[int32]*fuse.Norm

	inputBlocks, outputBlocks map[ioKey]int
}

// ioKey identifies one rank's block of an input or output.
type ioKey struct{ io, rank int32 }
