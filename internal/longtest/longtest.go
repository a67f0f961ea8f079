// Package longtest sets how many cases tests run: few for every change, or, with `make long`, all, with cases drawn
// from a new seed each time. Test binaries that import it collect garbage less often.
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
// fourth of the processors' time. Tests that limit the memory of a process set GOGC themselves.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// On reports whether this is a long run.
func On() bool { return seed != "" }

// Of returns how many of something a test does: so many in each run, or all in a long one.
func Of(usual, all int) int {
	if On() {
		return all
	}
	return usual
}

// Seed is what a test draws its cases from: 0, or in a long run the seed of that run, which
// a failure shows.
func Seed(t testing.TB) uint64 {
	t.Helper()
	if !On() {
		return 0
	}
	n := parse(t, seed)
	t.Logf("drawn from seed %d; again with: make long SEED=%[1]d", n)
	return n
}

// seedVariable holds the seed of Drawn.
const seedVariable = "HOCKET_TEST_SEED"

// Drawn is a seed that is new in each run, for a test that tries some of very many cases, and that a failure shows.
func Drawn(t testing.TB) uint64 {
	t.Helper()
	if On() {
		return Seed(t)
	}
	n := rand.Uint64()
	if s := os.Getenv(seedVariable); s != "" {
		n = parse(t, s)
	}
	t.Logf("drawn from seed %d; again with %s=%[1]d", n, seedVariable)
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
