package account

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/trace/profile"
)

// Pair computes two reports: one for the profiles in the files paths, and one for those in the files older. If
// older is empty, the second report is nil. Profiles of different numbers of ranks are refused: their times cannot be
// compared, and the cause is usually that --against is missing before a file.
func Pair(paths, older []string, bound int64) (r, old *Report, err error) {
	p, err := profile.Read(paths)
	if err != nil {
		return nil, nil, err
	}
	if len(older) == 0 {
		return of(p, bound), nil, nil
	}
	q, err := profile.Read(older)
	if err != nil {
		return nil, nil, fmt.Errorf("--against: %w", err)
	}
	if (p.Trace == nil) != (q.Trace == nil) {
		return nil, nil, errors.New("--against: flight records and timelines cannot be compared: give files of one kind")
	}
	r, old = of(p, bound), of(q, bound)
	if r.Ranks != old.Ranks {
		return nil, nil, fmt.Errorf("--against: the older profile has %s, and the newer one %s: give files of the same ranks "+
			"of both, with --against before each file of the older one", old.ranks(), r.ranks())
	}
	return r, old, nil
}

// Files computes the report for the profiles in files. See Of.
func Files(paths []string, bound int64) (*Report, error) {
	p, err := profile.Read(paths)
	if err != nil {
		return nil, err
	}
	return of(p, bound), nil
}

func of(p *profile.Profile, bound int64) *Report {
	if p.Trace == nil {
		return OfFlight(p.Flight)
	}
	return Of(p.Trace, bound)
}
