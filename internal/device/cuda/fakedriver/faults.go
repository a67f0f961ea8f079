package fakedriver

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Compile is the name under which Block and Gate know the call of the compiler.
const Compile = "nvrtcCompileProgram"

// Block makes all calls of the given name hang until release is called. The name may be that of a call of the driver,
// cuBLASLt or NCCL, or Compile. On release, hanging calls fail without having done anything. A hanging call does not
// hold the fake's lock, so other calls proceed, as with a real driver whose other GPUs work.
func (f *GPU) Block(call string) (release func()) {
	return f.Gate.when(func(name string) bool { return name == call })
}

// BlockNth makes only the n-th call from now hang. The result which is a function that returns the name of that call
// once it was made.
func (f *GPU) BlockNth(n int) (which func() string, release func()) {
	made, call := 0, ""
	release = f.Gate.when(func(name string) bool {
		if made++; made == n {
			call = name
		}
		return made == n
	})
	return func() string {
		f.Gate.mu.Lock()
		defer f.Gate.mu.Unlock()
		return call
	}, release
}

// gate makes calls hang.
type gate struct {
	mu   sync.Mutex
	held func(call string) bool // reports whether a call hangs; nil if no call does
	done chan struct{}
}

func (b *gate) when(held func(call string) bool) (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held, b.done = held, make(chan struct{})
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.held = nil
		close(b.done)
	})
}

// Pass is called at the beginning of each call. It reports whether the call should be executed.
func (b *gate) Pass(call string) bool {
	b.mu.Lock()
	held, done := b.held != nil && b.held(call), b.done
	b.mu.Unlock()
	if held {
		<-done
	}
	return !held
}

// At arranges that the function tell is called at the n-th call of any library. That library call fails if tell returns
// true.
func (f *GPU) At(n int, tell func(call string) bool) {
	made := 0
	f.Nth = func(call string) bool {
		made++
		return made == n && tell(call)
	}
}

// Left lists the objects that were created and not freed; empty if there are none.
func (f *GPU) Left() string {
	var left []string
	for kind, n := range f.Live {
		if n != 0 && (kind != "addresses" || !f.Remembered) {
			left = append(left, fmt.Sprintf("%d × %s", n, kind))
		}
	}
	slices.Sort(left)
	return strings.Join(left, ", ")
}
