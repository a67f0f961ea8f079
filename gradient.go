package hocket

import (
	"errors"
	"path/filepath"

	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/kernelfile"
	"hocket.example/hocket/ir"
)

// GradientOptions choose what is differentiated.
type GradientOptions struct {
	// Func is the function; empty for the program's last.
	Func string
	// Of names the results that are differentiated, and Wrt the parameters with respect to which. All that are of
	// floating-point numbers by default.
	Of, Wrt []string
	// Keep is what the backward pass keeps of the forward pass: "all" (the default) that it needs, "inputs" of the
	// function and of each iteration of its loops, or "auto", which computes again what costs little.
	Keep string
}

// A GradientNameError is a name in GradientOptions that stands for nothing that has a gradient.
type GradientNameError struct{ Message, Help string }

// Error returns the message.
func (e *GradientNameError) Error() string { return e.Message }

// Gradient returns a program that computes the function's results and their gradients. The results are those of the
// function, and %dx for each parameter %x. A parameter %dy is added for each differentiated result %y that is not a
// scalar. Its error is Diagnostics where a statement has no gradient, and a *GradientNameError.
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
