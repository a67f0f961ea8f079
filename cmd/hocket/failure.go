package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
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

// failure is an error that knows how the command has to end. With help it says
// what to do about it.
type failure struct {
	code int
	err  error
	help string
	// kind and severity are the diagnostic's, where err is none itself.
	kind     string
	severity ir.Severity
	// said: people know it from standard output, only JSON does not.
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

// findings returns the diagnostics that err is made of, nil where it is none.
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

// ofDiagnostics says whose fault diagnostics are: the program's, unless hocket
// admits its own.
func ofDiagnostics(ds hocket.Diagnostics) *failure {
	f := &failure{code: exitProgram, err: ds}
	for _, d := range ds {
		if d.Kind == "internal" {
			f.code = exitHocket
		}
	}
	return f
}

// ofMachine classifies what loading or running a model returned.
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
			return f.helping("no wait is missing, for the plan was proved: the program has ranks compute what differs and calls it copies of each other (claim, an index by rank), or a device computes wrongly, which -m " + defaultMachine + " tells")
		}
		return f.helping("mostly the program lacks a wait; --schedules 20 tells it from a layout that was claimed wrongly")
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

// ofHocket classifies an error that only a fault of hocket leads to, where it
// says nothing about the program.
func ofHocket(err error) error {
	if err == nil {
		return nil
	}
	if ds := findings(err); ds != nil {
		return ofDiagnostics(ds)
	}
	return &failure{code: exitHocket, kind: "internal", err: err}
}

// diagnostics returns f in the form in which findings are shown.
func (f *failure) diagnostics() hocket.Diagnostics {
	if f.err == nil {
		return nil
	}
	if ds := findings(f.err); ds != nil {
		return ds
	}
	return hocket.Diagnostics{{Severity: f.severity, Kind: f.kind, Message: withoutCall(f.err), Help: f.help}}
}

// withoutCall is what an error says, but for the name of the system's call that found it.
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

// flagError rewords what pflag says about values, which names Go functions.
func flagError(err error) error {
	text := err.Error()
	if m := valueNamed.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s cannot be %s", strings.Replace(m[2], "--ranks", "-n", 1), m[1])
	}
	return errors.New(goNumberError.ReplaceAllString(text, ""))
}
