package exported

import (
	"fmt"
	"math"

	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
)

// Difference is the difference of a result of a quantized model from the result of the model with the weights of its
// archive.
type Difference struct {
	Name    string  `json:"name"`
	Mean    float64 `json:"mean"`    // mean of the absolute differences
	Largest float64 `json:"largest"` // largest of them
	RMS     float64 `json:"rms"`     // root mean square of the unquantized model's result
	// SameLargest is the number of rows whose largest element is at the same position in both results; Rows is the
	// number of all rows. In a row of logits, this position is the most probable token.
	SameLargest int64 `json:"same_largest"`
	Rows        int64 `json:"rows"`
}

func (d *Difference) String() string {
	return fmt.Sprintf("%%%s differs from the unquantized model by %.4g on average, %.4g at most; its root mean square is "+
		"%.4g; the largest element is the same in %d of %d rows", d.Name, d.Mean, d.Largest, d.RMS, d.SameLargest, d.Rows)
}

// NewDifference compares a result of a quantized model with the same result of the unquantized one. It returns nil
// for integers, for results without elements, and if want is nil.
func NewDifference(name string, got, want *tensor.Tensor) *Difference {
	if want == nil || got.DType.IsInt() || got.Len() == 0 || got.Len() != want.Len() {
		return nil
	}
	d := &Difference{Name: name, Rows: 1}
	cols := got.Len()
	if n := len(got.Shape); n > 0 {
		cols = got.Shape[n-1]
		d.Rows = got.Len() / cols
	}
	x, y := make([]float64, got.Len()), make([]float64, got.Len())
	tensor.ToFloat64(x, got.Data, got.DType)
	tensor.ToFloat64(y, want.Data, want.DType)
	for i := range d.Rows {
		if largestAt(x[i*cols:(i+1)*cols]) == largestAt(y[i*cols:(i+1)*cols]) {
			d.SameLargest++
		}
	}
	for i := range x {
		off := math.Abs(x[i] - y[i])
		d.Mean, d.RMS, d.Largest = d.Mean+off, d.RMS+y[i]*y[i], max(d.Largest, off)
	}
	n := float64(len(x))
	d.Mean, d.RMS = d.Mean/n, math.Sqrt(d.RMS/n)
	return d
}

// largestAt returns the position of the first of the largest elements.
func largestAt(list []float64) int {
	at := 0
	for i, v := range list {
		if v > list[at] {
			at = i
		}
	}
	return at
}

// QuantizedText says how many weights are quantized, names the weights of linears that are not quantized, and lists the
// differences of results.
func (m *Model) QuantizedText(form string, results []*Difference) string {
	weights := 0
	for _, p := range m.Params {
		if p.Quantized != nil && !p.Quantized.Scales {
			weights += len(p.Weights)
		}
	}
	text := fmt.Sprintf("quantized    %d weights to f8e4m3, %s", weights, form)
	if len(m.Kept) > 0 {
		text += "; unchanged: " + modelprogram.Some(m.Kept)
	}
	text += modelprogram.UnfitText(m.Unfit)
	for _, d := range results {
		text += "\n" + d.String()
	}
	return text + "\n"
}
