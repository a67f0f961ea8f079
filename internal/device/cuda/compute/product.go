package compute

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/ir"
)

// addGEMM computes linear and matmul: by cuBLASLt what it takes, else by a
// plain kernel.
func (b *builder) addGEMM(k *kernel) error {
	if err := k.checkGEMM(); err != nil {
		return err
	}
	if k.out.N == 0 {
		return nil
	}
	if k.Relu {
		if err := k.checkOverlap(); err != nil {
			return err
		}
	}
	weight := k.ins[1].Addr
	if err := b.stage(k); err != nil {
		return err
	}
	p := k.product()
	p.Merge()
	if g, ok := p.Problem(); ok {
		g.Relu, g.Fixed, g.Timed = k.Relu, k.Fixed || b.site.FixedProducts, k.Timed
		g.Constant = k.Constant && k.Op == ir.OpLinear && k.ins[1].Addr == weight // else it was copied just now
		// What is fixed depends on no hint, since other algorithms may sum in
		// another order; all multiprocessors are no hint.
		if !g.Fixed && k.SMs < b.site.SMs {
			g.SMs = k.SMs
		}
		st, err := b.site.GEMMs.Prepare(g)
		if err != nil {
			return err
		}
		if st != nil {
			if own := st.TakeOwn(); own != nil {
				b.AddOwn(own)
			} else {
				b.AddProduct(st)
			}
			return nil
		}
	}
	if k.Relu {
		return fmt.Errorf("%w: a relu behind a product that cuBLASLt does not take", device.ErrUnsupported)
	}
	return b.addLibrary(k)
}

func (k *kernel) product() gemm.Product {
	if k.Op == ir.OpMatmul {
		return gemm.Matmul(&k.out, k.ins, k.TA, k.TB)
	}
	return gemm.Linear(&k.out, k.ins)
}
