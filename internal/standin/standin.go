// Package standin contains the Go functions that replace user kernels on the CPU machine and in the reference
// evaluator, where there is no GPU.
package standin

import (
	"bytes"
	"fmt"
	"sync"

	"hocket.example/hocket/internal/tensor"
)

// Call is one launch of a kernel.
type Call struct {
	Grid, Block [3]int64
	Shared      int64
	Args        []Arg // arguments, in the order of the kernel's parameters
}

// Arg is an argument: a tensor or a number.
type Arg struct {
	Tensor *tensor.Tensor // nil if the argument is a number
	// Writes reports that the kernel may write Tensor. If the kernel does not read the tensor, its elements are
	// initially NaNs, or the largest integers.
	Writes bool
	// Err holds error bounds, which only the reference evaluator uses. For a tensor that the kernel reads, Err is the
	// largest error that each element may have on a machine. For a tensor that the kernel writes, Err is initially nil;
	// a function that computes error bounds sets it.
	Err   []float64
	Int   int64
	Float float64
}

// Func is a Go function that computes the results of a kernel.
type Func func(*Call) error

var (
	mu       sync.Mutex
	standins = map[string]Func{}
)

// Register adds the function that replaces a kernel, for example "scale.cu:scale". It panics if f
// is nil or the kernel already has a function.
func Register(name string, f Func) {
	mu.Lock()
	defer mu.Unlock()
	if f == nil || standins[name] != nil {
		panic(fmt.Sprintf("hocket: a second function for the kernel %s, or none", name))
	}
	standins[name] = f
}

// Find returns the function for a kernel, or nil.
func Find(name string) Func {
	mu.Lock()
	defer mu.Unlock()
	return standins[name]
}

// Run calls f. It returns an error if f panics, or changes an argument that it must not change.
func (f Func) Run(name string, c *Call) (err error) {
	before := make([][]byte, len(c.Args))
	given := make([]*tensor.Tensor, len(c.Args))
	for i, a := range c.Args {
		given[i] = a.Tensor
		if a.Tensor != nil && !a.Writes {
			before[i] = bytes.Clone(a.Tensor.Data)
		}
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the function that stands in for %s panics: %v", name, p)
		}
	}()
	if err := f(c); err != nil {
		return fmt.Errorf("the function that stands in for %s: %w", name, err)
	}
	if len(c.Args) != len(given) {
		return fmt.Errorf("the function that stands in for %s changes the list of arguments", name)
	}
	for i, a := range c.Args {
		switch {
		case a.Tensor != given[i]:
			return fmt.Errorf("the function that stands in for %s replaces argument %d", name, i)
		case a.Tensor != nil && a.Tensor.Check() != nil:
			return fmt.Errorf("the function that stands in for %s changes the type of argument %d", name, i)
		case a.Tensor != nil && !a.Writes && !bytes.Equal(before[i], a.Tensor.Data):
			return undeclared(name, i)
		}
	}
	return nil
}

func undeclared(name string, i int) error {
	return fmt.Errorf("%s writes argument %d, which the launch says it reads: write into or inout in front of it", name, i)
}

// Poison fills a tensor that a kernel will write with NaNs, or with the largest integers.
func Poison(t *tensor.Tensor) {
	for i := range t.Data {
		t.Data[i] = 0xff
	}
	if size := int(t.DType.Size()); t.DType.IsInt() { // the largest integer: all bits are 1, except the sign bit, which is the most significant bit
		for i := size - 1; i < len(t.Data); i += size {
			t.Data[i] = 0x7f
		}
	}
}
