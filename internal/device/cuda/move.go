package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// moveBlocks is how many blocks a copy by a kernel takes that may have any number:
// what fills a link, by stores and by loads.
const moveBlocks = 32

// PrepareMove compiles a kernel that copies, by stores to a peer's memory or loads from
// it.
func (d *dev) PrepareMove(dst, src device.View, blocks int) (device.Launch, error) {
	w := d.w
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return nil, err
	}
	if d.site.foreign {
		return d.foreignLaunch("copy"), nil
	}
	to, err := d.resolve(dst, true)
	if err != nil {
		return nil, d.errorf("copy: destination: %w", err)
	}
	from, err := d.resolve(src, true)
	if err != nil {
		return nil, d.errorf("copy: source: %w", err)
	}
	l := &launch{dev: d, name: "copy"}
	if err = strided.CheckCopy(&to, &from); err == nil {
		err = d.bound(func() error { return l.addMove(&to, &from, blocks) })
	}
	if err != nil {
		l.drop()
		return nil, d.errorf("copy: %w", err)
	}
	return l, nil
}

// addMove makes the steps; to and from are checked. The context is current.
func (l *launch) addMove(to, from *strided.View, blocks int) error {
	site := l.dev.site
	switch {
	case to.N == 0 || to.Same(from):
		return nil
	case !site.reaches(to) || !site.reaches(from):
		return fmt.Errorf("%w: a kernel does not reach memory of a GPU that is apart", device.ErrUnsupported)
	case to.Overlaps(from) || !to.Dense() || !from.Dense():
		return fmt.Errorf("%w: a kernel copies between views without gaps that share no bytes", device.ErrUnsupported)
	case blocks <= 0:
		blocks = moveBlocks
	}
	launches, err := site.compileAside(kernels.Problem{Op: ir.OpCopy, Ins: []kernels.Operand{from.Operand()}, Out: to.Operand(), Blocks: blocks}, nil)
	for _, n := range launches {
		l.steps = append(l.steps, &kernelStep{l: n, f: closely})
	}
	return err
}
