package cuda

import (
	"os"
	"runtime/debug"
	"testing"
)

// TestMain has the collector keep down the garbage that fakes' memory becomes, of which a
// life with products makes gigabytes.
func TestMain(m *testing.M) {
	debug.SetMemoryLimit(1 << 30)
	os.Exit(m.Run())
}
