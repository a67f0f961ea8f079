// Package graph represents graphs of tensor operations, as exports of models contain them. A reader of a file format
// (package torchexport) creates a Graph, and package modelprogram translates it into a program.
//
// A Graph is built with its methods Input, Weight, Constant and Add, which infer shapes and return errors for operands
// that do not fit. Every Graph can therefore be evaluated: Eval computes it in plain Go, for tests, and Folder computes
// values that depend only on constants, such as masks and positions. If a node with the same operation and operands
// exists already, Add returns that node, so equal computations occur once.
//
// A model that changes its buffers has states: leaves that keep the values in Updates from one call to the next.
package graph

import (
	"fmt"
	"slices"
	"strings"
)

// DType is an element type, named as in programs. Bool is the only type that programs do not have.
type DType string

// The element types of values.
const (
	Bool DType = "bool"
	I32  DType = "i32"
	I64  DType = "i64"
	F16  DType = "f16"
	BF16 DType = "bf16"
	F32  DType = "f32"
	F64  DType = "f64"
)

// IsFloat reports whether d is a floating-point type.
func (d DType) IsFloat() bool { return d == F16 || d == BF16 || d == F32 || d == F64 }

// LeafKind is the kind of a value that is not the result of a node.
type LeafKind uint8

// The kinds of leaves.
const (
	NoLeaf   LeafKind = iota
	Input             // given in each call
	Weight            // a parameter of the model, by its name in the module tree
	Constant          // known when the graph is read
	State             // a buffer that calls change, by its name in the module tree
)

// Value is a tensor: a result of a node, or a leaf.
type Value struct {
	Name  string // the name in the export
	DType DType
	Shape []int64

	Leaf LeafKind
	Path string   // name of a weight or state in the module tree: "model.layers.0.mlp.up_proj.weight"
	Also []string // other names of the same tensor
	// Buffer reports that a weight is a buffer of its module, which checkpoints may lack.
	Buffer bool
	Data   *Tensor // elements of a constant

	Layout Layout // layout of an input in the export; nil if the export has none

	Node  *Node // the node that computes the value; nil for leaves
	Index int   // index of the value among the node's results
}

// Layout names, for each dimension, the mesh axes over which it is split, the major one first.
type Layout [][]string

// MeshAxis is an axis of the mesh of devices that layouts name.
type MeshAxis struct {
	Name string
	Size int64
}

// String returns the type of the value as text, for example "f32[2, 3]".
func (v *Value) String() string {
	return string(v.DType) + strings.ReplaceAll(fmt.Sprint(v.Shape), " ", ", ")
}

// Identifier converts s to an identifier of hocket's language.
func Identifier(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, s)
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		s = "n" + s
	}
	return s
}

// Made returns the node that computes v if its operation is op, and nil otherwise.
func (v *Value) Made(op Op) *Node {
	if v != nil && v.Node != nil && v.Node.Op == op {
		return v.Node
	}
	return nil
}

// Node is an operation with its operands and results.
type Node struct {
	Op    Op
	In    []*Value
	Attrs Attrs
	Out   []*Value
	From  Origin
	// Order is the index of the node in the graph's list of nodes.
	Order int
}

// Origin describes the part of the model from which a node was made.
type Origin struct {
	Name   string // name of the operator in the export: "aten.add.Tensor"
	Module string // path of the module that called it: "model.layers.0.mlp"
	Source string // line in the source of the model: "modeling_llama.py:259"
}

func (o Origin) String() string {
	text := o.Name
	if o.Module != "" {
		text += " of module " + o.Module
	}
	if o.Source != "" {
		text += " (" + o.Source + ")"
	}
	return text
}

// Attrs are the attributes of an operation. The comment at each field lists the operations that have the attribute.
type Attrs struct {
	Axis   int     // Concat, Slice, Cumsum, Softmax, Sort, Gather, IndexCopy
	Axes   []int64 // Transpose: the permutation; reductions: the dimensions
	Keep   bool    // reductions: keep the dimensions, with extent 1
	Shape  []int64 // Reshape, Broadcast
	Lo, Hi int64   // Slice
	Step   int64   // Slice
	K      int64   // TopK; BinCount: number of bins; IndexAdd: number of rows
	Eps    float64 // LayerNorm, RMSNorm
	Scale  float64 // Attention
	Causal bool    // Attention
	// Softcap is an attribute of Attention. If Softcap is not 0, a score s is replaced by Softcap·tanh(s/Softcap)
	// before the mask is applied.
	Softcap float64
	Desc    bool   // Sort: from the largest
	Layout  Layout // Reshard
	Red     string // AllReduce: sum, max, min or avg
}

// Op is the name of an operation.
type Op string

// The operations. Elementwise operations broadcast their operands by the rules of numpy.
const (
	Neg      Op = "neg"
	Exp      Op = "exp"
	Log      Op = "log"
	Sin      Op = "sin"
	Cos      Op = "cos"
	Tanh     Op = "tanh"
	Sqrt     Op = "sqrt"
	Rsqrt    Op = "rsqrt"
	Sigmoid  Op = "sigmoid"
	SiLU     Op = "silu"
	GELU     Op = "gelu"      // x·Φ(x)
	GELUTanh Op = "gelu_tanh" // approximation of GELU by tanh
	ReLU     Op = "relu"
	Softplus Op = "softplus"
	Erf      Op = "erf"
	Abs      Op = "abs"
	Floor    Op = "floor"
	Not      Op = "not"
	Cast     Op = "cast"    // to the result's type
	Reshard  Op = "reshard" // the same value in another layout
	// AllReduce reduces the values of all ranks. Eval evaluates an AllReduce for one rank.
	AllReduce Op = "all_reduce"

	AddOp    Op = "add"
	Sub      Op = "sub"
	Mul      Op = "mul"
	Div      Op = "div"
	FloorDiv Op = "floor_div"
	Rem      Op = "rem" // remainder with the divisor's sign
	Pow      Op = "pow"
	Max      Op = "max"
	Min      Op = "min"
	And      Op = "and"
	Or       Op = "or"
	Eq       Op = "eq"
	Ne       Op = "ne"
	Lt       Op = "lt"
	Le       Op = "le"
	Gt       Op = "gt"
	Ge       Op = "ge"
	Where    Op = "where" // condition, then, else

	Reshape   Op = "reshape"
	Transpose Op = "transpose"
	Broadcast Op = "broadcast"
	SliceOp   Op = "slice"
	Concat    Op = "concat"

	SumOp   Op = "sum"
	Mean    Op = "mean"
	MaxOf   Op = "max_of"
	MinOf   Op = "min_of"
	ArgMax  Op = "argmax" // index of the first of the largest elements along Axis
	Cumsum  Op = "cumsum"
	TopK    Op = "topk" // the K largest of the last dimension, and their indices
	SortOp  Op = "sort" // the sorted elements along Axis, and their indices; equal elements keep their order
	Softmax Op = "softmax"

	Linear        Op = "linear"         // x[…, K], w[N, K] and optionally b[N]
	MatMul        Op = "matmul"         // as numpy's matmul
	GroupedMatMul Op = "grouped_matmul" // x[R, K], w[E, K, N] and ends[E]: the index after the last row of each group
	LayerNorm     Op = "layer_norm"     // x[…, D], and optionally w[D] and b[D]
	RMSNorm       Op = "rms_norm"       // x[…, D], and optionally w[D]
	Attention     Op = "attention"      // q[…, H, Tq, D], k and v[…, H, Tk, D], and optionally a mask, bool or added to the scores

	Embedding Op = "embedding"  // table[V, D], ids[…]
	Take      Op = "take"       // x[i0, i1, …]: the leading dimensions indexed by the other operands, broadcast
	TakeAlong Op = "take_along" // x[…, i, …] along Axis; i has the result's shape
	PutAt     Op = "put_at"     // x with x[i0, …] = the second operand; the indices follow
	IndexCopy Op = "index_copy" // x, indices[R], rows: x with its rows at the indices along Axis replaced
	IndexAdd  Op = "index_add"  // row i of K rows is the sum of the rows of x[N, D] where ids[N] are i; -1 skips a row
	BinCount  Op = "bin_count"  // number of occurrences of each of 0..K
)

// Graph is a model's computation.
type Graph struct {
	File    string
	Inputs  []*Value // in the order of the model's arguments
	Weights []*Value
	States  []*Value
	Nodes   []*Node // each node is after the nodes that it depends on
	Outputs []*Value
	// Mesh lists the axes that occur in layouts. Mesh is empty for an export without layouts; the importer then uses a
	// mesh with a single axis.
	Mesh []MeshAxis
	// OutputLayouts are the layouts of the outputs. A nil layout, or one missing at the end, means
	// that the output is not split.
	OutputLayouts []Layout
	// Notes are comments for the resulting program. Notes describe the parts of the export that are omitted, and the
	// reasons.
	Notes   []string
	Updates []Update

	nodes  map[string]*Node // nodes by a key that contains the operation and the operands
	consts map[string]*Value
}

// Update is the value that a state has after a call.
type Update struct {
	State *Value
	To    *Value
}

// Input adds an input.
func (g *Graph) Input(name string, dt DType, shape []int64) *Value {
	v := &Value{Name: name, DType: dt, Shape: shape, Leaf: Input}
	g.Inputs = append(g.Inputs, v)
	return v
}

// Weight adds a parameter of the model.
func (g *Graph) Weight(name, path string, dt DType, shape []int64) *Value {
	v := &Value{Name: name, DType: dt, Shape: shape, Leaf: Weight, Path: path}
	g.Weights = append(g.Weights, v)
	return v
}

// Constant returns a leaf with known elements. Small constants without a name are shared if they
// are equal.
func (g *Graph) Constant(name string, t *Tensor) *Value {
	v := &Value{Name: name, DType: t.DType, Shape: t.Shape, Leaf: Constant, Data: t}
	if name != "" || len(t.Elems) > maxShared {
		return v
	}
	key := fmt.Sprint(t.DType, t.Shape, t.Elems)
	if have := g.consts[key]; have != nil {
		return have
	}
	if g.consts == nil {
		g.consts = map[string]*Value{}
	}
	g.consts[key] = v
	return v
}

// maxShared is the maximum number of elements of a constant for which Constant searches for an equal constant.
const maxShared = 1 << 10

// Change turns a constant or weight into a state: a buffer that calls change.
func (g *Graph) Change(v *Value) error {
	switch {
	case v.Leaf == State:
		return nil
	case v.Leaf != Constant && v.Leaf != Weight || v.Path == "":
		return fmt.Errorf("%q is no buffer", v.Name)
	}
	v.Leaf, v.Data = State, nil
	g.Weights = slices.DeleteFunc(g.Weights, func(w *Value) bool { return w == v })
	g.States = append(g.States, v)
	return nil
}

// Scalar returns a constant without dimensions.
func (g *Graph) Scalar(dt DType, x float64) *Value {
	return g.Constant("", &Tensor{DType: dt, Shape: []int64{}, Elems: []float64{round(dt, x)}})
}

// Add adds a node, unless an equal one exists, and returns the node. dts are the element types of
// its results; the shapes follow from the operands.
func (g *Graph) Add(op Op, a Attrs, from Origin, dts []DType, in ...*Value) (*Node, error) {
	key := fmt.Sprint(op, a, dts)
	for _, v := range in {
		key += fmt.Sprintf(" %p", v)
	}
	if n := g.nodes[key]; n != nil {
		return n, nil
	}
	n := &Node{Op: op, In: in, Attrs: a, From: from, Order: len(g.Nodes)}
	results, shape, err := infer(n)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if results != len(dts) {
		return nil, fmt.Errorf("%s has %d results, not %d", op, results, len(dts))
	}
	if _, err := count(shape); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	for i, dt := range dts {
		n.Out = append(n.Out, &Value{DType: dt, Shape: append([]int64{}, shape...), Node: n, Index: i})
	}
	g.Nodes = append(g.Nodes, n)
	if g.nodes == nil {
		g.nodes = map[string]*Node{}
	}
	g.nodes[key] = n
	return n, nil
}

// maxElems is the maximum number of elements of a value.
const maxElems = 1 << 48

// count returns the number of elements of a tensor with the given shape.
func count(shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || d > maxElems || n*max(d, 1) > maxElems {
			return 0, fmt.Errorf("a tensor of shape %v is too large, or has a negative extent", shape)
		}
		n *= d
	}
	return n, nil
}

// Count returns the number of elements of the value.
func (v *Value) Count() int64 {
	n, _ := count(v.Shape) // cannot fail: the shape was checked when the value was made
	return n
}

// Depth returns the length of the longest chain of nodes that depend on each other.
func (g *Graph) Depth() int {
	depth := make([]int, len(g.Nodes))
	most := 0
	for i, n := range g.Nodes {
		for _, v := range n.In {
			if v.Node != nil {
				depth[i] = max(depth[i], depth[v.Node.Order])
			}
		}
		depth[i]++
		most = max(most, depth[i])
	}
	return most
}

// Users returns, for each value, the nodes that use it, in order.
func (g *Graph) Users() map[*Value][]*Node {
	users := map[*Value][]*Node{}
	for _, n := range g.Nodes {
		for _, v := range n.In {
			if have := users[v]; len(have) == 0 || have[len(have)-1] != n {
				users[v] = append(have, n)
			}
		}
	}
	return users
}
