// Package schedule models collective schedules that other tools wrote, and decides whether they are correct.
//
// A reader (package mscclpp or msccl) makes a Plan from a file. The Plan represents the memory of all ranks as cells,
// and holds for each thread block a list of operations that move cells, wait, signal or meet. Check finds deadlocks,
// data races and wrong results of one launch or of two. Run executes a plan on data in a random interleaving.
package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"hocket.example/hocket/internal/schedule/clock"
)

// Plan is a schedule of all ranks. Cells are numbered across all ranks; a chunk of a buffer consists of Parts cells.
type Plan struct {
	Name       string
	Collective Collective
	InPlace    bool
	Ranks      int
	Shift      int // for alltonext: rank r receives the input of rank r+Shift
	Parts      int
	// Cells is the total number of cells. The cells of inputs and outputs come first; ScratchBase is the first cell of the
	// ranks' scratch, and MessageBase the first cell of messages. If Double is set, successive launches alternate between
	// the two halves of each rank's scratch, which have Half cells each.
	Cells, ScratchBase, MessageBase int
	Half                            int
	Double                          bool

	Buffers  []Buffer
	Blocks   []Block
	Counters []Counter
	Engines  []Engine
	// Notes describes irregularities in the file that do not affect a launch.
	Notes []string
	// Fault is an error that the reader found and that makes every launch wrong, such as an operand outside of its buffer.
	Fault *Finding

	index      map[bufferKey]*Buffer
	ops, moved int // number of operations, and number of cells that they access
	packets    bool
}

type bufferKey struct {
	rank int
	kind BufferKind
}

// Collective is the name of the collective that a plan must compute.
type Collective string

const (
	AllReduce     Collective = "all_reduce"
	AllGather     Collective = "all_gather"
	ReduceScatter Collective = "reduce_scatter"
	AllToAll      Collective = "all_to_all"
	Broadcast     Collective = "broadcast"
	SendRecv      Collective = "sendrecv"
	ToNext        Collective = "alltonext"
	Undefined     Collective = "" // no result is defined; Check finds only races and deadlocks
)

// BufferKind is the kind of a buffer.
type BufferKind byte

const (
	Input   BufferKind = 'i'
	Output  BufferKind = 'o'
	Scratch BufferKind = 's'
	Message BufferKind = 'm' // memory of a connection, for messages between send and receive
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

// Buffer is a range of a rank's cells. The input and the output of a rank may overlap.
type Buffer struct {
	Rank  int
	Kind  BufferKind
	Base  int
	Cells int
}

// Block describes a thread block. All its threads execute one list of operations.
type Block struct {
	Rank, ID int
	Ops      []Op
}

// Counter is a counter on which waits and signals act: the inbound signals of a channel, a semaphore, or the progress
// of a block.
type Counter struct {
	Name string
	Unit string `json:",omitempty"` // the name of what is counted, such as "message"; "" for signals
	Init int
	Kept bool // set if signals that were not taken remain for the next launch
}

// unit returns the noun for n counted things, such as "signals".
func (c *Counter) unit(n int) string { return plural(n, cmp.Or(c.Unit, "signal")) }

// Engine is a proxy: a thread of the host that performs the puts of one port channel in order, at any time after they
// were posted.
type Engine struct {
	Rank int
	Name string
}

// OpKind determines how an operation is ordered within its block.
type OpKind byte

const (
	Data   OpKind = iota // all threads of a block move cells, in no order relative to the block's other operations
	Sync                 // single threads ("lanes") wait or signal
	Join                 // all threads of the block meet, which orders all earlier operations before all later ones
	Gather               // several thread blocks of a rank meet
)

// Op is an operation of a thread block.
type Op struct {
	Kind  OpKind
	Name  string // name of the operation in the file format
	Index int    // index in the block's list
	Inner int    // index within a pipeline, or -1
	Turn  int    // iteration of a pipeline
	Moves []Move
	Lanes []Lane
	Meet  int // for a Gather: number of the barrier
	Size  int // for a Gather: number of blocks that meet
}

// Move sets each cell of each destination to the sum of the corresponding cells of the sources.
type Move struct {
	From, To []Span
	Engine   int // the engine that performs the move; -1 for the block's threads
	Lane     int // the thread that posts the move to the engine
}

// Mode determines how an operand's cells are accessed.
type Mode byte

const (
	Plain  Mode = iota
	Packet      // the operand has flags next to its data: a reader waits for the flags of this launch
	Raw         // packets copied as bytes, including their flags, without a wait for the flags
)

// Span is an operand: N elements, the first of which is at cell Cell. An element that is stored as a packet occupies
// two cells.
type Span struct {
	Cell, N int
	Mode    Mode
}

// width returns the number of cells of one element of the span.
func (s Span) width() int {
	if s.Mode == Plain {
		return 1
	}
	return 2
}

// origin returns equal numbers for operands that begin at the same cell and have elements of the same width. In such
// operands, the same thread of a block processes the element at a given cell.
func (s Span) origin() int { return 2*s.Cell + s.width() - 1 }

// LaneKind is the action of a lane.
type LaneKind byte

const (
	Add   LaneKind = iota // adds one to a counter
	Take                  // waits until a counter exceeds the number of signals that were taken from it
	Await                 // waits until a counter is at least Value
	Flush                 // waits until an engine has performed all posted puts
)

// Never is the Value of an Await that waits forever.
const Never = 1 << 30

// Lane is the action of one thread in an operation of kind Sync.
type Lane struct {
	Kind    LaneKind
	Thread  int
	Counter int
	Value   int
	Relaxed bool // set if the action does not order memory
	Engine  int  // the engine that adds to the counter after its earlier puts, or that is flushed; -1 for none
}

// Place is the position of an operation in its file.
type Place struct {
	Rank  int    `json:"rank"`
	Block int    `json:"tb"`
	Index int    `json:"op"`
	Inner int    `json:"inner,omitempty"` // index within a pipeline, counted from 1; 0 for none
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

// cellName returns a name for a cell that refers to its buffer: "scratch chunk 3 of rank 1". If chunks have several
// parts, the name includes the part. If input and output share the cell, the name refers to the input. In files, the
// chunks of packets are numbered by their data, so a chunk of packets has twice as many cells as one of plain data.
func (p *Plan) cellName(cell int, mode Mode) string {
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if cell < b.Base || cell >= b.Base+b.Cells {
			continue
		}
		if mode != Plain {
			return p.chunkName(b, (cell-b.Base)/2) + " (packets)"
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

// buffer returns a rank's buffer of the given kind, or nil if the rank has none.
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

// These constants limit the size of plans. Checking a plan within the limits takes less than 2 GiB of host memory and
// less than about a minute.
const (
	MaxCells  = 1 << 22
	maxOps    = 1 << 21
	maxMoved  = 1 << 28
	maxAgents = 1 << 15
)

// Within returns an error if a plan exceeds the limits. Readers of files call Within while they build a plan.
func (p *Plan) Within() error {
	agents := len(p.Blocks) + len(p.Engines) + p.Ranks
	switch {
	case p.Cells > MaxCells:
		return fmt.Errorf("the plan's buffers have more than %d parts of chunks", MaxCells)
	case agents > maxAgents:
		return fmt.Errorf("the plan has more than %d thread blocks and port channels", maxAgents)
	case p.ops > maxOps || p.ops*(agents/clock.PageSize+1) > 1<<31:
		return fmt.Errorf("the plan has more than %d operations, with each iteration of a pipeline counted", p.ops-1)
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
