package cuda

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// fault ends the world because work on a device failed. The failure was detected on stream s. If a stream of the same
// device is known to be executing a command, the recorded fault names that stream.
func (w *world) fault(s *stream, err error) {
	s = guilty(w, s, err)
	for _, other := range w.flight.streams {
		if other.dev.site == s.dev.site && other.track.Inside() {
			s = other
			break
		}
	}
	s.dev.site.gpu.Lose(err, s.where())
	f := &device.Fault{Rank: s.dev.rank, Stream: s.name, Err: err}
	f.ID, f.Last = s.within()
	if others := otherSuspects(s); len(others) > 0 && gpu.IsFatal(err) {
		f.Err = fmt.Errorf("%w; the run was not observed, so the failed work may also be that of %s", err, strings.Join(others, "; "))
	}
	w.end(f)
}

// guilty returns the stream to which a failure that was detected on stream s is attributed: s, or a stream of another
// GPU if that GPU is lost and s's GPU is not. A call that concerns several GPUs, such as a graph launch, can fail
// because of any of them. Every query of a lost GPU returns an error, which identifies the GPU.
func guilty(w *world, s *stream, err error) *stream {
	if !gpu.IsFatal(err) || w.capture != nil { // streams that are being captured cannot be queried
		return s
	}
	for _, o := range append([]*stream{s}, w.flight.streams...) {
		if _, err := o.idle(); gpu.IsFatal(err) {
			return o
		}
	}
	return s
}

// otherSuspects describes the other streams with unfinished work on the device of stream s. If no observer is set, the
// failed work may be on any of these streams.
func otherSuspects(s *stream) []string {
	var list []string
	for _, o := range s.dev.w.flight.streams {
		if o != s && o.dev.site == s.dev.site && o.dirty && s.dev.w.observer == nil {
			list = append(list, o.where())
		}
	}
	return list
}

// lost reports whether this process has lost the GPU of s.
func (s *site) lost() bool { return s.gpu.Lost.Load() != nil }

// excuse returns nil if err may only repeat that a GPU of the world is lost, and otherwise err. Calls on other GPUs
// return the same error for memory that they share with the lost GPU.
func (w *world) excuse(err error) error {
	if !gpu.IsFatal(err) {
		return err
	}
	for _, s := range w.sites {
		if s.lost() {
			return nil
		}
	}
	return err
}
