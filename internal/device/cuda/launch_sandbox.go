package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// guardBytes are between a kernel's tensors, and before and behind them, where what it does undeclared is looked for.
const guardBytes = 4096

// sandbox has a kernel of the user's work on copies of its tensors, with poison around them, and in those that it only
// writes. So undeclared reads give NaNs, and writes that are not declared show, and do no harm.
type sandbox struct {
	l         *launch
	ins, outs []strided.View // the copies
	origins   []strided.View // of ins
	results   []strided.View // of outs
	poison    nvlib.Ptr      // guardBytes of it
	fault     nvlib.Ptr
	tag       uint64
}

// sandbox adds the steps before the kernel. The context is current.
func (l *launch) sandbox(u *device.UserKernel, ins, outs []strided.View) (*sandbox, error) {
	g := &sandbox{l: l, ins: make([]strided.View, len(ins)), outs: make([]strided.View, len(outs)), origins: ins,
		results: outs}
	var err error
	if g.fault, g.tag, err = l.dev.site.faults.reserve(l); err != nil {
		return nil, err
	}
	m, err := g.poisoned(guardBytes)
	if err != nil {
		return nil, err
	}
	g.poison = m.addr
	for _, p := range u.Params {
		if p.In < 0 && p.Out < 0 {
			continue
		}
		var of strided.View
		if p.Out >= 0 {
			of = outs[p.Out]
		} else {
			of = ins[p.In]
		}
		m, err := g.poisoned(of.Bytes() + 2*guardBytes)
		if err != nil {
			return nil, err
		}
		copied := of.In(m, m.addr+guardBytes)
		if p.Out >= 0 {
			g.outs[p.Out] = copied
		}
		if p.In >= 0 {
			g.ins[p.In] = copied
			if err := g.copy(copied, of); err != nil {
				return nil, err
			}
		}
	}
	return g, nil
}

// poisoned reserves memory for the launch, and has it poisoned whenever that runs.
func (g *sandbox) poisoned(bytes int64) (*memory, error) {
	bytes = (bytes + 3) / 4 * 4
	m, err := g.l.dev.alloc(bytes, device.Private)
	if err != nil {
		return nil, err
	}
	g.l.scratch = append(g.l.scratch, m)
	launches, err := g.l.dev.site.compileAside(kernels.Blank(m.addr, bytes), g.l.reserve)
	for _, n := range launches {
		g.l.steps = append(g.l.steps, &kernelStep{l: n, f: closely})
	}
	return m, err
}

func (g *sandbox) copy(dst, src strided.View) error {
	steps, err := g.l.dev.copySteps(dst, src)
	g.l.steps = append(g.l.steps, steps...)
	return err
}

// compare adds the steps behind the kernel: what looks at what it did, and what brings its results to where they
// belong.
func (g *sandbox) compare(u *device.UserKernel) error {
	for i, p := range u.Params {
		if p.In < 0 && p.Out < 0 {
			continue
		}
		var copied strided.View
		if p.Out >= 0 {
			copied = g.outs[p.Out]
		} else {
			copied = g.ins[p.In]
		}
		bytes := copied.Bytes()
		looks := []kernels.Unchanged{
			{Now: copied.Addr - guardBytes, Before: g.poison, Bytes: guardBytes, Kind: kernels.FaultOutside,
				Size: 1, First: -guardBytes},
			{Now: copied.Addr + nvlib.Ptr(bytes), Before: g.poison, Bytes: guardBytes, Kind: kernels.FaultOutside, Size: 1},
		}
		if p.Out < 0 {
			looks = append(looks, kernels.Unchanged{Now: copied.Addr, Before: g.origins[p.In].Addr, Bytes: bytes,
				Kind: kernels.FaultWritten, Size: copied.DType.Size()})
		}
		for _, x := range looks {
			x.Argument, x.Fault, x.Tag = i, g.fault, g.tag
			if err := g.look(x); err != nil {
				return err
			}
		}
		if p.Out >= 0 {
			if err := g.copy(g.results[p.Out], copied); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *sandbox) look(x kernels.Unchanged) error {
	site := g.l.dev.site
	var st kernels.Step
	err := site.w.guard.Aside(func() (err error) {
		st, err = site.w.m.opts.Kernels.Unchanged(site.target(), x)
		return err
	})
	if err != nil {
		return err
	}
	n, err := site.load(st)
	if err == nil {
		g.l.steps = append(g.l.steps, &kernelStep{l: n, f: closely})
	}
	return err
}
