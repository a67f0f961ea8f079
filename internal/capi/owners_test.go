package capi

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket"
)

// TestOwners: each call's owner comes back once, when nothing uses its memory any more.
func TestOwners(t *testing.T) {
	l, machine := opened(t)
	m, err := l.Load(machine, program, "")
	if err != nil {
		t.Fatal(err)
	}
	ended := func(want ...uintptr) {
		t.Helper()
		var got []uintptr
		for o := l.Ended(); o != 0; o = l.Ended() {
			got = append(got, o)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("owners %v have ended, want %v", got, want)
		}
	}
	lent := func(owner uintptr, do func(n *Loan) error) error {
		n := l.Lend(owner)
		defer n.End()
		return do(n)
	}
	x := Tensor{"x", -1, "f32", []int64{1, 2}, floats(3, 5)}
	w := Tensor{"w", -1, "f32", []int64{4, 2}, floats(1, 0, 0, 1, 1, 1, 2, -1)}
	y := Tensor{"y", -1, "f32", []int64{1, 4}, make([]byte, 16)}
	run := func(owner uintptr, in ...Tensor) {
		t.Helper()
		var number int64
		if err := lent(owner, func(n *Loan) (err error) {
			number, err = l.Run(m, n, in, []Tensor{y}, "")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := waited(t, l, number); err != nil {
			t.Fatal(err)
		}
	}
	bind := func(owner uintptr, w Tensor) {
		t.Helper()
		if err := lent(owner, func(n *Loan) error { return l.Bind(m, n, w) }); err != nil {
			t.Fatal(err)
		}
	}
	run(1, x, w)
	ended(1)
	if err := lent(2, func(n *Loan) error { _, err := l.Run(m, n, []Tensor{x, x}, nil, ""); return err }); err == nil {
		t.Error("x is given twice, and runs")
	}
	ended(2)
	bind(3, w)
	run(4, x)
	ended(4)
	var object *model
	if object, err = get[*model](l, m); err != nil {
		t.Fatal(err)
	}
	early := object.bound.begin() // two calls that may use what was bound before them
	bind(5, w)
	late := object.bound.begin()
	bind(6, w)
	ended()
	early()
	ended(3)
	late()
	ended(5)
	bind(7, Tensor{Name: "w"}) // of a tensor without data the library keeps nothing
	ended(6, 7)
	bind(8, w)
	entered, leave := make(chan bool), make(chan bool)
	n := l.Lend(9)
	abandoned := l.background(func(ctx context.Context) error {
		defer n.End()
		<-ctx.Done()
		entered <- true
		<-leave
		return nil
	})
	if err := l.Abandon(abandoned); err != nil {
		t.Fatal(err)
	}
	<-entered
	if _, err := l.Wait(abandoned, 0); !errors.Is(err, ErrHandle) {
		t.Errorf("an abandoned run: %v", err)
	}
	ended()
	leave <- true
	for range 1000 { // End follows
		if n.of.mu.Lock(); n.users == 0 {
			n.of.mu.Unlock()
			break
		}
		n.of.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	ended(9)
	late = object.bound.begin()
	if err := l.Close(m); err != nil {
		t.Fatal(err)
	}
	ended()
	late()
	ended(8)
	if err := object.bound.bind("w", l.Lend(10), func() error { return nil }); err == nil {
		t.Error("a closed model is bound")
	}
}

// TestCloseMachine: models go with their machine.
func TestCloseMachine(t *testing.T) {
	l := New()
	machine, _, err := l.Open(t.Context(), `{"alone": true}`)
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.Load(machine, program, "")
	if err != nil {
		t.Fatal(err)
	}
	n := l.Lend(1)
	if err := l.Bind(m, n, Tensor{"w", -1, "f32", []int64{4, 2}, floats(1, 0, 0, 1, 1, 1, 2, -1)}); err != nil {
		t.Fatal(err)
	}
	n.End()
	if err := l.Close(machine); err != nil {
		t.Fatal(err)
	}
	if len(l.all) != 0 || l.Ended() != 1 {
		t.Errorf("%d objects are left", len(l.all))
	}
}

// TestSeconds: times are refused that are no times.
func TestSeconds(t *testing.T) {
	for _, text := range []string{`{"timeout": -1}`, `{"timeout": 1e300}`, `{"stall_timeout": -0.5}`} {
		if _, _, err := New().Open(t.Context(), text); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
