package devicetest

import (
	"os"
	"strconv"
	"testing"
)

// RequireVariable is the environment variable with the number of GPUs that must be present. If it is set and there are
// fewer GPUs, tests that need more fail. If it is not set, these tests are skipped.
const RequireVariable = "REQUIRE_GPUS"

// NeedGPUs skips the test, with the reason, if there are fewer than need GPUs or err reports why they cannot be used.
// It fails the test if RequireVariable requires them.
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
