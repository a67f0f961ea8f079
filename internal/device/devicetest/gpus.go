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
// NeedGPUs fails the test instead if the environment variable RequireVariable requires the GPUs.
func NeedGPUs(t testing.TB, have, need int, err error) {
	t.Helper()
	require, _ := strconv.Atoi(os.Getenv(RequireVariable))
	switch {
	case err != nil && require > 0:
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	case have < require:
		t.Fatalf("%s requires %d GPUs, but there are %d", RequireVariable, require, have)
	case have < need:
		t.Skipf("the test needs %d GPUs, but there are %d", need, have)
	}
}
