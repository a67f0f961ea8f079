package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
)

// kernel is a device.Kernel with its operands resolved.
type kernel struct {
	device.Kernel
	ins []ref
	out ref
}

// resolve resolves the views. Only some kernels may read peers' memory. What the
// caller may change before the launch runs is copied.
func (k *kernel) resolve(d *dev) error {
	k.Axes = slices.Clone(k.Axes)
	k.Links = slices.Clone(k.Links)
	if len(k.Outs) != 1 {
		return fmt.Errorf("%d results, 1 is needed", len(k.Outs))
	}
	var err error
	if k.out, err = d.resolve(k.Outs[0], false); err != nil {
		return fmt.Errorf("result: %w", err)
	}
	if k.out.doubles() {
		return fmt.Errorf("result: the view names some element twice")
	}
	k.out.own()
	k.ins = make([]ref, len(k.Ins))
	for i, v := range k.Ins {
		if k.ins[i], err = d.resolve(v, k.Reaches()); err != nil {
			return fmt.Errorf("operand %d: %w", i, err)
		}
		k.ins[i].own()
	}
	return nil
}

// count checks the number of operands.
func (k *kernel) count(least, most int) error {
	if n := len(k.ins); n < least || n > most {
		return fmt.Errorf("%d operands, %d to %d are needed", n, least, most)
	}
	return nil
}

// alike checks that all operands have the result's element type.
func (k *kernel) alike() error {
	for i := range k.ins {
		in := &k.ins[i]
		if in.dt != k.out.dt {
			return fmt.Errorf("operand %d is %s, the result %s", i, in.dt, k.out.dt)
		}
	}
	return nil
}

func checkLinear(k *kernel) error {
	if err := k.count(2, 3); err != nil {
		return err
	}
	if err := k.alike(); err != nil {
		return err
	}
	x, w := k.ins[0].shape, k.ins[1].shape
	if len(x) < 1 || len(w) != 2 || x[len(x)-1] != w[1] {
		return fmt.Errorf("x%v · w%vᵀ: w must be [N, K] and x […, K]", x, w)
	}
	if want := append(slices.Clone(x[:len(x)-1]), w[0]); !slices.Equal(want, k.out.shape) {
		return fmt.Errorf("the result has shape %v, not %v", k.out.shape, want)
	}
	if len(k.ins) == 3 && !slices.Equal(k.ins[2].shape, w[:1]) {
		return fmt.Errorf("bias%v for w%v", k.ins[2].shape, w)
	}
	return nil
}

func checkMatmul(k *kernel) error {
	if err := k.count(2, 2); err != nil {
		return err
	}
	if err := k.alike(); err != nil {
		return err
	}
	a, b, out := k.ins[0].shape, k.ins[1].shape, k.out.shape
	r := len(out)
	if r < 2 || len(a) != r || len(b) != r {
		return fmt.Errorf("%v · %v into %v: the ranks must be equal and at least 2", a, b, out)
	}
	m, n, d := out[r-2], out[r-1], a[r-1]
	if k.TA {
		d = a[r-2]
	}
	lead := out[: r-2 : r-2]
	if !slices.Equal(a, matrix(lead, m, d, k.TA)) || !slices.Equal(b, matrix(lead, d, n, k.TB)) {
		return fmt.Errorf("%v · %v into %v (ta=%v, tb=%v)", a, b, out, k.TA, k.TB)
	}
	return nil
}

// matrix is the shape of a batch of m×n matrices, as stored.
func matrix(lead []int64, m, n int64, transposed bool) []int64 {
	if transposed {
		m, n = n, m
	}
	return append(slices.Clone(lead), m, n)
}
