package resident

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// newTensor returns a tensor of 4 rows of 3 numbers, half of the rows on each of two ranks.
func newTensor(t *testing.T, s *DeviceTensors, name string) *DeviceTensor {
	t.Helper()
	io := &plan.IO{Name: name, DType: ir.F32, Shape: []int64{4, 3}}
	for r := range int32(2) {
		ref := plan.Ref{Rank: r, DType: ir.F32, Shape: []int64{2, 3}, Strides: []int64{3, 1}}
		io.Parts = append(io.Parts, plan.IOPart{Ref: ref, Lo: []int64{2 * int64(r), 0}})
	}
	d, err := s.New(context.WithoutCancel(t.Context()), 2, io)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLeaseOrder checks that leases are granted in FIFO order, except those that do not conflict with earlier ones. If
// the context of a waiting lease ends, the leases after it proceed.
func TestLeaseOrder(t *testing.T) {
	s := NewDeviceTensors(cpu.New(cpu.Options{}))
	a, b := newTensor(t, s, "x"), newTensor(t, s, "y")
	defer s.Close()
	add := func(reads, writes []*DeviceTensor) *lease {
		u := &lease{reads, writes, make(chan struct{})}
		s.join(u)
		return u
	}
	on := func(d ...*DeviceTensor) []*DeviceTensor { return d }
	r1, r2 := add(on(a), nil), add(on(a), nil)
	w := add(on(b), on(a))
	r3 := add(on(a), nil) // after the write
	r4 := add(on(b), nil) // which only reads b
	w2 := add(nil, on(b)) // after both
	granted := func(want ...bool) {
		t.Helper()
		var got []bool
		for _, u := range []*lease{r1, r2, w, r3, r4, w2} {
			got = append(got, u.isGranted())
		}
		if !slices.Equal(got, want) {
			t.Errorf("granted are %v, want %v", got, want)
		}
	}
	granted(true, true, false, false, true, false)
	s.leave(r1)
	granted(true, true, false, false, true, false)
	s.leave(w) // canceled
	granted(true, true, false, true, true, false)
	s.leave(r4)
	granted(true, true, false, true, true, true)
	for _, u := range []*lease{r2, r3, w2} {
		s.leave(u)
	}
	ended, cancel := context.WithCancel(t.Context())
	release, err := s.Lease(ended, nil, on(a))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Lease(ended, on(a), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	if len(s.leases) != 0 {
		t.Errorf("%d leases are left", len(s.leases))
	}
}

// TestTransferLeases checks that a tensor that is being written, or is waiting for a write, cannot be leased by other
// callers.
func TestTransferLeases(t *testing.T) {
	s := NewDeviceTensors(cpu.New(cpu.Options{}))
	x := newTensor(t, s, "x")
	defer s.Close()
	in, err := tensor.New(ir.F32, []int64{4, 3})
	if err != nil {
		t.Fatal(err)
	}
	release, err := s.Lease(t.Context(), nil, []*DeviceTensor{x})
	if err != nil {
		t.Fatal(err)
	}
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if err := x.Write(soon(), in); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second lease for writing: %v", err)
	}
	release()
	x.loan.world.busy <- struct{}{} // another copy is in progress
	written := make(chan error)
	go func() { written <- x.Write(t.Context(), in) }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n := len(s.leases)
		s.mu.Unlock()
		if n > 0 || time.Now().After(deadline) {
			break
		}
	}
	if _, err := s.Lease(soon(), []*DeviceTensor{x}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is written: %v", err)
	}
	<-x.loan.world.busy
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// TestWeightKeys checks that parameters that differ in any property have different keys.
func TestWeightKeys(t *testing.T) {
	io := func(change func(io *plan.IO)) string {
		io := plan.IO{Name: "w", DType: ir.BF16, Shape: []int64{4, 6}}
		for r := range int32(2) {
			io.Parts = append(io.Parts, plan.IOPart{Ref: plan.Ref{Rank: r, DType: ir.BF16, Shape: []int64{2, 6}, Strides: []int64{6, 1}}, Lo: []int64{2 * int64(r), 0}})
		}
		change(&io)
		return keyOf(&io, 24)
	}
	keys := map[string]int{}
	for i, change := range []func(io *plan.IO){
		func(*plan.IO) {},
		func(io *plan.IO) { io.Name = "v" },
		func(io *plan.IO) { io.Name, io.DType = "wb", ir.F16 },
		func(io *plan.IO) { io.Shape = []int64{4, 7} },
		func(io *plan.IO) { io.Parts[1].Lo = []int64{1, 0} },
		func(io *plan.IO) { io.Parts[1].Ref.Rank = 2 },
		func(io *plan.IO) { io.Parts[1].Ref.Off = 4 },
		func(io *plan.IO) { io.Parts[1].Ref.Shape = []int64{2, 5} },
		func(io *plan.IO) { io.Parts[1].Ref.Strides = []int64{1, 2} },
	} {
		key := io(change)
		if j, twice := keys[key]; twice {
			t.Errorf("changes %d and %d have one key: %s", j, i, key)
		}
		keys[key] = i
	}
}
