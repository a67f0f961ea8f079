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

// tight is the CPU machine with memory for a limited number of plans, room: each plan takes half of its share when its
// world is opened, and the other half later. The Sync of a world whose number of ranks is a key of hold waits until
// that channel is closed.
type tight struct {
	device.Machine
	mu     sync.Mutex
	room   int
	halves int   // that are taken
	opened []int // numbers of ranks of the opened worlds, in order
	hold   map[int]chan struct{}
	held   chan struct{} // receives a value for each Sync that waits
	shut   chan struct{} // worlds are opened when this channel is closed; nil if they are opened without waiting
	breaks bool          // opening one panics
	// The first loads, as many as meeting, all open their worlds before any of them takes the second half of its share,
	// and all try to take it before any of them frees memory.
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

// ranksOpened returns the numbers of ranks of the worlds that were opened since its last call.
func (m *tight) ranksOpened() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.opened
	m.opened = nil
	return list
}

// tightly opens a machine with memory for the given number of plans.
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

// summed loads a model with the given number of ranks, which has a plan for each value of T.
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

// TestPreparedRuns checks that runs use the prepared plan, whether the values of its dims come from a default, the
// binding, an argument of Prepare, Ranks, a definition, or a tensor's shape.
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

// sum runs a model that summed has loaded with the given number of rows.
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

// TestPlansAcrossModels checks that, if there is no memory for another plan, the least recently used plans of any model
// are unloaded, and loaded again when they are run.
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
		{3, 2, true}, // replaces the plan of model 2 for 2 rows
		{1, 4, false}, {1, 2, false}, {3, 2, false},
		{2, 2, true}, // replaces the plan of model 1 for 4 rows
		{1, 2, false}, {2, 2, false}, {3, 2, false},
		{1, 4, true}, // replaces the plan of the same model for 2 rows
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

// TestPlansThatRun checks that a running plan stays loaded, that a load that needs its memory waits until its context
// or the machine ends, and that the error names the running plans.
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

// TestPlansAlone checks that a shortage of memory is an error if no other plan is loaded.
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

// TestPlansInEachOthersWay checks that two loads succeed even if each lacks the memory that the other has allocated.
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

// TestPlansAtOnce checks that all runs of several models succeed concurrently if there is memory for only some of the
// models, in every order of events.
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

// TestMalformedLoadsNothing checks that a tensor whose shape does not match its bytes is refused before a plan is
// loaded for it, so that no other plan is unloaded.
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
