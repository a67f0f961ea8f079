package laps

import (
	"testing"
	"time"
)

// TestLaps checks that times are attributed to the phase that ends, that phases of one name are added within a call,
// that a call that has not ended is not counted, and that nothing is recorded before Start and after Stop.
func TestLaps(t *testing.T) {
	one := func(ended bool) {
		Begin()
		time.Sleep(20 * time.Millisecond)
		Lap("long")
		Lap("short")
		time.Sleep(10 * time.Millisecond)
		Lap("twice")
		time.Sleep(10 * time.Millisecond)
		Lap("twice")
		if ended {
			End("last")
		}
	}
	one(true)
	Start()
	Lap("outside")
	for range 3 {
		one(true)
	}
	one(false)
	got := Stop()
	one(true)
	if len(got) != 4 {
		t.Fatalf("phases %v, want long, short, twice and last", got)
	}
	for i, want := range []struct {
		name  string
		least float64
	}{{"long", 20e3}, {"short", 0}, {"twice", 20e3}, {"last", 0}} {
		p := got[i]
		if p.Name != want.name || p.Calls != 3 || p.Median < want.least || p.Late < p.Median {
			t.Errorf("phase %d is %+v, want 3 calls of %s and at least %v µs", i, p, want.name, want.least)
		}
	}
	if short := got[1].Median; short >= got[0].Median || short >= got[2].Median {
		t.Errorf("a phase without work has %v µs, more than those that sleep: %v", short, got)
	}
	Start()
	if got := Stop(); len(got) > 0 {
		t.Errorf("after another Start: %v, want no phases", got)
	}
}
