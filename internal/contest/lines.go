package contest

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"hocket.example/hocket/internal/device"
)

// Lines writes lines and remembers the first error.
type Lines struct {
	W   io.Writer
	Err error
}

func (t *Lines) Line(format string, args ...any) {
	if t.Err == nil {
		_, t.Err = fmt.Fprintf(t.W, format+"\n", args...)
	}
}

// Rows writes a table with aligned columns. Numbers are aligned to the right.
func (t *Lines) Rows(rows [][]string) {
	tw := tabwriter.NewWriter(t.W, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t")+"\t")
	}
	if err := tw.Flush(); t.Err == nil {
		t.Err = err
	}
}

// BytesText formats a size in the largest unit in which the number is at least 1.
func BytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// TuningText formats an algorithm and its launch parameters, for example "staged-push 64×512 u4".
func TuningText(t device.Tuning) string {
	s := t.Algo
	if t.Schedule != nil {
		s = t.Schedule.Name
	}
	if t.Blocks > 0 {
		s += fmt.Sprintf(" %d×%d", t.Blocks, t.Threads)
	}
	if t.Unroll > 0 {
		s += fmt.Sprintf(" u%d", t.Unroll)
	}
	return s
}

// UnknownText returns a message about algorithms in a table that the machine does not know. The message is empty if the
// machine knows all of them.
func UnknownText(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "the table contains algorithms that this machine does not have, which are ignored: " + strings.Join(names,
		", ")
}
