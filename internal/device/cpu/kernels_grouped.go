package cpu

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeGrouped multiplies each group of rows by the weight of the group.
func makeGrouped(k *kernel, op device.GroupedLinear) (loops, error) {
	if err := device.CheckGrouped(op, k.out.shape, k.shapes()); err != nil {
		return nil, err
	}
	x, w, counts := k.ins[0], k.ins[1], k.ins[2]
	if x.dt != k.out.dt || w.dt != k.out.dt || !counts.dt.IsInt() {
		return nil, fmt.Errorf("cannot compute grouped linear of types %s and %s with counts of type %s into type %s", x.dt,
			w.dt, counts.dt, k.out.dt)
	}
	k.verify = checkGroups
	products := gemmLoops(k, func(k *kernel, each func(gemm)) {
		w := k.ins[1]
		first := int64(0)
		for e, n := range numbers(k.ins[2]) {
			if own := int64(e) - op.First; own >= 0 && own < w.shape[0] {
				each(gemm{k: k, m: n, n: w.shape[1], d: w.shape[2], a: k.ins[0].rows(0, first, n), b: w.at(own),
					out: k.out.rows(0, first, n)})
			}
			first += n
		}
	})
	return func(k *kernel) {
		zero := borrow(k.out.shape[1] * k.out.dt.Size())
		defer restore(zero)
		clear(*zero)
		for r := range k.out.shape[0] {
			scatterBytes(k.out, r*k.out.shape[1], *zero)
		}
		products(k)
	}, nil
}

// checkGroups returns an error for negative counts, and for counts that exceed the number of remaining rows.
func checkGroups(k *kernel) error {
	rows, left := k.ins[0].shape[0], k.ins[0].shape[0]
	for i, n := range numbers(k.ins[2]) {
		if n < 0 || n > left {
			return content(ir.OpGroupedLinear, int64(i), n,
				"count %d (element %d of the counts) is negative, or the counts up to it exceed the %d rows", n, i,
				rows)
		}
		left -= n
	}
	return nil
}
