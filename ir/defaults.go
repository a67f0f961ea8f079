package ir

import "math"

// Eps returns the eps of the norm op where a statement gives none; 0 for other ops.
func (op Op) Eps() float64 {
	switch op {
	case OpRMSNorm:
		return 1e-6
	case OpLayerNorm:
		return 1e-5
	}
	return 0
}

// AttentionScale returns the scale of attention where a statement gives none:
// 1/√dh for heads of dh elements.
func AttentionScale(dh int64) float64 { return 1 / math.Sqrt(float64(dh)) }
