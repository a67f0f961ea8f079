package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// openHosted opens a world of two ranks in two processes whose GPUs have no peer access. It returns this process's NCCL
// fake and its world.
func openHosted(t *testing.T, p *peerMember, dir string) (*world, error) {
	p.f.Reach.Apart = all
	sys := system(p.f)
	x := &fakedriver.NCCL{GPU: p.f}
	x.Share(dir)
	sys.NCCL = sync.OnceValues(x.Open)
	m, err := newJoined(sys, Options{Kernels: p.f, Peers: p.w})
	if err != nil {
		return nil, err
	}
	w, err := m.Open(t.Context(), 2)
	if err != nil {
		return nil, err
	}
	return w.(*world), nil
}

// TestHostedCalls checks collectives on the caller's streams and memory if the GPUs of two processes have no peer
// access. NCCL runs them, directly and in CUDA graphs that the caller captures.
func TestHostedCalls(t *testing.T) {
	dir := t.TempDir()
	for rank, err := range runMembers(t, alike(2, peerJob{GPUs: 2}), func(p *peerMember) error {
		w, err := openHosted(t, p, dir)
		if err != nil {
			return err
		}
		defer w.Close()
		c, err := w.OpenCalls()
		if err != nil {
			return err
		}
		v := device.View{DType: ir.I32, Shape: []int64{4}, Strides: []int64{1}}
		part := device.Part{In: v, Out: v, Reads: true, Writes: true, To: -1, From: -1}
		x, err := c.Prepare(device.Tuning{Algo: ncclName}, &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum,
			Parts: []device.Part{part, part}}, false, [2]int64{4, 8})
		if err != nil {
			return err
		}
		mem, err := w.Device(p.rank).Alloc(256, device.Private)
		if err != nil {
			return err
		}
		in, out := mem.Address()+4, mem.Address()+72
		for i := range 4 {
			cabi.Store(in+uintptr(4*i), int32(10*p.rank+i))
		}
		var stream uintptr
		err = w.first().bound(func() error {
			s, err := w.drv.NewStream(0)
			stream = uintptr(s)
			return err
		})
		if err != nil {
			return err
		}
		p.f.BeginGuest(stream)
		if err := x.Do(stream, in, out); err != nil {
			return err
		}
		work := p.f.EndGuest(stream)
		for range 2 {
			if err := x.Do(stream, in, in); err != nil { // in place
				return err
			}
		}
		p.f.LaunchGuest(work, stream)
		err = c.Close()
		x.Release()
		// Two all_reduces in place, then one by the graph: each doubles the data, since both ranks have the same.
		if got := ints(out, 4); err == nil && !slices.Equal(got, []int32{40, 48, 56, 64}) {
			err = fmt.Errorf("the sums are %v", got)
		}
		return errors.Join(err, w.first().bound(func() error { return w.drv.DestroyStream(nvlib.Stream(stream)) }))
	}) {
		if err != nil {
			t.Errorf("process %d: %v", rank, err)
		}
	}
}

// TestHostedWorld checks a world of two processes whose GPUs have no peer access: its shared memory is host memory that
// both processes access, it reports the reason for this, and memory of the caller cannot be used in place.
func TestHostedWorld(t *testing.T) {
	dir := t.TempDir()
	for rank, err := range runMembers(t, alike(2, peerJob{GPUs: 2}), func(p *peerMember) error {
		w, err := openHosted(t, p, dir)
		if err != nil {
			return err
		}
		defer w.Close()
		if why := w.Apart(0, 1); !w.HostShared() || why == nil || !strings.Contains(why.Error(), "no peer access") {
			return fmt.Errorf("host memory: %v, apart: %v", w.HostShared(), why)
		}
		if list := w.Detours(); len(list) != 1 || !strings.HasPrefix(list[0], "GPUs 0-1: ") {
			return fmt.Errorf("detours %q", list)
		}
		if got := w.m.Exchange(); !strings.HasPrefix(got, "host memory") || !strings.Contains(got, "no peer access") {
			return fmt.Errorf("the processes exchange data by %q", got)
		}
		var mems []device.Memory
		for r := range 2 {
			m, err := w.Device(r).Alloc(64, device.Shared)
			if err != nil {
				return err
			}
			mems = append(mems, m)
		}
		if _, err := p.w.Agree(t.Context(), "allocated", nil); err != nil {
			return err
		}
		cabi.Store(mems[1-p.rank].Address(), int32(7+p.rank)) // into the other's memory
		if _, err := p.w.Agree(t.Context(), "written", nil); err != nil {
			return err
		}
		if got := cabi.Load[int32](mems[p.rank].Address()); got != int32(8-p.rank) {
			return fmt.Errorf("the other process has written %d", got)
		}
		c, err := w.OpenCalls()
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Adopt([]uintptr{256, 512}, 256)
		if !errors.Is(err, device.ErrUnsupported) {
			return fmt.Errorf("Adopt: %v", err)
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("process %d: %v", rank, err)
		}
	}
}
