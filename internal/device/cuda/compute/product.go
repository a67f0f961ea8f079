package compute

import (
	"fmt"
	"math"

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
	constant := k.Constant && k.Op == ir.OpLinear && k.ins[1].Addr == weight // else it was copied just now
	if k.Fixed {
		return b.addFixed(k, constant)
	}
	p := k.product()
	p.Merge()
	if g, ok := p.Problem(); ok {
		g.Relu, g.Fixed, g.Timed, g.Constant = k.Relu, b.site.FixedProducts, k.Timed, constant
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

// mostItems is how many launches a fixed product may take before its rows are made dense.
const mostItems = 16

// addFixed computes each row with bits that depend on that row and the weight alone. Hocket's kernel for few rows takes
// a linear, or a matmul of two matrices, if the weight's rows suit it; the plain kernel computes everything else. The
// choice must not depend on the number of rows, so an x whose rows do not suit is made dense first.
func (b *builder) addFixed(k *kernel, constant bool) error {
	if k.Op == ir.OpLinear || len(k.out.Shape) == 2 {
		x := &k.ins[0]
		if k.TA {
			k.TA, x.Shape, x.Strides = false, []int64{x.Shape[1], x.Shape[0]}, []int64{x.Strides[1], x.Strides[0]}
		}
		p := k.product()
		own, err := b.site.GEMMs.PrepareRows(p, k.Relu, constant, mostItems)
		if err != nil {
			return err
		}
		if len(own) == 0 && p.Kb == 1 && k.out.DType.Size() == 2 {
			if !x.Dense() {
				if err := b.copied(x); err != nil {
					return err
				}
			}
			if own, err = b.site.GEMMs.PrepareRows(k.product(), k.Relu, constant, math.MaxInt); err != nil {
				return err
			}
		}
		for _, l := range own {
			b.AddOwn(l)
		}
		if len(own) > 0 {
			return nil
		}
	}
	if k.Relu {
		return fmt.Errorf("%w: a relu behind a product that hocket's kernel for few rows does not take",
			device.ErrUnsupported)
	}
	return b.addLibrary(k)
}

func (k *kernel) product() gemm.Product {
	if k.Op == ir.OpMatmul {
		return gemm.Matmul(&k.out, k.ins, k.TA, k.TB)
	}
	return gemm.Linear(&k.out, k.ins)
}
