package schedule

import "iter"

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

// Redundant returns the synchronizations of a file that is right without which it is still right, each alone, and how
// many it looked at. It looks at fewer than all where that would take more than about a minute.
func Redundant(f File, whole *Report, o Options) (list []Place, looked, all int) {
	syncs, work := f.Syncs(), 0
	for _, at := range syncs {
		if work > 16*mostWork {
			break
		}
		looked++
		p, err := f.Without(at).Plan()
		if err != nil {
			continue
		}
		r := Check(p, o)
		work += r.Steps
		if r.Verdict == OK && len(r.Warnings) <= len(whole.Warnings) {
			list = append(list, at)
		}
	}
	return list, looked, len(syncs)
}
