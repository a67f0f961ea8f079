package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/certify/issue"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
	"hocket.example/hocket/internal/schedule/program"
	"hocket.example/hocket/ir"
)

// scheduleResult is the part of the --json output that describes a collective schedule.
type scheduleResult struct {
	Name       string              `json:"name"`
	Format     string              `json:"format"` // "mscclpp", "msccl"
	Collective schedule.Collective `json:"collective,omitempty"`
	Launches   int                 `json:"launches"` // number of launches that were proved: 1, or 2 for any number
	Findings   []*schedule.Finding `json:"findings,omitempty"`
	Warnings   []*schedule.Finding `json:"warnings,omitempty"`
	Notes      []string            `json:"notes,omitempty"`
	// Fix describes the change that --fix made, and Text is the changed plan.
	Fix  string `json:"fix,omitempty"`
	Text string `json:"text,omitempty"`
	// Redundant lists the synchronizations that can be omitted singly: each is redundant only if all others remain.
	// Looked is the number of synchronizations that were checked.
	Redundant []schedule.Place `json:"redundant,omitempty"`
	Looked    int              `json:"looked_at,omitempty"`
	Syncs     int              `json:"synchronizations,omitempty"`
	// Interleavings is the number of interleavings that run executed, or the number that check --redundant executed
	// with one of the redundant synchronizations omitted.
	Interleavings int `json:"interleavings,omitempty"`
}

// byteOrder is the byte order mark, with which some editors begin a text in UTF-8.
const byteOrder = "\ufeff"

// aSchedule is the term for a collective schedule in error messages.
const aSchedule = "a collective schedule"

// schedules implements the commands that check and run collective schedules.
type schedules struct {
	programs
}

// isSchedule reports whether arg names a collective schedule rather than a program, by its suffix or by its beginning.
// If arg is standard input, isSchedule reads its text, which can then be read again.
func (a *schedules) isSchedule(ctx context.Context, arg string) (bool, error) {
	if arg != "-" {
		switch strings.ToLower(filepath.Ext(arg)) {
		case ".json", ".xml":
			return true, nil
		case ".hkt":
			return false, nil
		}
		begin := bytes.TrimPrefix(files.Begin(arg, 1<<14), []byte(byteOrder))
		return strings.HasPrefix(files.What(begin), "a schedule of "), nil
	}
	text, err := readText(ctx, stdinName, a.stdin)
	if err != nil {
		return false, err
	}
	a.stdin = strings.NewReader(text)
	text = strings.TrimPrefix(text, byteOrder)
	return mscclpp.IsPlan(text) || msccl.IsAlgorithm(text), nil
}

// openSchedule reads a collective schedule in the format of MSCCL++ or MSCCL and adds its description to the JSON
// output.
func (a *schedules) openSchedule(ctx context.Context, arg string) (f schedule.File, p *schedule.Plan,
	out *scheduleResult, err error) {
	name, src, err := a.readProgram(ctx, arg)
	if err != nil {
		return nil, nil, nil, err
	}
	src = strings.TrimPrefix(src, byteOrder)
	format := "mscclpp"
	if msccl.IsAlgorithm(src) || strings.EqualFold(filepath.Ext(arg), ".xml") && !mscclpp.IsPlan(src) {
		format = "msccl"
		f, err = msccl.Parse([]byte(src))
	} else {
		f, err = mscclpp.Parse([]byte(src))
	}
	if err == nil {
		p, err = f.Plan()
	}
	if err != nil {
		return nil, nil, nil, (&failure{code: exitUsage, kind: "input", err: fmt.Errorf("%s: %w", name, err)}).
			helping("docs/schedules.md lists the formats, operations and keys")
	}
	out = &scheduleResult{Name: p.Name, Format: format, Collective: p.Collective, Launches: 1}
	a.out.Schedule, a.out.Ranks = out, p.Ranks
	return f, p, out, nil
}

// schedulesFor reads and proves schedules, and converts them to the form that GPUs execute.
func (a *schedules) schedulesFor(ctx context.Context, files []string) ([]*device.Schedule, error) {
	var list []*device.Schedule
	for _, arg := range files {
		_, p, _, err := a.openSchedule(ctx, arg)
		a.out.Schedule = nil
		if err != nil {
			return nil, err
		}
		s, err := schedule.Lower(p)
		if err != nil {
			err := &failure{code: exitProgram, kind: "schedule", err: fmt.Errorf("%s: %w", arg, err)}
			return nil, err.helping("run hocket check %s for details", arg)
		}
		s.Name = strings.TrimSuffix(filepath.Base(arg), filepath.Ext(arg))
		list = append(list, s)
	}
	return list, nil
}

// importSchedule converts a collective schedule to a program. importSchedule warns about a schedule that is not
// correct, because operations that the schedule leaves unordered are ordered in the program.
func (a *schedules) importSchedule(ctx context.Context, arg string) (string, error) {
	_, p, _, err := a.openSchedule(ctx, arg)
	if err != nil {
		return "", err
	}
	text, err := program.Of(p)
	if err != nil {
		err := &failure{code: exitProgram, kind: "import", err: fmt.Errorf("%s: %w", arg, err)}
		return "", err.helping("docs/schedules.md lists what programs cannot express")
	}
	if _, doubt := schedule.CheckOne(p); doubt != nil {
		a.warn(arg, string(doubt.Kind), doubt.Message)
	}
	return text, nil
}

// checkSchedule checks a collective schedule.
func (a *schedules) checkSchedule(c *cobra.Command, arg string, o *checkFlags) error {
	if err := onlyFlags(c, arg, aSchedule, "json", "fix", "output", "redundant", "launches", "max-time",
		"certificate"); err != nil {
		return err
	}
	switch {
	case o.launches != 1 && o.launches != 2:
		return usagef("--launches is %d, but must be 1, or 2 for any number of launches", o.launches)
	case o.out != "" && !o.fix:
		return usagef("-o is the output of --fix, but --fix is not given")
	case o.fix && o.redundant:
		return usagef("--redundant needs the unchanged schedule: run --fix first, then --redundant on its output")
	case c.Flags().Changed("max-time") && !o.redundant:
		return usagef("--max-time limits the search of --redundant, which is not given").helping(
			"remove --max-time: a check of a schedule needs no limit")
	case o.certificate != "" && o.fix:
		return usagef("--certificate needs the unchanged schedule: remove --fix")
	}
	f, p, out, err := a.openSchedule(c.Context(), arg)
	if err != nil {
		return err
	}
	options := schedule.Options{Launches: o.launches}
	out.Launches = o.launches
	a.progress.At("proving", 0, 2*a.limits.Time)
	r := schedule.Check(p, options)
	if o.fix {
		if r, err = a.fixSchedule(f, r, options, out, o); err != nil {
			return err
		}
	}
	if o.redundant && r.Verdict == schedule.OK {
		ctx := c.Context()
		if c.Flags().Changed("max-time") && a.limits.Time > 0 { // by default the limit does not depend on the machine
			limited, cancel := context.WithTimeout(ctx, a.limits.Time)
			defer cancel()
			ctx = limited
		}
		found, err := schedule.Redundant(ctx, f, r, options)
		if err != nil && ctx.Err() == nil {
			return ofHocket(err)
		}
		out.Redundant, out.Looked, out.Syncs, out.Interleavings = found.Places, found.Looked, found.All,
			found.Interleavings
	}
	a.progress.End()
	if o.certificate != "" && r.Verdict == schedule.OK {
		if err := writeCertificate(o.certificate, p); err != nil {
			return err
		}
	}
	return a.concludeSchedule(arg, r)
}

// writeCertificate writes a certificate of a proved schedule. The certificate covers one launch.
func writeCertificate(file string, p *schedule.Plan) error {
	text, err := issue.Schedule(p)
	if err != nil {
		return (&failure{code: exitUndecided, kind: "certificate", err: fmt.Errorf("no certificate: %w", err)}).helping(
			"the verdict is still valid; docs/schedules.md lists the schedules that have certificates")
	}
	return writeText(file, string(text)+"\n")
}

// certifiedSchedule returns an error unless the file contains a valid certificate of the schedule.
func certifiedSchedule(file string, p *schedule.Plan) error {
	text, err := files.Read(file, maxCertificate)
	if err != nil {
		return usagef("--certificate: %w", err)
	}
	c, err := certify.Parse(text)
	if err == nil {
		var s *certify.ScheduleStatement
		if s, err = certify.Schedule(p); err == nil {
			err = certify.CheckSchedule(s, c)
		}
	}
	if err != nil {
		return (&failure{code: exitProgram, kind: "certificate",
			err: fmt.Errorf("the certificate %s is rejected: %w", file, err)}).
			helping("hocket check --certificate writes a certificate")
	}
	return nil
}

// runSchedule runs a collective schedule on the CPU with random data, in random interleavings of all threads, and
// compares the results with a direct computation.
func (a *schedules) runSchedule(c *cobra.Command, arg string, o *runFlags) error {
	if err := onlyFlags(c, arg, aSchedule, "json", "schedules", "seed", "timeout", "no-prove", "compare", "machine",
		"certificate"); err != nil {
		return err
	}
	if o.machine != defaultMachine {
		return usagef("-m %s: collective schedules run only on machine %s", o.machine, defaultMachine)
	}
	if err := o.check(c); err != nil {
		return err
	}
	_, p, out, err := a.openSchedule(c.Context(), arg)
	if err != nil {
		return err
	}
	if o.compare && p.Collective == schedule.Undefined {
		return usagef("--compare needs a collective with a defined result, but the schedule of %s has none",
			arg).helping(
			"remove --compare: only races and deadlocks are checked; docs/schedules.md lists the collectives")
	}
	ctx, ended := a.within(c.Context(), o.timeout)
	if o.certificate != "" {
		if err := certifiedSchedule(o.certificate, p); err != nil {
			return err
		}
	} else if !o.noProve {
		r, doubt := schedule.CheckOne(p)
		if r.Verdict != schedule.OK && r.Verdict != schedule.Undecided {
			return a.concludeSchedule(arg, r)
		} else if doubt != nil {
			a.warn(arg, string(doubt.Kind), doubt.Message)
		}
	}
	n := max(o.schedules, 1)
	a.progress.At("running interleavings", n, 0)
	for i := range n {
		a.progress.Of(i, n)
		seed := uint64(o.seed) + uint64(i)
		in := schedule.Inputs(p, elements, seed)
		got, err := schedule.Run(ctx, p, in, elements, seed)
		code, kind := exitProgram, "deadlock"
		if err == nil {
			err, code, kind = schedule.Differ(p, got.Memory, in), exitHocket, "differs"
		}
		switch {
		case ctx.Err() != nil: // return the context's error even if the run succeeded
			return ended(ctx.Err())
		case err != nil:
			f := &failure{code: code, kind: kind, err: fmt.Errorf("interleaving %d of %d: %w", i+1, n, err)}
			return ended(f.helping("this repeats it: hocket run %s --no-prove --schedules 1 --seed %d", arg, seed))
		}
	}
	a.progress.End()
	out.Interleavings = n
	what := "equal to plain arithmetic"
	if p.Collective == schedule.Undefined {
		what = "and no result is defined for it"
	}
	if o.noProve {
		what += "; nothing was proved, and other interleavings can differ"
	}
	fmt.Fprintf(a.text, "%s on %d ranks: %d random %s from seed %d on, %s\n", p.Name, p.Ranks, n,
		plural(n, "interleaving"), o.seed, what)
	if o.compare {
		a.out.Compare = &comparison{Verdict: hocket.Exact.String(), Against: string(p.Collective)}
		fmt.Fprintf(a.text, "result: equal to %s, exactly\n", p.Collective)
	}
	return ended(nil)
}

// warn adds a warning, about a file unless its name is "".
func (a *schedules) warn(file, kind, text string) {
	a.warnings = append(a.warnings, &ir.Diagnostic{Severity: ir.Warning, File: file, Kind: kind, Message: text})
}

// elements is the number of elements in each part of a chunk when a schedule is run on the CPU.
const elements = 4

// fixSchedule repairs a refuted schedule, writes the result, and returns its verdict.
func (a *schedules) fixSchedule(f schedule.File, r *schedule.Report, o schedule.Options, out *scheduleResult,
	flags *checkFlags) (*schedule.Report, error) {
	if r.Verdict != schedule.OK {
		fix, proof, ok := schedule.Fix(f, r, o)
		if !ok {
			a.warn("", "fixed", "--fix "+fix.Text)
			return r, nil
		}
		f, r, out.Fix = fix.File, proof, fix.Text
		if m, ok := f.(*msccl.File); ok && m.Commented {
			fix.Text += "; the comments of the file are not written"
		}
		a.warn("", "fixed", "repaired: "+fix.Text)
	}
	text, err := f.Encode()
	if err != nil {
		return nil, ofHocket(err)
	}
	switch {
	case flags.out != "":
		return r, writeText(flags.out, string(text))
	case a.json:
		out.Text = string(text)
	default:
		fmt.Fprint(a.text, string(text))
		a.text = a.stderr // the verdict must not be written into the plan's text
	}
	return r, nil
}

// concludeSchedule prints a verdict. The result is a failure for every verdict except ok.
func (a *schedules) concludeSchedule(arg string, r *schedule.Report) error {
	out := a.out.Schedule
	a.out.Verdict = string(r.Verdict)
	out.Findings, out.Warnings, out.Notes = r.Findings, r.Warnings, r.Notes
	fmt.Fprintf(a.text, "%s: %s\n", r.Verdict, r.Told(out.Name, out.Collective, a.out.Ranks, out.Launches))
	for _, at := range out.Redundant {
		fmt.Fprintf(a.text, "redundant: %s\n", at)
	}
	if out.Syncs > 0 {
		fmt.Fprintf(a.text, "%d of %d tried synchronizations can each be removed alone; %d interleavings with data confirm it\n",
			len(out.Redundant), out.Looked, out.Interleavings)
		if out.Looked < out.Syncs {
			fmt.Fprintf(a.text, "the schedule has %d synchronizations: the search stopped at its limit (see docs/schedules.md)\n",
				out.Syncs)
		}
	}
	ds := r.Diagnostics(arg, !a.json)
	if r.Verdict == schedule.OK {
		a.warnings = append(a.warnings, ds...)
		return nil
	}
	ds, a.warnings = append(ds, a.warnings...), nil // errors come first
	if r.Verdict == schedule.Undecided {
		return &failure{code: exitUndecided, err: ds}
	}
	return &failure{code: exitProgram, err: ds}
}
