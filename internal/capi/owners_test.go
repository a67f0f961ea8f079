package capi

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket"
)

// TestOwners checks that Ended returns each owner once, after the last use of the owner's memory.
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
		t.Error("a run that passes x twice succeeds")
	}
	ended(2)
	bind(3, w)
	run(4, x)
	ended(4)
	var object *model
	if object, err = get[*model](l, m); err != nil {
		t.Fatal(err)
	}
	early := object.bound.begin() // two calls that may use the tensors bound before
	bind(5, w)
	late := object.bound.begin()
	bind(6, w)
	ended()
	early()
	ended(3)
	late()
	ended(5)
	bind(7, Tensor{Name: "w"}) // the library keeps nothing of a tensor without data
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
	for range 1000 { // End may come later
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
	if err := object.bound.bind("w", l.Lend(10), nil, func() error { return nil }); err == nil {
		t.Error("binding to a closed model succeeds")
	}
}

// onDevice is a device tensor that counts calls of Close and returns an error from it.
type onDevice struct {
	closed int
	err    error
}

func (d *onDevice) Close() error {
	d.closed++
	return d.err
}

// TestBoundOnDevice checks that a replaced tensor is closed once, when the last call that may use
// it has ended, and that its loan lasts until then.
func TestBoundOnDevice(t *testing.T) {
	l, b := New(), newBound()
	bind := func(owner uintptr, d *onDevice, refuse error) error {
		n := l.Lend(owner)
		defer n.End()
		return b.bind("w", n, d, func() error { return refuse })
	}
	check := func(when string, d *onDevice, closed int, owner uintptr) {
		t.Helper()
		if got := l.Ended(); d.closed != closed || got != owner {
			t.Errorf("%s: closed %d times, ended owner %d; want %d and %d", when, d.closed, got, closed, owner)
		}
	}
	first, second, third := &onDevice{}, &onDevice{}, &onDevice{err: errors.New("no")}
	if err := bind(1, first, nil); err != nil {
		t.Fatal(err)
	}
	early, late := b.begin(), b.begin()
	if err := bind(2, second, nil); err != nil {
		t.Fatal(err)
	}
	check("with two calls under way", first, 0, 0)
	early()
	check("with one call under way", first, 0, 0)
	late()
	check("after the calls", first, 1, 1)
	if err := bind(3, third, errors.New("refused")); err == nil {
		t.Error("a failed bind returns no error")
	}
	check("refused", third, 0, 3)
	check("still bound", second, 0, 0)
	if err := bind(4, third, nil); err != nil {
		t.Fatal(err)
	}
	check("replaced without a call", second, 1, 2)
	if err := b.close(); !errors.Is(err, third.err) {
		t.Errorf("closing returns %v", err)
	}
	check("the model is closed", third, 1, 4)
}

// TestCloseMachine checks that closing a machine closes its models.
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

// TestSeconds checks that values that are not valid durations are refused.
func TestSeconds(t *testing.T) {
	for _, text := range []string{`{"timeout": -1}`, `{"timeout": 1e300}`, `{"stall_timeout": -0.5}`} {
		if _, _, err := New().Open(t.Context(), text); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
