// Package plan defines plans. A plan is the flat list of resolved commands that a program becomes once its dims are
// bound and its memory is laid out.
//
// A plan is plain data, the same on every machine: no pointer, no map, no handle. It contains everything that ranks
// must agree on (offsets, channels, signal counts). Plans with the same Hash are equal.
package plan

import (
	"slices"

	"hocket.example/hocket/ir"
)

// Plan is one program made concrete for all ranks of a world.
type Plan struct {
	Program string // source name
	Func    string
	Ranks   int
	Dims    []Dim // sorted by name

	// Sites are the program places that commands come from.
	Sites []Site
	// Streams of all ranks. Main[r] is the index of rank r's caller's stream.
	Streams []Stream
	Main    []int32
	// Events is the number of event slots. Each slot is recorded by exactly
	// one command, which precedes each of its waits in Cmds.
	Events int
	// Counters declared by the program.
	Counters []Counter
	// Channels carry collectives: one per (team, stream).
	Channels []Channel
	// Colls are the instances of collectives, in order of first issue.
	Colls []Coll
	// Pairs are the matched send/recv pairs.
	Pairs []Pair
	// Buffers are everything commands touch. Buffers[i] lies at the same
	// offset on every rank that has it.
	Buffers []Buffer
	// ArenaBytes is the size of each rank's arena.
	ArenaBytes int64
	// HostBytes is the size of each rank's stretch of pinned host memory, in
	// which the buffers of Space Host have their offsets.
	HostBytes int64

	// Launches are what commands of OpLaunch launch, of Kernels.
	Launches []Launch
	Kernels  []Kernel

	// Inputs and Outputs in the order of the signature; an inout parameter is
	// both, and its Output comes after the results.
	Inputs, Outputs []IO

	// Cmds is the world list: the commands of all ranks merged in an order in
	// which every rank's commands keep their issue order, every event record
	// precedes its waits, and every signal precedes the waits it satisfies
	// unless those are marked Late.
	Cmds []Cmd

	Memory Memory
}

// Dim is a bound dim.
type Dim struct {
	Name  string
	Value int64
}

// Site is a statement of the program.
type Site struct {
	Pos  ir.Pos
	Op   ir.Op
	Text string // the statement's header, printed
}

// Stream is one stream of one rank.
type Stream struct {
	Rank int32
	Name string // "main", "%s[1]"
	// High asks for a high-priority stream; Low for a low one.
	High, Low bool
}

// Counter is an array of counters that every rank has.
type Counter struct {
	Name string
	Len  int32
	// PerRun[rank*Len+elem] is how many signals raise the element in each run.
	// The element's value in run k counts from k·PerRun.
	PerRun []int64
}

// Channel is a sequence of collectives of one team on one stream of each member.
type Channel struct {
	Team    []int32 // ranks in team order
	Streams []int32 // Streams[i] is Team[i]'s stream
}

// Coll is one instance of a collective: what all its members do together.
type Coll struct {
	Op      ir.Op // a collective or OpBarrier
	Channel int32
	Seq     int32 // position in the channel, from 0, in each run
	Red     ir.Red
	Root    int32 // team index, for rooted ops
	Axis    int32 // concatenation or split axis (all_to_all: concat)
	Split   int32 // all_to_all: the axis cut
	AnyOrd  bool  // order=any was asked for
	Algo    string
	CTAs    int32 // blocks it may take on a GPU; 0 for any number
	// Parts[i] is what Team[i] does.
	Parts []CollPart
}

// CollPart is one member's share of a collective. In or Out is empty
// (NoBuffer) where the member reads or writes nothing.
type CollPart struct {
	In, Out Ref
	To      int32 // permute: team index that gets In; -1 for none
	From    int32 // permute: team index that Out comes from; -1 for none
	// An uneven collective has counts of rows along Axis, one for each member:
	// known when planned, in Rows; or in device memory, where Counts is one
	// i32 tensor that is read when the collective runs. Then no count need fit
	// before it is looked at.
	Rows   []int64
	Counts []Ref
}

// Reads lists what the member reads.
func (p *CollPart) Reads() []Ref {
	if p.In.Present() {
		return append([]Ref{p.In}, p.Counts...)
	}
	return p.Counts
}

// Pair is one matched send and recv.
type Pair struct {
	Src, Dst Ref
}

// P2P is one side of a Pair within a group.
type P2P struct {
	Pair int32
	Send bool
}

// NoBuffer marks an absent Ref.
const NoBuffer int32 = -1

// Ref is a tensor in one rank's memory: Shape and Strides count elements of
// DType, Off counts bytes from the start of the buffer.
type Ref struct {
	Rank    int32
	Buf     int32 // index in Plan.Buffers; NoBuffer: absent
	DType   ir.DType
	Off     int64
	Shape   []int64
	Strides []int64
}

// Absent is the Ref of nothing.
func Absent() Ref { return Ref{Buf: NoBuffer} }

// Present reports whether r refers to anything.
func (r Ref) Present() bool { return r.Buf != NoBuffer }

// Elements returns the number of elements.
func (r Ref) Elements() int64 {
	n := int64(1)
	for _, e := range r.Shape {
		n *= e
	}
	return n
}

// Bytes returns the bytes of the elements, gaps not counted.
func (r Ref) Bytes() int64 { return r.Elements() * r.DType.Size() }

// Dense reports whether the elements lie in row-major order without gaps.
func (r Ref) Dense() bool {
	want := int64(1)
	for i := len(r.Shape) - 1; i >= 0; i-- {
		if r.Shape[i] == 0 {
			return true
		}
		if r.Shape[i] != 1 && r.Strides[i] != want {
			return false
		}
		want *= r.Shape[i]
	}
	return true
}

// Span returns the byte range [lo, hi) from the buffer's start that the
// elements lie in.
func (r Ref) Span() (lo, hi int64) {
	last := int64(0)
	for i, e := range r.Shape {
		if e == 0 {
			return r.Off, r.Off
		}
		last += (e - 1) * r.Strides[i]
	}
	return r.Off, r.Off + (last+1)*r.DType.Size()
}

// Space says which memory a buffer lies in.
type Space uint8

// Memory spaces.
const (
	Arena Space = iota // device memory, at Offset in the rank's arena
	Host               // pinned host memory
)

// Role says what a buffer is for.
type Role uint8

// Roles.
const (
	RoleInput  Role = iota // holds a parameter; written by the caller
	RoleAlloc              // an alloc of the program
	RoleValue              // made for a value (S3)
	RoleOutput             // RoleAlloc or RoleValue that a result is read from
)

// Buffer is one stretch of memory, at one offset on all ranks that have it.
type Buffer struct {
	Name      string // "%p", with its iteration where it has one: "%p@3"
	Site      int32
	Space     Space
	Role      Role
	Symmetric bool
	Offset    int64 // bytes from the arena's start, a multiple of Align
	Bytes     int64 // the largest rank's need
	// First and Last are the indices in Cmds of the first and last command
	// that uses it, on any rank; -1 when none does.
	First, Last int32
}

// Align is the alignment of buffers in bytes: enough for any vector access,
// and what NCCL and cuBLASLt like best.
const Align = 256

// Aligned is what so many bytes take of an arena.
func Aligned(bytes int64) int64 { return (bytes + Align - 1) / Align * Align }

// IO is one parameter or result of the function.
type IO struct {
	Name  string // without "%"; "out", "out.0", … where a result has no name
	DType ir.DType
	Shape []int64 // global
	Parts []IOPart
	Inout bool
}

// IOPart is the block that one rank holds.
type IOPart struct {
	Ref Ref
	Lo  []int64 // where the block begins in the global tensor
}

// Cmd is one command. Kind decides which fields are used.
type Cmd struct {
	Kind   Kind
	Rank   int32
	Stream int32 // index in Plan.Streams
	Site   int32
	// Iter is the iteration path: the values of the enclosing loops'
	// variables, outermost first. Commands share slices.
	Iter []int64

	Op   ir.Op    // Compute: what it computes
	Ins  []Ref    // Compute, Copy (1), Input/Output: none
	Outs []Ref    // Compute, Copy (1)
	Attr ir.Attrs // Compute
	// Launch is one more than an index in Plan.Launches, for the Compute of an OpLaunch; else 0.
	Launch int32

	Event   int32 // Record, WaitEvent
	Counter int32 // Signal, WaitCounter
	Elem    int32 // Signal, WaitCounter: element
	Peer    int32 // Signal: rank whose counter is raised; Copy: the remote rank, or -1
	SM      bool  // Copy: by a kernel where a GPU does it, not by a copy engine
	CTAs    int32 // Copy by a kernel: blocks it may take; 0 for as many as suit the machine
	Value   int64 // WaitCounter: least value within this run
	Late    bool  // WaitCounter: some satisfying signal comes later in Cmds: only flags can realise it
	Coll    int32 // Collective: index in Colls
	Part    int32 // Collective: index in the team
	Group   []P2P // Group
	IO      int32 // Input, Output: index in Inputs or Outputs
}

// Kind is the kind of a command.
type Kind uint8

// Kinds of commands.
const (
	Compute     Kind = iota // Op on Ins into Outs
	Copy                    // Ins[0] to Outs[0], same shape and dtype; either may be a peer's (put, get)
	Collective              // this rank's part of a collective or barrier
	Group                   // sends and recvs
	Record                  // Event captures the stream's work so far
	WaitEvent               // the stream waits for Event
	Signal                  // raises Peer's counter by one after the stream's work so far
	WaitCounter             // the stream waits until its rank's counter is at least Value
	Input                   // the caller's upload of an input, on main
	Output                  // the caller's read-back of an output, on main
	numKinds
)

// String returns the kind's word.
func (k Kind) String() string {
	return [numKinds]string{"compute", "copy", "collective", "group", "record", "wait", "signal", "wait_counter", "input", "output"}[k]
}

// Kernel is a kernel of a file: CUDA C++, PTX or a cubin, by the file's name.
type Kernel struct {
	File, Name string
	Code       []byte
}

// Launch is a kernel with a grid and arguments.
type Launch struct {
	Kernel      int32 // index in Plan.Kernels
	Grid, Block [3]int64
	Shared      int64 // bytes of dynamic shared memory
	Params      []LaunchParam
}

// LaunchParam is an argument: a tensor, which is In of what the command reads or Out of what it writes, or
// the same of both; or neither, a number.
type LaunchParam struct {
	In, Out int32    // -1 for none
	DType   ir.DType // of a number
	Bits    uint64   // the number: an integer, or the bits of an f64
}

// Updates reports whether a command's j-th operand is read and written by a kernel as one argument.
func (l *Launch) Updates(j int) bool {
	return slices.ContainsFunc(l.Params, func(p LaunchParam) bool { return int(p.In) == j && p.Out >= 0 })
}

// Memory is what the planner reports of each rank's arena.
type Memory struct {
	// Inputs is the bytes of parameters, which live as long as the plan.
	Inputs int64
	// Peak is ArenaBytes: inputs and everything else as laid out.
	Peak int64
	// Bound is the most bytes live at once in issue order, inputs included:
	// no layout that keeps to the program's own lifetimes can be smaller for
	// one stream.
	Bound int64
}

// Moved returns the bytes that member i's part of a collective brings it from
// other ranks, at the least: what any algorithm must move. Of counts in device
// memory nothing is known but the capacity, which is then taken as full.
func (c *Coll) Moved(i int) int64 {
	if c.Op == ir.OpBarrier {
		return 0
	}
	p, n := &c.Parts[i], int64(len(c.Parts))
	if n <= 1 {
		return 0
	}
	switch c.Op {
	case ir.OpAllReduce:
		return 2 * p.In.Bytes() * (n - 1) / n
	case ir.OpAllGather, ir.OpAllToAll:
		return p.Out.Bytes() * (n - 1) / n
	case ir.OpReduceScatter:
		return p.Out.Bytes() * (n - 1)
	case ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
		return c.movedRows(i)
	case ir.OpReduce:
		if int32(i) == c.Root {
			return p.Out.Bytes()
		}
		return 0
	case ir.OpGather:
		if int32(i) == c.Root {
			return p.Out.Bytes() * (n - 1) / n
		}
		return 0
	case ir.OpPermute:
		if p.From == int32(i) || p.From < 0 {
			return 0
		}
		return p.Out.Bytes()
	}
	if int32(i) == c.Root { // broadcast, scatter: the root has it
		return 0
	}
	return p.Out.Bytes()
}

// movedRows is Moved of an uneven collective.
func (c *Coll) movedRows(i int) int64 {
	p, n := &c.Parts[i], int64(len(c.Parts))
	all, shape := p.Out.Bytes(), p.Out.Shape
	if len(p.Counts) > 0 || all == 0 {
		if c.Op == ir.OpReduceScatterV {
			return all * (n - 1)
		}
		return all * (n - 1) / n
	}
	row := all / shape[c.Axis]
	if c.Op == ir.OpReduceScatterV {
		return row * p.Rows[i] * (n - 1)
	}
	rows := int64(0)
	for k := range c.Parts {
		switch {
		case k == i:
		case c.Op == ir.OpAllGatherV:
			rows += p.Rows[k]
		default:
			rows += c.Parts[k].Rows[i]
		}
	}
	return row * rows
}
