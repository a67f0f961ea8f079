package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
)

// quantizedError is the difference of a result of the quantized model from the result of the model with the weights of
// its archive.
type quantizedError struct {
	Name    string  `json:"name"`
	Mean    float64 `json:"mean"`    // mean of the absolute differences
	Largest float64 `json:"largest"` // largest of them
	RMS     float64 `json:"rms"`     // root mean square of the unquantized result
	// SameLargest is the number of rows, of Rows, whose largest element is at the same position in both results. For
	// logits it is the most probable token.
	SameLargest int64 `json:"same_largest"`
	Rows        int64 `json:"rows"`
}

// runUnquantized runs the last repetition by the model with the weights of its archive. The model is closed before the
// quantized one is loaded, so that only one of them is in memory.
func (j *job) runUnquantized(ctx context.Context, m *hocket.Machine, w *hocket.World, b hocket.Binding) (err error) {
	j.app.progress.at("running the model with unquantized weights", 0, 0)
	quiet := &app{}
	quiet.programs = j.app.programs
	quiet.out, quiet.text, quiet.plan.quantize = result{}, io.Discard, ""
	flags := *j.flags
	flags.schedules, flags.certificate = 0, ""
	other := &job{app: quiet, flags: &flags, processes: j.processes}
	if other.program, err = quiet.parseExport(j.archive, &b); err != nil {
		return err
	}
	if other.inputs, err = parseInputs(flags.in, uint64(flags.seed)); err != nil {
		return err
	}
	if other.files, err = other.bind(b, w); err != nil {
		return err
	}
	if err := other.load(ctx, m); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.model.Close()) }()
	if err := other.inputs.alike(ctx, w, other.sig, other.files); err != nil {
		return err
	}
	args, err := other.args(flags.repeat - 1)
	if err != nil {
		return err
	}
	guarded, dog := watch(ctx, flags.runLimit())
	defer dog.stop()
	rep, err := other.model.Run(guarded, args)
	if err != nil {
		return dog.explain(guarded, err)
	}
	j.unquantized = rep.Out
	return nil
}

// quantizationErrors compares the results of the quantized model, which are in rep, with those of the model with the
// weights of its archive.
func (j *job) quantizationErrors(rep *hocket.Report) {
	for _, name := range rep.OutNames {
		got, want := (*tensor.Tensor)(rep.Out[name]), (*tensor.Tensor)(j.unquantized[name])
		if want == nil || got.DType.IsInt() || got.Len() == 0 {
			continue
		}
		e := quantizedError{Name: name, Rows: 1}
		cols := got.Len()
		if n := len(got.Shape); n > 0 {
			cols = got.Shape[n-1]
			e.Rows = got.Len() / cols
		}
		x, y := make([]float64, got.Len()), make([]float64, got.Len())
		tensor.ToFloat64(x, got.Data, got.DType)
		tensor.ToFloat64(y, want.Data, want.DType)
		for i := range e.Rows {
			if largestAt(x[i*cols:(i+1)*cols]) == largestAt(y[i*cols:(i+1)*cols]) {
				e.SameLargest++
			}
		}
		for i := range x {
			d := math.Abs(x[i] - y[i])
			e.Mean, e.RMS, e.Largest = e.Mean+d, e.RMS+y[i]*y[i], max(e.Largest, d)
		}
		n := float64(len(x))
		e.Mean, e.RMS = e.Mean/n, math.Sqrt(e.RMS/n)
		j.quantized = append(j.quantized, e)
	}
	j.app.out.Quantized = j.quantized
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

// writeQuantized prints how many weights are quantized, and the errors that this causes.
func (j *job) writeQuantized() {
	if j.unquantized == nil {
		return
	}
	weights, kept := 0, j.app.export.Kept
	for _, p := range j.app.export.Params {
		if p.Quantized != nil && !p.Quantized.Scales {
			weights += len(p.Weights)
		}
	}
	fmt.Fprintf(j.app.text, "quantized    %d %s to f8e4m3, %s", weights, plural(weights, "weight"), j.app.plan.quantize)
	if len(kept) > 0 {
		fmt.Fprintf(j.app.text, "; unchanged: %s", modelprogram.Some(kept))
	}
	fmt.Fprintln(j.app.text)
	for _, e := range j.quantized {
		fmt.Fprintf(j.app.text, "%%%s differs from the unquantized model by %.4g on average, %.4g at most; its root mean square "+
			"is %.4g; the largest element is the same in %d of %d %s\n", e.Name, e.Mean, e.Largest, e.RMS, e.SameLargest,
			e.Rows, plural(int(e.Rows), "row"))
	}
}
