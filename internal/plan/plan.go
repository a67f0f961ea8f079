// Package plan defines plans. A plan is the flat list of commands that a program becomes when its dims are bound
// and its memory is laid out.
//
// A plan is plain data without pointers, maps and handles, and the same on every machine. A plan contains everything
// that ranks must agree on: offsets, channels and signal counts. Plans with the same Hash execute in the same way.
package plan

import (
	"slices"

	"hocket.example/hocket/ir"
)

// Plan is a program for all ranks of a world, with all dims bound.
type Plan struct {
	Program string // name of the program's source file
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
	// Channels are the sequences of collectives. There is one channel for each combination of a team and its members'
	// streams.
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
	Text string // the first line of the statement, as text
}

// Stream is one stream of one rank.
type Stream struct {
	Rank int32
	Name string // name in the program: "main", or "%s[1]"
	// High requests a high-priority stream, and Low a low-priority one.
	High, Low bool
}

// Counter is an array of counters. Every rank has one copy of the array.
type Counter struct {
	Name string
	Len  int32
	// PerRun[rank*Len+elem] is the number of signals that raise the element on that rank in each run. The program
	// counts the element's value within a run; in run k, the value therefore starts at k·PerRun.
	PerRun []int64
}

// Channel is a sequence of collectives of one team on one stream of each member.
type Channel struct {
	Team    []int32 // ranks in team order
	Streams []int32 // Streams[i] is Team[i]'s stream
}

// Coll is one instance of a collective. Coll describes the parts of all its members.
type Coll struct {
	Op      ir.Op // a collective or OpBarrier
	Channel int32
	Seq     int32 // position among the collectives of the channel, from 0, in each run
	Red     ir.Red
	Root    int32 // for ops with a root: the root's index in the team
	Axis    int32 // the axis along which tensors are concatenated or split; for all_to_all, the one along which they are concatenated
	Split   int32 // for all_to_all: the axis that is split
	AnyOrd  bool  // the program permits any order of summation (order=any)
	Algo    string
	CTAs    int32 // maximum number of thread blocks on a GPU; 0 for no limit
	// Parts[i] is the part of the member Team[i].
	Parts []CollPart
}

// CollPart is one member's part of a collective. In is absent (NoBuffer) if the member reads nothing, and Out if it
// writes nothing.
type CollPart struct {
	In, Out Ref
	To      int32 // for permute: team index of the member that receives In; -1 for none
	From    int32 // for permute: team index of the member that sends Out; -1 for none
	// These fields are for uneven collectives, in which each member has its own count of rows along Axis. If the
	// counts are known when the program is planned, Rows contains them. Otherwise Counts refers to an i32 tensor in
	// device memory, which is read and checked only when the collective runs.
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

// Distinct returns the size in bytes of the elements without gaps, where an element that an axis repeats counts once.
func (r Ref) Distinct() int64 {
	n := r.DType.Size()
	for i, e := range r.Shape {
		if e == 0 || r.Strides[i] != 0 {
			n *= e
		}
	}
	return n
}

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

// Buffer is one range of memory. A Buffer has the same offset on all ranks that have it.
type Buffer struct {
	Name      string // name in the program: "%p", or with the iteration "%p@3"
	Site      int32
	Space     Space
	Role      Role
	Symmetric bool
	Offset    int64 // bytes from the arena's start, a multiple of Align
	Bytes     int64 // size in bytes; the largest that any rank needs
	// First and Last are the indices in Cmds of the first and the last command, on any rank, that uses the buffer, or
	// -1 if no command uses it.
	First, Last int32
}

// Align is the alignment of buffers in bytes. Align is sufficient for every vector access, and NCCL and cuBLASLt are
// fastest with it.
const Align = 256

// Aligned returns the number of bytes that a buffer of the given size occupies in an arena.
func Aligned(bytes int64) int64 { return (bytes + Align - 1) / Align * Align }

// IO describes one parameter or result of the function.
type IO struct {
	Name  string // name without "%"; "out", "out.0", … for a result without a name
	DType ir.DType
	Shape []int64 // shape of the global tensor
	Parts []IOPart
	Inout bool
}

// IOPart describes the block of a parameter or result that one rank holds.
type IOPart struct {
	Ref Ref
	Lo  []int64 // position of the block's first element in the global tensor
}

// Cmd is one command. Kind determines which fields are used.
type Cmd struct {
	Kind   Kind
	Rank   int32
	Stream int32 // index of the stream in Plan.Streams
	Site   int32
	// Iter contains the values of the variables of the enclosing loops, outermost first. Commands share these
	// slices.
	Iter []int64

	Op   ir.Op    // for Compute: the operation
	Ins  []Ref    // operands of a Compute; the source of a Copy
	Outs []Ref    // results of a Compute; the destination of a Copy
	Attr ir.Attrs // for Compute: attributes of the operation
	// If the command is the Compute of an OpLaunch, Launch is its index in Plan.Launches plus one. Otherwise it is
	// 0.
	Launch int32

	Event   int32 // for Record and WaitEvent
	Counter int32 // for Signal and WaitCounter
	Elem    int32 // for Signal and WaitCounter: index of the counter's element
	Peer    int32 // for Signal: the rank whose counter is raised; for Copy: the remote rank, or -1
	SM      bool  // for Copy on a GPU: a kernel copies, not a copy engine
	CTAs    int32 // for Copy by a kernel: maximum number of thread blocks; 0 for the machine's default
	Value   int64 // for WaitCounter: the least value, counted within this run
	Late    bool  // for WaitCounter: a signal that satisfies the wait is later in Cmds, so the stream must poll a flag
	Coll    int32 // for Collective: index in Plan.Colls
	Part    int32 // for Collective: index of the rank in the team
	Group   []P2P // for Group: the sends and recvs
	IO      int32 // for Input and Output: index in Plan.Inputs or Plan.Outputs
}

// Kind is the kind of a command.
type Kind uint8

// The kinds of commands.
const (
	Compute Kind = iota // computes Outs from Ins by Op
	// copies Ins[0] to Outs[0], of the same shape and dtype; one of them may be in the memory of a peer (put, get)
	Copy
	Collective  // this rank's part of a collective or barrier
	Group       // sends and recvs that run together
	Record      // Event records that the stream's work so far has ended
	WaitEvent   // the stream waits for Event
	Signal      // raises Peer's counter by one when the stream's work so far has ended
	WaitCounter // the stream waits until its rank's counter is at least Value
	Input       // the caller's upload of an input, on the main stream
	Output      // the caller's read-back of an output, on the main stream
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

// LaunchParam is an argument of a kernel launch: a tensor or a number. For a tensor that the command reads, In is
// its index in the command's Ins; for a tensor that it writes, Out is its index in Outs. If the kernel reads and
// writes the tensor, both are set. If neither is set, the argument is a number.
type LaunchParam struct {
	In, Out int32    // -1 for none
	DType   ir.DType // type of a number
	Bits    uint64   // value of a number: an integer, or the bits of an f64
}

// Updates reports whether the kernel both reads and writes the command's j-th operand, which it gets as one
// argument.
func (l *Launch) Updates(j int) bool {
	return slices.ContainsFunc(l.Params, func(p LaunchParam) bool { return int(p.In) == j && p.Out >= 0 })
}

// Memory holds the planner's statistics on each rank's arena.
type Memory struct {
	// Inputs is the number of bytes of the parameters, which remain allocated as long as the plan.
	Inputs int64
	// Peak is equal to ArenaBytes: the size of the layout of all buffers, inputs included.
	Peak int64
	// Bound is the maximum, over the commands in issue order, of the number of bytes that are live at once, inputs
	// included. For a program with one stream, no layout that preserves the lifetimes of its buffers is smaller.
	Bound int64
}

// Moved returns the minimum number of bytes that member i of a collective must receive from other ranks, with any
// algorithm. If the counts of an uneven collective are in device memory, Moved assumes that each member uses its
// whole capacity.
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
