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

// These are the exit codes of the commands.
const (
	exitDone        = 0
	exitProgram     = 1 // the program is wrong
	exitUsage       = 2 // the command line or an input file is wrong
	exitMachine     = 3 // the machine failed
	exitHocket      = 4 // a result differs from its reference, or hocket failed
	exitUndecided   = 5 // check or a comparison could not decide
	exitInterrupted = 130
)

// failure is an error with the exit code of the command. The field help advises the user how to correct the error.
type failure struct {
	code int
	err  error
	help string
	// kind and severity describe the diagnostic that is made from err if err is not itself a diagnostic.
	kind     string
	severity ir.Severity
	// said reports that the error has already been printed to standard output, so that only the JSON output must
	// contain it.
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

// classify selects the exit code for the command's error. An error that has not been classified was returned by the
// command-line parser.
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

// findings returns the diagnostics in err, or nil if it has none.
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

// ofDiagnostics attributes diagnostics to the program, unless they report a bug in hocket.
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

// ofInput reports whether a diagnostic does not refute the program because its cause is the command line or an
// incomplete file.
func ofInput(d *ir.Diagnostic) bool { return d.Kind == "usage" || d.Kind == "input" }

// ofMachine classifies an error that loading or running a model has returned.
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
			return f.helping("the plan was proved, so no wait is missing. Either the program computes different values " +
				"on the ranks but declares them to be the same (claim, or an index that depends on the rank), or a device computes wrong results; -m " +
				defaultMachine + " shows which")
		}
		return f.helping("the usual cause is a missing wait; run with --schedules 20 to distinguish it from a wrong layout in a claim")
	case errors.Is(err, hocket.ErrDiffers):
		return &failure{code: exitHocket, kind: "differs", err: err}
	case errors.Is(err, hocket.ErrNoReference):
		f := &failure{code: exitUndecided, kind: "compare", err: err}
		return f.helping("declare with refines which function it must compute, or run without --compare and --schedules")
	case errors.Is(err, hocket.ErrDeadlock):
		return &failure{code: exitProgram, kind: "deadlock", err: err}
	}
	return &failure{code: exitMachine, kind: "machine", err: err}
}

// ofHocket classifies an error that is not about the program and must therefore be a bug in hocket.
func ofHocket(err error) error {
	if err == nil {
		return nil
	}
	if ds := findings(err); ds != nil {
		return ofDiagnostics(ds)
	}
	return &failure{code: exitHocket, kind: "internal", err: err}
}

// diagnostics returns f as diagnostics, so that it can be shown like the diagnostics of a program.
func (f *failure) diagnostics() hocket.Diagnostics {
	if f.err == nil {
		return nil
	}
	if ds := findings(f.err); ds != nil {
		return ds
	}
	return hocket.Diagnostics{{Severity: f.severity, Kind: f.kind, Message: withoutCall(f.err), Help: f.help}}
}

// withoutCall returns the text of an error without the name of the system call.
func withoutCall(err error) string {
	text := err.Error()
	if call := (*fs.PathError)(nil); errors.As(err, &call) {
		text = strings.Replace(text, call.Error(), call.Path+": "+call.Err.Error(), 1)
	}
	return text
}

var (
	goNumberError = regexp.MustCompile(`: (strconv|time)\.?\w*: .*$`)
	valueNamed    = regexp.MustCompile(`^invalid argument (".*") for "(?:-\w, )?(-+[\w-]+)" flag`)
)

// flagError rewrites pflag's errors about invalid values, which contain the names of Go functions.
func flagError(err error) error {
	text := err.Error()
	if m := valueNamed.FindStringSubmatch(text); m != nil {
		unit := ""
		if strings.Contains(text, "missing unit in duration") {
			unit = ": the unit is missing, as in 5s"
		} else if strings.Contains(text, "strconv.ParseInt") {
			unit = ": want a whole number"
		}
		return fmt.Errorf("%s cannot be %s%s", strings.NewReplacer("--ranks", "-n", "--processes", "-n").Replace(m[2]),
			m[1], unit)
	}
	return errors.New(goNumberError.ReplaceAllString(text, ""))
}
