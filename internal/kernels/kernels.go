// Package kernels contains hocket's own GPU kernels: their CUDA C++ sources in src, the selection of templates for an
// operation on given operands, their compilation at run time, and a cache of machine code on disk.
//
// The sources are templates. A compilation unit has one entry point. It consists of the templates that the entry point
// needs, instantiated for element types, number of dimensions and width of accesses. Extents, strides and addresses are
// arguments of kernels, so one compilation serves all shapes. Every kernel has a one-dimensional grid of blocks of 256
// threads, unless it sets another size, and has one argument, a structure of 8-byte words.
//
// Results do not depend on the GPU, because extents, types and strides determine the order of folds.
package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Target describes the device that kernels run on.
type Target struct {
	Arch string // for NVRTC's --gpu-architecture: "sm_90a"
	SMs  int    // number of multiprocessors; the bits of results do not depend on it
	// Block is the largest size in bytes of the shared memory that a thread block can have; 0 means no limit. No result
	// depends on it.
	Block int
	// Alone reports that no other kernel can occupy multiprocessors while it waits for a kernel of this target. Only then
	// may several thread blocks be launched that can only begin together. The bits of results do not depend on it.
	Alone bool
	// Scratch reserves device memory, aligned to 256 bytes and filled with zeros if zeros is set. The memory remains
	// reserved until the launch is released. Launches of one kernel never overlap in time.
	Scratch func(bytes int64, zeros bool) (nvlib.Ptr, error)
}

// Problem is work for which Steps plans kernels: a Computation, a Skinny or a Transfer.
type Problem interface {
	// String returns the problem's name in messages.
	String() string
	// operands returns the result and the operands.
	operands() (out Operand, ins []Operand)
	// plan returns the launches that compute the problem; the operands have been checked one by one.
	plan(j *job) ([]launch, error)
}

// Computation is a device.Kernel whose operands and results have addresses.
type Computation struct {
	Op  device.Op
	Ins []Operand
	Out Operand
	// For a device.Chain, Stored holds the results of the links in its field Stored, and Out that of the last link. For
	// a device.Attention with LSE, Stored holds attention_lse. For device.Ropes, Stored holds the results of all parts but
	// the last. Other operations have one result, Out.
	Stored []Operand
	// Fault, unless 0, is the address of six words of 8 bytes, initially 0, for reports of invalid data: an id of an
	// embedding outside the table or of an index_add outside the result, an index of take_along outside a row, invalid
	// positions of index_copy, invalid counts of a grouped linear or of an uneven collective, invalid lengths of attention
	// (see ReadFault). Tag identifies the caller in a report. While the words contain a report, no index_copy writes.
	Fault nvlib.Ptr
	Tag   uint64
}

func (c Computation) String() string { return device.Name(c.Op) }

func (c Computation) operands() (Operand, []Operand) { return c.Out, c.Ins }

func (c Computation) plan(j *job) ([]launch, error) {
	j.fault, j.tag = c.Fault, c.Tag
	switch op := c.Op.(type) {
	case device.Elementwise:
		return elementwise(j, op)
	case device.Cast:
		return cast(j)
	case device.Chain:
		return chain(j, op, c.Stored)
	case device.Copy:
		return copies(j, op)
	case device.Concat:
		return concat(j, op)
	case device.IndexCopy:
		return indexCopy(j, op)
	case device.Embedding:
		return embedding(j, op)
	case device.ReduceAxes:
		return axesOf(j, op)
	case device.ReduceSlots:
		return slots(j, op)
	case device.ReduceOperands:
		return join(j, op)
	case device.Argmax:
		return argmax(j, op)
	case device.Iota:
		return counting(j, op)
	case device.Sorted:
		return sorted(j, op)
	case device.TakeAlong:
		return takeAlong(j)
	case device.Bincount:
		return bincount(j)
	case device.IndexAdd:
		return indexAdd(j, op)
	case device.Softmax:
		return softmax(j, op)
	case device.RMSNorm:
		return rmsNorm(j, op)
	case device.NormGrad:
		return normGrad(j, op)
	case device.LayerNorm:
		return layerNorm(j, op)
	case device.Rope:
		return rope(j, op)
	case device.Ropes:
		return ropesOf(j, op, c.Stored)
	case device.Attention:
		return attention(j, op, c.Stored)
	case device.AttentionGrad:
		return attentionGrad(j, op)
	case device.Linear:
		return linear(j, op)
	case device.Scales:
		return scalesOf(j, op)
	case device.Quantize:
		return quantize(j, op)
	case device.GroupedLinear:
		return grouped(j, op)
	case device.Matmul:
		return matmul(j, op)
	case device.UnevenMove:
		return uneven{op: op.Op, axis: op.Axis, member: op.Member}.launches(j)
	case device.UnevenReduce:
		return uneven{op: ir.OpReduceScatterV, red: op.Red, axis: op.Axis, member: op.Member}.launches(j)
	}
	return nil, errNoKernel
}

var errNoKernel = fmt.Errorf("%w: there is no GPU kernel for it", device.ErrUnsupported)

// Operand is a tensor in memory that the target can access, which may belong to a peer. Strides count elements and are
// not negative. Addr is the address of the first element and is a multiple of the element's size; it need not have a
// larger alignment.
type Operand struct {
	Addr           nvlib.Ptr
	DType          ir.DType
	Shape, Strides []int64
}

// Step is one kernel launch.
type Step struct {
	// Image is a cubin. Key identifies the image: equal keys mean equal images.
	Image  []byte
	Key    string
	Symbol string
	Shape  nvlib.Shape
	// Params holds the arguments of the kernel in order, each as bytes.
	Params [][]byte
}

// Library plans and compiles the kernels of operations. The methods of a Library may be called concurrently.
type Library struct{ images *images }

// New returns a library that compiles by the compiler c. If cache is nil, nothing is stored on disk.
func New(c Compiler, cache *Cache) *Library {
	return &Library{images: newImages(c, cache)}
}

// Steps returns the launches that compute the problem p on the device t. The launches must run in this order on one
// stream. If the result is empty, there are no launches. No operand may overlap a result. An exception: an operand may
// be a result, if the operation is elementwise or a reduction of operands. Results must not overlap each other. The
// error wraps device.ErrUnsupported if there is no kernel for p.
func (l *Library) Steps(t Target, p Problem) ([]Step, error) {
	launches, err := plan(p, t)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	steps := make([]Step, 0, len(launches))
	for _, w := range launches {
		s, err := l.step(t.Arch, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// Ahead starts the compilations that Steps(t, p) needs, and returns without waiting. Steps reports the errors.
func (l *Library) Ahead(t Target, p Problem) {
	launches, _ := drafted(p, t)
	for _, w := range launches {
		l.images.ahead(w.code, t.Arch)
	}
}

// drafted returns the launches for p as in a dry run: with a dummy address in place of scratch memory.
func drafted(p Problem, t Target) ([]launch, error) {
	t.Scratch = func(int64, bool) (nvlib.Ptr, error) { return 256, nil }
	return plan(p, t)
}

// Sources returns the complete source texts that p needs, in the order of the steps, for reading and for compiling with
// other tools.
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
		Shape: nvlib.Shape{Grid: [3]uint32{w.blocks, 1, 1}, Block: [3]uint32{uint32(w.code.size()), 1, 1},
			Shared: w.shared}}, nil
}

// threads is the usual number of threads of a thread block.
const threads = 256

// launch is a planned kernel launch, a Step whose code is not compiled yet.
type launch struct {
	code   code
	blocks uint32
	shared uint32 // bytes of dynamic shared memory
	args   words
}

// job is the state of a problem while its launches are planned.
type job struct {
	operands
	fault   nvlib.Ptr // address for reports of faults, as in Computation; so is tag
	tag     uint64
	arch    string // architecture of the Target; empty for the newest
	sms     int    // of the Target; so is alone
	alone   bool
	scratch func(bytes int64, zeros bool) (nvlib.Ptr, error)
}

// operands holds a problem's operands on a target, and checks them.
type operands struct {
	Ins   []Operand
	Out   Operand
	block int // of the Target
}

// lends reports whether a thread block can have the given size of dynamic shared memory, aligned to 1 KiB after its
// static variables.
func (j *operands) lends(bytes int64) bool { return j.block == 0 || bytes+1<<10 <= int64(j.block) }

func plan(p Problem, t Target) ([]launch, error) {
	j, err := newJob(p, t)
	if err != nil {
		return nil, err
	}
	return p.plan(j)
}

func newJob(p Problem, t Target) (*job, error) {
	j := &job{}
	j.arch, j.sms, j.block, j.alone, j.scratch = t.Arch, t.SMs, t.Block, t.Alone, t.Scratch
	j.Out, j.Ins = p.operands()
	return j, j.check()
}

// check checks each operand separately.
func (j *operands) check() error {
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

// largest is the largest permitted extent and the largest permitted stride, so that their products do not overflow.
const largest = 1 << 48

func (o Operand) check() error {
	if len(o.Shape) != len(o.Strides) {
		return fmt.Errorf("%d extents and %d strides", len(o.Shape), len(o.Strides))
	}
	if o.DType.Size() == 0 {
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
func (j *operands) shapes() [][]int64 {
	list := make([][]int64, len(j.Ins))
	for i := range j.Ins {
		list[i] = j.Ins[i].Shape
	}
	return list
}

// count returns an error unless the number of operands is from least to most.
func (j *operands) count(least, most int) error {
	if n := len(j.Ins); n < least || n > most {
		return fmt.Errorf("the operation has %d operands, but needs %d to %d", n, least, most)
	}
	return nil
}

// alike returns an error unless all operands have the result's type.
func (j *operands) alike() error {
	for i, in := range j.Ins {
		if in.DType != j.Out.DType {
			return fmt.Errorf("operand %d has type %s, but the result has type %s", i, in.DType, j.Out.DType)
		}
	}
	return nil
}

// types returns the element types of the operands.
func (j *operands) types() []ir.DType {
	list := make([]ir.DType, len(j.Ins))
	for i, in := range j.Ins {
		list[i] = in.DType
	}
	return list
}

// floats returns an error if the result has an integer type.
func (j *operands) floats() error {
	if j.Out.DType.IsInt() {
		return fmt.Errorf("the operation is not defined for %s", j.Out.DType)
	}
	return nil
}
