package cuda

import (
	"errors"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
)

// TestCoresidency: batches of worlds with teams take turns, each until its devices rest;
// a world without teams issues between batches and does not wait for that rest, and one
// that ends makes way.
func TestCoresidency(t *testing.T) {
	f := fakedriver.New(t, 1)
	m := newMachine(system(f), Options{Kernels: f})
	open := func(teams bool) *world {
		w, err := m.Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		if teams {
			teamOf(t, w.(*world), "main")
		}
		return w.(*world)
	}
	// begin has w in a batch that lasts until leave is closed; begun says when.
	begin := func(w *world) (begun, leave chan bool, done chan error) {
		begun, leave, done = make(chan bool), make(chan bool), make(chan error, 1)
		go func() {
			done <- w.Batch(func() error {
				close(begun)
				<-leave
				return nil
			})
		}()
		return begun, leave, done
	}
	within := func(ch chan bool, d time.Duration) bool {
		select {
		case <-ch:
			return true
		case <-time.After(d):
			return false
		}
	}
	const soon, long = 30 * time.Millisecond, 20 * time.Second

	a, b, plain := open(true), open(true), open(false)
	inA, leaveA, doneA := begin(a)
	if !within(inA, long) {
		t.Fatal("the first world never began")
	}
	inB, leaveB, doneB := begin(b)
	if within(inB, soon) {
		t.Error("two worlds with teams issue at once")
	}
	inPlain, leavePlain, donePlain := begin(plain)
	if within(inPlain, soon) {
		t.Error("a world without teams issues between what one with teams issues")
	}
	running := func(n int) { // host functions that a runs
		a.mu.Lock()
		a.flight.calls = n
		a.mu.Unlock()
	}
	running(1)
	close(leaveA)
	if !within(inPlain, long) {
		t.Error("a world without teams waits for one with them to rest")
	}
	close(leavePlain)
	if within(inB, soon) {
		t.Error("a world with teams does not wait for another to rest")
	}
	running(0)
	if !within(inB, long) {
		t.Fatal("the second world never began, though the first rests")
	}

	inAgain, leaveAgain, doneAgain := begin(a)
	if within(inAgain, soon) {
		t.Error("the first world issues beside the second")
	}
	cause := errors.New("enough")
	a.Abort(cause)
	if err := <-doneAgain; !errors.Is(err, cause) {
		t.Errorf("a world that ended while it waited: %v", err)
	}
	close(leaveAgain)
	close(leaveB)
	if err := errors.Join(<-doneA, <-doneB, <-donePlain); err != nil {
		t.Error(err)
	}
}

// TestRoomForOthers: where a device has streams without teams, kernels of teams
// leave room for theirs, and do not begin early.
func TestRoomForOthers(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	if all := w.sites[0].gpu.SMs; tm.Room(512) != all || !tm.alone() {
		t.Errorf("alone, a team has room for %d blocks on %d multiprocessors, alone %v", tm.Room(512), all, tm.alone())
	}
	for _, m := range tm.members {
		if _, err := m.sideStream(0); err != nil {
			t.Fatal(err)
		}
	}
	if all := w.sites[0].gpu.SMs; tm.Room(512) != all || !tm.alone() {
		t.Errorf("with copy engines beside it has room for %d blocks on %d multiprocessors, alone %v", tm.Room(512), all, tm.alone())
	}
	if _, err := w.Device(1).NewStream(device.StreamOptions{Name: "side"}); err != nil {
		t.Fatal(err)
	}
	if want := w.sites[0].gpu.SMs - roomForOthers; tm.Room(512) != want || tm.alone() {
		t.Errorf("beside a stream it has room for %d blocks, want %d, alone %v", tm.Room(512), want, tm.alone())
	}
}

// TestCoresidencyThenIssue: a world that waits for the co-residency lock while another prepares what
// runs a call of NCCL waits for it, and it for nobody.
func TestCoresidencyThenIssue(t *testing.T) {
	f := fakedriver.New(t, 1)
	m := newMachine(system(f), Options{Kernels: f})
	var worlds []*world
	for range 2 {
		w, err := m.Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		teamOf(t, w.(*world), "main")
		worlds = append(worlds, w.(*world))
	}
	a, b := worlds[0], worlds[1]
	sum := summed(t, b, 8, 0, 0)
	locked, leave := make(chan bool), make(chan bool)
	go func() {
		defer b.guard.Exclusive()() // as one that prepares has it
		close(locked)
		<-leave
	}()
	<-locked
	batch := make(chan error, 1)
	go func() { batch <- a.Batch(func() error { return nil }) }()
	has := func() bool {
		return a.guard.HoldsCoresidency()
	}
	for !has() {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-batch:
		t.Errorf("a batch while another world holds the issue lock: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	team := make(chan error, 1)
	go func() {
		_, err := b.teams[0].Prepare(device.Tuning{Algo: ncclName}, sum)
		team <- err
	}()
	close(leave)
	for _, done := range []chan error{batch, team} {
		select {
		case <-done: // NCCL is not there: that Prepare says so is enough
		case <-time.After(20 * time.Second):
			t.Fatal("worlds wait for each other")
		}
	}
}

// TestCoresidencyGraphs: a world takes turns as long as it has a graph that flags join.
func TestCoresidencyGraphs(t *testing.T) {
	for graphs, want := range map[string]bool{formOne: false, formEach: true, "": true} {
		x := newExchanged(t, Options{Graphs: graphs})
		w := x.w.(*world)
		if waitsOnDevices(w) {
			t.Errorf("graphs %q: a world without any takes turns", graphs)
		}
		captured, err := w.Capture(x.issue)
		x.must(err)
		if waitsOnDevices(w) != want {
			t.Errorf("graphs %q: takes turns: %t", graphs, !want)
		}
		if graphs == "" {
			x.must(captured.Keep(0))
			if waitsOnDevices(w) {
				t.Error("a world that kept one graph over all GPUs takes turns")
			}
		}
		x.must(captured.Close())
		if waitsOnDevices(w) {
			t.Errorf("graphs %q: takes turns for a graph that is gone", graphs)
		}
		x.must(w.Close())
	}
}
