package account

import (
	"hocket.example/hocket/internal/trace/profile"
)

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
