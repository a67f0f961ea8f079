package cpu

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// makeIota counts along an axis.
func makeIota(k *kernel, op device.Iota) (loops, error) {
	if err := k.count(0, 0); err != nil {
		return nil, err
	}
	if err := device.AxisIn(op.Axis, len(k.out.shape)); err != nil {
		return nil, err
	}
	dt := k.out.dt
	if _, ok := op.Start.For(dt); !ok {
		return nil, fmt.Errorf("%v is no %s", op.Start.Float, dt)
	}
	if dt.IsInt() {
		start, _ := op.Start.For(dt)
		return iotaLoops(op, func(at int64) int64 { return start.Int + at }, encode[int64]), nil
	}
	// A float64 holds the number that is rounded, once.
	return iotaLoops(op, func(at int64) float64 { return op.Start.Float + float64(at) }, convert[float64]), nil
}

func iotaLoops[A accum](op device.Iota, of func(at int64) A, encode func([]byte, []A, ir.DType)) loops {
	return func(k *kernel) {
		along, inner := k.out.shape[op.Axis], int64(1)
		for _, e := range k.out.shape[op.Axis+1:] {
			inner *= e
		}
		k.w.m.workers.each((k.out.n+grain-1)/grain, &k.w.ended, func(i int64) {
			wr := newWriter[A](k.out, block)
			wr.encode = encode
			defer wr.close()
			for lo := i * grain; lo < min((i+1)*grain, k.out.n); lo += block {
				out := wr.room(lo, min(block, k.out.n-lo))
				for x := range out {
					out[x] = of(op.First + (lo+int64(x))/inner%along)
				}
				wr.flush(lo, out)
			}
		})
	}
}
