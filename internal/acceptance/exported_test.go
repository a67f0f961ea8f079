package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// exportedModels unpacks the models that torch exported, once.
var exportedModels = sync.OnceValues(func() (string, error) {
	script := filepath.Join("..", "..", "..", "shared", "corpus", "unpack")
	if _, err := os.Stat(script); err != nil {
		return "", nil
	}
	dir := filepath.Join(os.TempDir(), "hocket-corpus")
	return filepath.Join(dir, "models"), exec.Command(script, dir).Run()
})

// gpt2Plan lays out GPT-2, for which transformers has no plan.
var gpt2Plan = map[string]string{"h.*.attn.c_attn": "packed_colwise", "h.*.attn.c_proj": "rowwise",
	"h.*.mlp.c_fc": "colwise", "h.*.mlp.c_proj": "rowwise"}

// TestDecode has models that torch exported decode token by token, with their caches as states on the devices. The
// logits are those that torch gives for the whole prompt, within a tolerance for the floating point of another
// program: 2e-5 of the largest logit in f32, 2e-2 in bf16. After Reset they are the same bits again.
func TestDecode(t *testing.T) {
	models, err := exportedModels()
	if err != nil {
		t.Fatal(err)
	}
	if models == "" {
		t.Skip("there is no corpus beside the repository")
	}
	for _, name := range []string{"llama", "llama_bf16", "qwen2", "qwen3", "qwen3_bf16", "gpt_neox", "gpt2"} {
		plan := gpt2Plan
		if name != "gpt2" {
			text, err := os.ReadFile(filepath.Join(models, name, "tp_plan.json"))
			if err != nil {
				t.Fatal(err)
			}
			plan = nil
			if err := json.Unmarshal(text, &plan); err != nil {
				t.Fatal(err)
			}
		}
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

func decode(t *testing.T, dir string, plan map[string]string, ranks int) {
	ctx := context.Background()
	e, err := hocket.OpenExport(filepath.Join(dir, "decode.pt2"), hocket.ExportOptions{Plan: plan, Ranks: ranks})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(e.Program(), hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Bind(ctx, model); err != nil {
		t.Fatal(err)
	}
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
	ids, want := read("input_ids"), read("logits")
	step := func(at int) *hocket.Tensor {
		in := map[string]*hocket.Tensor{}
		for name, x := range map[string]float64{"input_ids": ids[at], "cache_position": float64(at)} {
			shape := []int64{1}
			if name == "input_ids" {
				shape = []int64{1, 1}
			}
			if in[name], err = hocket.FromFloats(ir.I64, []float64{x}, shape...); err != nil {
				t.Fatal(err)
			}
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
		t.Errorf("the largest error is %g of the largest logit, of at most %g", worst/most, limit)
	}
	if err := e.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	for i, x := range step(0).Floats() {
		if x != first.Floats()[i] {
			t.Fatalf("after Reset logit %d is %v, and was %v", i, x, first.Floats()[i])
		}
	}
}
