package machine

import "hocket.example/hocket/ir"

// Rates are what nothing on the machine is faster than.
type Rates struct {
	// Memory is GB/s of a device's own memory: the faster of what an elementwise
	// operation and a sum were measured at.
	Memory float64 `json:"memory_gbps"`
	// Wire is GB/s that a copy between two devices was measured at, of the sizes measured.
	Wire float64 `json:"wire_gbps"`
	// Peak is TFLOP/s by dtype.
	Peak map[string]float64 `json:"peak_tflops"`
}

// Rates returns the machine's.
func (d *Description) Rates() Rates {
	r := Rates{Memory: max(d.Memory, d.Reduce), Peak: d.GEMM.Peak}
	for _, p := range d.Copy {
		if p[1] > 0 {
			r.Wire = max(r.Wire, p[0]/p[1]*1e-3)
		}
	}
	return r
}

// peak returns TFLOP/s of a dtype, of those that were not measured by their size.
func (d *Description) peak(dtype ir.DType) float64 {
	if peak := d.GEMM.Peak[dtype.String()]; peak > 0 {
		return peak
	}
	return d.GEMM.Peak[d.GEMM.Of] * 2 / float64(dtype.Size())
}

// MemoryBound is the least time, in microseconds, in which a device's own memory takes or
// gives that many bytes.
func (d *Description) MemoryBound(bytes int64) float64 {
	return float64(bytes) / max(d.Memory, d.Reduce) * 1e-3
}

// ComputeBound is the least time of so many floating-point operations of products.
func (d *Description) ComputeBound(dtype ir.DType, flops float64) float64 {
	return flops / d.peak(dtype) * 1e-6
}

// WireBound is the least time in which a device receives that many bytes of others.
func (d *Description) WireBound(bytes int64) float64 {
	if wire := d.Rates().Wire; bytes > 0 && wire > 0 {
		return float64(bytes) / wire * 1e-3
	}
	return 0
}
