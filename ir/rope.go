package ir

import "math"

// Rope holds the parameters that determine the angles by which rope rotates pairs of elements. If Factor is 0,
// frequencies are not scaled.
type Rope struct {
	Theta             float64
	Factor, Low, High float64 // llama-3 scaling
	Original          float64 // number of positions for which the frequencies were designed
	Scale             float64 // factor of cosines and sines; 0 means 1
}

// Rope returns the angles that the attributes of a rope describe.
func (a *Attrs) Rope() Rope {
	return Rope{Theta: a.Number(0).Float, Factor: a.Number(1).Float, Low: a.Number(2).Float, High: a.Number(3).Float,
		Original: a.Number(4).Float, Scale: a.Number(5).Float}
}

// Rope returns the angles of a rope whose attributes are literals.
func (s *Stmt) Rope() Rope {
	numbers, _ := s.Numbers(func(*Expr) (int64, error) { return 0, nil })
	return (&Attrs{Numbers: numbers}).Rope()
}

// Numbers returns the parameters r as the numeric attributes of a rope.
func (r Rope) Numbers() []Number {
	return Reals(r.Theta, r.Factor, r.Low, r.High, r.Original, r.Scale)
}

// Frequencies returns the angle of each pair of elements at position 1, for heads of dh elements. Scaling divides the
// frequencies whose wavelength exceeds Original/Low by Factor. Frequencies does not change the frequencies whose
// wavelength is below Original/High, and interpolates between these two ranges.
func (r Rope) Frequencies(dh int64) []float64 {
	out := make([]float64, dh/2)
	for i := range out {
		f := math.Pow(r.Theta, -2*float64(i)/float64(dh))
		if r.Factor != 0 {
			waves := r.Original * f / (2 * math.Pi) // number of periods in Original positions
			kept := min(1, max(0, (waves-r.Low)/(r.High-r.Low)))
			f *= kept + (1-kept)/r.Factor
		}
		out[i] = f
	}
	return out
}
