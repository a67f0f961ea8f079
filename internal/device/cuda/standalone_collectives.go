package cuda

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/device/cuda/relocate"
	"hocket.example/hocket/internal/nvlib"
)

// Type calls implements collectives that are called one at a time, on streams and memory of the caller. One team of all
// ranks prepares these collectives with placeholder addresses, which are replaced by the caller's addresses before each
// launch (see package relocate). The caller's streams are never queried, because a library may be capturing them.

// calls implements device.Calls.
type calls struct {
	w    *world
	team *team
	me   *member // the member of this process's rank

	order nvlib.CallOrder // makes each call wait for the previous one, because all use the flags and memory of one team
}

// OpenCalls implements device.World.
func (w *world) OpenCalls() (device.Calls, error) {
	if w.Transport() != "" {
		return nil, fmt.Errorf("%w: calls on the caller's streams are not possible with processes on several nodes", device.ErrUnsupported)
	}
	var members []device.Member
	for rank := range w.devices {
		s, err := w.Device(rank).NewStream(device.StreamOptions{Name: "calls"})
		if err != nil {
			return nil, err
		}
		members = append(members, device.Member{Rank: rank, Stream: s})
	}
	if local := len(w.own); local != 1 {
		return nil, fmt.Errorf("%w: calls on the caller's streams need one rank in each process, but this process has %d", device.ErrUnsupported, local)
	}
	t, err := w.OpenTeam(members)
	if err != nil {
		return nil, err
	}
	c := &calls{w: w, team: t.(*team), order: nvlib.CallOrder{Driver: w.drv}}
	c.me = c.team.members[w.first().rank]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.called = true
	return c, nil
}

// operand is a relocate.Operand: it returns a view at a placeholder address for a member's operand with index k.
func (c *calls) operand(member, k int, v device.View, tail int64) device.View {
	d := c.team.members[member].dev
	m := &memory{dev: d, kind: device.Private, bytes: v.Elements()*v.DType.Size() + tail, nowhere: true}
	if v.Off = tail; d == c.me.dev {
		m.addr = relocate.Address(k)
	} else {
		c.w.mu.Lock()
		d.nameless(m)
		c.w.mu.Unlock()
	}
	v.Mem = m
	return v
}

// Prepare implements device.Calls.
func (c *calls) Prepare(t device.Tuning, k *device.Collective, inPlace bool, tail [2]int64) (device.Call, error) {
	launches, err := c.team.Prepare(t, relocate.Place(k, inPlace, tail, c.operand))
	if err != nil {
		return nil, err
	}
	return c.call(launches, tail[:])
}

// PrepareNorm implements device.Calls.
func (c *calls) PrepareNorm(n *device.Norm, sumIsResidual, outIsIn bool) (device.Call, error) {
	placed := relocate.PlaceNorm(n, sumIsResidual, outIsIn, c.operand)
	if err := c.team.SupportsNorm(placed); err != nil {
		return nil, err
	}
	launches, err := c.team.PrepareNorm(placed)
	if err != nil {
		return nil, err
	}
	return c.call(launches, make([]int64, 5))
}

// call converts this rank's launch of a collective to a call. It returns an error if the launch contains anything but
// kernels or one call of NCCL.
func (c *calls) call(launches []device.Launch, tails []int64) (*call, error) {
	l, ok := launches[c.me.index].(*launch)
	if !ok || l == nil {
		return &call{calls: c}, nil // nothing to do
	}
	if a := meetingOf(l.steps); a != nil && a.meeting.library != nil && len(a.before)+len(a.after) == 0 {
		return &call{calls: c, launch: l, library: a.meeting.library, tails: slices.Clone(tails)}, nil
	}
	var kernels []*nvlib.Launch
	for _, st := range l.steps {
		k, ok := st.(*kernelStep)
		if !ok {
			l.Release()
			return nil, fmt.Errorf("%w: %s consists of more than kernels, which is not possible on streams of the caller",
				device.ErrUnsupported, l.name)
		}
		kernels = append(kernels, k.l)
	}
	return &call{calls: c, launch: l, kernels: relocate.Find(kernels, tails)}, nil
}

// call holds a prepared collective of this rank.
type call struct {
	calls   *calls
	launch  *launch // nil if the rank has nothing to do
	kernels *relocate.Call
	library *nccl.Call // the call of NCCL; nil if the launch consists of kernels
	tails   []int64    // of the operands of library
}

// visit calls f while the world is locked and the context of this rank's GPU is current, and then restores the thread's
// own context. If the results of calls can no longer be trusted, it returns the reason and does not call f.
func (c *calls) visit(f func() error) error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.drv.Visit(c.me.dev.site.ctx, func() error {
		if err := c.w.told(); err != nil {
			return err
		}
		return f()
	})
}

// Keep implements device.Calls.
func (c *calls) Keep() (restore func()) { return c.w.drv.Keep() }

// Do implements device.Call.
func (x *call) Do(stream uintptr, operands ...uintptr) error {
	c, w := x.calls, x.calls.w
	return c.visit(func() error {
		if x.launch == nil {
			return nil
		}
		c.me.doing = x.launch.name
		if err := c.order.Next(nvlib.Stream(stream)); err != nil {
			return err
		}
		if x.library != nil {
			return x.library.IssueAt(c.me.index, nvlib.Stream(stream), operands, x.tails)
		}
		x.kernels.Aim(operands)
		for _, k := range x.kernels.Kernels {
			if err := w.drv.LaunchEarly(k, nvlib.Stream(stream)); err != nil {
				return fmt.Errorf("%s: %w", x.launch.name, err)
			}
		}
		return nil
	})
}

func (x *call) Release() {
	if x.launch != nil {
		x.launch.Release()
	}
}

func (c *calls) Err() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.told()
}

// Adopt implements device.Calls. The addresses are those at which this process's kernels access each rank's memory.
func (c *calls) Adopt(at []uintptr, bytes int64) ([]device.Memory, error) {
	if len(at) != len(c.w.devices) {
		return nil, fmt.Errorf("%w: got %d addresses for %d ranks", device.ErrAddress, len(at), len(c.w.devices))
	}
	if c.w.hosted {
		return nil, fmt.Errorf("%w: the caller's memory cannot be accessed by all ranks: %w", device.ErrUnsupported, anyApart(c.w.Apart, c.team.members))
	}
	me := c.me.dev
	if _, err := (callers{c.w}).At(me.rank, at[me.rank], bytes); err != nil {
		return nil, err
	}
	var all []device.Memory
	for r, d := range c.w.devices {
		if at[r] == 0 || at[r]%16 != 0 {
			return nil, fmt.Errorf("%w: the address of memory of rank %d, %#x, is not a multiple of 16", device.ErrAddress, r, at[r])
		}
		all = append(all, &memory{dev: d, kind: device.Shared, addr: nvlib.Ptr(at[r]), bytes: bytes, lent: true})
	}
	return all, nil
}

// Device implements device.Calls.
func (c *calls) Device() int { return int(c.me.dev.site.gpu.Device) }

// Copy implements device.Calls.
func (c *calls) Copy(stream, dst, src uintptr, bytes int64) error {
	var args [4]uintptr
	return c.visit(func() error {
		if err := c.order.Next(nvlib.Stream(stream)); err != nil {
			return err
		}
		return c.w.drv.Copy(nvlib.Ptr(dst), nvlib.Ptr(src), bytes, nvlib.Stream(stream), &args)
	})
}

// Close implements device.Calls. Close waits for work on the caller's streams together with all other work of the GPU.
func (c *calls) Close() error {
	var err error
	if !c.w.guard.Ended() {
		err = c.me.dev.bound(c.w.drv.SyncContext)
	}
	if err == nil { // all work has ended, so closing the world later interrupts no work
		c.w.mu.Lock()
		c.w.called = false
		c.w.mu.Unlock()
		err = c.me.dev.bound(c.order.Close)
	}
	return errors.Join(err, c.team.Close())
}
