package ir

import "math"

// AttentionScale returns the default scale of attention, which a statement without a scale uses: 1/√dh for heads of dh
// elements.
func AttentionScale(dh int64) float64 { return 1 / math.Sqrt(float64(dh)) }
