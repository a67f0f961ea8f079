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
	// defs are the definitions of indices, printed behind the container.
	defs map[string]*scalar
}

// unit is a HostUnit: a piece of the program that is compiled as one kernel.
type unit struct {
	pos     ir.Pos
	inputs  []*tensor
	outputs []*tensor
	body    []*stmt
	// elided: its text was printed as "[...]".
	elided bool
}

// tensor is a mention of a tensor, with its axes as printed.
type tensor struct {
	pos   ir.Pos
	id    string // "T5"
	dtype ir.DType
	axes  []axis
	mesh  *mesh // nil without
}

// axis is one printed axis: "istreamIdx12{8}".
type axis struct {
	pos    ir.Pos
	kind   byte   // 'i' iterated, 'r' reduced, 'b' broadcast
	par    string // what it is spread over: "S" nothing, "deviceIdx.x", "streamIdx"
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

// scalar is an integer expression as printed.
type scalar struct {
	pos  ir.Pos
	op   string // "" for a number or name, an operator, or a function's name
	name string
	val  int64
	args []*scalar
}

func (s *scalar) isInt() bool { return s.op == "" && s.name == "" }

type stmtKind uint8

const (
	stAllocate stmtKind = iota
	stDeallocate
	stAlias // select, HirAliasSelect
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

// stmt is one statement; kind decides which fields are used.
type stmt struct {
	kind stmtKind
	pos  ir.Pos
	out  *tensor
	in   []operand
	// op is the computation's name, the communication's type, "send" or "recv".
	op string
	// id numbers a communication or names a HostUnit.
	id string
	// backend of a communication: NCCL where none is printed.
	backend string
	// index of alias, shard, for (upper bound: hi), root or peer.
	index, hi *scalar
	axis      int // printed number of the selected axis
	stream    streamName
	ranges    []sliceRange
	team      *mesh
	flags     []bool // of broadcast
	zero      bool
	size      *scalar
	red       ir.Red
	// fromTo: a loop of the second generation, all of which stream-parallelise.
	fromTo    bool
	body, alt []*stmt
	ins, outs []*tensor // of PostOnStream
	shared    []*stmt   // the communications of ShareMemHandles
}

// operand is a tensor or a number.
type operand struct {
	t   *tensor
	num float64
	pos ir.Pos
}

type sliceRange struct{ lo, hi, step *scalar }

// streamName is a stream as printed: by name (an address, or the number that
// GetCurrentStream gave it), or by the value of an index.
type streamName struct {
	pos   ir.Pos
	name  string
	index *scalar
}
