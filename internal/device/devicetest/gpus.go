package devicetest

import (
	"os"
	"strconv"
	"testing"
)

// RequireVariable names the environment variable with how many GPUs there must
// be: fewer are then a failure of tests that need them, which else are skipped.
const RequireVariable = "REQUIRE_GPUS"

// NeedGPUs skips the test, with the reason, where there are fewer than need GPUs
// or err says why they cannot be used; it fails it where RequireVariable says
// that they should be there.
func NeedGPUs(t testing.TB, have, need int, err error) {
	t.Helper()
	require, _ := strconv.Atoi(os.Getenv(RequireVariable))
	switch {
	case err != nil && require > 0:
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	case have < require:
		t.Fatalf("%s is %d, and there are %d", RequireVariable, require, have)
	case have < need:
		t.Skipf("needs %d GPUs, there are %d", need, have)
	}
}
