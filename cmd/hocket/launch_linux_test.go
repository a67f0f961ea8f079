package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hocketCommand returns a command that runs this test binary as hocket, in a folder that holds these files.
func hocketCommand(t *testing.T, files map[string]string, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	hocket := filepath.Join(dir, "hocket")
	if err := os.Symlink(self, hocket); err != nil { // testscript.Main runs what it is called by
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(hocket, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOCKET_RUN_DIR="+dir,
		"HOCKET_LIBCUDA=/none/libcuda.so", "HOCKET_CACHE="+dir)
	return c
}

// TestLaunchToken: launch hands the token to its processes in HOCKET_TOKEN, and no part of it in anything else.
func TestLaunchToken(t *testing.T) {
	c := hocketCommand(t, map[string]string{"show.sh": "#!/bin/sh\n[ $HOCKET_RANK = 0 ] && env && tr '\\0' ' ' </proc/$PPID/cmdline\nexit 0\n"},
		"launch", "-n", "2", "--nodes", "2", "--", "./show.sh")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, token, found := strings.Cut("\n"+string(out), "\nHOCKET_TOKEN=")
	token, _, _ = strings.Cut(token, "\n")
	if !found || len(token) < 16 {
		t.Fatalf("no token in:\n%s", out)
	}
	rest := strings.Replace(string(out), "HOCKET_TOKEN="+token, "", 1)
	for i := range len(token) - 5 {
		if strings.Contains(rest, token[i:i+6]) {
			t.Errorf("%q, a part of the token, is in:\n%s", token[i:i+6], rest)
		}
	}
}
