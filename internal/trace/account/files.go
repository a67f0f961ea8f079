package account

import (
	"hocket.example/hocket/internal/trace/profile"
)

// Files accounts for the profiles in files: see Of.
func Files(paths []string, bound int64) (*Report, error) {
	t, err := profile.Read(paths)
	if err != nil {
		return nil, err
	}
	return Of(t, bound), nil
}
