//go:build unix

package kernels

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCacheLinks checks a cache folder with links and pipes instead of entries, as an archive from elsewhere may
// contain. The kernel must be compiled as without a cache, one message must report the reason, and the targets of the
// links must neither be written nor executed.
func TestCacheLinks(t *testing.T) {
	good := t.TempDir()
	addOnce(t, &fake{version: "1"}, CacheIn(good, nil), "sm_90")
	entry := entries(t, good)[0]
	for what, plant := range map[string]func(path string) error{
		"link to an entry": func(path string) error { return os.Symlink(entry, path) },
		"link to nothing":  func(path string) error { return os.Symlink(filepath.Join(good, "absent"), path) },
		"pipe":             func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"link for a folder": func(path string) error {
			dir := filepath.Dir(path)
			return errors.Join(os.Remove(dir), os.Symlink(good, dir))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kernels")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := plant(filepath.Join(dir, filepath.Base(entry))); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(entry)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			c := &fake{version: "1"}
			addOnce(t, c, CacheIn(dir, slog.New(slog.NewTextHandler(&log, nil))), "sm_90")
			if c.calls.Load() != 1 {
				t.Errorf("%d compilations: a link was used as an entry", c.calls.Load())
			}
			if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "not stored on disk") {
				t.Errorf("the log has %q", s)
			}
			after, err := os.Stat(entry)
			if err != nil || !os.SameFile(before, after) || len(entries(t, good)) != 1 {
				t.Errorf("the folder that links refer to was changed: %q, %v", entries(t, good), err)
			}
		})
	}
}
