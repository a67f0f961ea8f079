package cuda

import "hocket.example/hocket/internal/nvlib"

// With programmatic dependent launch a kernel may begin before earlier work on its stream has ended. All threads of the
// kernel must then wait for that work before they access memory. Hocket's kernels do so (see settle and follow in their
// sources). The order of a stream therefore holds: a kernel ends only after everything before it on the stream has
// ended, whether a copy, an event or an ordinary kernel follows it.
//
// A launch may begin while an earlier kernel still runs in two cases: the earlier kernel is a team's kernel that allows
// it (see follow), or a GEMM of few rows (see let in skinny.cuh). The new thread blocks then occupy multiprocessors
// while they wait. For teams, this is allowed only if no other kernel needs these multiprocessors. A GEMM always ends,
// whatever other kernels run. A GEMM of few rows reads its constant weight before it waits, so no launch begins early
// after an upload. After any other kernel, an early launch begins when the last blocks of that kernel have ended. It
// uses the multiprocessors that those blocks have released, and waits only until their writes are visible, which no
// other work can delay.

// following says how early a kernel may begin relative to earlier work on its stream.
type following uint8

const (
	atEnd   following = iota // after all earlier work on its stream
	closely                  // early, if the launch before it is a kernel that allows it
	always                   // early after any work: for a team's kernel whose stream is the only one on its device
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
