package main

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// exportCase is a command line that reads an exported model, with the expected exit code and a text that the output
// must contain.
type exportCase struct {
	line string // words; MODELS is the folder of the models
	code int
	says string
}

// runExportCases runs command lines, and returns the output of the last one.
func runExportCases(t *testing.T, cases []exportCase) string {
	t.Helper()
	models := exportedModels(t)
	last := ""
	for _, c := range cases {
		out, errs, code := hocketHere(strings.Fields(strings.ReplaceAll(c.line, "MODELS", models))...)
		if last = out + errs; code != c.code || !strings.Contains(last, c.says) {
			t.Errorf("hocket %s: exit %d, want %d and %q:\n%s", c.line, code, c.code, c.says, last)
		}
	}
	return last
}

// TestRangeOfExport checks that a dim must be in the range with which the model was exported. As in torch, a lower
// limit of 2 permits 0 and 1, too, since torch writes 2 for dimensions that it has only traced with more.
func TestRangeOfExport(t *testing.T) {
	runExportCases(t, []exportCase{
		{"check MODELS/gpt_neox/dynamic.pt2 --dim T=128", 0, "proved"},
		{"check MODELS/gpt_neox/dynamic.pt2 --dim T=1", 0, "proved"},
		{"check MODELS/gpt_neox/dynamic.pt2 --dim T=129", 2, "T is 129; the export allows at most 128"},
		{"run MODELS/gpt2/dynamic.pt2 --dim T=129", 2, "T is 129; the export allows at most 128"},
		{"import MODELS/gpt2/dynamic.pt2", 0, "dim T = 12  // at most 128\n"},
	})
}

// TestOutputsDoNotReplaceArchives checks that an archive and a plan are not overwritten if -o names them.
func TestOutputsDoNotReplaceArchives(t *testing.T) {
	models := exportedModels(t)
	model, plan := filepath.Join(models, "llama", "static.pt2"), filepath.Join(models, "llama", "tp_plan.json")
	for _, c := range [][]string{{"import", model, "-o", model},
		{"import", model, "--plan", plan, "-n", "2", "-o", plan},
		{"opt", model, "-o", model}, {"plan", model, "-o", model}} {
		_, errs, code := hocketHere(c...)
		if code != 2 || !strings.Contains(errs, "--output would replace "+c[len(c)-1]+", which is also an input") {
			t.Errorf("hocket %v: exit %d: %s", c, code, errs)
		}
	}
}

// TestShardOverridesPlan checks that --shard splits a weight for which the plan has a longer pattern.
func TestShardOverridesPlan(t *testing.T) {
	llama := "import MODELS/llama/static.pt2 --plan MODELS/llama/tp_plan.json -n 2"
	runExportCases(t, []exportCase{
		{llama, 0, "%q_proj: f32[2, 64/tp, 64]"},
		{llama + " --shard q_proj=rowwise", 0, "%q_proj: f32[2, 64, 64/tp]"},
		{llama + " --shard q_proj=rowwise --shard q_proj=colwise", 2,
			"--shard: q_proj has two styles, rowwise and colwise"},
		{llama + " --plan MODELS/qwen2/tp_plan.json", 2, "--plan is given twice"},
	})
}

// TestNothingSplit checks the warning about ranks that all compute the same.
func TestNothingSplit(t *testing.T) {
	const warning = "nothing is split: each of the 2 ranks computes everything"
	runExportCases(t, []exportCase{
		{"check MODELS/gpt2/static.pt2 -n 2", 0, warning},
		{"check MODELS/gpt2/static.pt2 -n 2 --plan MODELS/gpt2/tp_plan.json", 0, warning},
	})
	if out := runExportCases(t, []exportCase{{"check MODELS/gpt2/static.pt2 -n 2 --shard mlp.c_fc=colwise", 0,
		"proved"},
		{"check MODELS/gpt2/static.pt2", 0, "proved"}}); strings.Contains(out, "warning") {
		t.Error(out)
	}
}

// TestBudgetOfQuantized checks that --budget limits only the quantized model, not the run of the unquantized one.
func TestBudgetOfQuantized(t *testing.T) {
	llama := "run MODELS/llama/static.pt2 --plan MODELS/llama/tp_plan.json -n 2 "
	runExportCases(t, []exportCase{
		{llama + "--budget 200K", 3, "help: a rank may use 200.0 KiB: raise --budget\n"},
		{llama + "--cache 1K --hard-cache", 3,
			"the hard limit of the plan cache\nhelp: raise --cache, or omit --hard-cache\n"},
		{llama + "--budget 200.5KiB --quantize fp8-row", 0, "%out0 differs from the unquantized model by"},
		{"run MODELS/gpt2/dynamic.pt2 --budget 20K", 3, "raise --budget, or reduce dims with --dim"},
	})
}

// TestNaNWeights checks that a comparison whose reference is NaN says so.
func TestNaNWeights(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nan.safetensors")
	w, err := tensor.New(ir.F32, []int64{256, 64})
	if err != nil {
		t.Fatal(err)
	}
	for i := range w.Len() {
		w.SetFloat64(i, math.NaN())
	}
	if err := tensor.WriteSafetensorsFile(file, []tensor.Named{{Name: "w", Tensor: w}}, nil); err != nil {
		t.Fatal(err)
	}
	out := runExportCases(t, []exportCase{{"run MODELS/llama/static.pt2 -n 2 --plan MODELS/llama/tp_plan.json --compare --in lm_head=" +
		file + "#w", 5, "measured: %out0: 3072 of 3072 elements are NaN in the reference\n"}})
	if strings.Contains(out, "zeros") ||
		!strings.Contains(out, "%lm_head_out: 3072 of 3072 elements are NaN in the reference; try") {
		t.Error(out)
	}
}

// TestGeneratedIds checks that generated token ids are less than the number of rows of the embedding table, whether or
// not --in names the parameter.
func TestGeneratedIds(t *testing.T) {
	runExportCases(t, []exportCase{
		{"run MODELS/llama/static.pt2 --in input_ids=rand:1", 0, "random reals (rand:1) for %input_ids"},
		{"run MODELS/llama/static.pt2 --in rand:1", 0, "random reals (rand:1) for %input_ids"},
	})
}

// TestRanksThatDoNotDivide checks that the error about a number of ranks that does not divide a model names those that
// do. This Llama has 8 query heads and 4 key-value heads.
func TestRanksThatDoNotDivide(t *testing.T) {
	llama := "MODELS/llama/static.pt2 --plan MODELS/llama/tp_plan.json -n 3"
	for _, command := range []string{"check ", "run ", "import "} {
		out := runExportCases(t, []exportCase{{command + llama, 2,
			"4 heads cannot be split over 3 ranks: use 1, 2 or 4\n"}})
		if strings.Count(out, "error") != 1 {
			t.Error(out)
		}
	}
	runExportCases(t, []exportCase{{"check MODELS/gpt2/static.pt2 -n 3 --shard c_fc=colwise", 2,
		"the extent 256 of %c_fc cannot be split over 3 ranks: use 1, 2, 4, 8, 16, 32 or 64\n"}})
}

// TestInputsOfModels checks that the output distinguishes weights in the archive from weights in files on the command
// line. An error about two files must name both, and an error about a tensor must state the reason before the tensors'
// names.
func TestInputsOfModels(t *testing.T) {
	llama := "run MODELS/llama/static.pt2 -n 2 --plan MODELS/llama/tp_plan.json "
	expected := "MODELS/llama/expected.safetensors"
	file := filepath.Join(t.TempDir(), "llama.hkt")
	models := exportedModels(t)
	runExportCases(t, []exportCase{
		{llama, 0, "%input_ids; the archive for %embed_tokens, %input_layernorm, %q_proj and 9 more\n"},
		{llama + "--in input_ids=" + expected + "#input_ids", 0,
			"inputs: files for %input_ids; the archive for %embed_tokens"},
		{llama + "--in " + expected + " --in input_ids=" + expected, 2,
			"parameter %input_ids is given twice: --in input_ids=" + filepath.Join(models, "llama",
				"expected.safetensors")},
		{llama + "--in " + expected + " --in " + expected, 2, "expected.safetensors has it, too"},
		{llama + "--quantize fp8-block", 1,
			"can be quantized to fp8-block, since a split dimension must be a multiple of 128"},
		{"import MODELS/llama/static.pt2 -o " + file, 0, ""},
		{"run " + file + " --in MODELS/llama/model.safetensors", 2,
			"only archives (.pt2) take weights by the names of modules"},
	})
}
