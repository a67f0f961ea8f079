package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCertificate runs a program with its certificate, with a changed certificate, and with the certificate of another
// plan.
func TestCertificate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mlp.cert")
	const program = "../../examples/mlp.hkt"
	if code, _, errs := hocketRun(t, "check", program, "--certificate", file); code != 0 {
		t.Fatal(errs)
	}
	if code, _, errs := hocketRun(t, "run", program, "--certificate", file); code != 0 {
		t.Fatal(errs)
	}
	code, _, errs := hocketRun(t, "run", program, "--strategy", "exchange", "--certificate", file)
	if code != exitProgram || !strings.Contains(errs, "is for another plan") {
		t.Errorf("another plan: exit %d, %s", code, errs)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Replace(text, []byte(`"order":[[`), []byte(`"order":[[9`), 1)
	for _, bad := range [][]byte{nil, text[:len(text)/2], other} {
		if err := os.WriteFile(file, bad, 0o644); err != nil {
			t.Fatal(err)
		}
		code, _, errs := hocketRun(t, "run", program, "--certificate", file)
		if code != exitProgram || !strings.Contains(errs, "rejected") {
			t.Errorf("%.20q: exit %d, %s", bad, code, errs)
		}
	}
}
