package kernels

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// TestCacheFull checks that with a full disk, and with a folder that cannot be created, kernels are compiled as without
// a cache, that one message reports the reason, and that no file remains.
func TestCacheFull(t *testing.T) {
	const variable = "HOCKET_TEST_CACHE_FULL"
	if dir := os.Getenv(variable); dir != "" {
		// The size of files is limited, so writes fail in the same way as on a full disk.
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 100, Max: 100}); err != nil {
			t.Fatal(err)
		}
		uncached(t, dir, "file too large")
		return
	}
	uncached(t, "/proc/hocket", "no such file") // no user can create folders there, not even root
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCacheFull$")
	cmd.Env = append(os.Environ(), variable+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if left := entries(t, dir); len(left) > 0 {
		t.Errorf("files %q remain", left)
	}
}

// uncached plans kernels with a cache in a folder that cannot be written.
func uncached(t *testing.T, dir, why string) {
	t.Helper()
	var log bytes.Buffer
	l := New(&fake{version: "1"}, CacheIn(dir, slog.New(slog.NewTextHandler(&log, nil))))
	for _, op := range []ir.Op{ir.OpAdd, ir.OpMul} {
		p := addition(64)
		p.Op = device.Elementwise{Op: op}
		if steps, err := l.Steps(Target{Arch: "sm_90"}, p); err != nil || len(steps) == 0 {
			t.Errorf("%s: %d steps, %v", dir, len(steps), err)
		}
	}
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, why) || !strings.Contains(s, files.CacheVariable) {
		t.Errorf("%s: the log is %q, want one line with %q", dir, s, why)
	}
}
