package cuda

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// launch is a prepared kernel: steps for one stream, in order.
type launch struct {
	dev      *dev
	name     string
	steps    []step
	scratch  []*memory
	released bool
	// looked: a kernel of it reports faults; then where it was launched last.
	looked bool
	stream string
	id     int64
	member *member   // of the team whose launch it is; nil for none
	meets  *attendee // of a meeting on the host; nil for none
}

// step is a part of a launch. run issues it; the context is current.
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
		s.dev.site.faults.armed = true
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

// Release lets the launch go; nothing issued may still use it.
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
	if l.dev.w.cause == errClosed || l.dev.site.lost() {
		return
	}
	for _, m := range l.scratch {
		m.freed = true
		_ = l.dev.bound(func() error { return l.dev.site.heaps[m.kind].Free(m.addr, m.bytes) })
	}
}

func kernelName(k *device.Kernel) string {
	switch {
	case k.User != nil:
		return k.User.Name()
	case k.Red > ir.Avg:
		return "unknown reduction"
	case k.Joins():
		return "reduction " + k.Red.String()
	case len(k.Links) > 0:
		return kernels.ChainName(k.Links)
	}
	return k.Op.String()
}

// Prepare compiles and loads what computes k, and picks algorithms.
func (d *dev) Prepare(dk device.Kernel) (device.Launch, error) {
	w := d.w
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return nil, err
	}
	if d.site.foreign {
		return d.foreignLaunch(kernelName(&dk)), nil
	}
	l := &launch{dev: d, name: kernelName(&dk)}
	err := d.bound(func() error {
		switch {
		case dk.User != nil:
			return l.addUser(&dk)
		case dk.Joint:
			return l.addJoint(&dk)
		}
		return l.build(&kernel{Kernel: dk})
	})
	if err != nil {
		l.drop()
		return nil, d.errorf("%s: %w", l.name, err)
	}
	return l, nil
}

// build checks k and makes the steps. The context is current.
func (l *launch) build(k *kernel) error {
	if err := k.resolve(l.dev); err != nil {
		return err
	}
	switch {
	case k.Red > ir.Avg:
		return fmt.Errorf("there is no reduction %d", k.Red)
	case k.Red != ir.NoRed:
		return l.addLibrary(k)
	case len(k.Links) > 0:
		return l.addChain(k)
	case isCopy(k.Op):
		return l.addCopy(k)
	case k.Op == ir.OpLinear, k.Op == ir.OpMatmul:
		return l.addGEMM(k)
	}
	return l.addLibrary(k)
}

// isCopy reports whether op is only a copy: the views of values come as strided
// operands.
func isCopy(op ir.Op) bool {
	return op == ir.OpCopy || op == ir.OpExpand || op.Info().Class == ir.ClassView
}

// stage has operands that overlap the result otherwise than by being it copied
// to scratch memory first: so every kernel computes from what was there before. So
// are those in memory of GPUs that are apart.
func (l *launch) stage(k *kernel) error {
	aliasable := k.Op.Info().Elementwise && k.Op != ir.OpCast || k.Joins() || len(k.Links) > 0
	for i := range k.ins {
		in := &k.ins[i]
		far := !l.dev.site.reaches(in)
		if in.N == 0 || !far && (!in.Overlaps(&k.out) || aliasable && in.Same(&k.out)) {
			continue
		}
		m, err := l.dev.alloc(in.Bytes(), device.Private)
		if err != nil {
			return err
		}
		l.scratch = append(l.scratch, m)
		safe := in.In(m, m.addr)
		steps, err := l.dev.copySteps(safe, *in)
		if err != nil {
			return err
		}
		l.steps = append(l.steps, steps...)
		k.ins[i] = safe
	}
	return nil
}

// copySteps copy src to dst, which share no bytes; both are checked. The caller
// holds the world exclusively, and the context is current.
func (d *dev) copySteps(dst, src strided.View) ([]step, error) {
	if dst.N == 0 {
		return nil, nil
	}
	if !d.site.reaches(&dst) || !d.site.reaches(&src) {
		return []step{&copyStep{dst, src}}, errors.Join(d.prepareHostStaged(&dst, &src), d.rebind())
	}
	dims := strided.Merge(&dst, &src)
	if strided.ByEngine(&dst, dims) {
		return []step{&copyStep{dst, src}}, nil
	}
	launches, err := d.site.compileAside(strided.CopyProblem(&dst, &src, dims), nil)
	var steps []step
	for _, n := range launches {
		steps = append(steps, &kernelStep{l: n, f: closely})
	}
	return steps, err
}

// copyStep is a copy by an engine.
type copyStep struct{ dst, src strided.View }

func (c *copyStep) run(s *stream) error { return s.copy(&c.dst, &c.src) }
func (c *copyStep) free()               {}

// addCopy lets a copy engine do it where that can, unless the two overlap.
func (l *launch) addCopy(k *kernel) error {
	if !k.copies() {
		return l.addLibrary(k)
	}
	steps, err := l.dev.copySteps(k.out, k.ins[0])
	l.steps = append(l.steps, steps...)
	return err
}

// copies reports whether k is a copy between views of one shape that lie apart.
func (k *kernel) copies() bool {
	return len(k.ins) == 1 && !k.ins[0].Overlaps(&k.out) && slices.Equal(k.ins[0].Shape, k.out.Shape) && strided.CheckCopy(&k.out, &k.ins[0]) == nil
}

func (l *launch) addChain(k *kernel) error {
	if err := k.checkOverlap(); err != nil {
		return err
	}
	return l.addLibrary(k)
}

// checkOverlap declines several operations as one where the result overlaps an operand
// that it does not replace, element for element: some threads would read what
// others have written, and copying the operand first costs what it saves.
func (k *kernel) checkOverlap() error {
	for i := range k.ins {
		in := &k.ins[i]
		if in.N > 0 && in.Overlaps(&k.out) && (k.Relu || !in.Same(&k.out)) {
			return fmt.Errorf("%w: operand %d overlaps the result", device.ErrUnsupported, i)
		}
	}
	return nil
}

// kernelStep is a launch of a kernel.
type kernelStep struct {
	l     *nvlib.Launch
	f     following
	meets bool // it waits for kernels on other devices
}

func (k *kernelStep) run(s *stream) error { return s.kernel(k.l, k.f) }
func (k *kernelStep) free()               { k.l.Free() }

func (l *launch) addLibrary(k *kernel) error {
	if err := l.stage(k); err != nil {
		return err
	}
	p := k.problem()
	if k.reports() {
		var err error
		if p.Fault, p.Tag, err = l.dev.site.faults.reserve(l); err != nil {
			return err
		}
	}
	launches, err := l.dev.site.compileAside(p, l.reserve)
	if err != nil {
		return err
	}
	for _, n := range launches {
		l.steps = append(l.steps, &kernelStep{l: n, f: closely})
	}
	return nil
}

// reports reports whether a kernel of k looks at its data and may find that wrong.
func (k *kernel) reports() bool {
	switch k.Op {
	case ir.OpEmbedding:
		return k.Red == ir.NoRed
	case ir.OpIndexCopy:
		return true
	case ir.OpAttention:
		return len(k.ins) == 4 // with lengths
	}
	return k.Op.Uneven()
}

// reserve is kernels.Target.Scratch.
func (l *launch) reserve(bytes int64) (nvlib.Ptr, error) {
	m, err := l.dev.alloc(bytes, device.Private)
	if err != nil {
		return 0, err
	}
	l.scratch = append(l.scratch, m)
	return m.addr, nil
}
