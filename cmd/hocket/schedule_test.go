package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// exchangeWithout writes the example schedule with a text replaced, and returns the file.
func exchangeWithout(t *testing.T, old, new string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/schedules/exchange.json")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), old, new, 1)
	if changed == string(text) {
		t.Fatalf("the example has no %q", old)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, []byte(changed), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// hocketRun runs one command line and returns its exit code and what it prints.
func hocketRun(t *testing.T, words ...string) (code int, out, errs string) {
	t.Helper()
	a, stdout, stderr := testApp(strings.NewReader(""))
	a.progress, a.json = newProgress(nil), wantsJSON(words)
	if a.json {
		a.text = io.Discard
	}
	err := a.execute(t.Context(), words)
	return a.finish(t.Context(), err), stdout.String(), stderr.String()
}

// TestCheckSchedule: exit codes, verdicts and places of collective schedules, and a repair that is written and proved.
func TestCheckSchedule(t *testing.T) {
	const nop, signal = `"name": "nop"`, `"name": "signal"`
	race := exchangeWithout(t, nop, `"name": "copy", "src_buff": [{"type":"s","index":0,"size":1}], "dst_buff": [{"type":"s","index":0,"size":1}]`)
	for _, c := range []struct {
		path    string
		code    int
		verdict string
		says    string
	}{
		{"../../examples/schedules/exchange.json", exitDone, "ok", ""},
		{race, exitProgram, "race", "rank 0, tb 0, op 1 (copy)"},
		{exchangeWithout(t, signal, `"name": "wait"`), exitProgram, "deadlock", "waits for ever"},
		{exchangeWithout(t, `"name": "re"`, `"name": "xyz"`), exitUsage, "",
			`rank 0, tb 0, op 5 (xyz): there is no operation "xyz"`},
		{exchangeWithout(t, `"gpus"`, `"gpu"`), exitUsage, "", "no gpus"},
		{exchangeWithout(t, `{`, `[`), exitUsage, "", "execution plan"},
	} {
		code, out, _ := hocketRun(t, "check", "--json", c.path)
		var got struct {
			Verdict     string
			Diagnostics []diagnostic
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err, out)
		}
		if code != c.code || got.Verdict != c.verdict || !strings.Contains(out, strings.ReplaceAll(c.says, `"`, `\"`)) {
			t.Errorf("exit %d, verdict %q, want %d, %q, %q\n%s", code, got.Verdict, c.code, c.verdict, c.says, out)
		}
	}
	fixed := filepath.Join(t.TempDir(), "fixed.json")
	broken := exchangeWithout(t, "{\n       \"name\": \"nop\"\n      },\n", "")
	if code, out, _ := hocketRun(t, "check", broken); code != exitProgram {
		t.Fatal(code, out)
	}
	if code, out, errs := hocketRun(t, "check", broken, "--fix", "-o", fixed); code != exitDone ||
		!strings.Contains(errs, "repaired: rank 0, tb 0, before op 1: nop") {
		t.Error(code, out, errs)
	}
	if code, out, _ := hocketRun(t, "check", fixed, "--redundant"); code != exitDone ||
		!strings.Contains(out, "2 of 16 synchronizations") {
		t.Error(code, out)
	}
	if code, out, errs := hocketRun(t, "run", fixed, "--schedules", "30"); code != exitDone ||
		!strings.Contains(out, "30 interleavings, equal to plain arithmetic") {
		t.Error(code, out, errs)
	}
	for _, words := range [][]string{{"check", fixed, "--dim", "T=1"}, {"check", fixed, "--launches", "3"},
		{"run", fixed, "--save", "x"}} {
		if code, _, errs := hocketRun(t, words...); code != exitUsage {
			t.Error(words, code, errs)
		}
	}
}
