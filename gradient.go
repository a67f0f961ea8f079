package hocket

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/kernelfile"
	"hocket.example/hocket/ir/checker"
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
	// Budget, with Keep "auto", is how many bytes a rank keeps of the forward pass at most: as much is computed again as
	// that needs, what costs least for each byte first; 0 is no budget. Dims are those that it is for, in addition to the
	// program's own.
	Budget int64
	Dims   map[string]int64
}

// A GradientNameError is a name in GradientOptions that has no gradient or does not exist.
type GradientNameError struct{ Message, Help string }

// Error returns the message.
func (e *GradientNameError) Error() string { return e.Message }

// Gradient returns a program that computes the function's results and their gradients: after the results, %dx for
// each parameter %x. A parameter %dy is added for each differentiated result %y that is not a scalar. The error is
// Diagnostics if a statement has no gradient, a *GradientNameError, or wraps ErrBudget or ErrInput.
func (p *Program) Gradient(opts GradientOptions) (*Program, error) {
	if p.none() {
		return nil, errNoProgram
	}
	o, err := opts.grad()
	if err != nil {
		return nil, err
	}
	text, err := grad.Of(p.info, o)
	if err != nil {
		return nil, gradientError(err)
	}
	return p.derived(text)
}

// GradientParts are a function's gradient as two programs, for those who compute the gradients of results elsewhere.
type GradientParts struct {
	// Forward has the function's parameters. It returns the function's results, and then values that Backward takes.
	Forward *Program
	// Backward returns %dx for each differentiated parameter %x, in their order.
	Backward *Program
	// Takes say what Backward's parameters are, in their order.
	Takes []GradientTake
}

// GradientTake says what a parameter of GradientParts.Backward is.
type GradientTake struct {
	// Of is "input" for a parameter of Forward, "output" for a result of it, and "gradient" for the gradient of one.
	Of string
	// Index counts these from 0.
	Index int
}

// GradientParts returns what Gradient returns as two programs. What the first keeps for the second is among its results.
// Also results that are scalars have a gradient, which the second takes.
func (p *Program) GradientParts(opts GradientOptions) (*GradientParts, error) {
	if p.none() {
		return nil, errNoProgram
	}
	o, err := opts.grad()
	if err != nil {
		return nil, err
	}
	parts, err := grad.Split(p.info, o)
	if err != nil {
		return nil, gradientError(err)
	}
	out := &GradientParts{}
	if out.Forward, err = p.derived(parts.Forward); err != nil {
		return nil, err
	}
	if out.Backward, err = p.derived(parts.Backward); err != nil {
		return nil, err
	}
	for _, t := range parts.Takes {
		out.Takes = append(out.Takes, GradientTake{string(t.Of), t.Index})
	}
	return out, nil
}

func (o GradientOptions) grad() (grad.Options, error) {
	out := grad.Options{Func: o.Func, Of: o.Of, Wrt: o.Wrt, Keep: grad.Keep(o.Keep), Budget: o.Budget, Dims: o.Dims}
	switch {
	case o.Keep != "" && !slices.Contains(grad.Keeps(), o.Keep):
		return out, &GradientNameError{Message: fmt.Sprintf("there is no Keep %q", o.Keep),
			Help: "one of: " + strings.Join(grad.Keeps(), ", ")}
	case o.Budget < 0:
		return out, fmt.Errorf("%w: a Budget of %d bytes; 0 is no budget", ErrInput, o.Budget)
	case o.Budget > 0 && out.Keep != grad.KeepAuto:
		return out, fmt.Errorf("%w: a Budget is for Keep %q, and Keep is %q", ErrInput, grad.KeepAuto, o.Keep)
	case o.Budget == 0 && len(o.Dims) > 0:
		return out, fmt.Errorf("%w: Dims without a Budget: gradients are for all dims", ErrInput)
	}
	return out, nil
}

func gradientError(err error) error {
	var unknown *grad.NameError
	if errors.As(err, &unknown) {
		return &GradientNameError{Message: unknown.Message, Help: unknown.Help}
	}
	if over := (*grad.BudgetError)(nil); errors.As(err, &over) {
		return fmt.Errorf("%w: %w", ErrBudget, over)
	}
	return err
}

// derived checks a program that was made of p.
func (p *Program) derived(text string) (*Program, error) {
	info, ds := checker.Read(p.info.Prog.File, text)
	if !ds.HasErrors() {
		ds = append(ds, kernelfile.Read(info.Prog, filepath.Dir(p.info.Prog.File))...)
	}
	if ds.HasErrors() {
		return nil, ds
	}
	return &Program{info: info, warnings: ds, limits: p.limits}, nil
}
