package cuda

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/nvlib"
)

// TestEveryCallFails runs lives (a life opens a machine, runs programs and closes it) and makes each library call fail
// once, with out of memory or another status. Then either an error names the call, or the results are correct. The
// process neither crashes nor hangs, nothing stays allocated, and the next life on the same machine is normal.
func TestEveryCallFails(t *testing.T) {
	for _, l := range lives() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			calls, want := l.callsToFail(t)
			for _, code := range []uintptr{nvlib.CUDAOutOfMemory, 801} {
				for _, n := range calls {
					if call, wrong := l.fails(t, n, code, want); wrong != "" {
						t.Errorf("call %d, %s, fails with %d: %s", n, call, code, wrong)
					}
				}
			}
		})
	}
}

// fails executes a life in which the n-th call fails. It returns the name of the call, and what went wrong.
func (l *life) fails(t *testing.T, n int, code uintptr, want [][]float64) (call, wrong string) {
	t.Helper()
	f, m := l.begin(t)
	f.Failure = code
	f.At(n, func(name string) bool { call = name; return true })
	out, errs := l.live(t.Context(), t, m)
	f.At(0, nil) // later lives may make fewer calls, because slow graphs are not tried in every form
	err := errors.Join(errs...)
	if wrong = l.wrong(out, want); wrong != "" {
		return call, wrong
	}
	switch {
	case call == "" && err != nil:
		return call, fmt.Sprintf("no call fails, and yet: %v", err)
	case err != nil && !strings.Contains(err.Error(), strings.TrimSuffix(call, "_v2")):
		return call, fmt.Sprintf("the error does not say so: %v", err)
	case releases(call):
		f.Dead = 1 // objects that the failed call should free are not freed
		f.Abandon()
		return call, ""
	case f.Left() != "":
		return call, fmt.Sprintf("%s stay; the error is %v", f.Left(), err)
	case l.apart != nil || l.gpus == 1 || m.sys.Reach.Known(m.sys.GPUs[0], m.sys.GPUs[1]) == nil:
		return call, l.again(t, m, want)
	case code == nvlib.CUDAOutOfMemory:
		return call, "since memory was short once, the GPUs are kept apart"
	}
	return call, "" // the driver has reported that the GPUs have no peer access
}

// TestEveryCallLosesGPU makes all driver calls fail from one call on, as after an illegal address. Then there is an
// error, runs return correct results or none, the process neither crashes nor hangs, and the next life reports that the
// GPU is lost.
func TestEveryCallLosesGPU(t *testing.T) {
	for _, l := range lives() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			calls, want := l.callsToFail(t)
			for _, n := range calls {
				f, m := l.begin(t)
				call := ""
				f.At(n, func(name string) bool {
					call = name
					if strings.HasPrefix(name, "cu") && !strings.HasPrefix(name, "cublas") {
						f.Dead, f.Failure = 700, 700
					}
					return f.Dead != 0
				})
				out, errs := l.live(t.Context(), t, m)
				if f.Dead == 0 {
					continue // a call of another library
				}
				wrong := l.wrong(out, want)
				if _, again := l.live(t.Context(), t, m); !errors.Is(errors.Join(again...), device.ErrDeviceLost) {
					wrong = fmt.Sprintf("%v; and then %v", errors.Join(errs...), errors.Join(again...))
				}
				if wrong != "" {
					t.Errorf("all calls fail from call %d, %s, on: %s", n, call, wrong)
				}
				f.Abandon()
			}
		})
	}
}

// TestCancelledAnywhere cancels the context of a life during each library call. Operations in progress return the
// context's error or succeed, nothing stays allocated, and the next life is normal.
func TestCancelledAnywhere(t *testing.T) {
	for _, l := range lives() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			calls, want := l.callsToFail(t)
			early := 0
			for _, n := range calls {
				f, m := l.begin(t)
				ctx, cancel := context.WithCancel(t.Context())
				call := ""
				f.At(n, func(name string) bool { call = name; cancel(); return false })
				out, errs := l.live(ctx, t, m)
				wrong := l.wrong(out, want)
				for _, err := range errs {
					if !errors.Is(err, context.Canceled) && !errors.Is(err, hocket.ErrClosed) {
						wrong = err.Error()
					}
				}
				switch {
				case wrong != "":
				case f.Left() != "":
					wrong = fmt.Sprintf("%s stay; the error is %v", f.Left(), errors.Join(errs...))
				default:
					wrong = l.again(t, m, want)
				}
				if wrong != "" {
					t.Errorf("cancelled at call %d, %s: %s", n, call, wrong)
				}
				if len(errs) > 0 {
					early++
				}
			}
			if early < len(calls)/2 {
				t.Errorf("%[2]d of %[1]d lives ended early", len(calls), early)
			}
		})
	}
}

// TestHangsAnywhere makes work on the GPU appear never to end, beginning at each library call in turn. Waits then end
// with their context, closing ends soon after, and the next life reports that the GPU is lost.
func TestHangsAnywhere(t *testing.T) {
	sideBySide(t, 6, lives(), (*life).String, func(t *testing.T, l *life) {
		calls, want := l.callsToFail(t)
		for i := 0; i < len(calls); i += 4 { // every fourth: calls between two waits behave alike
			n := calls[i]
			f, m := l.begin(t)
			m.sys.Patience = 5 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			call := ""
			f.At(n, func(name string) bool {
				call = name
				f.Late["cuStreamQuery"], f.Late["cuEventQuery"] = 1<<30, 1<<30
				time.AfterFunc(10*time.Millisecond, cancel)
				return false
			})
			began := time.Now()
			out, errs := l.live(ctx, t, m)
			took := time.Since(began)
			wrong := l.wrong(out, want)
			cancel()
			if call == "" { // the life had fewer calls
				f.At(0, nil)
				if len(errs) > 0 || wrong != "" {
					t.Errorf("no call hangs, but: %v; %s", errors.Join(errs...), wrong)
				}
				continue
			}
			if took > 10*time.Second {
				wrong = fmt.Sprintf("it takes %v; the errors are %v", took, errors.Join(errs...))
			}
			late, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, again := l.live(late, t, m)
			stop()
			switch {
			case wrong != "":
			case !lostOr(context.Canceled, errs...) || len(again) == 0 || !lostOr(context.DeadlineExceeded, again...):
				wrong = fmt.Sprintf("%v; and then %v", errors.Join(errs...), errors.Join(again...))
			}
			if wrong != "" {
				t.Errorf("no work ends from call %d, %s, on: %s", n, call, wrong)
			}
			f.Die()
			f.Abandon()
		}
	})
}

// lostOr reports whether each error in errs is why or means that a GPU is lost.
func lostOr(why error, errs ...error) bool {
	return !slices.ContainsFunc(errs, func(err error) bool {
		return !errors.Is(err, why) && !errors.Is(err, device.ErrDeviceLost) && !errors.Is(err, hocket.ErrClosed)
	})
}

// TestFailsBeside makes a call fail, once or from then on, while three lives execute concurrently on one machine. No
// life hangs or returns a wrong result, and nothing stays allocated.
func TestFailsBeside(t *testing.T) {
	random, rounds := rand.New(rand.NewPCG(longtest.Drawn(t), 2)), longtest.Of(12, 36)
	if testing.Short() {
		rounds = 9
	}
	for _, l := range lives() {
		if l.load.Graph || l.nccl || l.products {
			continue // the fakes of graphs and libraries support only one world at a time
		}
		t.Run(l.name, func(t *testing.T) {
			calls, want := l.callsToFail(t)
			for round := range rounds {
				f, m := l.begin(t)
				f.Failure = []uintptr{nvlib.CUDAOutOfMemory, 801, 700}[round%3]
				call := ""
				f.At(1+random.IntN(3*calls[len(calls)-1]), func(name string) bool {
					if call = name; f.Failure == 700 {
						f.Dead = 700
					}
					return true
				})
				var all sync.WaitGroup
				for range 3 {
					all.Go(func() {
						for range 2 {
							out, errs := l.live(t.Context(), t, m)
							if wrong := l.wrong(out, want); wrong != "" {
								t.Errorf("%s fails with %d: %s; %v", call, f.Failure, wrong, errors.Join(errs...))
							}
						}
					})
				}
				all.Wait()
				switch {
				case f.Dead != 0 || releases(call):
					f.Dead = 1 // memory that should be freed stays
					f.Abandon()
				case f.Left() != "":
					t.Errorf("%s fails with %d: %s stay allocated", call, f.Failure, f.Left())
				default:
					if wrong := l.again(t, m, want); wrong != "" {
						t.Errorf("%s fails with %d: %s", call, f.Failure, wrong)
					}
				}
			}
		})
	}
}
