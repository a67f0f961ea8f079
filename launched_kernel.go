package hocket

import "hocket.example/hocket/internal/standin"

// KernelCall is one launch of a kernel of the user's, for the function that stands in for it.
type KernelCall struct {
	// Grid and Block are extents along three dimensions, Shared bytes.
	Grid, Block [3]int64
	Shared      int64
	// Args are the arguments in the order of the kernel's parameters.
	Args []KernelArg
}

// KernelArg is an argument of a launched kernel: a rank's own tensor, or a number.
type KernelArg struct {
	// Tensor is nil for a number. What is written goes into its Data. Of a tensor that is written alone the
	// elements are at first NaNs, or the largest integers.
	Tensor *Tensor
	// Err is how far each element of a tensor that is read may be off on a machine, in the reference
	// evaluator; on the CPU machine it is nil. A function may set that of a tensor it writes. Where it does
	// not, results of exact operands are taken to be within two units of the last place, and of others
	// nothing is known: comparisons are undecided.
	Err []float64
	// Int and Float are the number. Float holds integers, too.
	Int   int64
	Float float64
}

// RegisterKernel registers the function that stands in for a launched kernel on the CPU machine and in the
// reference evaluator. name is the kernel's as programs write it, "scale.cu:scale". The function may be called
// from several goroutines. It fails the run if it changes a tensor that the launch only reads. RegisterKernel
// panics if name has a function already, or f is nil.
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
