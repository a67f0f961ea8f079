package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// trialBytes is the size of a trial.
const trialBytes = 1 << 20

// trialPattern is what is sent, from the first 256 bytes on: from where depends on
// the receiver.
var trialPattern = sync.OnceValue(func() []byte {
	b := make([]byte, 256+trialBytes)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
})

// passage is memory to move a pattern through: three pieces of the host's, two of the
// GPU that transfers, and one of the other's.
type passage struct {
	sys       *system
	from, to  *gpu
	host      nvlib.Ptr
	near, far *region
	giveBack  []func() error
}

// tryTransfer has from push a pattern into memory of to, which reads it there, and
// pull it back. It returns what is wrong with the way between them; err is that
// there is no trial, or a GPU that it left unusable.
func (s *system) tryTransfer(from, to *gpu) (why, err error) {
	t := &passage{sys: s, from: from, to: to}
	if err = errors.Join(t.on(to, func() error { return nil }), t.on(from, t.take)); err == nil {
		why = t.on(from, t.run)
	}
	for _, g := range []*gpu{from, to} {
		if l := g.lost.Load(); l != nil {
			return nil, l
		}
	}
	for i := len(t.giveBack) - 1; i >= 0; i-- {
		err = errors.Join(err, from.bound(t.giveBack[i]))
	}
	return why, err
}

// bound runs f with the GPU's context current.
func (g *gpu) bound(f func() error) error {
	ctx, err := g.context()
	if err != nil {
		return err
	}
	if err := g.sys.drv.Bind(ctx); err != nil {
		return err
	}
	defer g.sys.drv.Unbind()
	return f()
}

// on runs f with the context of g current, which is lost where that fails so, unless the
// other was meanwhile.
func (t *passage) on(g *gpu, f func() error) error {
	err := g.bound(f)
	if t.from.lost.Load() == nil && t.to.lost.Load() == nil {
		g.lose(err, fmt.Sprintf("in a transfer from GPU %d to GPU %d", t.from.dev, t.to.dev))
	}
	return err
}

// run grants access to the other's memory, and moves the pattern.
func (t *passage) run() error {
	if err := t.sys.drv.SetAccess(t.far.addr, t.far.bytes, []nvlib.Device{t.to.dev, t.from.dev}); err != nil {
		return err
	}
	sent, pushed, pulled := t.host, t.host+trialBytes, t.host+2*trialBytes
	out, back := t.near.addr, t.near.addr+trialBytes
	pattern := cabi.Bytes(uintptr(sent), trialBytes)
	copy(pattern, trialPattern()[int(t.to.dev)&0xff:])
	clear(cabi.Bytes(uintptr(pushed), 2*trialBytes))
	for _, m := range []struct {
		g     *gpu
		pairs [][2]nvlib.Ptr // copied from the second to the first
	}{
		{t.from, [][2]nvlib.Ptr{{out, sent}, {t.far.addr, out}}},
		{t.to, [][2]nvlib.Ptr{{pushed, t.far.addr}}},
		{t.from, [][2]nvlib.Ptr{{back, t.far.addr}, {pulled, back}}},
	} {
		if err := t.on(m.g, func() error { return m.g.move(m.pairs) }); err != nil {
			return err
		}
	}
	switch {
	case !bytes.Equal(pattern, cabi.Bytes(uintptr(pushed), trialBytes)):
		return errors.New("other bytes arrived than were sent")
	case !bytes.Equal(pattern, cabi.Bytes(uintptr(pulled), trialBytes)):
		return errors.New("other bytes came back than were sent")
	}
	return nil
}

// take makes the memory. The context of from is current.
func (t *passage) take() (err error) {
	drv := t.sys.drv
	if t.host, err = drv.HostAlloc(3 * trialBytes); err != nil {
		return err
	}
	t.giveBack = append(t.giveBack, func() error { return drv.HostFree(t.host) })
	for _, m := range []struct {
		mapped
		bytes int64
		at    **region
	}{
		{mapped{t.from, []nvlib.Device{t.from.dev}}, 2 * trialBytes, &t.near},
		{mapped{t.to, []nvlib.Device{t.to.dev}}, trialBytes, &t.far},
	} {
		grain, err := drv.Granularity(m.g.dev)
		if err != nil {
			return err
		}
		r, err := m.take(roundUp(m.bytes, max(grain, 1)))
		if err != nil {
			return err
		}
		*m.at = r
		t.giveBack = append(t.giveBack, func() error { return m.give(r) })
	}
	return nil
}

// move makes copies of a trial, one after another, and waits for them, but not for
// ever: a GPU whose copies do not end is lost. The context is current.
func (g *gpu) move(pairs [][2]nvlib.Ptr) error {
	drv := g.sys.drv
	var args [4]uintptr
	for _, p := range pairs {
		if err := drv.Copy(p[0], p[1], trialBytes, 0, &args); err != nil {
			return err
		}
	}
	for began := time.Now(); ; pause(time.Since(began)) {
		idle, err := drv.StreamIdle(0)
		if idle || err != nil {
			return err
		}
		if time.Since(began) > g.sys.patience {
			g.lost.CompareAndSwap(nil, &loss{g, time.Now(), "in a transfer to or from another", fmt.Errorf("it has not ended after %v", g.sys.patience)})
			return g.lost.Load()
		}
	}
}
