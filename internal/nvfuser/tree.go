package nvfuser

import "hocket.example/hocket/ir"

// dump is the tree of a Host IR dump.
type dump struct {
	pos     ir.Pos
	inputs  []*tensor
	outputs []*tensor
	body    []*stmt
	end     ir.Pos
	units   map[string]*unit
	// defs holds the definitions of indices, which are printed after the container.
	defs map[string]*scalar
}

// unit is a HostUnit: a part of the program that nvFuser compiles to one kernel.
type unit struct {
	pos     ir.Pos
	inputs  []*tensor
	outputs []*tensor
	body    []*stmt
	// elided reports that the dump contains "[...]" in place of the unit's text.
	elided bool
}

// tensor is one occurrence of a tensor in the dump, with its printed axes.
type tensor struct {
	pos   ir.Pos
	id    string // "T5"
	dtype ir.DType
	axes  []axis
	mesh  *mesh // device mesh of the tensor; nil if no mesh is printed
}

// axis is one printed axis of a tensor, for example "istreamIdx12{8}".
type axis struct {
	pos    ir.Pos
	kind   byte   // kind of the axis: 'i' iterated, 'r' reduced, 'b' broadcast
	par    string // how it is parallelized: "S" for serial, "deviceIdx.x", "streamIdx"
	num    int
	extent *scalar
}

func (a *axis) device() bool { return len(a.par) > 9 && a.par[:9] == "deviceIdx" }
func (a *axis) stream() bool {
	return a.par == "streamIdx" || a.par == "StreamIdx" || a.par == "Stream"
}
func (a *axis) reduced() bool { return a.kind == 'r' }

// mesh is a list of devices.
type mesh struct {
	pos     ir.Pos
	devices []int64
}

// scalar is a printed integer expression.
type scalar struct {
	pos  ir.Pos
	op   string // operator or name of a function; "" for a number or name
	name string
	val  int64
	args []*scalar
}

func (s *scalar) isInt() bool { return s.op == "" && s.name == "" }

type stmtKind uint8

const (
	stAllocate stmtKind = iota
	stDeallocate
	stAlias // select or HirAliasSelect
	stShard // ShardByStream
	stSlice
	stCompute
	stGetStream
	stSetStream
	stSync
	stFor
	stIf
	stComm
	stP2P
	stWait
	stStartGroup
	stEndGroup
	stShareHandles
	stPost
)

// stmt is one statement. The kind of the statement determines which fields are used.
type stmt struct {
	kind stmtKind
	pos  ir.Pos
	out  *tensor
	in   []operand
	// op is the name of a computation, the type of a communication, "send" or "recv".
	op string
	// id numbers a communication or names a HostUnit.
	id string
	// backend is the backend of a communication. The backend is NCCL if none is printed.
	backend string
	// index is the index of an alias or shard, the lower bound of a loop, the root of a collective, or the peer of
	// a transfer. hi is the upper bound of a loop.
	index, hi *scalar
	axis      int // printed number of the selected axis
	stream    streamName
	ranges    []sliceRange
	team      *mesh
	flags     []bool // of the statement broadcast
	zero      bool
	size      *scalar
	red       ir.Red
	// fromTo reports that the statement is a loop of the second generation of dumps ("FOR i from 0 to 3"). All of
	// these loops are stream-parallel.
	fromTo    bool
	body, alt []*stmt
	ins, outs []*tensor // inputs and outputs of PostOnStream
	shared    []*stmt   // the communications of ShareMemHandles
}

// operand is a tensor or a number.
type operand struct {
	t   *tensor
	num float64
	pos ir.Pos
}

type sliceRange struct{ lo, hi, step *scalar }

// streamName is a stream as the dump prints it. A stream is printed as an index expression or a name; the name is an
// address or the number that GetCurrentStream defines.
type streamName struct {
	pos   ir.Pos
	name  string
	index *scalar
}
