package machine

import (
	"math"

	"hocket.example/hocket/ir"
)

// This file computes how long a single operation takes.

// at interpolates a table linearly. For a size before the first point, at returns the time of the first point. After
// the last point it continues with the last slope, or with slope 0 if the last two times decrease. With a single point
// it assumes that the time is proportional to the size.
func at(table []Point, size float64) float64 {
	if size <= table[0][0] {
		return table[0][1]
	}
	if len(table) == 1 {
		return table[0][1] * size / table[0][0]
	}
	i := 1
	for i < len(table)-1 && table[i][0] < size {
		i++
	}
	a, b := table[i-1], table[i]
	slope := (b[1] - a[1]) / (b[0] - a[0])
	if size > b[0] {
		return b[1] + (size-b[0])*max(slope, 0)
	}
	return a[1] + (size-a[0])*slope
}

// CopyTime returns the time in which a device copies the given number of bytes to a peer's memory.
func (d *Description) CopyTime(bytes int64) float64 { return at(d.Copy, float64(bytes)) }

// TouchTime returns the time of an operation that reads and writes the given number of bytes of the device's own
// memory.
func (d *Description) TouchTime(bytes int64) float64 {
	return d.Launch + float64(bytes)/d.Memory*1e-3
}

// ReduceTime is like TouchTime, for a sum over a dimension.
func (d *Description) ReduceTime(bytes int64) float64 {
	return d.Launch + float64(bytes)/d.Reduce*1e-3
}

// GEMMTime returns the time of a matrix product [m, k] · [k, n].
func (d *Description) GEMMTime(dtype ir.DType, m, n, k int64) float64 {
	return d.gemmTime(d.peak(dtype), m, n, k, (m*k+k*n+m*n)*dtype.Size())
}

// ScaledTime is GEMMTime for 8-bit operands with scales and a result of 16 bits.
func (d *Description) ScaledTime(s Scaled, m, n, k int64) float64 {
	return d.gemmTime(d.scaledPeak(s), m, n, k, m*k+k*n+2*m*n)
}

// gemmTime returns the time of a matrix product at the given TFLOP/s that reads and writes the given number of bytes.
func (d *Description) gemmTime(peak float64, m, n, k, bytes int64) float64 {
	if m == 0 || n == 0 || k == 0 {
		return d.Launch
	}
	flops := 2 * float64(m) * float64(n) * float64(k)
	slower := d.slowness(float64(m), float64(n), float64(k))
	return max(d.Launch+flops/peak*1e-6*slower, d.TouchTime(bytes))
}

// slowness returns the time of a GEMM of this shape divided by its time at peak throughput. The result is the mean over
// the measured shapes, weighted by distance to the power of -3 (Shepard, A two-dimensional interpolation function for
// irregularly-spaced data, 1968). A factor of two in one extent is a distance of 1.
func (d *Description) slowness(m, n, k float64) float64 {
	if len(d.GEMM.Measured) == 0 {
		return 1
	}
	sum, weights := 0.0, 0.0
	for _, p := range d.GEMM.Measured {
		ideal := 2 * p[0] * p[1] * p[2] / d.GEMM.Peak[d.GEMM.Of] * 1e-6
		a, b, c := math.Log2(m/p[0]), math.Log2(n/p[1]), math.Log2(k/p[2])
		off := math.Sqrt(a*a + b*b + c*c + 1e-3)
		w := 1 / (off * off * off)
		sum += w * max(1, (p[3]-d.Launch)/ideal)
		weights += w
	}
	return sum / weights
}
