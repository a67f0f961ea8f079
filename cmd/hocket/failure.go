package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// Exit codes.
const (
	exitDone        = 0
	exitProgram     = 1 // the program is refused
	exitUsage       = 2 // the command line or an input file is wrong
	exitMachine     = 3 // the machine failed
	exitHocket      = 4 // a result differs from its reference, or hocket failed
	exitUndecided   = 5 // check or a comparison could not decide
	exitInterrupted = 130
)

// failure is an error with the exit code of the command and, in help, what to do about it.
type failure struct {
	code int
	err  error
	help string
	// kind and severity are those of the diagnostic, if err is not a diagnostic itself.
	kind     string
	severity ir.Severity
	// said reports that standard output has already shown the error, so that only JSON needs it.
	said bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func usagef(format string, args ...any) *failure {
	return &failure{code: exitUsage, kind: "usage", err: fmt.Errorf(format, args...)}
}

func inputf(format string, args ...any) *failure {
	return &failure{code: exitUsage, kind: "input", err: fmt.Errorf(format, args...)}
}

func (f *failure) helping(format string, args ...any) *failure {
	f.help = fmt.Sprintf(format, args...)
	return f
}

// classify decides how the command ends. Errors without a class come from the
// parser of the command line.
func classify(ctx context.Context, err error) *failure {
	var f *failure
	switch {
	case err == nil:
		return &failure{}
	case errors.As(err, &f) && f.said:
		return f
	case ctx.Err() != nil:
		return &failure{code: exitInterrupted, kind: "interrupted", err: errors.New("interrupted")}
	case errors.As(err, &f):
		return f
	}
	if ds := findings(err); ds != nil {
		return ofDiagnostics(ds)
	}
	return &failure{code: exitUsage, kind: "usage", err: err, help: "see hocket --help"}
}

// findings returns the diagnostics of err; nil if it has none.
func findings(err error) hocket.Diagnostics {
	var ds hocket.Diagnostics
	var d *ir.Diagnostic
	switch {
	case errors.As(err, &ds):
		return ds
	case errors.As(err, &d):
		return hocket.Diagnostics{d}
	}
	return nil
}

// ofDiagnostics attributes diagnostics to the program, unless they report a fault of hocket.
func ofDiagnostics(ds hocket.Diagnostics) *failure {
	f := &failure{code: exitProgram, err: ds}
	if slices.ContainsFunc(ds, ofInput) {
		f.code = exitUsage
	}
	for _, d := range ds {
		if d.Kind == "internal" {
			f.code = exitHocket
		}
	}
	return f
}

// ofInput reports whether a diagnostic says nothing against a program: the command line or an incomplete file is wrong.
func ofInput(d *ir.Diagnostic) bool { return d.Kind == "usage" || d.Kind == "input" }

// ofMachine classifies an error of loading or running a model.
func ofMachine(err error) error {
	var f *failure
	var mismatch *hocket.MismatchError
	ds := findings(err)
	switch {
	case err == nil, errors.As(err, &f):
		return err
	case ds != nil:
		return ofDiagnostics(ds)
	case errors.Is(err, hocket.ErrInput):
		return &failure{code: exitUsage, kind: "input", err: err}
	case errors.As(err, &mismatch):
		f := &failure{code: exitHocket, kind: "differs", err: err}
		if mismatch.Proved {
			return f.helping("the plan was proved, so no wait is missing: either the program computes different values " +
				"on ranks and declares them copies of each other (claim, an index by rank), or a device computes wrongly; -m " + defaultMachine + " shows which")
		}
		return f.helping("the usual cause is a missing wait; --schedules 20 distinguishes it from a wrong layout in a claim")
	case errors.Is(err, hocket.ErrDiffers):
		return &failure{code: exitHocket, kind: "differs", err: err}
	case errors.Is(err, hocket.ErrNoReference):
		f := &failure{code: exitUndecided, kind: "compare", err: err}
		return f.helping("say with refines which function it must compute, or run without --compare and --schedules")
	case errors.Is(err, hocket.ErrDeadlock):
		return &failure{code: exitProgram, kind: "deadlock", err: err}
	}
	return &failure{code: exitMachine, kind: "machine", err: err}
}

// ofHocket classifies an error that says nothing about the program, and so must be a fault of hocket.
func ofHocket(err error) error {
	if err == nil {
		return nil
	}
	if ds := findings(err); ds != nil {
		return ofDiagnostics(ds)
	}
	return &failure{code: exitHocket, kind: "internal", err: err}
}

// diagnostics returns f as diagnostics, to be shown like findings.
func (f *failure) diagnostics() hocket.Diagnostics {
	if f.err == nil {
		return nil
	}
	if ds := findings(f.err); ds != nil {
		return ds
	}
	return hocket.Diagnostics{{Severity: f.severity, Kind: f.kind, Message: withoutCall(f.err), Help: f.help}}
}

// withoutCall returns an error's text without the name of the system call.
func withoutCall(err error) string {
	text := err.Error()
	var call *fs.PathError
	if errors.As(err, &call) {
		text = strings.Replace(text, call.Error(), call.Path+": "+call.Err.Error(), 1)
	}
	return text
}

var (
	goNumberError = regexp.MustCompile(`: (strconv|time)\.?\w*: .*$`)
	valueNamed    = regexp.MustCompile(`^invalid argument (".*") for "(?:-\w, )?(-+[\w-]+)" flag`)
)

// flagError rewords pflag's errors about values, which name Go functions.
func flagError(err error) error {
	text := err.Error()
	if m := valueNamed.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s cannot be %s", strings.Replace(m[2], "--ranks", "-n", 1), m[1])
	}
	return errors.New(goNumberError.ReplaceAllString(text, ""))
}
