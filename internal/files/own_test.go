//go:build unix

package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckOwn checks that folders that others can write to are refused.
func TestCheckOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	if err := CheckOwn(dir); err != nil {
		t.Errorf("none: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{0o700: "", 0o755: "", 0o775: "others may write", 0o777: "others may write"} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := CheckOwn(dir); err == nil != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%o: %v", mode, err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if err := CheckOwn(dir); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
			t.Errorf("a folder of another user: %v", err)
		}
	}
}
