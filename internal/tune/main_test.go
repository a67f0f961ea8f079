package tune

import (
	"os"
	"testing"
)

// TestMain keeps tables that were tuned here out of the tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hocket")
	if err != nil {
		panic(err)
	}
	os.Setenv("HOCKET_CACHE", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}
