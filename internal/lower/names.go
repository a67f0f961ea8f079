package lower

import (
	"strconv"

	"hocket.example/hocket/ir"
)

// names generates unique names for one function. A generated name starts with the name of an existing value, and
// differs from every other name in the function, including names in other blocks.
type names struct {
	used map[string]bool
	next map[string]int // maps a base name to the next number to try, so that each new name takes constant time
}

func namesOf(f *ir.Func) *names {
	n := &names{used: map[string]bool{}, next: map[string]int{}}
	for _, p := range f.Params {
		n.used[p.Name] = true
	}
	f.Body.Walk(func(s *ir.Stmt) {
		for _, r := range s.Results {
			n.used[r.Text] = true
		}
		for _, c := range s.Carry {
			n.used[c.Text] = true
		}
	})
	return n
}

// fresh returns base.suffix, with a number appended if that name is taken.
func (n *names) fresh(base, suffix string) string {
	name := base + "." + suffix
	if n.used[name] {
		return n.numbered(name, 2)
	}
	n.used[name] = true
	return name
}

// count returns base.N, where N is the least number from 1 for which the name is unused.
func (n *names) count(base string) string { return n.numbered(base+".", 1) }

func (n *names) numbered(stem string, first int) string {
	for i := max(n.next[stem], first); ; i++ {
		if name := stem + strconv.Itoa(i); !n.used[name] {
			n.used[name] = true
			n.next[stem] = i + 1
			return name
		}
	}
}
