package cuda

import "hocket.example/hocket/internal/nvlib"

// Kernels of NCCL on windows are launched so that they may begin before the kernel
// before them on their stream has ended, and from 2.28 to before 2.30.7 they do not
// wait for that (nvlib.EagerWindows): behind a kernel that lets others begin, as
// those of teams do, they read what is not there yet. What is no kernel has them
// begin as usual; a write of four bytes is the least of that.

// quieted returns memory to write to before each call, nil where none is needed.
func (t *team) quieted(windows bool) (*area, error) {
	lib, err := t.w.m.sys.nccl()
	if err != nil || !windows || t.w.m.sys.unquiet || lib.Mistaken(nvlib.EagerWindows, false) == nil {
		return nil, err
	}
	for _, m := range t.members {
		if m.dev.site.gpu.early {
			return t.reserve("writes before NCCL", 4)
		}
	}
	return nil, nil
}

// quietStep is that write. Behind another such call it is left out: NCCL's own
// kernels let nobody begin early, and end in a barrier of all members.
type quietStep struct{ at nvlib.Ptr }

func (q quietStep) run(s *stream) error {
	if s.windowed > 0 && s.windowed == s.pos-1 {
		return nil
	}
	return s.dev.w.drv.Fill32(q.at, 0, 1, s.h)
}

func (quietStep) free() {}

// windowedStep notes that the call was given.
type windowedStep struct{}

func (windowedStep) run(s *stream) error {
	s.windowed = s.pos
	return nil
}

func (windowedStep) free() {}
