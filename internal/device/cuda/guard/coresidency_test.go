package guard

import (
	"sync"
	"testing"
)

// world returns a world in a new process. The value rests is what the world reports about being idle.
func world(rests bool) *World {
	var p Process
	return p.New(Host{Mu: new(sync.Mutex), Rests: func() bool { return rests }})
}

// TestCoresidencyForgotten closes a world while a batch of it is in progress. The batch keeps the co-residency lock
// until it calls Leave. This Leave does not release a lock that another world then holds.
func TestCoresidencyForgotten(t *testing.T) {
	var f coresidency
	a, b, c := world(true), world(true), world(true)
	if !f.try(a, nil) {
		t.Fatal("no world holds the lock, but a world cannot take it")
	}
	a.End()
	f.forget(a)
	if f.try(b, nil) {
		t.Error("a second world took the lock while a batch of the first was in progress")
	}
	f.leave(a)
	if !f.try(b, nil) {
		t.Error("the lock of a world that has ended cannot be taken")
	}
	if f.try(c, nil) {
		t.Error("a third world took the lock while a batch of the second was in progress")
	}
}

// TestCoresidencyOnStreams checks when a world takes the co-residency lock from a world that is not idle: only if the
// same streams of the caller order all work of both worlds.
func TestCoresidencyOnStreams(t *testing.T) {
	mine, other := []uintptr{1, 2}, []uintptr{1, 3}
	for name, c := range map[string]struct {
		before [][]uintptr // the streams of each batch of a world that is not idle
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

// TestCoresidencyBatchBetween checks that a world does not take the co-residency lock if its holder was idle, but has
// begun and ended a batch since then: the work that the batch issued may be running.
func TestCoresidencyBatchBetween(t *testing.T) {
	var f coresidency
	var p Process
	var a *World
	between := true
	a = p.New(Host{Mu: new(sync.Mutex), Rests: func() bool {
		if between {
			between = false
			if !f.try(a, nil) {
				t.Error("the holder cannot begin a batch")
			}
			f.leave(a)
		}
		return true
	}})
	if !f.try(a, nil) {
		t.Fatal("no world holds the lock, but a world cannot take it")
	}
	f.leave(a)
	b := world(true)
	if f.try(b, nil) {
		t.Error("a world took the lock although the holder began a batch after it was idle")
	}
	if !f.try(b, nil) {
		t.Error("the lock of an idle world cannot be taken")
	}
}
