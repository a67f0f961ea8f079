// Package plan defines plans. A plan is the flat list of resolved commands that a program becomes once its dims are
// bound and its memory is laid out.
//
// A plan is plain data, the same on every machine: no pointer, no map, no handle. It contains everything that ranks
// must agree on: offsets, channels and signal counts. Plans with the same Hash execute in the same way.
package plan

import (
	"slices"

	"hocket.example/hocket/ir"
)

// Plan is a program for all ranks of a world, with all dims bound.
type Plan struct {
	Program string // source name
	Func    string
	Ranks   int
	Dims    []Dim // sorted by name

	// Sites are the program statements from which commands were made.
	Sites []Site
	// Streams lists the streams of all ranks. Main[r] is the index of the stream on which rank r's caller runs the plan.
	Streams []Stream
	Main    []int32
	// Events is the number of event slots. Each slot is recorded by exactly
	// one command, which precedes each of its waits in Cmds.
	Events int
	// Counters are the counters that the program declares.
	Counters []Counter
	// Channels are the sequences of collectives. There is one for each combination of a team and its members' streams.
	Channels []Channel
	// Colls are the instances of collectives, in order of first issue.
	Colls []Coll
	// Pairs are the matched send/recv pairs.
	Pairs []Pair
	// Buffers are all buffers that commands access. Buffers[i] has the same offset on every rank that has it.
	Buffers []Buffer
	// ArenaBytes is the size of each rank's arena.
	ArenaBytes int64
	// HostBytes is the size of each rank's range of pinned host memory. The offsets of buffers of Space Host are
	// relative to that range.
	HostBytes int64

	// Launches describes the kernel launches of the OpLaunch commands. Each launch refers to one of Kernels.
	Launches []Launch
	Kernels  []Kernel

	// Inputs and Outputs are in the order of the signature. An inout parameter is in both lists; its Output follows the
	// results.
	Inputs, Outputs []IO

	// Cmds is the world list: it contains the commands of all ranks. The commands of each rank are in issue order.
	// Every event record precedes its waits. Every signal precedes the waits that it satisfies, except for waits that
	// are marked Late.
	Cmds []Cmd

	Memory Memory
}

// Dim is a dim and the value to which it is bound.
type Dim struct {
	Name  string
	Value int64
}

// Site describes a statement of the program.
type Site struct {
	Pos  ir.Pos
	Op   ir.Op
	Text string // the statement's header, printed
}

// Stream is one stream of one rank.
type Stream struct {
	Rank int32
	Name string // "main", "%s[1]"
	// High requests a high-priority stream, and Low a low-priority one.
	High, Low bool
}

// Counter is an array of counters. Every rank has one copy of the array.
type Counter struct {
	Name string
	Len  int32
	// PerRun[rank*Len+elem] is the number of signals that raise the element in each run. In run k, the program counts
	// the element's value from k·PerRun.
	PerRun []int64
}

// Channel is a sequence of collectives of one team on one stream of each member.
type Channel struct {
	Team    []int32 // ranks in team order
	Streams []int32 // Streams[i] is Team[i]'s stream
}

// Coll is one instance of a collective. It describes the parts of all its members.
type Coll struct {
	Op      ir.Op // a collective or OpBarrier
	Channel int32
	Seq     int32 // position in the channel, from 0, in each run
	Red     ir.Red
	Root    int32 // team index, for rooted ops
	Axis    int32 // concatenation or split axis (all_to_all: concat)
	Split   int32 // all_to_all: the axis that is split
	AnyOrd  bool  // the program contains order=any
	Algo    string
	CTAs    int32 // maximum number of thread blocks on a GPU; 0 for no limit
	// Parts[i] is the part of Team[i].
	Parts []CollPart
}

// CollPart is one member's part of a collective. In or Out is absent (NoBuffer) if the member does not read or does not
// write.
type CollPart struct {
	In, Out Ref
	To      int32 // permute: team index of the member that receives In; -1 for none
	From    int32 // permute: team index of the member that sends Out; -1 for none
	// An uneven collective has one count of rows along Axis for each member. Counts that are known when the program is
	// planned are in Rows. Otherwise Counts refers to an i32 tensor in device memory, which is read when the collective
	// runs; such counts are checked only then.
	Rows   []int64
	Counts []Ref
}

// Reads returns the tensors that the member reads.
func (p *CollPart) Reads() []Ref {
	if p.In.Present() {
		return append([]Ref{p.In}, p.Counts...)
	}
	return p.Counts
}

// Pair is a send and the recv that it is matched with.
type Pair struct {
	Src, Dst Ref
}

// P2P is one side of a Pair within a group.
type P2P struct {
	Pair int32
	Send bool
}

// NoBuffer is the buffer index of an absent Ref.
const NoBuffer int32 = -1

// Ref is a tensor in the memory of one rank. Shape and Strides count elements of DType; Off counts bytes from the start
// of the buffer.
type Ref struct {
	Rank    int32
	Buf     int32 // index in Plan.Buffers; NoBuffer: absent
	DType   ir.DType
	Off     int64
	Shape   []int64
	Strides []int64
}

// Absent returns a Ref that refers to no tensor.
func Absent() Ref { return Ref{Buf: NoBuffer} }

// Present reports whether r refers to a tensor.
func (r Ref) Present() bool { return r.Buf != NoBuffer }

// Elements returns the number of elements.
func (r Ref) Elements() int64 {
	n := int64(1)
	for _, e := range r.Shape {
		n *= e
	}
	return n
}

// Bytes returns the size of the elements in bytes, without gaps.
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

// Span returns the range of bytes [lo, hi), relative to the start of the buffer, that contains the elements.
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

// Space is the kind of memory that contains a buffer.
type Space uint8

// The memory spaces.
const (
	Arena Space = iota // device memory, at Offset in the rank's arena
	Host               // pinned host memory
)

// Role is the purpose of a buffer.
type Role uint8

// The roles.
const (
	RoleInput  Role = iota // holds a parameter; written by the caller
	RoleAlloc              // an alloc of the program
	RoleValue              // made for a value (S3)
	RoleOutput             // an alloc or value that is a result of the function
)

// Buffer is one range of memory. It has the same offset on all ranks that have it.
type Buffer struct {
	Name      string // "%p", or "%p@3" with the iteration
	Site      int32
	Space     Space
	Role      Role
	Symmetric bool
	Offset    int64 // bytes from the arena's start, a multiple of Align
	Bytes     int64 // size; the largest that any rank needs
	// First and Last are the indices in Cmds of the first and the last command, on any rank, that uses the buffer, or
	// -1 if no command uses it.
	First, Last int32
}

// Align is the alignment of buffers in bytes. It is sufficient for every vector access, and NCCL and cuBLASLt are
// fastest with it.
const Align = 256

// Aligned returns the number of bytes that a buffer of the given size occupies in an arena.
func Aligned(bytes int64) int64 { return (bytes + Align - 1) / Align * Align }

// IO describes one parameter or result of the function.
type IO struct {
	Name  string // without "%"; "out", "out.0", … where a result has no name
	DType ir.DType
	Shape []int64 // global
	Parts []IOPart
	Inout bool
}

// IOPart describes the block of a parameter or result that one rank holds.
type IOPart struct {
	Ref Ref
	Lo  []int64 // position in the global tensor at which the block begins
}

// Cmd is one command. Kind determines which fields are used.
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
	// Launch is one more than an index in Plan.Launches if the command is the Compute of an OpLaunch, and otherwise 0.
	Launch int32

	Event   int32 // Record, WaitEvent
	Counter int32 // Signal, WaitCounter
	Elem    int32 // Signal, WaitCounter: element
	Peer    int32 // Signal: rank whose counter is raised; Copy: the remote rank, or -1
	SM      bool  // Copy: on a GPU, a kernel copies and not a copy engine
	CTAs    int32 // Copy by a kernel: maximum number of thread blocks; 0 for the machine's default
	Value   int64 // WaitCounter: least value within this run
	Late    bool  // WaitCounter: a signal that satisfies the wait is later in Cmds, so the wait must be implemented by polling a flag
	Coll    int32 // Collective: index in Colls
	Part    int32 // Collective: index in the team
	Group   []P2P // Group
	IO      int32 // Input, Output: index in Inputs or Outputs
}

// Kind is the kind of a command.
type Kind uint8

// The kinds of commands.
const (
	Compute     Kind = iota // Op on Ins into Outs
	Copy                    // Ins[0] to Outs[0], same shape and dtype; either may be a peer's (put, get)
	Collective              // this rank's part of a collective or barrier
	Group                   // sends and recvs
	Record                  // Event records the stream's work so far
	WaitEvent               // the stream waits for Event
	Signal                  // raises Peer's counter by one after the stream's work so far
	WaitCounter             // the stream waits until its rank's counter is at least Value
	Input                   // the caller's upload of an input, on main
	Output                  // the caller's read-back of an output, on main
	numKinds
)

// String returns the name of the kind.
func (k Kind) String() string {
	return [numKinds]string{"compute", "copy", "collective", "group", "record", "wait", "signal", "wait_counter", "input", "output"}[k]
}

// Kernel is a kernel in a file with the given name, which contains CUDA C++, PTX or a cubin.
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

// LaunchParam is an argument of a launch: a tensor or a number. In is the index of a tensor that the command reads, and
// Out is the index of a tensor that it writes. If a kernel reads and writes a tensor, both are set. If neither is set,
// the argument is a number.
type LaunchParam struct {
	In, Out int32    // -1 for none
	DType   ir.DType // of a number
	Bits    uint64   // the number: an integer, or the bits of an f64
}

// Updates reports whether a kernel reads and writes the command's j-th operand as one argument.
func (l *Launch) Updates(j int) bool {
	return slices.ContainsFunc(l.Params, func(p LaunchParam) bool { return int(p.In) == j && p.Out >= 0 })
}

// Memory holds the planner's statistics on each rank's arena.
type Memory struct {
	// Inputs is the number of bytes of the parameters, which remain allocated as long as the plan.
	Inputs int64
	// Peak is equal to ArenaBytes: the size of the layout of all buffers, inputs included.
	Peak int64
	// Bound is the maximum number of bytes that are live at once in issue order, inputs included. For a program with
	// one stream, no layout that preserves the lifetimes of its buffers is smaller.
	Bound int64
}

// Moved returns the minimum number of bytes that member i receives from other ranks in a collective, whichever
// algorithm is used. If the counts are in device memory, the whole capacity is assumed to be used.
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
	if int32(i) == c.Root { // broadcast, scatter: the root already has the data
		return 0
	}
	return p.Out.Bytes()
}

// movedRows is Moved for an uneven collective.
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
