package lower

import (
	"strconv"

	"hocket.example/hocket/ir"
)

// names makes up names for one function. A made name is derived from the value
// it serves and occurs nowhere else in the function, other blocks included.
type names map[string]bool

func namesOf(f *ir.Func) names {
	used := names{}
	for _, p := range f.Params {
		used[p.Name] = true
	}
	f.Body.Walk(func(s *ir.Stmt) {
		for _, r := range s.Results {
			used[r.Text] = true
		}
	})
	return used
}

// fresh returns base.suffix, or with a number behind it where that is taken.
func (n names) fresh(base, suffix string) string {
	name := base + "." + suffix
	for i := 2; n[name]; i++ {
		name = base + "." + suffix + strconv.Itoa(i)
	}
	n[name] = true
	return name
}

// count returns base.N with the first N from 1 that is free.
func (n names) count(base string) string {
	for i := 1; ; i++ {
		name := base + "." + strconv.Itoa(i)
		if !n[name] {
			n[name] = true
			return name
		}
	}
}
