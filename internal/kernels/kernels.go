// Package kernels is hocket's own GPU kernels: CUDA C++ sources in src, what of
// them an operation on given operands needs, their compilation at run time and a
// cache of the results on disk.
//
// A source is templates; what is compiled is templates with one entry, an
// instance for element types, number of dimensions and width of accesses.
// Extents, strides and addresses are arguments, so that one compilation serves
// all shapes. Every kernel is a grid of one dimension of blocks of 256 threads,
// and takes one argument, a structure of 8-byte words.
//
// Bits do not depend on the machine: folds are taken in an order that follows
// from extents, types and strides.
package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/ir"
)

// Target is the device that kernels are for.
type Target struct {
	Arch string // for NVRTC's --gpu-architecture: "sm_90a"
	SMs  int    // multiprocessors; no result depends on it
	// Block is the shared memory that a block may have, in bytes; 0: as much as kernels
	// ask for. No result depends on it.
	Block int
	// Scratch reserves device memory, aligned to 256 bytes and, if zeros, with zeros in it, that stays until
	// the launch is released. Launches of one kernel never overlap in time.
	Scratch func(bytes int64, zeros bool) (nvlib.Ptr, error)
}

// Problem is a device.Kernel whose operands have addresses.
type Problem struct {
	Op    ir.Op
	Red   ir.Red        // where set, the reduction of all Ins elementwise, in their order
	Links []device.Link // where set, a chain of elementwise operations
	Ins   []Operand
	Out   Operand
	ir.Attrs
	// Fixed has attention compute each query with bits that depend on what it sees alone: not on how many queries,
	// sequences and unused keys there are.
	Fixed bool
	// Skinny, where set, asks for the kernel of linears of few rows, and for no other.
	Skinny *Skinny
	// Member, of an uneven collective, is whose result this is.
	Member int
	// Blocks, where not 0, is how many a copy between operands without gaps takes, at
	// most; either may be a peer's.
	Blocks int
	// Fault, where not 0, is the address of six words of 8 bytes, at first 0,
	// where an embedding reports an id outside the table, an index_copy positions and an
	// attention lengths that are none, and an uneven collective counts that do not fit (see
	// ReadFault); Tag is the caller's and comes with the report. While something stands there
	// no index_copy writes.
	Fault nvlib.Ptr
	Tag   uint64
}

// Operand is a tensor in memory that the target reaches, perhaps a peer's.
// Strides count elements and are not negative; the address is that of the first
// element and is a multiple of the element's size, no more.
type Operand struct {
	Addr           nvlib.Ptr
	DType          ir.DType
	Shape, Strides []int64
}

// Step is one kernel launch.
type Step struct {
	// Image is a cubin; Key names it: equal keys are equal images.
	Image  []byte
	Key    string
	Symbol string
	Shape  nvlib.Shape
	// Params are the kernel's parameters in order, each as its bytes.
	Params [][]byte
}

// Library makes the kernels of operations. It is for many goroutines.
type Library struct{ images *images }

// New returns a library that compiles with c. cache may be nil: then nothing is
// kept on disk.
func New(c Compiler, cache *Cache) *Library {
	return &Library{images: newImages(c, cache)}
}

// Steps returns what computes p on t, in order on one stream: nothing where the
// result is empty. No operand may overlap the result unless it is the result,
// element for element, and the operation elementwise or a reduction of operands.
// The error wraps device.ErrUnsupported where there is no such kernel.
func (l *Library) Steps(t Target, p Problem) ([]Step, error) {
	launches, err := plan(&job{Problem: p, arch: t.Arch, sms: t.SMs, block: t.Block, scratch: t.Scratch})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name(p), err)
	}
	steps := make([]Step, 0, len(launches))
	for _, w := range launches {
		s, err := l.step(t.Arch, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name(p), err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Ahead begins to compile what Steps(t, p) will need, and returns at once. Errors
// are for Steps to tell.
func (l *Library) Ahead(t Target, p Problem) {
	launches, _ := drafted(p, t)
	for _, w := range launches {
		l.images.ahead(w.code, t.Arch)
	}
}

// drafted are the launches for p, with scratch memory that is none.
func drafted(p Problem, t Target) ([]launch, error) {
	return plan(&job{Problem: p, arch: t.Arch, sms: t.SMs, block: t.Block,
		scratch: func(int64, bool) (nvlib.Ptr, error) { return 256, nil }})
}

// Sources lists the source texts that p needs, complete and in the order of the
// steps: for reading and for compiling elsewhere.
func Sources(p Problem) ([]string, error) {
	launches, err := drafted(p, Target{})
	var texts []string
	for _, w := range launches {
		texts = append(texts, w.code.text())
	}
	return texts, err
}

func (l *Library) step(arch string, w launch) (Step, error) {
	image, key, err := l.images.get(w.code, arch)
	if err != nil {
		return Step{}, err
	}
	return Step{Image: image, Key: key, Symbol: w.code.symbol, Params: [][]byte{w.args.bytes()},
		Shape: nvlib.Shape{Grid: [3]uint32{w.blocks, 1, 1}, Block: [3]uint32{uint32(w.code.size()), 1, 1}, Shared: w.shared}}, nil
}

// threads is the usual size of a block.
const threads = 256

// launch is a step before compilation.
type launch struct {
	code   code
	blocks uint32
	shared uint32 // bytes of dynamic shared memory
	args   words
}

// job is a problem under work.
type job struct {
	Problem
	arch    string // Target's; empty for a new one
	sms     int    // Target's
	block   int    // Target's
	scratch func(bytes int64, zeros bool) (nvlib.Ptr, error)
}

// lends reports whether a block may have so much dynamic shared memory, at a multiple of 1 KiB
// behind its variables.
func (j *job) lends(bytes int64) bool { return j.block == 0 || bytes+1<<10 <= int64(j.block) }

// planners make the launches of operations, except of those that package pointwise has.
var planners = map[ir.Op]func(*job) ([]launch, error){
	ir.OpCast: cast, ir.OpCopy: copies, ir.OpChunk: copies, ir.OpSlice: copies, ir.OpSelect: copies, ir.OpTranspose: copies,
	ir.OpReshape: copies, ir.OpClaim: copies, ir.OpExpand: copies, ir.OpConcat: concat,
	ir.OpSum: axesOf, ir.OpMax: axesOf, ir.OpMin: axesOf, ir.OpMean: axesOf, ir.OpReduceSlots: slots,
	ir.OpLinear: linear, ir.OpMatmul: matmul,
	ir.OpSoftmax: softmax, ir.OpRMSNorm: norm, ir.OpLayerNorm: norm, ir.OpAttention: attention, ir.OpEmbedding: embedding,
	ir.OpIndexCopy: indexCopy, ir.OpRope: rope, ir.OpArgmax: argmax,
	ir.OpAllGatherV: uneven, ir.OpReduceScatterV: uneven, ir.OpAllToAllV: uneven,
}

func plan(j *job) ([]launch, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	do := planners[j.Op]
	if _, is := pointwise.Of(j.Op); is {
		do = elementwise
	}
	switch {
	case j.Skinny != nil:
		do = skinny
	case j.Red != ir.NoRed && !j.Op.Uneven():
		do = join
	case len(j.Links) > 0:
		do = chain
	}
	if do == nil {
		return nil, fmt.Errorf("%w: there is no such GPU kernel", device.ErrUnsupported)
	}
	return do(j)
}

func name(p Problem) string {
	switch {
	case p.Red > ir.Avg:
		return "unknown reduction"
	case p.Red != ir.NoRed && !p.Op.Uneven():
		return "reduction " + p.Red.String()
	case len(p.Links) > 0:
		return ChainName(p.Links)
	}
	return p.Op.String()
}

// check looks at each operand by itself.
func (j *job) check() error {
	if j.Red > ir.Avg {
		return fmt.Errorf("unknown reduction %d", j.Red)
	}
	if err := j.Out.check(); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	for i, in := range j.Ins {
		if err := in.check(); err != nil {
			return fmt.Errorf("operand %d: %w", i, err)
		}
	}
	return nil
}

// largest bounds extents and strides, so that their products do not overflow.
const largest = 1 << 48

func (o Operand) check() error {
	if len(o.Shape) != len(o.Strides) {
		return fmt.Errorf("%d extents and %d strides", len(o.Shape), len(o.Strides))
	}
	if o.DType == ir.InvalidDType || o.DType > ir.I64 {
		return fmt.Errorf("%s", o.DType)
	}
	n := 1.0
	for i, e := range o.Shape {
		if e < 0 || e > largest || o.Strides[i] < 0 || o.Strides[i] > largest {
			return fmt.Errorf("extent %d with stride %d", e, o.Strides[i])
		}
		n *= float64(max(e, 1))
	}
	if n > largest {
		return fmt.Errorf("%v elements", o.Shape)
	}
	if int64(o.Addr)%o.DType.Size() != 0 {
		return fmt.Errorf("address %#x is not a multiple of %d", uint64(o.Addr), o.DType.Size())
	}
	return nil
}

func (o Operand) elements() int64 {
	n := int64(1)
	for _, e := range o.Shape {
		n *= e
	}
	return n
}

// shapes returns the shapes of the operands.
func (j *job) shapes() [][]int64 {
	list := make([][]int64, len(j.Ins))
	for i := range j.Ins {
		list[i] = j.Ins[i].Shape
	}
	return list
}

// count checks the number of operands.
func (j *job) count(least, most int) error {
	if n := len(j.Ins); n < least || n > most {
		return fmt.Errorf("%d operands, %d to %d are needed", n, least, most)
	}
	return nil
}

// alike checks that operands have the result's type.
func (j *job) alike() error {
	for i, in := range j.Ins {
		if in.DType != j.Out.DType {
			return fmt.Errorf("operand %d is %s, the result %s", i, in.DType, j.Out.DType)
		}
	}
	return nil
}

// floats refuses integers.
func (j *job) floats() error {
	if j.Out.DType.IsInt() {
		return fmt.Errorf("it has no meaning for %s", j.Out.DType)
	}
	return nil
}
