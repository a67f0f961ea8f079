package ir

import "math"

// Rope says by which angles rope turns pairs of elements. Factor 0 scales nothing.
type Rope struct {
	Theta             float64
	Factor, Low, High float64 // llama-3 scaling
	Original          float64 // positions that the frequencies were made for
}

// Rope returns the attributes of a rope, with defaults for those that are absent.
func (s *Stmt) Rope() Rope {
	number := func(name string, def float64) float64 {
		if a := s.Attr(name); a != nil && a.IsNum {
			return a.Num
		}
		return def
	}
	return Rope{Theta: number("theta", 10000), Factor: number("factor", 0), Low: number("low", 1), High: number("high", 4),
		Original: number("original", 8192)}
}

// Frequencies returns the angle of each pair at position 1, for heads of dh elements. Scaling divides those of
// waves longer than Original/Low by Factor, leaves those shorter than Original/High, and goes
// from one to the other in between.
func (r Rope) Frequencies(dh int64) []float64 {
	out := make([]float64, dh/2)
	for i := range out {
		f := math.Pow(r.Theta, -2*float64(i)/float64(dh))
		if r.Factor != 0 {
			waves := r.Original * f / (2 * math.Pi) // that fit into Original positions
			kept := min(1, max(0, (waves-r.Low)/(r.High-r.Low)))
			f *= kept + (1-kept)/r.Factor
		}
		out[i] = f
	}
	return out
}
