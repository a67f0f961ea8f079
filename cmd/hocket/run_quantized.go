package main

import (
	"context"
	"errors"
	"io"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/tensor"
)

// If --quantize is set, runUnquantized runs the last repetition with the original weights of the archive. The
// unquantized model is closed before the quantized one is loaded, so that only one of them is in memory.
func (j *job) runUnquantized(ctx context.Context, m *hocket.Machine, w *hocket.World, b hocket.Binding) (err error) {
	if j.app.plan.quantize == "" {
		return nil
	}
	j.app.progress.At("running the model with unquantized weights", 0, 0)
	quiet := &app{}
	quiet.programs = j.app.programs
	quiet.out, quiet.text, quiet.plan.quantize = result{}, io.Discard, ""
	flags, in := *j.flags, *j.inputs
	flags.schedules, flags.certificate, flags.arena = 0, "", 0 // --budget limits the quantized model
	other := &job{app: quiet, flags: &flags, processes: j.processes, inputs: &in}
	if other.program, err = quiet.parseExport(j.archive, &b); err != nil {
		return err
	}
	if other.files, err = other.bind(b, w); err != nil {
		return err
	}
	if err := other.load(ctx, m); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.model.Close()) }()
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

// quantizationErrors compares the results of the quantized model, which rep contains, with those of the unquantized
// model.
func (j *job) quantizationErrors(rep *hocket.Report) {
	for _, name := range rep.OutNames {
		want := (*tensor.Tensor)(j.unquantized[name])
		if d := exported.NewDifference(name, (*tensor.Tensor)(rep.Out[name]), want); d != nil {
			j.app.out.Quantized = append(j.app.out.Quantized, d)
		}
	}
}
