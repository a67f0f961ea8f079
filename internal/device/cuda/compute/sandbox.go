package compute

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// guardBytes is the size of the guard area before and after each tensor of a sandbox. A changed guard area shows an
// undeclared write.
const guardBytes = 4096

// sandbox runs a kernel of the user on copies of its tensors. The guard areas around the copies, and tensors that the
// kernel only writes, are filled with poison. Undeclared reads then return NaNs, and undeclared writes are detected and
// do no harm.
type sandbox struct {
	b         *builder
	ins, outs []strided.View // the copies
	origins   []strided.View // of ins
	results   []strided.View // of outs
	poison    nvlib.Ptr      // address of guardBytes bytes of poison, with which guard areas are compared
	fault     nvlib.Ptr
	tag       uint64
}

// sandbox adds the steps that run before the user's kernel. The context is current.
func (b *builder) sandbox(u *device.UserKernel, ins, outs []strided.View) (*sandbox, error) {
	g := &sandbox{b: b, ins: make([]strided.View, len(ins)), outs: make([]strided.View, len(outs)), origins: ins,
		results: outs}
	var err error
	if g.fault, g.tag, err = b.Report(); err != nil {
		return nil, err
	}
	if _, g.poison, err = g.poisoned(guardBytes); err != nil {
		return nil, err
	}
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
		m, at, err := g.poisoned(of.Bytes() + 2*guardBytes)
		if err != nil {
			return nil, err
		}
		copied := of.In(m, at+guardBytes)
		if p.Out >= 0 {
			g.outs[p.Out] = copied
		}
		if p.In >= 0 {
			g.ins[p.In] = copied
			if err := g.b.AddCopy(copied, of); err != nil {
				return nil, err
			}
		}
	}
	return g, nil
}

// poisoned reserves memory for the launch, and adds a kernel that fills it with poison at every execution.
func (g *sandbox) poisoned(bytes int64) (strided.Memory, nvlib.Ptr, error) {
	bytes = (bytes + 3) / 4 * 4
	m, at, err := g.b.Scratch(bytes)
	if err != nil {
		return nil, 0, err
	}
	return m, at, g.b.AddProblem(kernels.Blank(at, bytes))
}

// compare adds the steps that run after the user's kernel: kernels that detect undeclared writes, and copies of its
// results to their destinations.
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
			if err := g.b.AddUnchanged(x); err != nil {
				return err
			}
		}
		if p.Out >= 0 {
			if err := g.b.AddCopy(g.results[p.Out], copied); err != nil {
				return err
			}
		}
	}
	return nil
}
