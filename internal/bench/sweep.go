package bench

import (
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// sweep is a dim and the values that a benchmark gives it. dim is empty if the values are of no dim.
type sweep struct {
	dim    string
	values []int64
}

// parseSweep parses the value of a flag, such as "T=128,512" or, without a dim, "128,512". Values are sorted.
func parseSweep(flag, text string) (s sweep, err error) {
	list := text
	if dim, after, found := strings.Cut(text, "="); found {
		if s.dim, list = strings.TrimSpace(dim), after; s.dim == "" {
			return s, contest.Usagef("--%s %q: the name of the dim before = is missing", flag, text)
		}
	}
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(word), 10, 64)
		if err != nil || n < 1 {
			return s, contest.Usagef("--%s %q: %q is not a positive integer; want a dim and its values, such as "+
				"T=128,512", flag, text, strings.TrimSpace(word))
		}
		s.values = append(s.values, n)
	}
	slices.Sort(s.values)
	s.values = slices.Compact(s.values)
	return s, nil
}
