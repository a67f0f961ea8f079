package cuda

import "hocket.example/hocket/internal/nvlib"

// With programmatic dependent launch a kernel may begin before earlier work on its stream has ended. All threads of the
// kernel must then wait for that work before they access memory. Hocket's kernels wait in this way (see settle and
// follow in their sources). The order of a stream therefore holds: a kernel ends only after everything before it on the
// stream has ended, whether a copy, an event or an ordinary kernel follows it.
//
// A launch may begin while an earlier kernel still runs in two cases: the earlier kernel is a team's kernel that allows
// it (see follow), or a GEMM of few rows (see let in skinny.cuh). The new thread blocks then occupy multiprocessors
// while they wait. After a team's kernel, this is allowed only if no other kernel needs these multiprocessors. After a
// GEMM it is always allowed, because a GEMM ends, whatever other kernels run. A GEMM of few rows reads its constant
// weight before it waits. Therefore no launch begins early after an upload. After any other kernel, an early launch
// begins when the last blocks of that kernel have ended. The early launch uses the multiprocessors that those blocks
// have released, and waits only until their writes are visible, which no other work can delay.

// following is how early a kernel may begin relative to earlier work on its stream.
type following uint8

const (
	atEnd   following = iota // the kernel begins after all earlier work on its stream
	closely                  // it may begin early if the launch before it is a kernel that allows this
	always                   // it may begin early after any work: a team's kernel on the only stream of its device
)

// kernel issues l. The context is current.
func (s *stream) kernel(l *nvlib.Launch, f following) error {
	c, early := s.dev.w.capture, false
	switch f {
	case closely:
		early = s.led
	case always:
		// Kernels that wait for flags between graphs need free multiprocessors, which early kernels of teams would
		// occupy.
		early = c == nil || c.flags == nil
	}
	s.led = f == closely || early
	if early && (c == nil || s.dev.site.gpu.System.EarlyEdges) {
		return s.dev.w.drv.LaunchEarly(l, s.h)
	}
	return s.dev.w.drv.Launch(l, s.h)
}
