package hocket

import "hocket.example/hocket/internal/standin"

// KernelCall describes one launch of a user's kernel. It is the argument of the Go function that replaces the kernel.
type KernelCall struct {
	// Grid and Block are the extents of the grid and of a block in three dimensions. Shared is the size of the dynamic
	// shared memory in bytes.
	Grid, Block [3]int64
	Shared      int64
	// Args holds the arguments in the order of the kernel's parameters.
	Args []KernelArg
}

// KernelArg is one argument of a launched kernel: either the rank's block of a tensor, or a number.
type KernelArg struct {
	// Tensor is the rank's block, or nil if the argument is a number. The function writes results to its Data. A tensor
	// that the kernel only writes is filled with NaNs before the call, or with the largest value of an integer type.
	Tensor *Tensor
	// Err holds the error bounds of the elements in the reference evaluator. It is nil on the CPU machine. For a tensor
	// that is read, Err[i] is the largest difference between element i and the reference that can occur on a correct
	// machine. For a tensor that the function writes, the function may set Err. If the function leaves Err nil, the
	// result is assumed to be within two units in the last place if all operands are exact. If some operand is not
	// exact, no bound is known, so that comparisons are undecided.
	Err []float64
	// Int and Float hold the number. Float is also set if the number is an integer.
	Int   int64
	Float float64
}

// RegisterKernel registers the Go function that replaces a launched kernel on the CPU machine and in the reference
// evaluator. name is the name of the kernel in programs, for example "scale.cu:scale". The function may be called from
// several goroutines at the same time. A run fails if the function changes a tensor that the launch declares as
// read-only. RegisterKernel panics if name already has a function, or if f is nil.
func RegisterKernel(name string, f func(*KernelCall) error) {
	if f == nil {
		standin.Register(name, nil)
	}
	standin.Register(name, func(c *standin.Call) error {
		k := KernelCall{Grid: c.Grid, Block: c.Block, Shared: c.Shared, Args: make([]KernelArg, len(c.Args))}
		for i, a := range c.Args {
			k.Args[i] = KernelArg{Tensor: (*Tensor)(a.Tensor), Err: a.Err, Int: a.Int, Float: a.Float}
		}
		err := f(&k)
		for i := range c.Args {
			if i < len(k.Args) {
				c.Args[i].Err = k.Args[i].Err
			}
		}
		return err
	})
}
