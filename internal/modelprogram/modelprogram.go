// Package modelprogram converts the graph of a model (package graph) to a program. The conversion is the second stage
// of an import.
//
// Make goes through these steps:
//
//   - lower.go walks the graph from its outputs and makes instructions of hocket's language. What no output needs
//     is thereby left out, and what depends only on constants, such as masks, is computed. recognize.go finds
//     groups of operations that are one instruction: RMSNorm, rotary embeddings, attention; kept.go finds
//     caches of keys and values.
//   - plan.go chooses the layouts of parameters by a tensor-parallel plan.
//   - roll.go makes one loop of equal layers.
//   - text.go names everything and prints the program.
//
// The program contains the layouts of activations only where the tensor-parallel plan requires them. The language's
// rules determine all other layouts.
package modelprogram

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// ErrUnsupported is wrapped by errors about graphs that Make cannot convert to a program.
var ErrUnsupported = errors.New("not supported")

// Options configures Make.
type Options struct {
	Plan  Plan
	Ranks int // default size of the mesh; 0 means 1
	// Quantize is one of Forms: the program multiplies 8-bit weights. If it is empty, weights have the types of the
	// graph.
	Quantize string
}

// Model is a program that was made from a graph.
type Model struct {
	Text   string
	Info   *ir.Info
	Params []Param
	// Tied lists the other names of weights that several modules share. The keys are the names in Params.
	Tied map[string][]string
	// Buffers has the weights that are buffers of their modules, which checkpoints may lack.
	Buffers map[string]bool
	// Unused lists the entries of the tensor-parallel plan that determine the layout of no weight.
	Unused []Unused
	// Kept lists the weights of linears that Options.Quantize leaves as they are.
	Kept []string
	// Unfit lists the weights that matmul and grouped_linear multiply; these operations have no 8-bit form.
	Unfit []string
}

// Param describes what a parameter of the program is made from.
type Param struct {
	Name string
	// Input reports that the parameter is an input of the model. The parameter has the input's name in the export.
	Input bool
	// Weights lists the names, in the module tree, of the weights from which the parameter is made, one for each layer
	// of a stack. The parameter consists of the bytes of these weights in this order.
	Weights []string
	// State reports that calls change the parameter. The weights are the parameter's initial contents.
	State bool
	// Perm maps dimensions of the parameter to dimensions of its weights, without the dimension of a stack; nil means
	// the same order.
	Perm []int64
	// Constant holds the contents of a parameter that is neither an input nor made from weights.
	Constant *graph.Tensor
	// Quantized is set for the values and the scales of quantized weights. The parameter then has another type and
	// shape than its weights.
	Quantized *Quantized
	// DType and Shape are the type of the whole parameter, before it is split over ranks.
	DType graph.DType
	Shape []int64
	// Split is the dimension that is split over ranks, or -1 if none is.
	Split int
}

// Whole reports whether all ranks compute the same, since no parameter is split and the model has no collectives.
func (m *Model) Whole() bool {
	return !strings.Contains(m.Text, "all_reduce") &&
		!slices.ContainsFunc(m.Params, func(p Param) bool { return p.Split >= 0 })
}

// WeightNames lists the names of the weights, in the module tree, from which parameters are made.
func (m *Model) WeightNames() []string {
	var names []string
	for _, p := range m.Params {
		if !p.State {
			names = append(names, p.Weights...)
		}
	}
	return names
}

// Make converts g to a program. Errors use name as the name of the program.
func Make(name string, g *graph.Graph, o Options) (*Model, error) {
	l := &lowerer{}
	l.recognized = l.recognize
	l.g, l.plan, l.folder = g, o.Plan, &graph.Folder{Elems: maxFolded}
	l.values, l.params, l.fills = map[*graph.Value]*val{}, map[any]*param{}, map[string]*inst{}
	l.reshapes, l.users, l.given = map[operand][]*inst{}, g.Users(), len(g.Nodes)
	l.places, l.lengths = map[*graph.Node]int{}, map[string]operand{}
	l.indices, l.uniforms = map[*graph.Value]operand{}, map[*graph.Value]uniform{}
	l.masks, l.writers = map[maskKey]mask{}, map[*param]*inst{}
	if n := g.Depth(); n > maxDepth {
		return nil, fmt.Errorf("%w: a chain of %d operations; the limit is %d", ErrUnsupported, n, maxDepth)
	}
	if err := l.layouts(); err != nil {
		return nil, err
	}
	if err := l.outputs(); err != nil {
		return nil, err
	}
	ranks := max(o.Ranks, 1)
	list := rowsApart(l.sorted())
	if o.Quantize != "" {
		list = l.quantize(list, o.Quantize, ranks)
	}
	p := &printer{lowerer: l, ranks: ranks, parts: roll(list, maxCompared)}
	text := p.print(name)
	info, ds := checker.Read(name, text)
	if ds.HasErrors() {
		return nil, fmt.Errorf("%w: the program that was made of it is wrong: %w", ErrUnsupported, ds)
	}
	m := &Model{Text: info.Prog.String(), Info: info, Params: p.bindings(), Tied: map[string][]string{},
		Buffers: map[string]bool{},
		Unused:  l.unused, Kept: l.kept, Unfit: l.unfit}
	if o.Quantize != "" && !slices.ContainsFunc(m.Params, func(p Param) bool { return p.Quantized != nil }) {
		return nil, fmt.Errorf("%w: %s has no linear whose weight can be quantized to %s%s", ErrUnsupported, base(name),
			o.Quantize, keptText(o.Quantize, m.Kept, m.Unfit))
	}
	for _, w := range g.Weights {
		if len(w.Also) > 0 {
			m.Tied[w.Path] = w.Also
		}
		if w.Buffer {
			m.Buffers[w.Path] = true
		}
	}
	return m, nil
}

// maxDepth limits the depth of the recursion during the conversion. maxInsts limits the number of instructions to the
// number that a program may have.
const (
	maxDepth = 1 << 16
	maxInsts = 1 << 16
)

// maxFolded is the maximum total number of elements of constants that are computed during the conversion. They need 512
// MiB.
const maxFolded = 64 << 20

// refuse returns an error about a node.
func refuse(n *graph.Node, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", n.From, ErrUnsupported, fmt.Sprintf(format, args...))
}

// inst is an instruction of the program.
type inst struct {
	op    string
	args  []operand
	after []*inst // instructions that change a state that this instruction reads, and must come later
	into  bool    // set if the instruction has no result, but writes to its last argument
	attrs string  // attributes as text: "causal=true, scale=0.5"
	dt    graph.DType
	shape []int64
	// selects reports that the instruction is a select; row is the selected row.
	selects bool
	row     int64
	// If whole is set, every rank has the whole result. If typed is set, the result's type is printed; it is split
	// along dimension split unless split is negative.
	whole, typed bool
	split        int
	layout       graph.Layout // if not nil, replaces split
	// reduce holds the attributes of an all_reduce that is applied in place to the result. buffer is the name of the
	// result's buffer.
	reduce, buffer string
	from           graph.Origin
	order          int // position of the node from which it was emitted; -1 for instructions that precede all others

	name string
}

// operand is an instruction's result or a parameter.
type operand struct {
	in *inst
	p  *param
}

func (o operand) shape() []int64 {
	if o.p != nil {
		return o.p.shape
	}
	return o.in.shape
}

func (o operand) dtype() graph.DType {
	if o.p != nil {
		return o.p.dt
	}
	return o.in.dt
}

// splitDim returns the dimension along which a value is known to be split, or -1.
func (o operand) splitDim() int {
	if o.p != nil {
		return o.p.split
	}
	return o.in.split
}

// param is a parameter of the program, before layers are stacked.
type param struct {
	value     *graph.Value  // the input or weight; nil for a constant
	constant  *graph.Tensor // the constant; nil for an input or weight
	dt        graph.DType
	shape     []int64
	split     int        // the dimension that is split; -1 for none
	parts     int        // number of parts of a packed weight
	packed    int        // the dimension of the parts
	number    int        // index of the parameter in the order of creation
	state     bool       // calls change it
	quantized *Quantized // set if the parameter holds 8-bit values or scales, otherwise nil
	perm      []int64    // a state's dimension i is dimension perm[i] of its value; nil for the same order

	name  string
	stack []*param // parameters of the layers, if this parameter is a stack
}

// typeText returns a type in the notation of programs. It is split along dimension split, unless split is negative.
func typeText(dt graph.DType, shape []int64, split int) string {
	layout := make(graph.Layout, len(shape))
	if split >= 0 && split < len(shape) {
		layout[split] = []string{axis}
	}
	return layoutText(dt, shape, layout)
}

// axis is the mesh axis of tensor parallelism.
const axis = "tp"
