package capi

import (
	"errors"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
)

// TestForeign checks that the calls of all ranks become one run, that all of them return its error, and that a rank
// stops waiting if the other ranks do not call.
func TestForeign(t *testing.T) {
	l, machine := opened(t)
	model, err := l.Load(machine, program, `{"dims": {"T": 2}}`)
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.Foreign(model, `{"ranks": 2, "in": ["x", "w"], "out": ["y"]}`)
	if err != nil {
		t.Fatal(err)
	}
	ends := make(chan error)
	call := func(rank, ins int) { ends <- l.CallForeign(h, rank, 0, make([]uintptr, ins), make([]uintptr, 1)) }
	for range 3 {
		go call(0, 2)
		go call(1, 2)
		for range 2 { // the CPU machine does not support streams of the caller
			if err := <-ends; !errors.Is(err, hocket.ErrUnsupported) {
				t.Errorf("%v", err)
			}
		}
	}
	go call(2, 2)
	if err := <-ends; !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), "2 ranks, which use the first devices") {
		t.Errorf("a third rank: %v", err)
	}
	go call(0, 1)
	if err := <-ends; !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), "1 parameters") {
		t.Errorf("a missing parameter: %v", err)
	}
	f, err := get[*foreign](l, h)
	if err != nil {
		t.Fatal(err)
	}
	f.patience = time.Millisecond
	go call(1, 2)
	if err := <-ends; err == nil || !strings.HasPrefix(err.Error(), "rank 1 waited 1ms for calls of ranks [0]") {
		t.Errorf("a rank alone: %v", err)
	}
	f.patience = meetingPatience
	// this call of rank 0 belongs to the failed run; it must not be matched with the next run
	for _, rank := range []int{0, 1, 1} {
		go call(rank, 2)
		if err := <-ends; err == nil || !strings.Contains(err.Error(), "earlier run failed: rank 1 waited") {
			t.Errorf("rank %d after a failed run: %v", rank, err)
		}
	}
	for _, o := range []string{`{"ranks": 0}`, `{"rank": 1}`, `{`} {
		if _, err := l.Foreign(model, o); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("%s: %v", o, err)
		}
	}
	alone, err := l.Load(machine, strings.Replace(program, "tp[2]", "tp[1]", 1), `{"dims": {"T": 2}}`)
	if err != nil {
		t.Fatal(err)
	}
	one, err := l.Foreign(alone, `{"ranks": 1, "in": ["x", "w"], "out": ["y"]}`)
	if err != nil {
		t.Fatal(err)
	}
	for rank, want := range map[int]error{-1: hocket.ErrUnsupported, 0: hocket.ErrUnsupported, 1: hocket.ErrInput} {
		if err := l.CallForeign(one, rank, 0, make([]uintptr, 2), make([]uintptr, 1)); !errors.Is(err, want) {
			t.Errorf("one rank, on device %d: %v", rank, err)
		}
	}
	if err := l.Close(h); err != nil {
		t.Error(err)
	}
	if err := l.CallForeign(h, 0, 0, nil, nil); !errors.Is(err, ErrHandle) {
		t.Errorf("closed: %v", err)
	}
}

// TestForeignPanics checks that the calls of the other ranks end if the call of the last rank
// panics.
func TestForeignPanics(t *testing.T) {
	l := New()
	h := l.add(&foreign{m: &model{}, ranks: 2, patience: meetingPatience}) // there is no model, so the last call panics
	ends := make(chan error)
	for rank := range 2 {
		go func() {
			var err error
			defer func() {
				if recover() != nil {
					err = nil
				}
				ends <- err
			}()
			err = l.CallForeign(h, rank, 0, nil, nil)
		}()
	}
	a, b := <-ends, <-ends
	err := errors.Join(a, b)
	if err == nil || !strings.Contains(err.Error(), "panicked; it was the last call") || a != nil && b != nil {
		t.Errorf("%v and %v", a, b)
	}
}
