package nvfuser

import (
	"strings"
	"testing"
)

// TestLongDumpsAreRefused checks the limits on the number of statements and words of a dump.
func TestLongDumpsAreRefused(t *testing.T) {
	const head, end = "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :\n", "} // %HostIrContainer\n"
	for want, text := range map[string]string{
		"the dump has more than 65536 statements": head + strings.Repeat("  Deallocate(T0_g_float[iS0{4}])\n",
			1<<16+1) + end,
		"the dump has more than 1048576 words and signs": "%HostIrContainer { (T0_g_float[" + strings.Repeat(
			"iS0{4}, ", 1<<18) +
			"iS0{4}]) -> () :\n" + end,
	} {
		if p, _, ds := Import("dump", text, nil); p != nil || !strings.Contains(ds.String(), want) {
			t.Errorf("want %q, got %.300s", want, ds)
		}
	}
}
