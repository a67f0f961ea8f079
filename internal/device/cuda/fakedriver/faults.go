package fakedriver

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Compile is the name by which the fake's compiler can be blocked.
const Compile = "nvrtcCompileProgram"

// Block has no call of that name return any more, of the driver, cuBLASLt or NCCL, nor of
// NVRTC as Compile, until the function that it returns is called; from then on those that
// were held fail without having done anything. Meanwhile the fake's own lock is free, as a
// driver is for what concerns other GPUs.
func (f *GPU) Block(call string) (release func()) {
	return f.Gate.when(func(name string) bool { return name == call })
}

// BlockNth does so for the n-th call from now on, alone; which tells its name once it was
// made.
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

// gate holds up calls.
type gate struct {
	mu   sync.Mutex
	held func(call string) bool // nil for none
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

// Pass is called at the beginning of each call. It reports whether the call is to be made.
func (b *gate) Pass(call string) bool {
	b.mu.Lock()
	held, done := b.held != nil && b.held(call), b.done
	b.mu.Unlock()
	if held {
		<-done
	}
	return !held
}

// At has tell called at the n-th call of any library; it says whether that fails.
func (f *GPU) At(n int, tell func(call string) bool) {
	made := 0
	f.Nth = func(call string) bool {
		made++
		return made == n && tell(call)
	}
}

// Left lists the objects that were made and not freed; empty if there are none.
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
