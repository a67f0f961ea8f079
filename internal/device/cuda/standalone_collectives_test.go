package cuda

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/nvlib"
)

// TestCallsOrder: a call waits for the one before it, on whatever stream that is, since both use the team's flags; a
// captured one waits for those of its graph, and for none that runs.
func TestCallsOrder(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.Queue()
	sys := system(f)
	opened, err := newMachine(sys, Options{Kernels: f}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	w := opened.(*world)
	defer w.Close()
	var did []string
	in := func(do func() error) {
		t.Helper()
		if err := sys.GPUs[0].Bound(do); err != nil {
			t.Fatal(err)
		}
	}
	order := &nvlib.CallOrder{Driver: w.drv}
	streams := map[string]uintptr{"default": 0}
	for _, name := range []string{"a", "b", "c"} {
		in(func() error {
			s, err := sys.Driver.NewStream(0)
			streams[name] = uintptr(s)
			return err
		})
	}
	defer in(func() error {
		for _, s := range streams {
			if s != 0 {
				if err := sys.Driver.DestroyStream(nvlib.Stream(s)); err != nil {
					return err
				}
			}
		}
		return order.Close()
	})
	ready := map[string]bool{} // calls that may end
	call := func(name, stream string) {
		t.Helper()
		in(func() error { return order.Next(nvlib.Stream(streams[stream])) })
		f.Mu.Lock()
		defer f.Mu.Unlock()
		f.Queues.Give(streams[stream], fakedriver.Task{Ready: func() bool { return ready[name] },
			Do: func() { did = append(did, name) }})
	}
	wants := func(open string, want ...string) {
		t.Helper()
		f.Mu.Lock()
		defer f.Mu.Unlock()
		if open != "" {
			ready[open] = true
		}
		f.Queues.Advance()
		if !slices.Equal(did, want) {
			t.Errorf("with %s: did %v, want %v", open, did, want)
		}
	}
	call("1 on a", "a")
	call("2 on a", "a")
	call("3 on b", "b")
	call("4 on a", "a")
	call("5 on default", "default")
	ready["2 on a"], ready["3 on b"], ready["5 on default"] = true, true, true
	wants("")
	wants("1 on a", "1 on a", "2 on a", "3 on b")
	wants("4 on a", "1 on a", "2 on a", "3 on b", "4 on a", "5 on default")

	did = nil
	call("6 on b", "b") // pending while a graph is captured
	f.BeginGuest(streams["a"])
	call("7 captured", "a")
	in(func() error { // the caller's fork of its capture
		e, err := sys.Driver.NewEvent(false)
		if err != nil {
			return err
		}
		defer sys.Driver.DestroyEvent(e)
		if err := sys.Driver.Record(e, nvlib.Stream(streams["a"])); err != nil {
			return err
		}
		return sys.Driver.WaitEvent(nvlib.Stream(streams["c"]), e)
	})
	call("8 captured", "a")
	call("9 captured", "c")
	call("10 on default", "default") // waits for 6, not for what is captured
	call("11 captured", "a")
	ready["10 on default"] = true
	wants("")
	wants("6 on b", "6 on b", "10 on default")
	work := f.EndGuest(streams["a"])
	did = nil
	f.LaunchGuest(work, streams["b"])
	ready["11 captured"] = true
	wants("7 captured", "7 captured")
	wants("8 captured", "7 captured", "8 captured")
	wants("9 captured", "7 captured", "8 captured", "9 captured", "11 captured")
}
