package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/testcorpus"
	"hocket.example/hocket/ir"
)

// gpt2Plan is a tensor-parallel plan for GPT-2, because Hugging Face transformers has none.
var gpt2Plan = map[string]string{"h.*.attn.c_attn": "packed_colwise", "h.*.attn.c_proj": "rowwise",
	"h.*.mlp.c_fc": "colwise", "h.*.mlp.c_proj": "rowwise"}

// TestDecode decodes token by token with models that torch exported; their caches of keys and values stay on the
// devices as state. The logits must be those that torch computes for the whole prompt, within a tolerance for different
// floating-point operations: 2e-5 of the largest logit in f32, 2e-2 in bf16. After Reset the logits must have the same
// bits again.
func TestDecode(t *testing.T) {
	models := testcorpus.Need(t, "models")
	for _, name := range []string{"llama", "llama_bf16", "qwen2", "qwen3", "qwen3_bf16", "gpt_neox", "gpt2"} {
		plan := planOf(t, models, name)
		for _, ranks := range []int{1, 2, 4} {
			if testing.Short() && ranks != 2 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", name, ranks), func(t *testing.T) {
				t.Parallel()
				decode(t, filepath.Join(models, name), plan, ranks)
			})
		}
	}
}

// planOf returns the tensor parallel plan of a model in the corpus.
func planOf(t *testing.T, models, name string) map[string]string {
	if name == "gpt2" {
		return gpt2Plan
	}
	text, err := os.ReadFile(filepath.Join(models, name, "tp_plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	var plan map[string]string
	if err := json.Unmarshal(text, &plan); err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestOpenExtents runs models that were exported for any number of tokens, with several numbers of
// tokens. Since attention is causal, the logits of the first tokens do not depend on later ones.
func TestOpenExtents(t *testing.T) {
	models := testcorpus.Need(t, "models")
	ctx := context.Background()
	for _, name := range []string{"gpt2", "gpt_neox"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(models, name)
			_, model := loadExport(t, filepath.Join(dir, "dynamic.pt2"), hocket.ExportOptions{Plan: planOf(t, models, name), Ranks: 2})
			ids, want := expected(t, dir)
			vocabulary := len(want) / len(ids)
			for _, tokens := range []int{12, 5, 2} {
				in, err := hocket.FromFloats(ir.I64, ids[:tokens], 1, int64(tokens))
				if err != nil {
					t.Fatal(err)
				}
				report, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"input_ids": in}})
				if err != nil {
					t.Fatal(err)
				}
				got := report.Out["out0"].Floats()
				if len(got) != tokens*vocabulary {
					t.Fatalf("%d logits for %d tokens", len(got), tokens)
				}
				worst, most := 0.0, 0.0
				for i, x := range got {
					worst, most = math.Max(worst, math.Abs(x-want[i])), math.Max(most, math.Abs(want[i]))
				}
				if !(worst <= 2e-5*most) {
					t.Errorf("%d tokens: the largest error is %g, the largest logit %g", tokens, worst, most)
				}
			}
		})
	}
}

// loadExport loads an exported model with its weights until the test ends.
func loadExport(t *testing.T, file string, o hocket.ExportOptions) (*hocket.Export, *hocket.Model) {
	t.Helper()
	e, err := hocket.OpenExport(file, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	model, err := m.Load(e.Program(), hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Bind(t.Context(), model); err != nil {
		t.Fatal(err)
	}
	return e, model
}

// expected reads a prompt and the logits that torch computed for it.
func expected(t *testing.T, dir string) (ids, logits []float64) {
	t.Helper()
	f, err := tensor.OpenSafetensors(filepath.Join(dir, "expected.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read := func(name string) []float64 {
		x, err := f.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		return (*hocket.Tensor)(x).Floats()
	}
	return read("input_ids"), read("logits")
}

func decode(t *testing.T, dir string, plan map[string]string, ranks int) {
	ctx := context.Background()
	e, model := loadExport(t, filepath.Join(dir, "decode.pt2"), hocket.ExportOptions{Plan: plan, Ranks: ranks})
	ids, want := expected(t, dir)
	step := func(at int) *hocket.Tensor {
		in := map[string]*hocket.Tensor{}
		for name, x := range map[string]float64{"input_ids": ids[at], "cache_position": float64(at)} {
			shape := []int64{1}
			if name == "input_ids" {
				shape = []int64{1, 1}
			}
			one, err := hocket.FromFloats(ir.I64, []float64{x}, shape...)
			if err != nil {
				t.Fatal(err)
			}
			in[name] = one
		}
		report, err := model.Run(ctx, hocket.Args{In: in})
		if err != nil {
			t.Fatal(err)
		}
		if report.Proof != hocket.Proved {
			t.Errorf("the program is %s", report.Proof)
		}
		return report.Out["out0"]
	}
	worst, most := 0.0, 0.0
	limit := 2e-5
	var first *hocket.Tensor
	for at := range ids {
		logits := step(at)
		if at == 0 {
			first = logits
		}
		if logits.DType == ir.BF16 {
			limit = 2e-2
		}
		for i, x := range logits.Floats() {
			w := want[at*len(want)/len(ids)+i]
			worst, most = math.Max(worst, math.Abs(x-w)), math.Max(most, math.Abs(w))
		}
	}
	if !(worst <= limit*most) {
		t.Errorf("the largest error is %g of the largest logit, allowed %g", worst/most, limit)
	}
	if err := e.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	for i, x := range step(0).Floats() {
		if x != first.Floats()[i] {
			t.Fatalf("after Reset logit %d is %v, before it was %v", i, x, first.Floats()[i])
		}
	}
}
