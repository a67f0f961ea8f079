package cuda

import "sync"

// fakeCompile is the name by which the fake's compiler can be blocked.
const fakeCompile = "nvrtcCompileProgram"

// Block has no call of that name return any more, of the driver, cuBLASLt or NCCL, nor of
// NVRTC as fakeCompile, until the function that it returns is called; from then on those that
// were held fail without having done anything. Meanwhile the fake's own lock is free, as a
// driver is for what concerns other GPUs.
func (f *fakeGPU) Block(call string) (release func()) {
	return f.held.when(func(name string) bool { return name == call })
}

// BlockNth does so for the n-th call from now on, alone; which tells its name once it was
// made.
func (f *fakeGPU) BlockNth(n int) (which func() string, release func()) {
	made, call := 0, ""
	release = f.held.when(func(name string) bool {
		if made++; made == n {
			call = name
		}
		return made == n
	})
	return func() string {
		f.held.mu.Lock()
		defer f.held.mu.Unlock()
		return call
	}, release
}

// fakeBlocks holds up calls.
type fakeBlocks struct {
	mu   sync.Mutex
	held func(call string) bool // nil for none
	done chan struct{}
}

func (b *fakeBlocks) when(held func(call string) bool) (release func()) {
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

// pass is called at the beginning of each call. It reports whether the call is to be made.
func (b *fakeBlocks) pass(call string) bool {
	b.mu.Lock()
	held, done := b.held != nil && b.held(call), b.done
	b.mu.Unlock()
	if held {
		<-done
	}
	return !held
}
