package cuda

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/compute"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// launch holds a prepared kernel as a list of steps for one stream, in order.
type launch struct {
	dev      *dev
	name     string
	steps    []step
	scratch  []*memory
	released bool
	agreeing bool // the processes may later agree on another algorithm for this launch
	// looked is set if a kernel of the launch can report faults; stream and id then describe the latest launch.
	looked bool
	stream string
	id     int64
	member *member   // the team member that runs the launch; nil for none
	meets  *attendee // the member's part of a collective; nil if the launch is not part of one
}

// step is one operation of a launch. The method run issues the operation; the context is current.
type step interface {
	run(s *stream) error
	free()
}

func (l *launch) run(s *stream) error {
	if l.member != nil {
		l.member.id, l.member.doing = s.open.Innermost(), l.name
		s.dev.w.capture.meets(l, s)
	}
	if l.looked {
		l.stream, l.id = s.name, s.open.Innermost()
		s.dev.site.report.Armed = true
	}
	for _, st := range l.steps {
		if err := st.run(s); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		if _, kernel := st.(*kernelStep); !kernel {
			s.led = false
		}
	}
	return nil
}

// Release frees the launch. Release requires that no issued work still uses the launch.
func (l *launch) Release() {
	defer l.dev.w.guard.Exclusive()()
	l.drop()
}

func (l *launch) drop() {
	if l.released {
		return
	}
	l.released = true
	for _, st := range l.steps {
		st.free()
	}
	if l.dev.w.cause == errClosed {
		return
	}
	for _, m := range l.scratch {
		_ = m.giveBack()
	}
}

// Prepare compiles and loads the kernels that compute k, and selects their algorithms.
func (d *dev) Prepare(k device.Kernel) (device.Launch, error) {
	return d.prepare(device.Name(k.Op), func(l *launch) error {
		site := compute.Site{GEMMs: d.site.gemms, SMs: d.site.gpu.SMs, FixedProducts: d.w.m.opts.FixedProducts}
		return compute.Prepare(l, site, &k)
	})
}

// PrepareMove prepares a copy by a kernel, which stores to a peer's memory or loads from it.
func (d *dev) PrepareMove(dst, src device.View, blocks int) (device.Launch, error) {
	return d.prepare("copy", func(l *launch) error { return compute.Move(l, dst, src, blocks) })
}

// prepare returns a launch whose steps the function build adds.
func (d *dev) prepare(name string, build func(l *launch) error) (device.Launch, error) {
	w := d.w
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return nil, err
	}
	l := &launch{dev: d, name: name}
	if err := d.bound(func() error { return build(l) }); err != nil {
		l.drop()
		return nil, d.errorf("%s: %w", l.name, err)
	}
	return l, nil
}

// Resolve implements compute.Launch, as the following methods do.
func (l *launch) Resolve(v device.View, peers bool) (strided.View, error) {
	return l.dev.resolve(v, peers)
}

// Reaches reports whether the device can access v's memory.
func (l *launch) Reaches(v *strided.View) bool { return l.dev.site.reaches(v) }

// Scratch reserves memory that is freed when the launch is released.
func (l *launch) Scratch(bytes int64) (strided.Memory, nvlib.Ptr, error) {
	m, err := l.dev.alloc(bytes, device.Private)
	if err != nil {
		return nil, 0, err
	}
	l.scratch = append(l.scratch, m)
	return m, m.addr, nil
}

// Report returns the address and the tag with which kernels of the launch report faults.
func (l *launch) Report() (nvlib.Ptr, uint64, error) {
	s := l.dev.site
	at, tag, err := s.report.Reserve()
	if err == nil {
		l.looked = true
		s.reporters = append(s.reporters, l)
	}
	return at, tag, err
}

// AddProblem adds the kernels that compute p.
func (l *launch) AddProblem(p kernels.Problem) error {
	launches, err := l.dev.site.compileAside(p, func(bytes int64, zeros bool) (nvlib.Ptr, error) {
		_, at, err := l.Scratch(bytes)
		if err == nil && zeros {
			err = signal.Fill(l.dev.w.drv, at, 0, (bytes+3)/4)
		}
		return at, err
	})
	for _, n := range launches {
		l.AddOwn(n)
	}
	return err
}

// AddCopy adds a copy from src to dst.
func (l *launch) AddCopy(dst, src strided.View) error {
	steps, err := l.dev.copySteps(dst, src)
	l.steps = append(l.steps, steps...)
	return err
}

// Again stores prepare, which replaces the steps of the launch if the processes agree on different algorithms.
func (l *launch) Again(prepare func() error) {
	if l.dev.w.peers == nil || l.dev.site.gemms.Adopted() {
		return
	}
	l.agreeing = true
	l.dev.site.gemms.Again(func() error {
		if l.released {
			return nil
		}
		l.drop()
		l.released, l.steps, l.scratch = false, nil, nil
		return prepare()
	})
}

// AddProduct adds a GEMM that cuBLASLt computes.
func (l *launch) AddProduct(p *gemm.Launch) { l.steps = append(l.steps, gemmLaunch{p}) }

// AddOwn adds a kernel of hocket, which may begin before earlier work has ended.
func (l *launch) AddOwn(n *nvlib.Launch) { l.steps = append(l.steps, &kernelStep{l: n, f: closely}) }

// AddUser adds a kernel that the user wrote.
func (l *launch) AddUser(u kernels.User) error {
	st, err := l.make(func(t kernels.Target) (kernels.Step, error) { return l.dev.w.m.opts.Kernels.User(t, u) })
	if err != nil {
		return err
	}
	main, err := l.dev.site.gpu.LoadUser(l.dev.site.w.drv, st)
	if err == nil {
		l.steps = append(l.steps, &kernelStep{l: main, f: atEnd})
	}
	return err
}

// AddUnchanged adds a kernel that reports a fault if memory has changed.
func (l *launch) AddUnchanged(u kernels.Unchanged) error {
	st, err := l.make(func(t kernels.Target) (kernels.Step, error) { return l.dev.w.m.opts.Kernels.Unchanged(t, u) })
	if err != nil {
		return err
	}
	n, err := l.dev.site.gpu.Load(l.dev.site.w.drv, st)
	if err == nil {
		l.AddOwn(n)
	}
	return err
}

// make calls f, which compiles a kernel. make unlocks the world's mutex while f runs.
func (l *launch) make(f func(kernels.Target) (kernels.Step, error)) (st kernels.Step, err error) {
	err = l.dev.w.guard.Aside(func() (err error) {
		st, err = f(l.dev.site.target())
		return err
	})
	return st, err
}

// copySteps returns the steps that copy src to dst. The views do not overlap and have been checked. The caller holds
// the world exclusively, and the context is current.
func (d *dev) copySteps(dst, src strided.View) ([]step, error) {
	if dst.N == 0 {
		return nil, nil
	}
	if !d.site.reaches(&dst) || !d.site.reaches(&src) {
		return []step{&copyStep{dst, src}}, errors.Join(d.prepareHostStaged(&dst, &src), d.rebind())
	}
	dims := strided.Merge(&dst, &src)
	if d.site.byEngine(&dst, &src, dims) {
		return []step{&copyStep{dst, src}}, nil
	}
	launches, err := d.site.compileAside(strided.CopyProblem(&dst, &src, dims), nil)
	var steps []step
	for _, n := range launches {
		steps = append(steps, &kernelStep{l: n, f: closely})
	}
	return steps, err
}

// copyStep is a step that copies with a copy engine.
type copyStep struct{ dst, src strided.View }

func (c *copyStep) run(s *stream) error { return s.copy(&c.dst, &c.src) }
func (c *copyStep) free()               {}

// kernelStep launches one kernel.
type kernelStep struct {
	l     *nvlib.Launch
	f     following
	meets bool // NCCL's call contains kernels that wait for kernels on other devices
}

func (k *kernelStep) run(s *stream) error { return s.kernel(k.l, k.f) }
func (k *kernelStep) free()               { k.l.Free() }

var _ compute.Launch = (*launch)(nil)
