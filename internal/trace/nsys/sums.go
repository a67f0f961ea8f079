package nsys

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// By default, "nsys stats" prints sums over kernels (cuda_gpu_kern_sum), and some users provide these. A sum has no
// start times, so it does not show which kernels ran at the same time.

// Sum has totals from one table of sums over kernels.
type Sum struct {
	Line        int   // line of the table's header
	Kernels     int   // number of different names of kernels
	Nanos       int64 // total time of all kernels
	Collectives int64 // total time of the kernels that communicate
	Calls       int64 // number of calls of the kernels that communicate
}

var (
	sumHeader = regexp.MustCompile(`^\s*"?Time \(%\)"?[ ,]+"?Total Time \(ns\)"?[ ,]+"?Instances`)
	sumRow    = regexp.MustCompile(`^\s*"?[\d.]+%?"?[ ,]+"?([\d,]+?)"?[ ,]+"?(\d+)"?(?:[ ,]+"?[\d.]+"?){5,6}[ ,]+(.+)$`)
)

// sums finds tables of sums over kernels in lines of text.
type sums struct{ list []Sum }

func (s *sums) read(n int, line string) {
	if sumHeader.MatchString(line) {
		s.list = append(s.list, Sum{Line: n})
		return
	}
	m := sumRow.FindStringSubmatch(line)
	if m == nil || len(s.list) == 0 {
		return
	}
	nanos, err1 := strconv.ParseInt(strings.ReplaceAll(m[1], ",", ""), 10, 64)
	calls, err2 := strconv.ParseInt(m[2], 10, 64)
	if err1 != nil || err2 != nil || nanos > 1<<53 {
		return
	}
	x := &s.list[len(s.list)-1]
	x.Kernels++
	x.Nanos += nanos
	if trace.MovesBetweenRanks(strings.Trim(m[3], `"`)) {
		x.Collectives += nanos
		x.Calls += calls
	}
}

// SumsError is returned for a text that contains only sums over kernels. The error message contains the sums, and names
// the report that should be exported instead.
type SumsError struct{ Sums []Sum }

func (e *SumsError) Error() string {
	var b strings.Builder
	b.WriteString("it has sums over kernels (cuda_gpu_kern_sum) and no kernel's start, so that nothing is known of what ran at the same time")
	for _, s := range e.Sums {
		if s.Nanos > 0 {
			fmt.Fprintf(&b, "; the table at line %d has %.2f ms in kernels of %d names, %.1f %% of it in %d kernels that communicate", s.Line,
				float64(s.Nanos)/1e6, s.Kernels, 100*float64(s.Collectives)/float64(s.Nanos), s.Calls)
		}
	}
	b.WriteString(". Export the trace of the same profile: nsys stats --report cuda_gpu_trace FILE.nsys-rep > trace.txt")
	return b.String()
}
