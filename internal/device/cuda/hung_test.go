package cuda

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/longtest"
	procs "hocket.example/hocket/internal/world"
)

// haste has short time limits for driver calls.
var haste = gpu.Patience{Call: time.Minute, Late: 250 * time.Millisecond, Close: time.Second}

// hangs executes a life in which the n-th library call never returns. It returns the name of the call, what went wrong,
// and whether a GPU was lost. It checks that executions end soon after their deadline, closing ends too, no result is
// wrong, and a world on the other GPU is not affected.
func (l *life) hangs(t *testing.T, n int, want [][]float64) (call, wrong string, lost bool) {
	t.Helper()
	f, m := l.begin(t)
	m.sys.CallPatience = haste
	f.Haunted = true
	which, release := f.BlockNth(n)
	defer func() {
		f.Die()
		release()
		f.Abandon()
	}()
	out, errs, took := l.liveShort(t, m)
	if call = which(); call == "" {
		release() // the life had fewer than n calls
	}
	for what, d := range took {
		// Ten times the promised limit. There is no grace period, and the deadline is 50 ms.
		if d > 5*time.Second {
			wrong = fmt.Sprintf("%s takes %v", what, d)
		}
	}
	if wrong == "" {
		wrong = l.wrong(out, want)
	}
	if err := hungOr(errs); err != nil {
		wrong = fmt.Sprintf("an error of another kind: %v", err)
	}
	whose := -1
	for i, g := range m.sys.GPUs {
		if err := g.LostTo(); err != nil {
			whose, lost = i, true
			if !strings.Contains(err.Error(), call+": the call has not returned for ") || !strings.Contains(err.Error(), fmt.Sprintf("GPU %d", i)) {
				wrong = fmt.Sprintf("the loss of GPU %d is told as %q", i, err)
			}
		}
	}
	if wrong != "" {
		return call, wrong, lost
	}
	f.Mu.Lock() // otherwise the fake driver would report a capture that was not ended
	clear(f.Begun)
	clear(f.Member)
	f.Mu.Unlock()
	// The other world has one rank, on GPU 0.
	beside := &life{name: l.name + " beside", text: livesAlone, gpus: 1, opts: l.opts}
	began := time.Now()
	got, besideErrs := beside.live(t.Context(), t, m)
	switch err := errors.Join(besideErrs...); {
	case whose == 0 && !errors.Is(err, device.ErrDeviceLost):
		wrong = fmt.Sprintf("on the lost GPU: %v", err)
	case whose != 0 && (err != nil || len(got) != 3):
		wrong = fmt.Sprintf("on another GPU: %v", err)
	case time.Since(began) > 20*time.Second:
		wrong = fmt.Sprintf("another model takes %v", time.Since(began))
	}
	return call, wrong, lost || call == ""
}

const livesAlone = `func f(%x: f32[16]) -> f32[16] {
  %y = add %x, %x
  return %y
}
`

// liveShort is like live, with deadlines of 50 ms and without a grace period. It also returns how long executions and
// closing took.
func (l *life) liveShort(t *testing.T, m *machine) (out [][]float64, errs []error, took map[string]time.Duration) {
	t.Helper()
	took = map[string]time.Duration{}
	timed := func(what string, f func() error) bool {
		began := time.Now()
		err := f()
		took[what] = time.Since(began)
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	name := "a short life " + l.name
	device.Register(device.Kind{Name: name, Open: func(*procs.World) (device.Machine, error) { return m, nil }})
	machine, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer timed("Machine.Close", machine.Close)
	p, err := hocket.Parse("test.hkt", l.text)
	if err != nil {
		t.Fatal(err)
	}
	load := l.load
	load.Grace = -1
	model, err := machine.Load(p, hocket.Binding{}, load)
	if err != nil {
		t.Fatal(err)
	}
	for run := range 3 {
		in := maps.Clone(l.in[run])
		if w := in["w"]; w != nil {
			delete(in, "w")
			if run != 1 {
				if err := model.Bind("w", w); err != nil {
					t.Fatal(err)
				}
			}
		}
		out = append(out, nil)
		timed(fmt.Sprint("run ", run), func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if run == 0 { // with a short deadline, most loads would not complete
				load, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				if err := model.Prepare(load, nil); err != nil {
					return err
				}
				var end context.CancelFunc
				ctx, end = context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer end()
			}
			r, err := model.Run(ctx, hocket.Args{In: in})
			switch {
			case l.meets && isMismatch(err):
				out[run] = []float64{}
			case err != nil:
				return err
			default:
				out[run] = r.Out["y"].Floats()
			}
			return nil
		})
	}
	return out, errs, took
}

// TestCallsHang executes lives in each of which one library call never returns.
func TestCallsHang(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	sideBySide(t, 12, lives(), (*life).String, func(t *testing.T, l *life) {
		calls, want := l.callsToFail(t)
		losses, step := 0, longtest.Of(4, 1)
		for i := 0; i < len(calls); i += step {
			n := calls[i]
			call, wrong, lost := l.hangs(t, n, want)
			if wrong != "" {
				t.Errorf("call %d, %s, hangs: %s", n, call, wrong)
			}
			if lost {
				losses++
			}
		}
		if losses < len(calls)/step/2 {
			t.Errorf("of %d hanging calls only %d caused the loss of a GPU", len(calls)/step, losses)
		}
	})
}

// sideBySide runs a subtest for each case, n subtests at a time. It is for subtests that mostly wait. The testing
// package limits the number of parallel subtests to the number of cores.
func sideBySide[T any](t *testing.T, n int, cases []T, name func(T) string, test func(t *testing.T, c T)) {
	t.Helper()
	var running sync.WaitGroup
	free := make(chan struct{}, n)
	for _, c := range cases {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			t.Run(name(c), func(t *testing.T) { test(t, c) })
		})
	}
	running.Wait()
}

// TestHangsBeside executes three lives with deadlines concurrently on one machine, in which one call never returns.
// Each life returns correct results, or an error that names the lost GPU or the deadline.
func TestHangsBeside(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	random := rand.New(rand.NewPCG(longtest.Seed(t), 2))
	began := time.Now()
	var first, last held
	for round := 0; round == 0 || time.Since(began) < *soakTime; round++ {
		fit := slices.DeleteFunc(lives(), func(l *life) bool {
			return l.load.Graph || l.nccl || l.products // these fakes support only one world at a time
		})
		seeds := map[*life]uint64{}
		for _, l := range fit {
			seeds[l] = random.Uint64()
		}
		sideBySide(t, 4, fit, (*life).String, func(t *testing.T, l *life) {
			calls, want := l.callsToFail(t)
			random := rand.New(rand.NewPCG(seeds[l], 2))
			for range longtest.Of(1, 100) {
				l.hangBeside(t, 1+random.IntN(3*calls[len(calls)-1]), want)
			}
		})
		if last = holds(); round == 2 {
			first = last
		}
		for i := 0; round > 2 && last.more(first) && i < 1000; i++ { // released goroutines end soon
			time.Sleep(10 * time.Millisecond)
			last = holds()
		}
		if *soakTime > 0 {
			t.Logf("round %d, %v: %+v", round, time.Since(began).Round(time.Second), last)
		}
		if round > 2 && last.more(first) {
			t.Fatalf("goroutines or heap grew from %+v to %+v", first, last)
		}
	}
}

// soakTime is the minimum duration of TestHangsBeside.
var soakTime = flag.Duration("soak", 0, "how long TestHangsBeside runs; 0 for one round")

// held is what the process occupies: the number of goroutines and the size of Go's heap.
type held struct {
	goroutines int
	bytes      int64 // of Go's heap
}

// more reports whether h exceeds the earlier measurement first by more than the usual variation.
func (h held) more(first held) bool {
	return h.goroutines > first.goroutines+4 || h.bytes > first.bytes+4<<20
}

// holds measures held. It empties the pool of the fakes' memory before it measures, because a block occupies more of
// the heap than its size.
func holds() held {
	fakedriver.Spare.Lock()
	clear(fakedriver.Spare.Blocks)
	fakedriver.Spare.Bytes = 0
	fakedriver.Spare.Unlock()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return held{runtime.NumGoroutine(), int64(m.HeapAlloc)}
}

func (l *life) hangBeside(t *testing.T, n int, want [][]float64) {
	f, m := l.begin(t)
	m.sys.CallPatience = haste
	f.Haunted = true
	which, release := f.BlockNth(n)
	defer func() {
		f.Die()
		release()
		f.Abandon()
	}()
	began := time.Now()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for range 2 {
				out, errs, _ := l.liveShort(t, m)
				if wrong := l.wrong(out, want); wrong != "" {
					t.Errorf("call %d, %s, hangs: %s", n, which(), wrong)
				}
				if wrong := hungOr(errs); wrong != nil {
					t.Errorf("call %d, %s, hangs: %v", n, which(), wrong)
				}
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("call %d, %s, hangs: all takes %v", n, which(), took)
	}
}

// hungOr returns the first error that is neither of a hanging call nor of a deadline.
func hungOr(errs []error) error {
	for _, err := range errs {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, device.ErrDeviceLost) && !errors.Is(err, hocket.ErrClosed) &&
			!strings.Contains(err.Error(), "has not returned for") {
			return err
		}
	}
	return nil
}

// TestHangTold checks which reports name a driver call that hangs. While the call hangs, the flight record names it.
// After the deadline and the grace period, the error and the record of the failure name the call, the GPU and the time.
func TestHangTold(t *testing.T) {
	calls := []string{"cuStreamQuery", "cuLaunchKernel", "cuMemcpyAsync"}
	sideBySide(t, len(calls), calls, strings.Clone, func(t *testing.T, call string) {
		f := fakedriver.New(t, 1)
		m := newMachine(system(f), Options{Kernels: f})
		f.Haunted = true
		name := t.Name()
		device.Register(device.Kind{Name: name, Open: func(*procs.World) (device.Machine, error) { return m, nil }})
		var failed bytes.Buffer
		machine, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: name,
			Failed: func(dump func(io.Writer) error) { _ = dump(&failed) }})
		mustOf(t)(err)
		p, err := hocket.Parse("test.hkt", livesAlone)
		mustOf(t)(err)
		model, err := machine.Load(p, hocket.Binding{}, hocket.LoadOptions{Grace: 300 * time.Millisecond})
		mustOf(t)(err)
		in, err := model.RandomInputs("ints:1")
		mustOf(t)(err)
		_, err = model.Run(t.Context(), hocket.Args{In: in})
		mustOf(t)(err)
		release := f.Block(call)
		ctx := newLapsing(t)
		ended := make(chan error, 1)
		began := time.Now()
		go func() { _, err := model.Run(ctx, hocket.Args{In: in}); ended <- err }()
		var shown bytes.Buffer
		for !strings.Contains(shown.String(), "is in "+call+", a call of the driver") {
			shown.Reset()
			mustOf(t)(machine.Dump(&shown))
			if time.Since(began) > 50*time.Second { // less than the time limit of a call without a deadline
				t.Errorf("%s: the flight record does not show the call: %s", call, shown.String())
				break
			}
		}
		began = time.Now()
		ctx.lapse()
		err = <-ended
		// The limit is ten times the grace period and a second.
		if took := time.Since(began); took > 13*time.Second {
			t.Errorf("%s: the run takes %v", call, took)
		}
		if !errors.Is(err, hocket.ErrDeviceLost) || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "GPU 0, fake, was lost at") || !strings.Contains(err.Error(), call+": the call has not returned for") {
			t.Errorf("%s: got %v", call, err)
		}
		if !strings.Contains(failed.String(), call+": the call has not returned for") {
			t.Errorf("%s: the record of the failure is %s", call, failed.String())
		}
		began = time.Now()
		if err := machine.Close(); err != nil {
			t.Errorf("%s: closing: %v", call, err)
		}
		if took := time.Since(began); took > 50*time.Second { // ten times the promise
			t.Errorf("%s: closing takes %v", call, took)
		}
		f.Die()
		release()
	})
}

// TestHangsUnopened checks two cases. The first: a world that is not opened because one of its GPUs is lost makes no
// calls for the other GPUs, which might not return. The second: a world that ends because a call hangs before its GPU
// is known reports some GPU as lost, and its locks are released.
func TestHangsUnopened(t *testing.T) {
	f := fakedriver.New(t, 2)
	m := newMachine(system(f), Options{Kernels: f})
	m.sys.CallPatience = haste
	f.Haunted = true
	m.sys.GPUs[0].Abandon("a call", time.Second)
	which, release := f.BlockNth(1)
	_, err := m.Open(t.Context(), 2)
	isLost(t, err, "a call: the call has not returned for 1s")
	if call := which(); call != "" {
		t.Errorf("a world that is not opened called %s", call)
	}
	w := &world{m: m}
	w.guard = m.guard(w)
	w.guard.Open(t.Context())
	w.guard.Closing()
	lost := w.Do(t.Context(), func() {
		w.guard.Alone(func() { _ = m.sys.Driver.Watched(&w.guard.Calls).Bind(0) })
	})
	isLost(t, lost, "GPU 0, fake")
	free := make(chan struct{})
	go func() { m.sys.Locks.LockIssue()(); close(free) }()
	select {
	case <-free:
	case <-time.After(10 * time.Second):
		t.Error("a world that was given up still holds the issue lock")
	}
	f.Die()
	release()
}

// lapsing is a context whose deadline passes when the test calls lapse.
type lapsing struct {
	context.Context
	ended chan struct{}
}

func newLapsing(t *testing.T) *lapsing { return &lapsing{t.Context(), make(chan struct{})} }

func (l *lapsing) lapse()                { close(l.ended) }
func (l *lapsing) Done() <-chan struct{} { return l.ended }

func (l *lapsing) Err() error {
	select {
	case <-l.ended:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
