package compute

import (
	"fmt"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
)

// product is a linear or a matmul that is being prepared.
type product struct {
	*kernel
	device.Product
	linear   bool
	constant bool // of a linear: see device.Linear
	fast     bool // of a linear: see device.Linear.FastAccum
	ta, tb   bool // of a matmul: see device.Matmul
}

// check checks the operands.
func (k *product) check() error {
	if k.linear && len(k.ins) == 4 {
		_, _, err := k.grains()
		return err
	}
	if err := k.alike(); err != nil {
		return err
	}
	shapes := make([][]int64, len(k.ins))
	for i := range k.ins {
		shapes[i] = k.ins[i].Shape
	}
	if k.linear {
		return device.CheckLinear(k.out.Shape, shapes)
	}
	return device.CheckMatmul(k.out.Shape, shapes, k.ta, k.tb)
}

// addGEMM adds the steps that compute a linear or a matmul: by cuBLASLt if it supports the product, else by a plain
// kernel.
func (b *builder) addGEMM(k *product) error {
	if err := k.check(); err != nil {
		return err
	}
	if k.out.N == 0 {
		return nil
	}
	if k.Relu {
		if err := k.checkOverlap(true); err != nil {
			return err
		}
	}
	weight := k.ins[1].Addr
	if err := b.stage(k.kernel); err != nil {
		return err
	}
	k.constant = k.constant && k.ins[1].Addr == weight // a copied weight is not constant
	if len(k.ins) == 4 {
		return b.addScaled(k)
	}
	if k.Fixed {
		return b.addFixed(k)
	}
	p := k.gemm()
	p.Merge()
	if g, ok := p.Problem(); ok {
		g.Relu, g.Fixed, g.Timed, g.Constant = k.Relu, b.site.FixedProducts, k.Timed, k.constant
		// A hint about multiprocessors could select an algorithm that sums in another order, so fixed products ignore
		// it. A hint of all multiprocessors is no restriction, and is left out.
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
		return fmt.Errorf("%w: relu of a product that cuBLASLt does not support", device.ErrUnsupported)
	}
	return b.addLibrary(k.kernel)
}

// mostItems is the largest number of launches that a fixed product may take before its rows are made dense.
const mostItems = 16

// addFixed adds steps that compute each row of the product such that its bits depend only on that row and the weight.
// Hocket's kernel for few rows computes a linear, or a matmul of two matrices, if the layout of the weight's rows suits
// it; the plain kernel computes everything else. The choice must not depend on the number of rows, so an operand x
// whose rows do not suit the kernel is made dense first.
func (b *builder) addFixed(k *product) error {
	if k.linear || len(k.out.Shape) == 2 {
		x := &k.ins[0]
		if k.ta {
			k.ta, k.Op = false, device.Matmul{Product: k.Product, TB: k.tb}
			x.Shape, x.Strides = []int64{x.Shape[1], x.Shape[0]}, []int64{x.Strides[1], x.Strides[0]}
		}
		p := k.gemm()
		own, err := b.site.GEMMs.PrepareRows(p, k.Relu, k.constant, mostItems)
		if err != nil {
			return err
		}
		if len(own) == 0 && p.Kb == 1 && k.out.DType.Size() == 2 {
			if !x.Dense() {
				if err := b.copied(x); err != nil {
					return err
				}
			}
			if own, err = b.site.GEMMs.PrepareRows(k.gemm(), k.Relu, k.constant, math.MaxInt); err != nil {
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
		return fmt.Errorf("%w: relu of a product that hocket's kernel for few rows does not support",
			device.ErrUnsupported)
	}
	return b.addLibrary(k.kernel)
}

func (k *product) gemm() gemm.Product {
	if k.linear {
		return gemm.Linear(&k.out, k.ins)
	}
	return gemm.Matmul(&k.out, k.ins, k.ta, k.tb)
}
