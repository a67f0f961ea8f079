package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// trialBytes is the default of System.TrialBytes.
const trialBytes = 1 << 20

// trialPattern is the data that test transfers send. A transfer sends TrialBytes of it, from an offset below 256 that
// depends on the receiver.
var trialPattern = sync.OnceValue(func() []byte {
	b := make([]byte, 256+trialBytes)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
})

// passage holds the GPUs and the memory of a test transfer: three buffers on the host, two on the sending GPU, and one
// on the receiving GPU.
type passage struct {
	sys       *System
	from, to  *GPU
	host      nvlib.Ptr
	near, far *Region
	giveBack  []func() error
}

// tryTransfer tests whether the GPU from can access the memory of the GPU to. The GPU from writes a pattern to memory
// of the GPU to; to reads the pattern there, and from reads it back. The error why describes a fault of the connection.
// The error err reports that the test was not possible, or that a GPU is lost.
func (s *System) tryTransfer(from, to *GPU) (why, err error) {
	t := &passage{sys: s, from: from, to: to}
	if err = errors.Join(t.on(to, func() error { return nil }), t.on(from, t.take)); err == nil {
		why = t.on(from, t.run)
	}
	for _, g := range []*GPU{from, to} {
		if l := g.Lost.Load(); l != nil {
			return nil, l
		}
	}
	for i := len(t.giveBack) - 1; i >= 0; i-- {
		err = errors.Join(err, from.Bound(t.giveBack[i]))
	}
	return why, err
}

// Bound runs f with the GPU's context current.
func (g *GPU) Bound(f func() error) error {
	ctx, err := g.Context()
	if err != nil {
		return err
	}
	if err := g.System.Lent.Bind(ctx); err != nil {
		return err
	}
	defer g.System.Lent.Unbind()
	return f()
}

// on runs f while the context of g is current. If f fails with a fatal error, on marks g as lost, unless one of the
// two GPUs was lost before.
func (t *passage) on(g *GPU, f func() error) error {
	err := g.Bound(f)
	if t.from.Lost.Load() == nil && t.to.Lost.Load() == nil {
		g.Lose(err, fmt.Sprintf("in a transfer from GPU %d to GPU %d", t.from.Device, t.to.Device))
	}
	return err
}

// run grants the GPU from access to the memory of the GPU to, and transfers the pattern.
func (t *passage) run() error {
	if err := t.sys.Lent.SetAccess(t.far.Addr, t.far.Bytes, []nvlib.Device{t.to.Device, t.from.Device}); err != nil {
		return err
	}
	n := int(t.sys.TrialBytes)
	sent, pushed, pulled := t.host, t.host+nvlib.Ptr(n), t.host+nvlib.Ptr(2*n)
	out, back := t.near.Addr, t.near.Addr+nvlib.Ptr(n)
	pattern := cabi.Bytes(uintptr(sent), n)
	copy(pattern, trialPattern()[int(t.to.Device)&0xff:])
	clear(cabi.Bytes(uintptr(pushed), 2*n))
	for _, m := range []struct {
		g     *GPU
		pairs [][2]nvlib.Ptr // destination and source of each copy of this GPU
	}{
		{t.from, [][2]nvlib.Ptr{{out, sent}, {t.far.Addr, out}}},
		{t.to, [][2]nvlib.Ptr{{pushed, t.far.Addr}}},
		{t.from, [][2]nvlib.Ptr{{back, t.far.Addr}, {pulled, back}}},
	} {
		if err := t.on(m.g, func() error { return m.g.move(m.pairs) }); err != nil {
			return err
		}
	}
	switch {
	case !bytes.Equal(pattern, cabi.Bytes(uintptr(pushed), n)):
		return errors.New("other bytes arrived than were sent")
	case !bytes.Equal(pattern, cabi.Bytes(uintptr(pulled), n)):
		return errors.New("other bytes came back than were sent")
	}
	return nil
}

// take allocates the memory of the test transfer. The context of the GPU from is current.
func (t *passage) take() (err error) {
	drv, n := t.sys.Lent, t.sys.TrialBytes
	if t.host, err = drv.HostAlloc(3 * n); err != nil {
		return err
	}
	t.giveBack = append(t.giveBack, func() error { return drv.HostFree(t.host) })
	for _, m := range []struct {
		DeviceMemory
		bytes int64
		at    **Region
	}{
		{DeviceMemory{GPU: t.from, Devices: []nvlib.Device{t.from.Device}, Driver: drv}, 2 * n, &t.near},
		{DeviceMemory{GPU: t.to, Devices: []nvlib.Device{t.to.Device}, Driver: drv}, n, &t.far},
	} {
		grain, err := drv.Granularity(m.GPU.Device)
		if err != nil {
			return err
		}
		r, err := m.reserve(RoundUp(m.bytes, max(grain, 1)))
		if err != nil {
			return err
		}
		*m.at = r
		t.giveBack = append(t.giveBack, func() error { return m.Release(r) })
	}
	return nil
}

// move issues copies, each from pairs[i][1] to pairs[i][0], one after another and waits for them. If the copies do not
// end in time, the GPU is lost. The context is current.
func (g *GPU) move(pairs [][2]nvlib.Ptr) error {
	drv := g.System.Lent
	var args [4]uintptr
	for _, p := range pairs {
		if err := drv.Copy(p[0], p[1], g.System.TrialBytes, 0, &args); err != nil {
			return err
		}
	}
	for began := time.Now(); ; Pause(time.Since(began)) {
		idle, err := drv.StreamIdle(0)
		if idle || err != nil {
			return err
		}
		if time.Since(began) > g.System.Patience {
			g.Lost.CompareAndSwap(nil, &loss{g, time.Now(), "in a transfer to or from another", fmt.Errorf("the transfer has not ended after %v", g.System.Patience)})
			return g.Lost.Load()
		}
	}
}
