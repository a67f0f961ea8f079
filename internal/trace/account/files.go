package account

import (
	"fmt"

	"hocket.example/hocket/internal/trace/profile"
)

// Pair computes two reports: one for the profiles in the files paths, and one for those in the files older. If
// older is empty, the second report is nil.
func Pair(paths, older []string, bound int64) (r, old *Report, err error) {
	if r, err = Files(paths, bound); err == nil && len(older) > 0 {
		if old, err = Files(older, bound); err != nil {
			err = fmt.Errorf("--against: %w", err)
		}
	}
	return r, old, err
}

// Files computes the report for the profiles in files. See Of.
func Files(paths []string, bound int64) (*Report, error) {
	p, err := profile.Read(paths)
	if err != nil {
		return nil, err
	}
	if p.Trace == nil {
		return OfFlight(p.Flight), nil
	}
	return Of(p.Trace, bound), nil
}
