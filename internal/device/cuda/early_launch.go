package cuda

import "hocket.example/hocket/internal/nvlib"

// With programmatic dependent launch a kernel may begin before earlier work on its stream has ended. It must then wait
// for that work itself, with all threads, before it touches memory. Hocket's kernels do so (see settle and follow in
// their sources). The order of a stream therefore holds: whether a copy, an event or an ordinary kernel follows, a
// kernel ends after everything before it has ended.
//
// A launch may begin while an earlier kernel still runs, in two cases: the kernel is a team's that allows it (see
// follow), or a GEMM of few rows (see let in skinny.cuh). The new blocks then occupy multiprocessors while they wait.
// For teams this is only allowed if no other kernel needs the room; a GEMM always ends, whatever else runs. A GEMM of
// few rows reads a constant weight before it waits, so no launch begins early after an upload. After any other kernel,
// the launch begins when the last blocks have ended. It uses the room that they have left, and only waits until their
// writes are visible, which no other work can delay.

// following says how early a kernel may begin.
type following uint8

const (
	atEnd   following = iota // after all earlier work on its stream
	closely                  // early, if the launch before it is a kernel that allows it
	always                   // early after anything: a team's kernel that has its devices to itself
)

// kernel issues l. The context is current.
func (s *stream) kernel(l *nvlib.Launch, f following) error {
	c, early := s.dev.w.capture, false
	switch f {
	case closely:
		early = s.led
	case always:
		// Flags between graphs want room, however many kernels of teams wait.
		early = c == nil || c.flags == nil
	}
	s.led = f == closely || early
	if early && (c == nil || s.dev.site.gpu.System.EarlyEdges) {
		return s.dev.w.drv.LaunchEarly(l, s.h)
	}
	return s.dev.w.drv.Launch(l, s.h)
}
