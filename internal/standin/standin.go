// Package standin holds the Go functions that replace launched kernels where there is no GPU: on the CPU machine and
// in the reference evaluator.
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
	Args        []Arg // in the order of the kernel's parameters
}

// Arg is an argument: a tensor or a number.
type Arg struct {
	Tensor *tensor.Tensor // nil for a number
	// Writes: the kernel may write Tensor. If it does not read it, its elements are NaNs at first, or
	// the largest integers.
	Writes bool
	// Err is, in the evaluator, how far each element of a tensor that is read may be off on a machine;
	// a function that knows sets that of those it writes, which is nil at first.
	Err   []float64
	Int   int64
	Float float64
}

// Func does what a kernel does.
type Func func(*Call) error

var (
	mu       sync.Mutex
	standins = map[string]Func{}
)

// Register adds the function that stands in for a kernel, "scale.cu:scale". It panics if there is one, or f
// is nil.
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

// Run calls f. Its error says if f panics, or changes what it may not.
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

// Poison fills a tensor that a kernel is to write: NaNs, or large integers.
func Poison(t *tensor.Tensor) {
	for i := range t.Data {
		t.Data[i] = 0xff
	}
	if size := int(t.DType.Size()); t.DType.IsInt() { // the largest: the sign is the last bit
		for i := size - 1; i < len(t.Data); i += size {
			t.Data[i] = 0x7f
		}
	}
}
