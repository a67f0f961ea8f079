package cuda

import "hocket.example/hocket/internal/nvlib"

// A kernel may begin before all is over that is before it on its stream, if it
// waits for the rest itself, with all its threads, before it touches memory
// ("programmatic dependent launch" by NVIDIA). Hocket's kernels wait (see settle and
// follow in their sources), so the order of a stream holds: the end of a kernel is
// behind the ends of all before it, whoever looks at it, be that a copy, an event or
// a kernel that begins as usual.
//
// Behind kernels of teams that let it (see follow), and GEMMs of few rows (see let), a
// launch begins while they run, and its blocks take room while they wait. Behind teams that
// is only where nobody else wants any; a GEMM ends whatever others do. A GEMM of few rows
// reads a constant weight before it waits, so nothing is early behind an upload. Behind all
// others it begins when their last blocks have ended: it takes room that these have
// just left, and waits only for what they wrote to arrive, which nobody can hold up.

// following says how a kernel may follow what is before it.
type following uint8

const (
	atEnd   following = iota // it begins when all before it is over
	closely                  // it may begin earlier right behind a kernel
	always                   // that of a team alone on its devices: behind whatever is before
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
