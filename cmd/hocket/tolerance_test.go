package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// deep is a program with so many layers that the error bound of its result is too large for a decision.
const deep = `mesh tp[2]
func deep(%x: bf16[4, 16], %w: bf16[24, 16, 16/tp]) -> bf16[4, 16] {
  %y = for %l in 0..24 carry %h = %x {
    %z: bf16[4, 16] = linear %h, %w[%l]
    yield %z
  }
  return %y
}
`

// TestToleranceOfOnesOwn checks that with --rtol only the measured error determines the exit code.
func TestToleranceOfOnesOwn(t *testing.T) {
	code, out := runText(t, deep, "--compare", "--in", "rand:1")
	if code != exitDone || !strings.Contains(out, "in each of ") || !strings.Contains(out, "layers: 24 compared") {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	if code, out := runText(t, deep, "--compare", "--in", "rand:1", "--rtol", "0.2"); code != exitDone {
		t.Errorf("exit code %d\n%s", code, out)
	}
	code, out = runText(t, deep, "--compare", "--in", "rand:1", "--rtol", "1e-9")
	if code != exitProgram || !strings.Contains(out, "more than --rtol 1e-09") ||
		!strings.Contains(out, "measured: %y: largest error ") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for _, flags := range [][]string{{"--rtol", "0.1"}, {"--compare", "--rtol", "0"}, {"--compare", "--rtol", "NaN"}} {
		if code, out := runText(t, deep, flags...); code != exitUsage {
			t.Errorf("%v: exit code %d\n%s", flags, code, out)
		}
	}
}

// TestMeasuredInJSON checks that the JSON output has the measured error of each result and each layer.
func TestMeasuredInJSON(t *testing.T) {
	code, out := runText(t, deep, "--compare", "--in", "rand:1", "--json")
	var got result
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitDone {
		t.Fatalf("exit code %d, %v\n%s", code, err, out)
	}
	c := got.Compare
	if c.Verdict != "within" || len(c.Results) != 1 || c.Results[0].Name != "y" || len(c.Layers) != 24 {
		t.Fatalf("%+v", c)
	}
	if q := c.Results[0].Quotient; q == nil || *q <= 0 || *q > 1 || *q != *c.Results[0].Error/c.Results[0].Largest {
		t.Errorf("%+v", c.Results[0])
	}
	for _, l := range c.Layers {
		if l.Verdict != "within" && l.Verdict != "exact" || l.Line != 3 || len(l.Results) != 1 {
			t.Errorf("%+v", l)
		}
	}
}

// TestCompareModels checks that run --compare reaches a decision for models that torch exported, by comparing each
// layer.
func TestCompareModels(t *testing.T) {
	models := exportedModels(t)
	for _, name := range []string{"llama", "llama_bf16", "qwen2", "qwen3", "qwen3_bf16", "gpt_neox", "gpt2",
		"mixtral", "mixtral_bf16"} {
		dir := filepath.Join(models, name)
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		code := run([]string{"run", filepath.Join(dir, "static.pt2"), "--plan", filepath.Join(dir, "tp_plan.json"),
			"-n", "2", "--compare",
			"--in", "input_ids=" + filepath.Join(dir, "expected.safetensors") + "#input_ids"}, os.Stdin, out, out)
		text, err := os.ReadFile(out.Name())
		if err != nil || code != exitDone ||
			!strings.Contains(string(text), "each run on the inputs that the reference computed") {
			t.Errorf("%s: exit code %d, %v\n%s", name, code, err, text)
		}
		out.Close()
	}
}
