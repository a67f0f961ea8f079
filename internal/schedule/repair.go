package schedule

import (
	"context"
	"fmt"
	"iter"
)

// File is a schedule in the file format of the tool that wrote it. A file can be edited and encoded again.
type File interface {
	// Plan returns the schedule that the file describes, or an error that names the operation that cannot be read.
	Plan() (*Plan, error)
	// Encode writes the file.
	Encode() ([]byte, error)
	// Syncs lists the places of the synchronizations, which Without can remove.
	Syncs() []Place
	// Without returns a copy of the file that lacks the synchronization at a place.
	Without(at Place) File
	// Repairs proposes edited copies of the file. Each has one additional synchronization, which may remove the first
	// finding of a report. The most promising proposals come first.
	Repairs(r *Report) iter.Seq[Repair]
}

// Repair holds an edited file and a description of the edit.
type Repair struct {
	Text string
	File File
}

const (
	// mostRepairs limits the number of proposals that Fix checks, and mostWork limits the total number of steps of these
	// checks.
	mostRepairs = 1000
	mostWork    = 1 << 21
)

// Fix searches for one synchronization whose insertion makes a refuted file correct. If it finds none, it returns false
// for ok, and the text of the repair says whether all proposals were checked.
func Fix(f File, refuted *Report, o Options) (fix Repair, proof *Report, ok bool) {
	fix.Text = "found no single synchronization that repairs the schedule"
	if len(refuted.Findings) == 0 {
		return fix, nil, false
	}
	tries, work := 0, 0
	for c := range f.Repairs(refuted) {
		if tries == mostRepairs || work > mostWork {
			if !ok {
				fix.Text = fmt.Sprintf("stopped after %d plans, none of which is proved", tries)
			}
			break
		}
		tries++
		p, err := c.File.Plan()
		if err != nil {
			continue
		}
		r := Check(p, o)
		work += r.Steps
		if r.Verdict == OK && len(r.leftOver()) == 0 {
			return c, r, true
		}
		if r.Verdict == OK && !ok {
			fix, proof, ok = c, r, true // signals remain after a launch: use this fix only if there is no better one
		}
	}
	return fix, proof, ok
}

// leftOver returns the warnings about signals that remain in counters for the next launch.
func (r *Report) leftOver() []*Finding {
	var out []*Finding
	for _, w := range r.Warnings {
		if w.Kind == Left {
			out = append(out, w)
		}
	}
	return out
}

// Redundancy is the result of Redundant.
type Redundancy struct {
	Places        []Place // synchronizations that are not needed; each can be removed while the others remain
	Looked, All   int     // number of tested synchronizations, and number of all synchronizations
	Interleavings int     // number of interleavings that were executed on data
}

// Redundant removes the synchronizations of a correct file, one at a time. It returns those whose removal leaves the
// file correct, according to Check and to the execution of several interleavings on data. The synchronizations are
// tested in the order of the file, until a fixed number of steps has been executed or ctx ends.
func Redundant(ctx context.Context, f File, whole *Report, o Options) (Redundancy, error) {
	syncs := f.Syncs()
	out, work, ran := Redundancy{All: len(syncs)}, 0, 0
	for _, at := range syncs {
		if work > 16*mostWork || ctx.Err() != nil {
			break
		}
		out.Looked++
		p, err := f.Without(at).Plan()
		if err != nil {
			continue
		}
		r := Check(p, o)
		work += r.Steps
		if r.Verdict != OK || len(r.Warnings) > len(whole.Warnings) {
			continue
		}
		out.Places = append(out.Places, at)
		in := Inputs(p, 1, 1)
		for seed := range uint64(8) {
			if ran > 16*mostWork {
				break
			}
			got, err := Run(ctx, p, in, 1, seed)
			if err == nil {
				ran += got.Steps
				out.Interleavings++
				err = Differ(p, got.Memory, in)
			}
			if err != nil && ctx.Err() == nil {
				return out, fmt.Errorf("the proof that %s is redundant is wrong, interleaving %d: %w", at, seed, err)
			}
		}
	}
	return out, ctx.Err()
}
