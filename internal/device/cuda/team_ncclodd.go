package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// oddWindows refuses blocks, and places that they are read from, that NCCL of this
// version gets wrong on windows.
func (t *team) oddWindows(lib *nvlib.NCCL, w *ncclWork) error {
	if t.w.m.sys.unwary {
		return nil
	}
	block := w.count * w.dt.Size()
	of, known := map[ir.Op]nvlib.Mistake{ir.OpAllGather: nvlib.OddWindowGathers, ir.OpReduceScatter: nvlib.OddWindowScatters}[w.op]
	if known && block%8 != 0 {
		if err := mistaken(lib, of, false); err != nil {
			return err
		}
	}
	odd := w.op == ir.OpReduceScatter && block%4 != 0 // it reads a block for each member
	for i := range w.shares {
		in := w.shares[i].in
		odd = odd || in != nil && in.addr%4 != 0
	}
	if !odd {
		return nil
	}
	return mistaken(lib, nvlib.OddWindowStarts, false)
}

// mistaken refuses what NCCL of this version gets wrong.
func mistaken(lib *nvlib.NCCL, m nvlib.Mistake, multicast bool) error {
	k := lib.Mistaken(m, multicast)
	if k == nil {
		return nil
	}
	return fmt.Errorf("%w: NCCL %s: %s (%s)", device.ErrUnsupported, lib.Loaded().Version, k.What, k.Source)
}
