// Package image resolves plans on a machine.
//
// An Image is a loaded plan: a world, its memory, and a list of commands with everything that the plan refers to:
// views, prepared launches, streams, events and channels of collectives. After Build has returned, an Image does not
// change until Close, except for the internal state of the machine's objects.
//
// Build works in stages. Each is a function of the results of earlier stages: streams, events and counters (build.go);
// parameters that can stay on the devices (params.go); places of buffers (memory.go); channels and pairs
// (channels.go); launches that do several commands at once (groups.go); commands (commands.go). Relocate resolves
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

// ErrBudget is wrapped by errors that say that a plan needs more device memory than
// Options.MaxArena.
var ErrBudget = errors.New("more than the budget")

// UnknownAlgorithm says that Options.Algorithm names none, and which there are.
type UnknownAlgorithm struct{ Err error }

// ErrAlgorithm is what every *UnknownAlgorithm is.
var ErrAlgorithm = errors.New("there is no such algorithm")

// Is reports whether target is ErrAlgorithm.
func (e *UnknownAlgorithm) Is(target error) bool { return target == ErrAlgorithm }

// Error lists the names.
func (e *UnknownAlgorithm) Error() string { return e.Err.Error() }

// Options choose how a plan is resolved; the zero value is usable.
type Options struct {
	// Logger gets progress at debug level; nil for none.
	Logger *slog.Logger
	// MaxArena bounds the device memory that a rank may reserve, arena and
	// staging of collectives together, in bytes; 0 for no bound.
	MaxArena int64
	// Algorithm names the algorithm of collectives to try first, for those that
	// pin none; empty for what is known to be the fastest.
	Algorithm string
	// Fixed uses only algorithms whose bits do not depend on the batch, nor on measurements: see device.Product.Fixed
	// and comm.Policy.
	Fixed bool
	// Sparing has collectives take little memory besides their operands, where an algorithm does.
	Sparing bool
	// Timed has Build fail with a *device.TrialError where there is no memory to find the
	// fastest algorithm of a product in, rather than take the library's first guess.
	Timed bool
	// Store keeps the bytes of Weights, parameters by name, for this program and others;
	// nil for none. Which parameters runs are given as weights does not depend on it.
	Store   *resident.Weights
	Weights map[string]bool
	// Resident has parameters lie in device tensors, where the plan can work with them there:
	// runs must be given these, and for inout parameters as what to leave them in.
	// They must outlive the image.
	Resident map[string]*resident.DeviceTensor
	// NoChains runs each command by itself, where the machine could run several as
	// one kernel. The bits are the same.
	NoChains bool
	// CheckLaunches looks for what kernels of the user's read and write undeclared, where the machine
	// does not always.
	CheckLaunches bool
}

// Image is a plan resolved on a machine.
type Image struct {
	Plan  *plan.Plan
	World device.World
	Caps  device.Caps

	// Inputs and Outputs are the plan's, without absent blocks. Blocks are numbered through
	// all inputs, and through all outputs.
	Inputs, Outputs []plan.IO
	// FirstBlock is, by parameter, the first block of each input; of one that has none that
	// of the next.
	FirstBlock map[string]int

	Streams []device.Stream
	Cmds    []Command // those of the plan
	// Own are the commands that this process issues, in order: those of its own ranks.
	Own []int
	// Groups are launches that do several commands, by command.
	Groups map[int]*Group

	// Uploads are, by input, the commands that upload it, a rank each, where a run need not:
	// the input stays as it is on the devices. Nil for an input that is written to.
	Uploads [][]int
	// Residents are the device tensors that contain inputs; nil for others. Stays says which blocks of outputs are
	// already in one.
	Residents []*resident.DeviceTensor
	Stays     []bool
	// MovableIn and MovableOut tell which blocks of inputs and outputs runs may have elsewhere: see Relocate.
	MovableIn, MovableOut []bool
	// Shared are inputs' places in Options.Store, nil for others.
	Shared []*resident.Weight

	// Algorithms are those of the plan's collectives.
	Algorithms []string
	// Guesses names the products that run by a guess (see device.Status).
	Guesses []string
	// PassedOver says why a tuned table of collectives that there is was not used.
	PassedOver string

	opts     Options
	held     *device.Held // of the process with the most, once loaded; nil where there is one process
	memory   memory
	channels []*comm.Channel
}

// Command is a resolved plan.Cmd: what issuing it needs and no more.
type Command struct {
	Kind     plan.Kind
	Marked   bool // bracketed by marks
	Stream   device.Stream
	Launch   device.Launch // Compute, nil when there is nothing to compute; Copy by a kernel
	Dst, Src device.View   // Copy; Input: Dst; Output: Src
	Event    device.Event
	Counters device.Counters
	Elem     int
	Value    int64 // WaitCounter, in run 0
	PerRun   int64
	Channel  *comm.Channel
	Seq      int
	Part     int // Collective: member; Input, Output: number of the block
	Group    *comm.Group
}

// Group is commands that one launch does.
type Group struct {
	Members []int
	Name    string // of all of them: "silu+mul"
	// kernel is what the launch computes where a builder's image has its operands; nil for a team's launch.
	kernel func(*builder) device.Kernel
}

// Close ends the world, frees everything and gives back what the image borrowed.
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

// Held is the memory that the image has taken; where its world is spread over processes, what the
// one with the most had taken when it was loaded, since all must drop the same plans.
func (im *Image) Held() device.Held {
	if im.held != nil {
		return *im.held
	}
	return im.World.Held()
}

// Logger is Options.Logger, or one that discards.
func (im *Image) Logger() *slog.Logger { return im.opts.Logger }

// ArenaBytes is the size of each rank's arena: the plan's, less what lies elsewhere.
func (im *Image) ArenaBytes() int64 { return im.memory.arenaBytes(im.Plan) }

// StagingBytes is what collectives reserve on the rank with the most.
func (im *Image) StagingBytes() int64 { return im.memory.staging }

// constant reports whether a buffer lies in the store. No plan writes these: a copy does,
// before the kernels of a run, if at all.
func (im *Image) constant(buf int32) bool {
	for i, w := range im.Shared {
		if w != nil && im.Inputs[i].Parts[0].Ref.Buf == buf {
			return true
		}
	}
	return false
}

// WorksIn reports whether t is what an input or output lies in.
func (im *Image) WorksIn(name string, t *resident.DeviceTensor) bool {
	for i, r := range im.Residents {
		if r == t && im.Inputs[i].Name == name {
			return true
		}
	}
	return false
}

// View returns where r lies.
func (im *Image) View(r plan.Ref) device.View {
	b := &im.Plan.Buffers[r.Buf]
	v := device.View{DType: r.DType, Shape: r.Shape, Strides: r.Strides}
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

// Views are those of all refs.
func (im *Image) Views(refs ...plan.Ref) []device.View {
	vs := make([]device.View, len(refs))
	for i, r := range refs {
		vs[i] = im.View(r)
	}
	return vs
}

// memory is where buffers lie on each rank.
type memory struct {
	arenas  []device.Memory
	host    []device.Memory         // by rank, Space Host; nil where it has none
	lent    map[place]device.Memory // what lies in the store or in device tensors, and
	gaps    []gap                   // what would be its place in the arena, by address
	staging int64                   // of collectives, on the rank with the most
}

// place is a buffer on a rank.
type place struct{ rank, buf int32 }

// gap is a stretch of the plan's arena that the image's arena lacks.
type gap struct{ at, bytes int64 }

// arenaBytes is the size of the image's arena.
func (m *memory) arenaBytes(p *plan.Plan) int64 { return p.ArenaBytes - m.gapsBelow(p.ArenaBytes) }

// gapsBelow is how much of the gaps lies below an offset in the plan's arena.
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

// builder is an image while it is built, and what only its stages need of each other.
type builder struct {
	im      *Image
	machine string // its name

	events   []device.Event
	counters [][]device.Counters // by plan counter, rank
	pairs    *comm.Pairs
	found    map[int32]*fuse.Norm // that teams were asked about, by collective

	inputBlocks, outputBlocks map[ioKey]int
}

// ioKey names one rank's block of an input or output.
type ioKey struct{ io, rank int32 }
