package cuda

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// fault ends the world because work on a device failed. s is the stream that was polled or given work. The fault
// names, if possible, a stream of the same device that was within a command.
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

// guilty returns s, or a stream of another GPU if that one is lost and s's is not: calls
// for several GPUs, as a graph's launch is, fail by any of them. One that is lost says so
// to every question.
func guilty(w *world, s *stream, err error) *stream {
	if !gpu.IsFatal(err) || w.capture != nil { // streams that record answer nothing
		return s
	}
	for _, o := range append([]*stream{s}, w.flight.streams...) {
		if _, err := o.idle(); gpu.IsFatal(err) {
			return o
		}
	}
	return s
}

// otherSuspects describes other streams of s's device that were busy. If no observer is set, any of them may be at
// fault.
func otherSuspects(s *stream) []string {
	var list []string
	for _, o := range s.dev.w.flight.streams {
		if o != s && o.dev.site == s.dev.site && o.dirty && s.dev.w.observer == nil {
			list = append(list, o.where())
		}
	}
	return list
}

// lost reports whether the GPU is lost to the process.
func (s *site) lost() bool { return s.gpu.Lost.Load() != nil }

// excuse returns err, or nil where it only repeats that a GPU of the world is
// lost: so do other GPUs' calls about memory that they share with it.
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
