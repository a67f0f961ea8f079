package modelprogram

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"hocket.example/hocket/internal/torchexport"
)

// unpacked unpacks the corpus once.
var unpacked = sync.OnceValues(func() (string, error) {
	script := filepath.Join("..", "..", "..", "shared", "corpus", "unpack")
	if _, err := os.Stat(script); err != nil {
		return "", nil
	}
	dir := filepath.Join(os.TempDir(), "hocket-corpus")
	return filepath.Join(dir, "models"), exec.Command(script, dir).Run()
})

func made1(t *testing.T, name string) *Model {
	t.Helper()
	dir, err := unpacked()
	if err != nil {
		t.Fatal(err)
	}
	if dir == "" {
		t.Skip("there is no corpus beside the repository")
	}
	a, err := torchexport.Open(filepath.Join(dir, name, "static.pt2"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	g, err := a.Graph(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, name, "tp_plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := ParsePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Make(name+"/static.pt2", g, Options{Plan: plan, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPlanCheck: a style that hocket lacks is refused, with what to do about transformers' others.
func TestPlanCheck(t *testing.T) {
	for style, want := range map[string]string{"all_reduce": "leave the entry out: hocket reduces",
		"mla_kv_a_proj": "whole on each rank", "packed_rowwise": "name packed_colwise", "sideways": "styles are colwise,"} {
		err := Plan{{"up", style}, {"down", "rowwise"}}.Check()
		if err == nil || !strings.Contains(err.Error(), `up: there is no style "`+style+`"; `) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", style, err, want)
		}
	}
}

// TestPrograms: a person can read what is made of a model, which has one loop over its layers.
func TestPrograms(t *testing.T) {
	for _, name := range []string{"llama", "llama_bf16", "qwen2", "qwen3", "qwen3_bf16", "gpt_neox", "mixtral",
		"mixtral_bf16"} {
		t.Run(name, func(t *testing.T) {
			m := made1(t, name)
			if n := strings.Count(m.Text, "\n"); n > 120 || strings.Count(m.Text, " = for ") != 1 {
				t.Errorf("%d lines:\n%s", n, m.Text)
			}
			t.Log(m.Text)
		})
	}
}
