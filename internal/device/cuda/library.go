package cuda

import (
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Library makes the kernels for elementwise operations, casts, fills,
// reductions over axes and reductions of operands. The machine itself has
// copies, products of matrices by cuBLASLt, and a plain kernel for those that
// cuBLASLt does not take.
type Library interface {
	// Steps returns what computes p on t, in order on one stream. It is given
	// valid problems only: shapes and types fit, no result is empty, no operand
	// overlaps the result unless it is the result, element for element, and then
	// only where that is harmless. Its error wraps device.ErrUnsupported where
	// the library does not have the operation. It is called from many
	// goroutines.
	Steps(t Target, p Problem) ([]Step, error)
}

// Target is the device that kernels are for.
type Target struct {
	Arch string // for NVRTC's --gpu-architecture: "sm_90a"
	SMs  int    // multiprocessors
	// Scratch reserves device memory, aligned to 256 bytes, that stays until
	// the launch is released. Launches of one kernel never overlap in time.
	Scratch func(bytes int64) (nvlib.Ptr, error)
}

// Problem is a device.Kernel whose operands have addresses.
type Problem struct {
	Op     ir.Op
	Red    ir.Red // where set, the reduction of all Ins elementwise, in their order
	Ins    []Operand
	Out    Operand
	Axes   []int // sum, max, min, mean
	Value  float64
	Int    int64
	HasInt bool
}

// Operand is a tensor in memory that the target reaches, perhaps a peer's.
// Strides count elements; the address is that of the first element and is a
// multiple of the element's size, no more.
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
