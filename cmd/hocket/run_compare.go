package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// reference evaluates the reference of every repetition, if that has not been done yet.
func (j *job) reference(ctx context.Context) error {
	if len(j.refs) < len(j.batch) {
		j.app.progress.At("evaluating the reference", len(j.batch), 0)
	}
	for len(j.refs) < len(j.batch) {
		ref, err := j.model.Reference(ctx, j.batch[len(j.refs)])
		if err != nil {
			return ofReference(err)
		}
		j.refs = append(j.refs, ref)
		j.app.progress.Step()
	}
	return nil
}

// ofReference classifies an error of the reference evaluator. An error does not refute the program if the program is
// only too large for the evaluator, or if the inputs contain numbers that are out of range.
func ofReference(err error) error {
	err = ofMachine(err)
	ds := findings(err)
	all := func(kind string) bool {
		return ds != nil && !slices.ContainsFunc(ds, func(d *ir.Diagnostic) bool { return d.Kind != kind })
	}
	switch {
	case all("range"): // as the machine says it
		return &failure{code: exitMachine, kind: "range", err: ds}
	case !all("limit"):
		return err
	}
	return &failure{code: exitMachine, kind: "limit",
		err:  fmt.Errorf("the result cannot be compared, because there is no reference: %s", ds[0].Message),
		help: "reduce dims with --dim, or run without --compare and --schedules"}
}

// compare compares the report of each repetition with its reference and records the weakest verdict. compare returns an
// error for a result that differs from the reference.
func (j *job) compare(ctx context.Context, reports []*hocket.Report) error {
	if err := j.reference(ctx); err != nil {
		return err
	}
	for i, rep := range reports {
		c := j.refs[i].Compare(rep)
		if j.wantsLayers(c) {
			if err := j.layer(ctx); err != nil {
				return err
			}
			c = c.ByLayers(j.layers[i])
		}
		if err := c.Err(); err != nil && j.flags.rtol == 0 {
			j.app.out.Compare = &comparison{Verdict: c.Verdict.String(), Against: c.Against, Results: measured(c)}
			if len(reports) > 1 {
				err = fmt.Errorf("repetition %d of %d: %w", i+1, len(reports), err)
			}
			return ofMachine(err)
		}
		if j.verdict.Against == "" {
			j.verdict = c
		}
		j.verdict = j.verdict.Weakest(c)
	}
	j.concluded()
	return nil
}

// wantsLayers reports whether the program must also be compared layer by layer. Programs are compared layer by layer if
// the comparison of the whole program is undecided. Exported models always are, because their comparison as a whole is
// almost always undecided.
func (j *job) wantsLayers(c hocket.Comparison) bool {
	return c.Verdict == hocket.Undecided || j.app.export != nil
}

// layer compares the results of each layer, for every repetition, unless it has done so before.
func (j *job) layer(ctx context.Context) error {
	if len(j.layers) < len(j.batch) {
		j.app.progress.At("comparing layer by layer", len(j.batch), 0)
	}
	for len(j.layers) < len(j.batch) {
		list, err := j.model.CompareLayers(ctx, j.batch[len(j.layers)])
		if err != nil {
			return ofReference(err)
		}
		j.layers = append(j.layers, list)
		j.app.progress.Step()
	}
	return nil
}

// tolerated returns an error if the largest error of the results exceeds the tolerance --rtol.
func (j *job) tolerated() error {
	worst, ok := j.verdict.Worst()
	if j.flags.rtol == 0 || !ok || worst.Quotient() <= j.flags.rtol {
		return nil
	}
	return &failure{code: exitProgram, kind: "tolerance",
		err: fmt.Errorf("%s, more than --rtol %g", worst, j.flags.rtol)}
}

// concluded adds the current verdict to the JSON output.
func (j *job) concluded() {
	j.app.out.Compare = &comparison{
		Verdict: j.verdict.Verdict.String(), Against: j.verdict.Against, Detail: j.verdict.String(),
		Results: measured(j.verdict)}
	for _, l := range j.verdict.Layers {
		j.app.out.Compare.Layers = append(j.app.out.Compare.Layers,
			layerError{Name: l.Name, Line: l.Line, Verdict: l.Verdict.String(), Results: measured(l.Comparison)})
	}
}

// measured converts the errors of results for the JSON output.
func measured(c hocket.Comparison) []resultError {
	var list []resultError
	for _, m := range c.Measured {
		e := resultError{Name: m.Name, Largest: m.Largest}
		if q := m.Quotient(); !math.IsInf(m.Error, 0) {
			e.Error = &m.Error
			if !math.IsInf(q, 0) {
				e.Quotient = &q
			}
		}
		list = append(list, e)
	}
	return list
}

// writeErrors prints the measured errors of results that are not certified, and the layer that has the largest error.
func (j *job) writeErrors() {
	if j.verdict.Verdict != hocket.Exact {
		for _, m := range j.verdict.Measured {
			fmt.Fprintf(j.app.text, "measured: %s\n", m)
		}
	}
	if l, ok := j.verdict.WorstLayer(); ok {
		if worst, _ := l.Worst(); worst.Error == 0 {
			fmt.Fprintf(j.app.text, "layers: %d compared, and all equal the reference's\n", len(j.verdict.Layers))
			return
		}
		fmt.Fprintf(j.app.text, "layers: %d compared; the largest error is in %s\n", len(j.verdict.Layers), l)
	}
}

// confirms reports whether a comparison is repeated with other inputs. A comparison is repeated unless the command line
// sets the inputs of all parameters.
func (j *job) confirms() bool {
	if j.inputs.fixed {
		return false
	}
	return slices.ContainsFunc(j.sig.In, func(p hocket.Port) bool {
		_, given := j.inputs.specs[p.Name]
		return !given && j.files[p.Name] == nil
	})
}

// batches returns the number of runs whose inputs are in memory at the same time.
func (j *job) batches() int {
	if (j.flags.compare || j.flags.schedules > 0) && j.confirms() {
		return j.flags.repeat + 1
	}
	return j.flags.repeat
}

// confirm compares a run in which the parameters that had small integers by default have random real numbers instead.
func (j *job) confirm(ctx context.Context, run func(context.Context, []hocket.Args) ([]*hocket.Report, error)) error {
	if !j.confirms() {
		return nil
	}
	again := *j // the repetition is a separate run
	again.inputs = j.inputs.reals(false)
	j.app.progress.At("comparing a run on random reals", 0, 0)
	args, ref, err := again.drawn(ctx)
	if f := (*failure)(nil); errors.As(err, &f) && f.kind == "range" { // integers index something
		again.inputs = j.inputs.reals(true)
		args, ref, err = again.drawn(ctx)
	}
	if err != nil {
		return err
	}
	again.batch, again.refs, again.verdict = []hocket.Args{args}, []*hocket.Reference{ref}, hocket.Comparison{}
	again.layers = nil
	guarded, dog := watch(ctx, j.flags.runLimit())
	defer dog.stop()
	reports, err := run(guarded, again.batch)
	if err == nil {
		err = again.compare(ctx, reports)
	}
	if err != nil {
		return again.realFailure(dog.explain(guarded, err))
	}
	j.verdict = j.verdict.Confirmed(again.verdict)
	j.concluded()
	return nil
}

// drawn generates the inputs of one run and evaluates the run's reference.
func (j *job) drawn(ctx context.Context) (hocket.Args, *hocket.Reference, error) {
	args, err := j.args(0)
	if err != nil {
		return args, nil, err
	}
	ref, err := j.model.Reference(ctx, args)
	if err != nil {
		return args, nil, ofReference(err)
	}
	return args, ref, nil
}

// realFailure adds, to the error about a result that differs, that the inputs were random real numbers.
func (j *job) realFailure(err error) error {
	var f *failure
	if !errors.As(err, &f) || f.kind != "differs" {
		return err
	}
	shown := *f
	shown.err = fmt.Errorf("on random reals (--in %s): %w", j.inputs.rest, err)
	return &shown
}

// undecided returns an error if the comparison of the results reached no decision.
func (j *job) undecided() error {
	if j.verdict.Against == "" || j.verdict.Verdict != hocket.Undecided || j.flags.rtol > 0 {
		return nil
	}
	return &failure{code: exitUndecided, kind: "compare", severity: ir.Warning, said: true,
		err: errors.New(j.verdict.String())}
}

// explore runs the batch under many schedules and compares each. Faults that can be found in the plan are reported
// first, because evaluating the reference takes long.
func (j *job) explore(ctx context.Context) (*hocket.Report, error) {
	if err := j.model.Explore(ctx, j.batch, hocket.ExploreOptions{}, nil); err != nil {
		return nil, j.ofLoad(err)
	}
	j.judged = true
	if err := j.reference(ctx); err != nil {
		return nil, err
	}
	guarded, dog := watch(ctx, j.flags.runLimit())
	defer dog.stop()
	j.app.progress.At("comparing schedules", j.flags.schedules, 0)
	next := j.flags.seed // the seed of the current schedule
	var last *hocket.Report
	opts := hocket.ExploreOptions{Schedules: j.flags.schedules, Seed: j.flags.seed}
	err := j.model.Explore(guarded, j.batch, opts, func(seed int64, reports []*hocket.Report) error {
		dog.alive()
		next = seed
		j.app.progress.Step()
		if err := j.compare(ctx, reports); err != nil {
			return fmt.Errorf("schedule %d: %w", seed, err)
		}
		next, last = seed+1, reports[len(reports)-1]
		return nil
	})
	if err != nil {
		return nil, j.failed(next, j.ofLoad(dog.explain(guarded, err)))
	}
	dog.stop()
	return last, j.confirm(ctx, j.once)
}

// once runs a batch under the first schedule.
func (j *job) once(ctx context.Context, batch []hocket.Args) (reports []*hocket.Report, err error) {
	opts := hocket.ExploreOptions{Schedules: 1, Seed: j.flags.seed}
	err = j.model.Explore(ctx, batch, opts, func(_ int64, r []*hocket.Report) error {
		reports = r
		return nil
	})
	return reports, j.ofLoad(err)
}

// failed adds, to an error that occurred under one schedule, the command line that runs this schedule alone. This
// command line sets the inputs by --in, because its --seed determines the schedule. Errors that do not depend on the
// schedule, and errors with a help text, are returned unchanged.
func (j *job) failed(seed int64, err error) error {
	var f *failure
	if !errors.As(err, &f) || f.kind != "differs" && f.kind != "deadlock" && (f.kind != "machine" || f.help != "") {
		return err
	}
	if f.kind == "differs" {
		j.app.out.Compare = &comparison{Verdict: "differs", Against: j.refs[0].Against}
	}
	args := append(j.again, "--schedules", "1", "--seed", fmt.Sprint(seed))
	if !j.inputs.fixed {
		args = append(args, "--in", j.inputs.rest.String())
	}
	shown := *f
	shown.err = err // err contains the schedule's seed
	return shown.helping("run it alone: %s", strings.Join(args, " "))
}

// sameRun returns the words of a command line that repeats the current command with other schedules.
func sameRun(c *cobra.Command, program string, b *bindFlags, o *runFlags) []string {
	words := []string{c.CommandPath(), quoted(program)}
	for _, name := range []string{"ranks", "func", "strategy", "repeat", "timeout", "budget", "algorithm"} {
		if f := c.Flags().Lookup(name); f.Changed {
			words = append(words, "--"+name, quoted(f.Value.String()))
		}
	}
	if o.fixed {
		words = append(words, "--fixed")
	}
	if o.noProve {
		words = append(words, "--no-prove")
	}
	lists := []struct {
		flag   string
		values []string
	}{{"--dim", b.dims}, {"--define", b.defines}, {"--in", o.in}}
	for _, l := range lists {
		for _, v := range l.values {
			words = append(words, l.flag, quoted(v))
		}
	}
	return words
}

// quoted quotes a word for a shell.
func quoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./=:,+%@", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
