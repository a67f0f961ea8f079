package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/ir"
)

// kernel is a device.Kernel with its operands resolved.
type kernel struct {
	device.Kernel
	ins []strided.View
	out strided.View
}

// resolve finds the operands. The last of an index_copy is the result, and none of them then.
func (k *kernel) resolve(d *dev) (err error) {
	if k.out, k.ins, err = device.Resolve(&k.Kernel, d.resolve); err != nil || k.Op != ir.OpIndexCopy {
		return err
	}
	last := len(k.ins) - 1
	if last != 2 || !k.ins[last].Same(&k.out) {
		return fmt.Errorf("rows go into %s%v, which is to be updated in place", k.out.DType, k.out.Shape)
	}
	k.ins = k.ins[:last]
	return nil
}

// alike checks that all operands have the result's element type.
func (k *kernel) alike() error {
	for i := range k.ins {
		in := &k.ins[i]
		if in.DType != k.out.DType {
			return fmt.Errorf("operand %d is %s, the result %s", i, in.DType, k.out.DType)
		}
	}
	return nil
}

// checkGEMM checks a linear's or matmul's operands.
func (k *kernel) checkGEMM() error {
	if err := k.alike(); err != nil {
		return err
	}
	shapes := make([][]int64, len(k.ins))
	for i := range k.ins {
		shapes[i] = k.ins[i].Shape
	}
	if k.Op == ir.OpMatmul {
		return device.CheckMatmul(k.out.Shape, shapes, k.TA, k.TB)
	}
	return device.CheckLinear(k.out.Shape, shapes)
}
