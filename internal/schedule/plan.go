// Package schedule models collective schedules that other tools wrote, and decides whether they are right.
//
// A Plan is what a reader (packages mscclpp and msccl) makes of a file: the memory of all ranks as cells, and for each
// thread block a list of operations that move cells, wait, signal or meet. Check finds deadlocks, data races and wrong
// results of one launch or of two; Run executes a plan on data in a random interleaving.
package schedule

import (
	"fmt"
	"slices"
	"strconv"

	"hocket.example/hocket/internal/schedule/clock"
)

// Plan is a schedule of all ranks. Cells are numbered over all ranks; a chunk of a buffer is Parts cells.
type Plan struct {
	Name       string
	Collective Collective
	InPlace    bool
	Ranks      int
	Shift      int // of alltonext: rank r gets the input of rank r+Shift
	Parts      int
	// Cells are the input's and output's, then from ScratchBase on the scratch of each rank, then from MessageBase on
	// messages. With Double, launches use the two halves of each rank's scratch, Half cells each, in turn.
	Cells, ScratchBase, MessageBase int
	Half                            int
	Double                          bool

	Buffers  []Buffer
	Blocks   []Block
	Counters []Counter
	Engines  []Engine
	// Notes are what a reader found odd and a launch survives.
	Notes []string
	// Fault is what makes every launch wrong, found while reading: an operand outside its buffer.
	Fault *Finding

	index      map[bufferKey]*Buffer
	ops, moved int // all operations, and the cells that they access
	packets    bool
}

type bufferKey struct {
	rank int
	kind BufferKind
}

// Collective is what a plan is to compute.
type Collective string

const (
	AllReduce     Collective = "all_reduce"
	AllGather     Collective = "all_gather"
	ReduceScatter Collective = "reduce_scatter"
	AllToAll      Collective = "all_to_all"
	Broadcast     Collective = "broadcast"
	SendRecv      Collective = "sendrecv"
	ToNext        Collective = "alltonext"
	Undefined     Collective = "" // no result is defined: only races and deadlocks are judged
)

// BufferKind says whose a buffer is.
type BufferKind byte

const (
	Input   BufferKind = 'i'
	Output  BufferKind = 'o'
	Scratch BufferKind = 's'
	Message BufferKind = 'm' // what a connection holds between a send and its receive
)

func (k BufferKind) String() string {
	switch k {
	case Input:
		return "input"
	case Output:
		return "output"
	case Scratch:
		return "scratch"
	}
	return "message"
}

// Buffer is a range of a rank's cells. Input and output may overlap.
type Buffer struct {
	Rank  int
	Kind  BufferKind
	Base  int
	Cells int
}

// Block is a thread block: one instruction stream of all its threads.
type Block struct {
	Rank, ID int
	Ops      []Op
}

// Counter is what waits and signals count: a channel's inbound signals, a semaphore, a block's progress.
type Counter struct {
	Name string
	Init int
	Kept bool // it outlives the launch: what is not taken is there in the next one
}

// Engine is a proxy that performs the puts of one port channel in order, after they were posted.
type Engine struct {
	Rank int
	Name string
}

// OpKind is how an operation takes part in the order of its block.
type OpKind byte

const (
	Data   OpKind = iota // all threads move cells; nothing orders it against the block's other operations
	Sync                 // single threads ("lanes") wait or signal
	Join                 // all threads of the block meet: everything before is before everything after
	Gather               // thread blocks of a rank meet
)

// Op is an operation of a block.
type Op struct {
	Kind  OpKind
	Name  string // as the format calls it
	Index int    // in the block's list
	Inner int    // within a pipeline, else -1
	Turn  int    // of a pipeline
	Moves []Move
	Lanes []Lane
	Meet  int // Gather: which barrier of the plan
	Size  int // Gather: how many blocks meet
}

// Move sets each cell of each destination to the sum of the sources' cells.
type Move struct {
	From, To []Span
	Engine   int // that performs it, -1 for the block's threads
	Lane     int // the thread that posts it to the engine
}

// Mode says how an operand's cells are accessed.
type Mode byte

const (
	Plain  Mode = iota
	Packet      // data with flags: a reader waits for the flags of this launch
	Raw         // packets copied as bytes, flags too, without looking at the flags
)

// Span is an operand: N cells from Cell on; packets take two cells each.
type Span struct {
	Cell, N int
	Mode    Mode
}

// width is how many cells an element of the span takes.
func (s Span) width() int {
	if s.Mode == Plain {
		return 1
	}
	return 2
}

// origin is equal for operands that begin at the same cell and whose elements are equally wide: the same thread of a
// block handles the element at a cell in both.
func (s Span) origin() int { return 2*s.Cell + s.width() - 1 }

// LaneKind is what a lane does.
type LaneKind byte

const (
	Add   LaneKind = iota // adds one to a counter
	Take                  // waits for one more of a counter than it has taken
	Await                 // waits until a counter is at least Value
	Flush                 // waits until an engine has done all that was posted
)

// Never as the Value of an Await is a wait that does not end.
const Never = 1 << 30

// Lane is one thread's part in a Sync.
type Lane struct {
	Kind    LaneKind
	Thread  int
	Counter int
	Value   int
	Relaxed bool // counts without ordering memory
	Engine  int  // the engine that adds after its earlier puts, or that is flushed; -1 for none
}

// Place is an operation's position in its file.
type Place struct {
	Rank  int    `json:"rank"`
	Block int    `json:"tb"`
	Index int    `json:"op"`
	Inner int    `json:"inner,omitempty"` // within a pipeline, counted from 1; 0 for none
	Name  string `json:"name"`
}

func (p Place) String() string {
	s := fmt.Sprintf("rank %d, tb %d, op %d", p.Rank, p.Block, p.Index)
	if p.Inner > 0 {
		s += fmt.Sprintf(".%d", p.Inner-1)
	}
	if strconv.Quote(p.Name) != `"`+p.Name+`"` || len(p.Name) > 40 {
		return s + fmt.Sprintf(" (%.40q)", p.Name)
	}
	return s + " (" + p.Name + ")"
}

func (p *Plan) place(block int, o *Op) Place {
	b := &p.Blocks[block]
	return Place{Rank: b.Rank, Block: b.ID, Index: o.Index, Inner: o.Inner + 1, Name: o.Name}
}

// cellName names a cell by its buffer: "scratch 3 of rank 1", with the part of the chunk where there are several.
// Where input and output share it, the input's name counts.
func (p *Plan) cellName(cell int) string {
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if cell < b.Base || cell >= b.Base+b.Cells {
			continue
		}
		return p.chunkName(b, cell-b.Base)
	}
	return fmt.Sprintf("cell %d", cell)
}

func (p *Plan) chunkName(b *Buffer, cell int) string {
	s := fmt.Sprintf("%s chunk %d of rank %d", b.Kind, cell/p.Parts, b.Rank)
	if p.Parts > 1 {
		s += fmt.Sprintf(" (part %d of %d)", cell%p.Parts+1, p.Parts)
	}
	return s
}

// buffer returns the buffer of a kind that a rank has; nil for none.
func (p *Plan) buffer(rank int, kind BufferKind) *Buffer {
	if p.index == nil {
		p.index = map[bufferKey]*Buffer{}
		for i := range p.Buffers {
			b := &p.Buffers[i]
			p.index[bufferKey{b.Rank, b.Kind}] = b
		}
	}
	return p.index[bufferKey{rank, kind}]
}

// Limits of plans: what is within takes less than 2 GiB of the host, and less than about a minute.
const (
	MaxCells  = 1 << 22
	maxOps    = 1 << 21
	maxMoved  = 1 << 28
	maxAgents = 1 << 15
)

// Within returns an error if a plan is larger than the limits. Readers ask it while they build one.
func (p *Plan) Within() error {
	agents := len(p.Blocks) + len(p.Engines) + p.Ranks
	switch {
	case p.Cells > MaxCells:
		return fmt.Errorf("the plan's buffers have more than %d parts of chunks", MaxCells)
	case agents > maxAgents:
		return fmt.Errorf("the plan has more than %d thread blocks and port channels", maxAgents)
	case p.ops > maxOps || p.ops*(agents/clock.PageSize+1) > 1<<31:
		return fmt.Errorf("the plan has more than %d operations, those of a pipeline counted for each turn", p.ops-1)
	case p.moved > maxMoved:
		return fmt.Errorf("the plan's operations move more than %d parts of chunks", maxMoved)
	}
	return nil
}

// Add appends an operation to the last block.
func (p *Plan) Add(o Op) error {
	b := &p.Blocks[len(p.Blocks)-1]
	b.Ops = append(b.Ops, o)
	p.ops++
	for i := range o.Moves {
		for _, sp := range slices.Concat(o.Moves[i].From, o.Moves[i].To) {
			p.moved += sp.N * sp.width()
			p.packets = p.packets || sp.Mode != Plain
		}
	}
	return p.Within()
}
