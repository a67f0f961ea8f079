package schedule

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// File is a schedule in its own format, which can be changed and written again.
type File interface {
	// Plan returns what the file says, or an error that names the operation which cannot be read.
	Plan() (*Plan, error)
	// Encode writes the file.
	Encode() ([]byte, error)
	// Syncs lists the synchronizations that can be taken out.
	Syncs() []Place
	// Without returns the file without the synchronization at a place.
	Without(at Place) File
	// Repairs proposes files with one synchronization more, the likeliest first, against the first finding of a report.
	Repairs(f *Finding) iter.Seq[Repair]
}

// Repair is a changed file and what was changed.
type Repair struct {
	Text string
	File File
}

const (
	// mostRepairs is how many proposals Fix checks, and mostWork how many steps these may take together.
	mostRepairs = 1000
	mostWork    = 1 << 21
)

// Fix looks for one synchronization which makes a file that was refuted right. ok is false where none was found.
func Fix(f File, refuted *Report, o Options) (fix Repair, proof *Report, ok bool) {
	if len(refuted.Findings) == 0 {
		return fix, nil, false
	}
	tries, work := 0, 0
	for c := range f.Repairs(refuted.Findings[0]) {
		if tries++; tries > mostRepairs || work > mostWork {
			break
		}
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
			fix, proof, ok = c, r, true // signals are left over: take it if there is no better one
		}
	}
	return fix, proof, ok
}

// leftOver returns the warnings of signals that stay for the next launch.
func (r *Report) leftOver() []*Finding {
	var out []*Finding
	for _, w := range r.Warnings {
		if w.Kind == OK {
			out = append(out, w)
		}
	}
	return out
}

// Redundancy is what Redundant found.
type Redundancy struct {
	Places        []Place // without which, each alone, the schedule is still right
	Looked, All   int     // how many synchronizations were taken out, and how many there are
	Interleavings int     // that were executed without one of them, on data
}

// Redundant takes each synchronization out of a file that is right, alone, and keeps those without which it is still
// right, by Check and by some interleavings on data. It looks at fewer than all where that would take more than about a
// minute.
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
				if d := Differ(p, got.Memory, in); d != "" {
					err = errors.New(d)
				}
			}
			if err != nil && ctx.Err() == nil {
				return out, fmt.Errorf("the proof that %s is redundant is wrong, interleaving %d: %w", at, seed, err)
			}
		}
	}
	return out, ctx.Err()
}
