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

// haste makes abandoned calls time out quickly in tests.
var haste = gpu.Patience{Call: time.Minute, Late: 250 * time.Millisecond, Close: time.Second}

// hangs lives with the n-th call never returning, and says which that is, what goes wrong,
// and whether the GPU was lost: runs end soon after their deadline, closing ends too, nothing
// wrong comes out, and who uses the other GPU goes on.
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
		release() // the life was too short for it
	}
	for what, d := range took {
		// Ten times what is promised with these patiences: the grace is none, the deadline 50 ms.
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
	f.Mu.Lock() // of a capture that nobody ends the fake would complain
	clear(f.Begun)
	clear(f.Member)
	f.Mu.Unlock()
	// One rank is on GPU 0.
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

// liveShort is live with deadlines of 50 ms and no grace; it says how long runs and closings
// take.
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
			if run == 0 { // else most loads are cut off
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

// TestCallsHang has each call of a library in a life never return.
func TestCallsHang(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	sideBySide(t, 12, lives(), (*life).String, func(t *testing.T, l *life) {
		calls, want := l.callsToFail(t)
		losses, step := 0, longtest.Of(8, 1)
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
			t.Errorf("of %d calls that hang %d cost a GPU", len(calls)/step, losses)
		}
	})
}

// sideBySide runs a subtest for each case, n at once. It is for subtests that wait most of the time: of parallel ones
// no more than there are cores run at once.
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

// TestHangsBeside has a call never return while three lives go on at once on one machine,
// with deadlines: each ends, with what is right or an error that names the GPU's loss or the
// deadline.
func TestHangsBeside(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	random := rand.New(rand.NewPCG(longtest.Seed(t), 2))
	began := time.Now()
	var first, last held
	for round := 0; round == 0 || time.Since(began) < *soakTime; round++ {
		fit := slices.DeleteFunc(lives(), func(l *life) bool {
			return l.load.Graph || l.nccl || l.products // fakes that take one world's calls at a time
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
		for i := 0; round > 2 && last.more(first) && i < 1000; i++ { // what was released ends soon
			time.Sleep(10 * time.Millisecond)
			last = holds()
		}
		if *soakTime > 0 {
			t.Logf("round %d, %v: %+v", round, time.Since(began).Round(time.Second), last)
		}
		if round > 2 && last.more(first) {
			t.Fatalf("what is held grew from %+v to %+v", first, last)
		}
	}
}

// soakTime is how long TestHangsBeside goes on, at least.
var soakTime = flag.Duration("soak", 0, "how long TestHangsBeside runs; 0 for one round")

// held is what the process holds.
type held struct {
	goroutines int
	bytes      int64 // of Go's heap
}

// more reports whether it is more than a while ago, beyond what varies.
func (h held) more(first held) bool {
	return h.goroutines > first.goroutines+4 || h.bytes > first.bytes+4<<20
}

// holds measures what the process holds. It empties the pool of fakes' memory first: what an allocation of the pool
// takes of the heap is more than the size of its block.
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

// hungOr returns an error that tells of neither a call that hangs nor a deadline.
func hungOr(errs []error) error {
	for _, err := range errs {
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, device.ErrDeviceLost) && !errors.Is(err, hocket.ErrClosed) &&
			!strings.Contains(err.Error(), "has not returned for") {
			return err
		}
	}
	return nil
}

// TestHangTold: while a call hangs the flight record names it; past the deadline and the
// grace the error names the call, the GPU and for how long, as the record of the failure does.
func TestHangTold(t *testing.T) {
	for _, call := range []string{"cuStreamQuery", "cuLaunchKernel", "cuMemcpyAsync"} {
		f := fakedriver.New(t, 1)
		m := newMachine(system(f), Options{Kernels: f})
		f.Haunted = true
		name := t.Name() + call
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
			if time.Since(began) > 50*time.Second { // before a minute, when the call is given up without a deadline
				t.Errorf("%s: the record never shows it: %s", call, shown.String())
				break
			}
		}
		began = time.Now()
		ctx.lapse()
		err = <-ended
		// The grace and a second, ten times.
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
		if took := time.Since(began); took > 50*time.Second { // ten times
			t.Errorf("%s: closing takes %v", call, took)
		}
		f.Die()
		release()
	}
}

// TestHangsUnopened: a world that is not opened, since one of its GPUs is lost, asks nothing of the others, where a call
// might not return; who gives up a world before it knows a GPU blames some GPU, and releases what the world holds.
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
		t.Errorf("a world that is not opened calls %s", call)
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
		t.Error("a world that was given up holds the issue lock")
	}
	f.Die()
	release()
}

// lapsing is a context whose deadline passes when the test says so.
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
