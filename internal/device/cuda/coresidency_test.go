package cuda

import (
	"errors"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
)

// TestCoresidency checks that batches of worlds with teams alternate: each world waits until the devices of the other
// are idle. A world without teams may issue between batches without waiting for idle devices. A world that ends stops
// waiting.
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
	// begin starts a batch of w that lasts until leave is closed. It closes begun when the batch has begun.
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
		t.Fatal("the batch of the first world did not begin")
	}
	inB, leaveB, doneB := begin(b)
	if within(inB, soon) {
		t.Error("two worlds with teams have batches at the same time")
	}
	inPlain, leavePlain, donePlain := begin(plain)
	if within(inPlain, soon) {
		t.Error("a world without teams issued during a batch of a world with teams")
	}
	running := func(n int) { // sets the number of host functions that the world a has in flight
		a.mu.Lock()
		a.flight.calls = n
		a.mu.Unlock()
	}
	running(1)
	close(leaveA)
	if !within(inPlain, long) {
		t.Error("a world without teams waits until one with teams is idle")
	}
	close(leavePlain)
	if within(inB, soon) {
		t.Error("a world with teams does not wait until another is idle")
	}
	running(0)
	if !within(inB, long) {
		t.Fatal("the batch of the second world did not begin although the first world is idle")
	}

	inAgain, leaveAgain, doneAgain := begin(a)
	if within(inAgain, soon) {
		t.Error("the first world issued during a batch of the second")
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

// TestRoomForOthers checks that kernels of teams leave multiprocessors free for other streams of the device, and do not
// launch early, if there are such streams.
func TestRoomForOthers(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	if all := w.sites[0].gpu.SMs; tm.Room(512) != all || !tm.alone() {
		t.Errorf("without other streams, a team has room for %d blocks on %d multiprocessors, alone is %v", tm.Room(512), all, tm.alone())
	}
	for _, m := range tm.members {
		if _, err := m.sideStream(0); err != nil {
			t.Fatal(err)
		}
	}
	if all := w.sites[0].gpu.SMs; tm.Room(512) != all || !tm.alone() {
		t.Errorf("with streams for copy engines, a team has room for %d blocks on %d multiprocessors, alone is %v", tm.Room(512), all, tm.alone())
	}
	if _, err := w.Device(1).NewStream(device.StreamOptions{Name: "side"}); err != nil {
		t.Fatal(err)
	}
	if want := w.sites[0].gpu.SMs - roomForOthers; tm.Room(512) != want || tm.alone() {
		t.Errorf("with another stream, a team has room for %d blocks, want %d, alone is %v", tm.Room(512), want, tm.alone())
	}
}

// TestCoresidencyThenIssue checks the order of locks. A world waits for the co-residency lock while another world
// prepares an NCCL call, which needs the issue lock. The first world must wait for the second, and not the reverse.
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
		defer b.guard.Exclusive()() // held while preparing
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
		case <-done: // Prepare fails because NCCL is not installed; reaching NCCL is all that this test needs
		case <-time.After(20 * time.Second):
			t.Fatal("deadlock: the worlds wait for each other")
		}
	}
}

// TestCoresidencyGraphs checks that a world needs the co-residency lock as long as it has a graph that waits for flags.
func TestCoresidencyGraphs(t *testing.T) {
	for graphs, want := range map[string]bool{formOne: false, formEach: true, "": true} {
		x := newExchanged(t, Options{Graphs: graphs})
		w := x.w.(*world)
		if waitsOnDevices(w) {
			t.Errorf("graphs %q: a world without graphs needs the lock", graphs)
		}
		captured, err := w.Capture(x.issue)
		x.must(err)
		if waitsOnDevices(w) != want {
			t.Errorf("graphs %q: needs the lock: %t", graphs, !want)
		}
		if graphs == "" {
			x.must(captured.Keep(0))
			if waitsOnDevices(w) {
				t.Error("a world that kept only one graph over all GPUs needs the lock")
			}
		}
		x.must(captured.Close())
		if waitsOnDevices(w) {
			t.Errorf("graphs %q: needs the lock after its graph was closed", graphs)
		}
		x.must(w.Close())
	}
}
