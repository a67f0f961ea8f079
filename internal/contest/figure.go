package contest

import (
	"fmt"
	"slices"
)

// Figure summarizes repeated measurements.
type Figure struct {
	Median float64 `json:"median"`
	// Spread is the interquartile range of the samples.
	Spread float64 `json:"spread"`
}

// FigureOf returns the median and spread of samples; zeros if there are none.
func FigureOf(samples []float64) Figure {
	s := slices.Clone(samples)
	slices.Sort(s)
	return Figure{Median: quantile(s, 0.5), Spread: quantile(s, 0.75) - quantile(s, 0.25)}
}

// quantile returns the interpolated q-quantile of sorted samples.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	i := min(int(at), len(sorted)-1)
	next := min(i+1, len(sorted)-1)
	return sorted[i] + (at-float64(i))*(sorted[next]-sorted[i])
}

// Mapped applies f to every sample.
func Mapped(samples []float64, f func(float64) float64) []float64 {
	out := make([]float64, len(samples))
	for i, v := range samples {
		out[i] = f(v)
	}
	return out
}

// Differences returns the paired differences of two series of samples that were measured alternately.
func Differences(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] - b[i]
	}
	return out
}

// Verdict states in a few words whether the difference between two times shows that one algorithm is faster.
func Verdict(diff Figure) string {
	switch {
	case diff.Median < -diff.Spread:
		return "faster"
	case diff.Median > diff.Spread:
		return "slower"
	}
	return "no difference beyond the spread"
}

// Text formats the median, followed by ± and the spread.
func (f Figure) Text(digits int) string {
	return fmt.Sprintf("%.*f ±%.*f", digits, f.Median, digits, f.Spread)
}
