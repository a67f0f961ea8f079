package ir

import "math"

// AttentionScale returns the scale of attention where a statement gives none:
// 1/√dh for heads of dh elements.
func AttentionScale(dh int64) float64 { return 1 / math.Sqrt(float64(dh)) }
