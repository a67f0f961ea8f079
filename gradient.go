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

// GradientOptions selects the function, the results and the parameters of a gradient.
type GradientOptions struct {
	// Func is the name of the function. If it is empty, the last function of the program is differentiated.
	Func string
	// Of names the results that are differentiated, and Wrt names the parameters with respect to which they are
	// differentiated. An empty list selects all results or parameters that have a floating-point type.
	Of, Wrt []string
	// Keep selects the values of the forward pass that are stored for the backward pass. "all", the default, stores all
	// values that the backward pass needs. "inputs" stores the inputs of the function and of each loop iteration. "auto"
	// recomputes values that are cheap to compute and stores the others.
	Keep string
	// Budget is the largest number of bytes that a rank may store from the forward pass if Keep is "auto"; 0 means no
	// limit. To meet the budget, the backward pass recomputes values in the order of their cost per byte, cheapest first.
	// Dims sets the dims for which the budget must hold, in addition to the program's default dims.
	Budget int64
	Dims   map[string]int64
}

// A GradientNameError reports a name in GradientOptions that does not exist or that has no gradient.
type GradientNameError struct{ Message, Help string }

// Error returns the message.
func (e *GradientNameError) Error() string { return e.Message }

// Gradient returns a program that computes the function's results and their gradients. It returns the results first,
// and then a gradient %dx for each parameter %x. The program has an additional parameter %dy for each differentiated
// result %y that is not a scalar. The error is Diagnostics if a statement has no gradient, or a *GradientNameError, or
// it wraps ErrBudget or ErrInput. Lines in errors about the returned program are those of its String.
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

// GradientParts holds the gradient of a function as two programs, for callers that compute gradients of the results.
type GradientParts struct {
	// Forward has the parameters of the function. It returns the results of the function, followed by the values that
	// Backward reads.
	Forward *Program
	// Backward returns %dx for each differentiated parameter %x, in the order of the parameters.
	Backward *Program
	// Takes describes the parameters of Backward, in their order.
	Takes []GradientTake
}

// GradientTake describes one parameter of GradientParts.Backward.
type GradientTake struct {
	// Of is "input" if the parameter is a parameter of Forward, "output" if it is a result of Forward, and "gradient" if
	// it is the gradient of a result.
	Of string
	// Index is the index of that parameter, result or gradient, counted from 0.
	Index int
}

// GradientParts returns the gradient that Gradient computes, as two programs. The results of the first program include
// the values that it stores for the second. Results that are scalars also have a gradient, which is a parameter of the
// second program.
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
		return out, &GradientNameError{Message: fmt.Sprintf("unknown Keep %q", o.Keep),
			Help: "one of: " + strings.Join(grad.Keeps(), ", ")}
	case o.Budget < 0:
		return out, fmt.Errorf("%w: the Budget is %d bytes: set it to a positive number, or to 0 for no budget", ErrInput, o.Budget)
	case o.Budget > 0 && out.Keep != grad.KeepAuto:
		return out, fmt.Errorf("%w: a Budget requires Keep %q, but Keep is %q", ErrInput, grad.KeepAuto, o.Keep)
	case o.Budget == 0 && len(o.Dims) > 0:
		return out, fmt.Errorf("%w: Dims are set without a Budget: without it, gradients are valid for all dims", ErrInput)
	}
	return out, nil
}

func gradientError(err error) error {
	if unknown := (*grad.NameError)(nil); errors.As(err, &unknown) {
		return &GradientNameError{Message: unknown.Message, Help: unknown.Help}
	}
	if over := (*grad.BudgetError)(nil); errors.As(err, &over) {
		return fmt.Errorf("%w: %w", ErrBudget, over)
	}
	return err
}

// derived checks a program that was made from p. Positions in its errors refer to text; its name says so.
func (p *Program) derived(text string) (*Program, error) {
	info, ds := checker.Read(p.info.Prog.File+" (gradient)", text)
	if !ds.HasErrors() {
		ds = append(ds, kernelfile.Read(info.Prog, filepath.Dir(p.info.Prog.File))...)
	}
	if ds.HasErrors() {
		return nil, ds
	}
	return &Program{info: info, warnings: ds, limits: p.limits}, nil
}
