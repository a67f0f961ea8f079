package cuda

import "hocket.example/hocket/internal/nvlib"

// With programmatic dependent launch a kernel may begin before earlier work on its stream has ended. All threads of the
// kernel must then wait for that work before they access memory. Hocket's kernels wait in this way (see settle and
// follow in their sources). The order of a stream therefore holds: a kernel ends only after everything before it on the
// stream has ended, whether a copy, an event or an ordinary kernel follows it.
//
// A launch may begin while an earlier kernel still runs in three cases: the earlier kernel is a team's kernel that
// allows it (see follow), a GEMM of few rows (see let in prelude.cuh), or a small kernel of a decode step (see
// letIfSmall). The new thread blocks then occupy multiprocessors while they wait. After a team's kernel, this is
// allowed only if no other kernel needs these multiprocessors. After the others it is always allowed, because they end,
// whatever other kernels run. After any other kernel, an early launch begins when the last blocks of that kernel have
// ended. It uses the multiprocessors that those blocks have released, and waits only until their writes are visible.
//
// All blocks of a kernel are resident or have ended before the next kernel begins, so waiting blocks never take the
// place of blocks for which they wait. A kernel that waits for its predecessor also waits for all kernels before it,
// because the predecessor ends only after its own wait. A GEMM of few rows reads its constant weight before it waits.
// No kernel writes such a weight, and no launch begins early after an upload.

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
