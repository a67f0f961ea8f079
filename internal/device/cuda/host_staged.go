package cuda

import (
	"errors"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/staging"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
)

// A copy between GPUs without peer access goes through pinned host memory, in pieces. The copy engine of one GPU writes
// a piece while the copy engine of the other reads the previous piece. Two copies transfer each piece: one to the host,
// one from it. The copies that the other GPU makes run on a separate stream, which is used only for this purpose. These
// copies start after the work already on the copying stream, and later work of the copying stream waits for them. A
// graph can record such a copy, because it consists only of copies and events. If a kernel reads memory of a GPU to
// which its own GPU has no peer access, the memory is first copied to the kernel's own GPU.

// hostStagedPiece is the largest size in bytes of a piece that is copied through host memory; tests lower it. On two
// H200 GPUs, pieces of 2 MiB were faster than pieces of 1 MiB for large views, and faster than pieces of 4 MiB for
// views of a few MiB.
var hostStagedPiece int64 = 2 << 20

// hostStaged is the state of a stream for copies through host memory. This state cannot be created while work is issued
// (see package guard), so every stream has it if its GPU has no access to some other GPU. The buffer for pieces is
// large enough for the copies that were prepared on the device, and small if none were prepared.
type hostStaged struct {
	buffer nvlib.Ptr // pinned, for two pieces
	piece  int64     // bytes
	far    map[*site]*stream
}

// openHostStaged creates s.staged if s's GPU lacks access to another GPU. The caller holds the world exclusively.
func openHostStaged(s *stream) error {
	here := s.dev.site
	if len(here.unreachable) == 0 || here.w.hosted { // in a hosted world, the memory that peers access is host memory
		return nil
	}
	s.staged = &hostStaged{far: map[*site]*stream{}}
	if err := widenHostStaged(s, max(s.dev.piece, hostStagedPiece/32)); err != nil {
		return err
	}
	for _, there := range s.dev.w.sites {
		if here.unreachable[there] == nil {
			continue
		}
		i := slices.IndexFunc(s.dev.w.devices, func(d *dev) bool { return d.site == there })
		far, err := s.dev.w.devices[i].newStream(s.name+", far", 0)
		if err != nil {
			return err
		}
		s.staged.far[there] = far
	}
	return nil
}

// widenHostStaged replaces the buffer of s by a buffer for pieces of the given number of bytes. The old buffer is
// freed when the world ends, because unfinished work and graphs may use it.
func widenHostStaged(s *stream, piece int64) error {
	t := s.staged
	if t == nil || piece <= t.piece {
		return nil
	}
	buffer, err := s.dev.site.take(device.Pinned, 2*piece)
	if err != nil {
		return s.errorf("host memory for copies to other GPUs: %w", err)
	}
	t.buffer, t.piece = buffer, piece
	return nil
}

// widenHostStaged enlarges the buffers of all streams of the device d for a copy of the given number of bytes.
func (d *dev) widenHostStaged(bytes int64) error {
	d.piece = max(d.piece, min(staging.Size(bytes), hostStagedPiece))
	for _, s := range d.w.flight.streams {
		if s.dev == d {
			if err := widenHostStaged(s, d.piece); err != nil {
				return err
			}
		}
	}
	return nil
}

// near returns the stream whose GPU can access the view r: s, or the stream on the other GPU that makes copies for s.
func (s *stream) near(r *strided.View) *stream {
	if s.dev.site.reaches(r) {
		return s
	}
	return s.staged.far[memoryOf(r).dev.site]
}

// copyHostStaged copies src to dst if the GPU of s cannot access both views. The context is current on entry and on
// return.
func copyHostStaged(s *stream, dst, src *strided.View) error {
	from, to := s.near(src), s.near(dst)
	end, err := s.here()
	if err != nil {
		return err
	}
	if from.dev.site.reaches(dst) {
		end, err = copyBehind(from, end, dst, src)
	} else {
		end, err = copyInPieces(s, end, from, to, dst, src)
	}
	if err = errors.Join(err, s.dev.rebind()); err != nil {
		return err
	}
	defer end.Release()
	err = s.waitFor(end)
	s.worked() // later steps of the same task wait for the marks recorded here
	return err
}

// copyInPieces copies src to dst through s's buffer. The stream called from copies into the buffer after it has reached
// the mark begun, and the stream called to copies out of the buffer. copyInPieces releases the mark begun, and returns
// a mark for the end of the copy.
func copyInPieces(s *stream, begun *mark, from, to *stream, dst, src *strided.View) (*mark, error) {
	free := [2]*mark{begun}
	t, i := s.staged, 0
	err := strided.Pieces(dst, src, t.piece, func(d, p *strided.View) error {
		half := p.At(t.buffer + nvlib.Ptr(i)*nvlib.Ptr(t.piece))
		there, err := copyBehind(from, free[i], &half, p)
		if err == nil {
			free[i], err = copyBehind(to, there, d, &half)
		}
		i = 1 - i
		return err
	})
	last, before := free[1-i], free[i]
	if before != nil && err == nil {
		before.Release()
	}
	return last, err
}

// copyBehind copies src to dst on stream s after the mark m, which may be nil. The GPU of s must be able to access dst.
// copyBehind releases m and returns a mark for the end of all work issued to s so far.
func copyBehind(s *stream, m *mark, dst, src *strided.View) (end *mark, err error) {
	err = s.dev.bound(func() error {
		if err := s.follow(); err != nil {
			return err
		}
		if m != nil {
			defer m.Release()
			if err := s.waitFor(m); err != nil {
				return err
			}
		}
		if err := copyApart(s, dst, src); err != nil {
			return err
		}
		s.worked()
		end, err = s.here()
		return err
	})
	return end, err
}

// prepareHostStaged does the work of PrepareCopy for a copy that copyHostStaged will make. The address in host memory
// is not known yet, but the compiled code does not depend on it.
func (d *dev) prepareHostStaged(dst, src *strided.View) error {
	from, to := d.near(src), d.near(dst)
	if from.site.reaches(dst) {
		return from.prepareCopy(dst, src)
	}
	if err := d.widenHostStaged(dst.Bytes()); err != nil {
		return err
	}
	return strided.Pieces(dst, src, hostStagedPiece, func(t, r *strided.View) error {
		half := r.At(gpu.Alignment)
		return errors.Join(from.prepareCopy(&half, r), to.prepareCopy(t, &half))
	})
}

// near returns d if d can access the view r. Otherwise it returns the device that owns r's memory.
func (d *dev) near(r *strided.View) *dev {
	if d.site.reaches(r) {
		return d
	}
	return memoryOf(r).dev
}
