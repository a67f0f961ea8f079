package machine

import "hocket.example/hocket/ir"

// Rates are upper limits of the speed of the machine.
type Rates struct {
	// Memory is the bandwidth of a device's own memory in GB/s: the faster of the measurements of an elementwise operation
	// and a sum.
	Memory float64 `json:"memory_gbps"`
	// Wire is the bandwidth of a copy between two devices in GB/s: the largest over all measured sizes.
	Wire float64 `json:"wire_gbps"`
	// Peak is the throughput of GEMMs in TFLOP/s, by dtype.
	Peak map[string]float64 `json:"peak_tflops"`
}

// Rates returns the rates of the machine.
func (d *Description) Rates() Rates {
	r := Rates{Memory: max(d.Memory, d.Reduce), Peak: d.GEMM.Peak}
	for _, p := range d.Copy {
		if p[1] > 0 {
			r.Wire = max(r.Wire, p[0]/p[1]*1e-3)
		}
	}
	return r
}

// peak returns the TFLOP/s of a dtype. For a dtype that was not measured, the throughput is derived from the size of an
// element.
func (d *Description) peak(dtype ir.DType) float64 {
	if peak := d.GEMM.Peak[dtype.String()]; peak > 0 {
		return peak
	}
	return d.GEMM.Peak[d.GEMM.Of] * 2 / float64(dtype.Size())
}

// Scaled describes GEMMs of 8-bit operands with scales, whose rates differ.
type Scaled struct {
	Blocks    bool // scales are by blocks, which takes longer than scales of rows
	FastAccum bool // sums are added in the precision of tensor cores
}

// blockPeak and fastPeak are the entries of GEMM.Peak for products of 8-bit operands whose scales are by blocks, and
// for those with fast accumulation.
const (
	blockPeak = "f8e4m3 blocks"
	fastPeak  = "f8e4m3 fast_accum"
)

// scaledPeak returns the TFLOP/s of products of 8-bit operands with scales.
func (d *Description) scaledPeak(s Scaled) float64 {
	if peak := d.GEMM.Peak[blockPeak]; s.Blocks && peak > 0 {
		return peak
	}
	if peak := d.GEMM.Peak[fastPeak]; s.FastAccum && peak > 0 {
		return peak
	}
	return d.peak(ir.F8E4M3)
}

// MemoryBound returns the shortest time, in microseconds, in which a device can read or write the given number of
// bytes of its own memory.
func (d *Description) MemoryBound(bytes int64) float64 {
	return float64(bytes) / max(d.Memory, d.Reduce) * 1e-3
}

// ComputeBound returns the shortest time, in microseconds, of the given number of floating-point operations in GEMMs.
func (d *Description) ComputeBound(dtype ir.DType, flops float64) float64 {
	return flops / d.peak(dtype) * 1e-6
}

// ScaledBound is ComputeBound for GEMMs of 8-bit operands with scales.
func (d *Description) ScaledBound(s Scaled, flops float64) float64 {
	return flops / d.scaledPeak(s) * 1e-6
}

// WireBound returns the shortest time, in microseconds, in which a device can receive the given number of bytes from
// other devices.
func (d *Description) WireBound(bytes int64) float64 {
	if wire := d.Rates().Wire; bytes > 0 && wire > 0 {
		return float64(bytes) / wire * 1e-3
	}
	return 0
}
