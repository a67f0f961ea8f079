package machine

import "fmt"

// The numbers of a description have limits far beyond any machine. Within these limits every prediction is a number:
// nothing overflows, and no divisor is almost 0.
const (
	// MostMicros limits a time, in microseconds: a quarter of an hour.
	MostMicros = 1e9
	// MostBytes limits the size for which a time was measured: a pebibyte.
	MostBytes = 1 << 50

	leastRate, mostRate = 1e-6, 1e9 // GB/s or TFLOP/s
	mostExtent          = 1 << 40
	mostSlower          = 1e3
)

// check refuses numbers from which predictions are not possible.
func (d *Description) check() error {
	for what, v := range map[string]float64{"launch_us": d.Launch, "signal_us": d.Signal, "barrier_us": d.Barrier, "wait_us": d.Wait} {
		if !(v >= 0 && v <= MostMicros) {
			return fmt.Errorf("%s is %v; it must not be negative, and at most %v", what, v, MostMicros)
		}
	}
	if d.Ranks < 0 {
		return fmt.Errorf("ranks is %d; it must not be negative", d.Ranks)
	}
	if e := d.Error; e != nil && !(e.Layers > 0 && e.Median >= 0 && e.Most >= e.Median && e.Most <= mostSlower && e.Bias >= -1 && e.Bias <= mostSlower) {
		return fmt.Errorf("error %+v is not a range of errors", *e)
	}
	for what, v := range map[string]float64{"gemm_beside_copy": d.GEMMBesideCopy, "gemm_beside_collective": d.GEMMBesideCollective} {
		if !(v >= 1 && v <= mostSlower) {
			return fmt.Errorf("%s is %v; it must be at least 1 (no slowdown) and at most %v", what, v, mostSlower)
		}
	}
	if v := d.KernelBesideGEMM; v != 0 && !(v >= 1 && v <= mostSlower) {
		return fmt.Errorf("kernel_beside_gemm is %v; it must be 0 or from 1 to %v", v, mostSlower)
	}
	for what, v := range map[string]float64{"memory_gbps": d.Memory, "reduce_gbps": d.Reduce} {
		if err := checkRate(v); err != nil {
			return fmt.Errorf("%s %w", what, err)
		}
	}
	if err := d.GEMM.check(); err != nil {
		return fmt.Errorf("gemm: %w", err)
	}
	for what, table := range map[string][]Point{"copy": d.Copy, "all_reduce": d.AllReduce, "all_gather": d.AllGather, "reduce_scatter": d.ReduceScatter} {
		if err := checkTable(table); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if d.Across != nil {
		if err := d.Across.check(); err != nil {
			return fmt.Errorf("across: %w", err)
		}
	}
	return nil
}

func checkRate(v float64) error {
	if !(v >= leastRate && v <= mostRate) {
		return fmt.Errorf("is %v; it must be positive: at least %v, and at most %v", v, leastRate, mostRate)
	}
	return nil
}

func (g *GEMM) check() error {
	if !(g.Peak[g.Of] > 0) {
		return fmt.Errorf("peak_tflops has no positive entry for %q, the dtype measured", g.Of)
	}
	for dtype, v := range g.Peak {
		if err := checkRate(v); err != nil {
			return fmt.Errorf("peak_tflops of %s %w", dtype, err)
		}
	}
	for _, p := range g.Measured {
		if !(min(p[0], p[1], p[2]) >= 1 && max(p[0], p[1], p[2]) <= mostExtent && p[3] > 0 && p[3] <= MostMicros) {
			return fmt.Errorf("measured %v is not [m, n, k, microseconds]: extents are from 1 to 2^40, and times positive and "+
				"at most %v", p, MostMicros)
		}
	}
	return nil
}

func checkTable(table []Point) error {
	if len(table) < 2 {
		return fmt.Errorf("a table needs at least two points")
	}
	for i, p := range table {
		switch {
		case !(p[0] >= 0 && p[1] >= 0) || i > 0 && !(p[0] >= table[i-1][0]+1 && p[1] >= table[i-1][1]):
			return fmt.Errorf("point %v: sizes must ascend, by a byte at least, and times must not fall", p)
		case p[0] > MostBytes || p[1] > MostMicros:
			return fmt.Errorf("point %v: the size must be at most 2^50 bytes, and the time at most %v µs", p, MostMicros)
		}
	}
	return nil
}
