package hocket_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// tight is the CPU machine with memory for so many plans: each takes half of its share
// when its world is opened, and the rest later on. A sync of ranks that hold names waits
// until it says no more.
type tight struct {
	device.Machine
	mu     sync.Mutex
	room   int
	halves int   // that are taken
	opened []int // ranks of the worlds that were, in order
	hold   map[int]chan struct{}
	held   chan struct{} // told of each sync that waits
	shut   chan struct{} // worlds open when it is closed; nil for at once
	breaks bool          // opening one panics
	// The first loads, so many, open their worlds before one of them takes its rest, and
	// all try that before one gives anything back.
	meeting     int
	open, tried sync.WaitGroup
}

func (m *tight) take() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.halves >= 2*m.room {
		return fmt.Errorf("half a share: %w", device.ErrOutOfMemory)
	}
	m.halves++
	return nil
}

func (m *tight) Open(ctx context.Context, ranks int) (device.World, error) {
	if m.shut != nil {
		<-m.shut
	}
	if m.breaks {
		panic("it breaks")
	}
	if err := m.take(); err != nil {
		return nil, err
	}
	w, err := m.Machine.Open(ctx, ranks)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened = append(m.opened, ranks)
	tw := &tightWorld{World: w, m: m, halves: 1, meets: m.meeting > 0}
	if tw.meets {
		m.meeting--
		m.open.Done()
	}
	return tw, err
}

type tightWorld struct {
	device.World
	m      *tight
	halves int
	synced int
	meets  bool
}

// Sync is called first when a plan is loaded.
func (w *tightWorld) Sync(ctx context.Context) error {
	if w.synced++; w.synced == 1 {
		if w.meets {
			w.m.open.Wait()
		}
		err := w.m.take()
		if w.meets {
			w.m.tried.Done()
			w.m.tried.Wait()
		}
		if err != nil {
			return err
		}
		w.halves++
	} else if hold := w.m.hold[w.Ranks()]; hold != nil {
		w.m.held <- struct{}{}
		<-hold
	}
	return w.World.Sync(ctx)
}

func (w *tightWorld) Close() error {
	err := w.World.Close()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.m.halves -= w.halves
	w.halves = 0
	return err
}

// ranksOpened are those of the worlds opened since the last time.
func (m *tight) ranksOpened() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.opened
	m.opened = nil
	return list
}

// tightly opens a machine with room for so many plans.
func tightly(t *testing.T, room int) (*tight, *hocket.Machine) {
	t.Helper()
	cm := &tight{Machine: cpu.New(cpu.Options{}), room: room, hold: map[int]chan struct{}{},
		held: make(chan struct{}, 100)}
	t.Cleanup(func() {
		if cm.halves != 0 {
			t.Errorf("%d halves are taken in the end", cm.halves)
		}
	})
	return cm, modeltest.Open(t, cm)
}

// summed loads a model of so many ranks that has a plan for each T.
func summed(t *testing.T, m *hocket.Machine, ranks int) *hocket.Model {
	t.Helper()
	return summedWith(t, m, ranks, hocket.LoadOptions{})
}

func summedWith(t *testing.T, m *hocket.Machine, ranks int, opts hocket.LoadOptions) *hocket.Model {
	t.Helper()
	return modeltest.Load(t, m, fmt.Sprintf(`dim T = 8
mesh tp[%d]
func f%d(%%x: f32[T, 2]) -> f32[T, 2] {
  %%y = add %%x, %%x
  return %%y
}
`, ranks, ranks), opts)
}

// TestPreparedRuns: the plan that was prepared is the one that runs, however its dims
// came by their values: a default, a binding, an argument of Prepare, what Ranks or a
// definition makes of them, or a tensor's shape.
func TestPreparedRuns(t *testing.T) {
	const text = `dim P = 2
dim T = 8
dim H
dim C = 1
mesh tp[P]
func f(%x: f32[P, T, H]) -> f32[P, T, H] {
  %y = add %x, %x
  return %y
}
`
	p, err := hocket.Parse("f", text)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		binding hocket.Binding
		prepare map[string]int64
		shape   []int64
		loads   []int // ranks of what is loaded
	}{
		"a default": {prepare: map[string]int64{"H": 3}, shape: []int64{2, 8, 3}, loads: []int{2}},
		"nothing but a binding": {binding: hocket.Binding{Dims: map[string]int64{"H": 3}}, shape: []int64{2, 8, 3},
			loads: []int{2}},
		"some of both": {binding: hocket.Binding{Dims: map[string]int64{"H": 3}},
			prepare: map[string]int64{"T": 5}, shape: []int64{2, 5, 3}, loads: []int{2}},
		"ranks": {binding: hocket.Binding{Ranks: 3}, prepare: map[string]int64{"H": 3},
			shape: []int64{3, 8, 3}, loads: []int{3}},
		"a definition": {binding: hocket.Binding{Defines: map[string]string{"T": "H + size(tp)", "C": "2 * T"}},
			prepare: map[string]int64{"H": 3}, shape: []int64{2, 5, 3}, loads: []int{2}},
		"another shape": {prepare: map[string]int64{"H": 3}, shape: []int64{2, 8, 4}, loads: []int{2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			cm, m := tightly(t, 3)
			model, err := m.Load(p, c.binding, hocket.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := model.Prepare(t.Context(), c.prepare); err != nil {
				t.Fatal(err)
			}
			x, err := hocket.NewTensor(ir.F32, c.shape...)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				r, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
				if err != nil {
					t.Fatal(err)
				}
				if got := r.Out["y"].Shape; !slices.Equal(got, c.shape) {
					t.Errorf("the result's shape is %v", got)
				}
			}
			if got := cm.ranksOpened(); !slices.Equal(got, c.loads) {
				t.Errorf("loaded for %v ranks, want %v", got, c.loads)
			}
		})
	}
}

// sum runs a model of summed with so many rows.
func sum(ctx context.Context, m *hocket.Model, rows int64) error {
	vals := make([]float64, 2*rows)
	for i := range vals {
		vals[i] = float64(i)
	}
	x, err := hocket.FromFloats(ir.F32, vals, rows, 2)
	if err != nil {
		return err
	}
	r, err := m.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
	if err != nil {
		return err
	}
	for i, v := range r.Out["y"].Floats() {
		if v != 2*vals[i] {
			return fmt.Errorf("%d rows: element %d is %v", rows, i, v)
		}
	}
	return nil
}

// TestPlansAcrossModels: where a machine has no memory for one more plan, those go that
// were used least recently, whosever they are, and come back when they are run.
func TestPlansAcrossModels(t *testing.T) {
	cm, m := tightly(t, 3)
	models := []*hocket.Model{nil, summed(t, m, 1), summed(t, m, 2), summed(t, m, 3)}
	for i, c := range []struct {
		model int
		rows  int64
		loads bool
	}{
		{1, 2, true}, {2, 2, true}, {1, 4, true}, // full
		{2, 2, false}, {1, 4, false}, {1, 2, false},
		{3, 2, true}, // in the place of 2 with 2 rows
		{1, 4, false}, {1, 2, false}, {3, 2, false},
		{2, 2, true}, // in that of 1 with 4
		{1, 2, false}, {2, 2, false}, {3, 2, false},
		{1, 4, true}, // in that of 1 with 2, its own
		{3, 2, false}, {2, 2, false},
	} {
		if err := sum(t.Context(), models[c.model], c.rows); err != nil {
			t.Fatal(err)
		}
		want := []int{c.model}
		if !c.loads {
			want = nil
		}
		if got := cm.ranksOpened(); !slices.Equal(got, want) {
			t.Errorf("%d: model %d with %d rows loads %v", i, c.model, c.rows, got)
		}
	}
	if err := models[1].Close(); err != nil {
		t.Fatal(err)
	}
	if err := sum(t.Context(), models[1], 2); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestPlansThatRun: a plan that runs stays, and who needs its memory waits, as long as
// its context and the machine last; an error says which plans those are.
func TestPlansThatRun(t *testing.T) { synctest.Test(t, testPlansThatRun) }

func testPlansThatRun(t *testing.T) {
	cm, m := tightly(t, 1)
	one, two, three := summed(t, m, 1), summed(t, m, 2), summed(t, m, 3)
	cm.hold[2] = make(chan struct{})
	ran := make(chan error, 10)
	go func() { ran <- sum(t.Context(), two, 5) }()
	<-cm.held
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := sum(ctx, one, 4)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, hocket.ErrOutOfMemory) ||
		!strings.Contains(err.Error(), "f2 T=5 with") {
		t.Errorf("got %v", err)
	}
	waits := make(chan error)
	go func() { waits <- sum(t.Context(), one, 4) }()
	go func() { waits <- three.Prepare(t.Context(), nil) }()
	select {
	case err := <-waits:
		t.Errorf("did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(cm.hold[2])
	for range 2 {
		if err := <-waits; err != nil {
			t.Error(err)
		}
	}
	if err := <-ran; err != nil {
		t.Error(err)
	}

	if err := errors.Join(one.Close(), three.Close()); err != nil {
		t.Fatal(err)
	}
	cm.hold[2] = make(chan struct{})
	go func() { ran <- sum(t.Context(), two, 5) }()
	<-cm.held
	four, five := summed(t, m, 4), summed(t, m, 5)
	go func() { waits <- sum(t.Context(), four, 4) }()
	go func() { waits <- sum(t.Context(), five, 4) }()
	time.Sleep(10 * time.Millisecond)
	closed := make(chan error)
	go func() { closed <- m.Close() }()
	for range 2 {
		if err := <-waits; !errors.Is(err, hocket.ErrClosed) && !errors.Is(err, context.Canceled) {
			t.Errorf("while the machine closes: %v", err)
		}
	}
	close(cm.hold[2])
	if err := errors.Join(<-closed); err != nil {
		t.Error(err)
	}
	<-ran
}

// TestPlansAlone: where nothing else is loaded, memory that is short is an error.
func TestPlansAlone(t *testing.T) {
	cm, m := tightly(t, 1)
	one, two := summed(t, m, 1), summed(t, m, 2)
	if err := sum(t.Context(), one, 2); err != nil {
		t.Fatal(err)
	}
	cm.mu.Lock()
	cm.room = 0
	cm.mu.Unlock()
	for range 2 {
		if err := sum(t.Context(), two, 2); !errors.Is(err, hocket.ErrOutOfMemory) ||
			!strings.Contains(err.Error(), "no other plan of this machine is loaded") {
			t.Errorf("got %v", err)
		}
	}
}

// TestPlansInEachOthersWay: two loads that each find what the other has taken missing
// both end well.
func TestPlansInEachOthersWay(t *testing.T) {
	cm, m := tightly(t, 1)
	one, two := summed(t, m, 1), summed(t, m, 2)
	cm.meeting = 2
	cm.open.Add(2)
	cm.tried.Add(2)
	ran := make(chan error)
	for _, model := range []*hocket.Model{one, two} {
		go func() { ran <- sum(t.Context(), model, 2) }()
	}
	for range 2 {
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}
	if got := cm.ranksOpened(); len(got) != 4 { // each twice
		t.Errorf("loads %v", got)
	}
}

// TestPlansAtOnce: models that are run at once, with room for fewer than there are,
// all get what they need, and fail in no order of events.
func TestPlansAtOnce(t *testing.T) {
	for room := 1; room <= 3; room++ {
		_, m := tightly(t, room)
		var all sync.WaitGroup
		for ranks := 1; ranks <= 4; ranks++ {
			model := summed(t, m, ranks)
			for k := range 2 {
				all.Go(func() {
					for i := range 20 {
						if err := sum(t.Context(), model, int64(2+(i+k)%3)); err != nil {
							t.Errorf("room for %d, %d ranks: %v", room, ranks, err)
						}
					}
				})
			}
		}
		all.Wait()
	}
}

// TestMalformedLoadsNothing: a tensor whose shape is not that of its bytes is refused before a
// plan is loaded for it, for which others' would have to go.
func TestMalformedLoadsNothing(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{Host: 1 << 16}))
	j := &journal{}
	one, two := summedWith(t, m, 1, hocket.LoadOptions{Logger: j.logger()}),
		summedWith(t, m, 1, hocket.LoadOptions{Logger: j.logger()})
	if err := one.Prepare(t.Context(), map[string]int64{"T": 2}); err != nil {
		t.Fatal(err)
	}
	x := map[string]*hocket.Tensor{"x": {DType: ir.F32, Shape: []int64{8000, 2}, Data: make([]byte, 16)}}
	_, err := two.Run(t.Context(), hocket.Args{In: x})
	if !errors.Is(err, hocket.ErrInput) {
		t.Errorf("got %v", err)
	}
	if loaded, gone := j.count("plan loaded"), j.count("plan unloaded"); loaded != 1 || gone != 0 {
		t.Errorf("%d plans were loaded, %d are gone", loaded, gone)
	}
}
