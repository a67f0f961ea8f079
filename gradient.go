package hocket

import (
	"errors"
	"path/filepath"

	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/kernelfile"
	"hocket.example/hocket/ir"
)

// GradientOptions choose the function, results and parameters to differentiate.
type GradientOptions struct {
	// Func is the function; empty for the program's last.
	Func string
	// Of names the results that are differentiated, and Wrt the parameters with respect to which. The default is all
	// of floating-point type.
	Of, Wrt []string
	// Keep chooses which values of the forward pass are kept for the backward pass: "all" (the default) keeps all
	// that it needs, "inputs" keeps the inputs of the function and of each loop iteration, and "auto" recomputes
	// values that are cheap to compute.
	Keep string
}

// A GradientNameError is a name in GradientOptions that has no gradient or does not exist.
type GradientNameError struct{ Message, Help string }

// Error returns the message.
func (e *GradientNameError) Error() string { return e.Message }

// Gradient returns a program that computes the function's results and their gradients: after the results, %dx for
// each parameter %x. A parameter %dy is added for each differentiated result %y that is not a scalar. The error is
// Diagnostics if a statement has no gradient, or a *GradientNameError.
func (p *Program) Gradient(opts GradientOptions) (*Program, error) {
	if p.none() {
		return nil, errNoProgram
	}
	text, err := grad.Of(p.info, grad.Options{Func: opts.Func, Of: opts.Of, Wrt: opts.Wrt, Keep: grad.Keep(opts.Keep)})
	var unknown *grad.NameError
	if errors.As(err, &unknown) {
		return nil, &GradientNameError{Message: unknown.Message, Help: unknown.Help}
	}
	if err != nil {
		return nil, err
	}
	info, ds := ir.Read(p.info.Prog.File, text)
	if !ds.HasErrors() {
		ds = append(ds, kernelfile.Read(info.Prog, filepath.Dir(p.info.Prog.File))...)
	}
	if ds.HasErrors() {
		return nil, ds
	}
	return &Program{info: info, warnings: ds, limits: p.limits}, nil
}
