// Package longtest sets the number of cases that tests run: a few for every change or, with `make long`, all cases,
// drawn from a new seed each time. Test binaries that import it collect garbage less often.
package longtest

import (
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
)

// seed is set by the linker in long runs (see the Makefile).
var seed string

// The live heap of most tests is a few megabytes, so by default Go collects garbage many times a second, which takes a
// quarter of the processors' time. Tests that limit the memory of a process set GOGC themselves.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// On reports whether this is a long run.
func On() bool { return seed != "" }

// Of returns a number of cases: usual in a usual run of the tests, and all in a long run.
func Of(usual, all int) int {
	if On() {
		return all
	}
	return usual
}

// Seed returns the seed from which a test draws its cases: 0 or, in a long run, the seed of that run, which the log of
// a failed test contains.
func Seed(t testing.TB) uint64 {
	t.Helper()
	if !On() {
		return 0
	}
	n := parse(t, seed)
	t.Logf("cases drawn from seed %d; to repeat them: make long SEED=%[1]d", n)
	return n
}

// seedVariable is the environment variable that sets the seed that Drawn returns.
const seedVariable = "HOCKET_TEST_SEED"

// Drawn returns a seed that is new in each run, for a test that tries a few of very many cases. The log of a failed
// test contains the seed.
func Drawn(t testing.TB) uint64 {
	t.Helper()
	if On() {
		return Seed(t)
	}
	n := rand.Uint64()
	if s := os.Getenv(seedVariable); s != "" {
		n = parse(t, s)
	}
	t.Logf("cases drawn from seed %d; to repeat them, set %s=%[1]d", n, seedVariable)
	return n
}

func parse(t testing.TB, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("the seed of this run: %v", err)
	}
	return n
}
