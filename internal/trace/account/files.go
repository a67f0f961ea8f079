package account

import (
	"fmt"

	"hocket.example/hocket/internal/trace/profile"
)

// Pair computes the reports for the profiles in files, and for those of an older profile. The older one is nil without
// files.
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
