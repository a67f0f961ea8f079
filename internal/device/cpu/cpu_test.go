package cpu_test

import (
	"fmt"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/ir"
)

func TestConcurrent(t *testing.T) {
	counts := []int{0, 3}
	switch i := longtest.Drawn(t) % 2; {
	case testing.Short():
		counts = counts[:1]
	case !longtest.On():
		counts = counts[i : i+1]
	}
	for _, workers := range counts {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			devicetest.Run(t, func(*testing.T) device.Machine { return cpu.New(cpu.Options{Workers: workers}) })
		})
	}
}

func TestScheduled(t *testing.T) {
	seeds := int64(16)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			suite := devicetest.RunOrders
			if seed == 0 {
				suite = devicetest.Run
			}
			suite(t, func(*testing.T) device.Machine { return cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed}) })
		})
	}
}

// TestBorrowedAfterFree checks that memory that its lender has freed is refused.
func TestBorrowedAfterFree(t *testing.T) {
	m := cpu.New(cpu.Options{})
	open := func() device.Device {
		w, err := m.Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		return w.Device(0)
	}
	lender, borrower := open(), open()
	mem, err := lender.Alloc(16, device.Private)
	if err != nil {
		t.Fatal(err)
	}
	lent, err := borrower.Borrow(mem)
	if err != nil {
		t.Fatal(err)
	}
	s, err := borrower.NewStream(device.StreamOptions{Name: "main"})
	if err != nil {
		t.Fatal(err)
	}
	v := device.View{Mem: lent, DType: ir.F32, Shape: []int64{4}, Strides: []int64{1}}
	if err := s.Upload(v, make([]byte, 16)); err != nil {
		t.Error(err)
	}
	if err := mem.Free(); err != nil {
		t.Error(err)
	}
	if err := s.Upload(v, make([]byte, 16)); err == nil {
		t.Error("borrowed memory is used after its lender freed it")
	}
}
