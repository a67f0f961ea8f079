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
