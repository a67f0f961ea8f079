package guard

import (
	"sync"
	"testing"
)

// world returns one of a process, which rests or not.
func world(rests bool) *World {
	var p Process
	return p.New(Host{Mu: new(sync.Mutex), Rests: func() bool { return rests }})
}

// TestCoresidencyForgotten closes a world while a batch of it is under way: the batch keeps
// the lock until it leaves, and leaves nobody else's.
func TestCoresidencyForgotten(t *testing.T) {
	var f coresidency
	a, b, c := world(true), world(true), world(true)
	if !f.try(a, nil) {
		t.Fatal("nobody holds the lock, and it cannot be taken")
	}
	a.End()
	f.forget(a)
	if f.try(b, nil) {
		t.Error("a second world holds the lock beside a batch under way")
	}
	f.leave(a)
	if !f.try(b, nil) {
		t.Error("the lock of a world that ended cannot be taken")
	}
	if f.try(c, nil) {
		t.Error("a third world holds the lock beside a batch under way")
	}
}

// TestCoresidencyOnStreams: a world takes the lock from one that has not come to rest where both are between the same
// streams of the caller's, and all that the other was given is.
func TestCoresidencyOnStreams(t *testing.T) {
	mine, other := []uintptr{1, 2}, []uintptr{1, 3}
	for name, c := range map[string]struct {
		before [][]uintptr // batches of a world that is busy
		now    []uintptr
		want   bool
	}{
		"the same":              {[][]uintptr{mine, mine}, mine, true},
		"others":                {[][]uintptr{mine}, other, false},
		"none":                  {[][]uintptr{mine}, nil, false},
		"behind one of its own": {[][]uintptr{mine, nil, mine}, mine, false},
		"of its own":            {[][]uintptr{nil}, mine, false},
	} {
		var f coresidency
		a, b := world(false), world(true)
		for _, streams := range c.before {
			if !f.try(a, streams) {
				t.Fatal("the lock cannot be taken again")
			}
			f.leave(a)
		}
		if got := f.try(b, c.now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
