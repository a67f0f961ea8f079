package hocket

import "hocket.example/hocket/internal/standin"

// KernelCall is one launch of a user's kernel, as passed to the function that stands in for the kernel.
type KernelCall struct {
	// Grid and Block are extents along three dimensions; Shared is in bytes.
	Grid, Block [3]int64
	Shared      int64
	// Args are the arguments in the order of the kernel's parameters.
	Args []KernelArg
}

// KernelArg is an argument of a launched kernel: a rank's own tensor, or a number.
type KernelArg struct {
	// Tensor is the rank's block, or nil for a number. Results are written to its Data. A tensor that is only written
	// begins with NaNs, or with the largest integers.
	Tensor *Tensor
	// Err is, in the reference evaluator, how far each element of a tensor that is read may be off on a correct
	// machine; on the CPU machine it is nil. A function may set the Err of a tensor that it writes. If it does not,
	// results of exact operands are taken to be within two units in the last place. For other operands nothing is
	// known, so comparisons are undecided.
	Err []float64
	// Int and Float are the number. Float is set for integers too.
	Int   int64
	Float float64
}

// RegisterKernel registers the function that stands in for a launched kernel on the CPU machine and in the reference
// evaluator. name is the kernel's name in programs, like "scale.cu:scale". The function may be called from several
// goroutines. A run fails if the function changes a tensor that the launch only reads. RegisterKernel panics if name
// already has a function, or if f is nil.
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
