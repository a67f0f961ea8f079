package cuda

import "hocket.example/hocket/internal/nvlib"

// With programmatic dependent launch a kernel may begin before earlier work on its stream has ended. Its threads must
// wait for that work before they access memory (see settle and follow in the sources). The order of a stream holds,
// because a kernel ends only after its own wait, and so after everything before it on the stream.
//
// A launch may begin early after three kinds of kernels: a team's kernel that allows it (see follow), a GEMM of few
// rows (see let in prelude.cuh), and a small kernel of a decode step (see letIfSmall). Its blocks then occupy
// multiprocessors while they wait. After a team's kernel, this is allowed only if no other kernel needs them. After
// the others it is always allowed, because those kernels end. No block waits for one that has no place, because all
// blocks of a kernel are resident or have ended before the next kernel begins. After any other kernel, an early launch
// begins when that kernel's last blocks have ended, and waits for their writes.
//
// A GEMM of few rows reads a constant weight before it waits. No kernel of the run writes such a weight. No launch
// begins early after an upload, and none at the beginning of a run except a team's kernel (see lateStreams in
// internal/exec/image).

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
