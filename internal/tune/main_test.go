package tune

import (
	"os"
	"testing"
)

// TestMain makes the tests ignore tables that were tuned on this machine.
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
