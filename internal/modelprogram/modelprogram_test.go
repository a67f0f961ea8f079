package modelprogram

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/testcorpus"
	"hocket.example/hocket/internal/torchexport"
)

func made1(t *testing.T, name string) *Model {
	t.Helper()
	dir := testcorpus.Need(t, "models")
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

// TestPlanPosition: errors in the JSON of a plan have a line and a column.
func TestPlanPosition(t *testing.T) {
	for text, want := range map[string]string{
		"{\n \"up\": \"colwise\",\n \"down\": 3}":           "line 3, column 10: want a string, found number; a plan is a JSON object of styles by pattern",
		"{\n \"up\": \"colwise\"\n \"down\": \"\"}":         "line 3, column 2: invalid character '\"' after object key:value pair; a plan is a JSON object of styles by pattern",
		"{\n \"up\": \"colwise\",":                          "line 2, column 18: the text ends in the middle of a value; a plan is a JSON object of styles by pattern",
		"{\"up\": \"colwise\",\n\"u\\u0070\": \"rowwise\"}": `line 2: the pattern "up" is given twice`,
		"[{\"up\": \"colwise\"}]":                           "line 1, column 1: want an object, found array; a plan is a JSON object of styles by pattern",
	} {
		if _, err := ParsePlan([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestPlanCheck checks that an unsupported style is refused, and that the error for a style of transformers contains
// advice.
func TestPlanCheck(t *testing.T) {
	for style, want := range map[string]string{"all_reduce": "leave the entry out: hocket reduces",
		"mla_kv_a_proj": "whole on each rank", "packed_rowwise": "name packed_colwise",
		"sideways": "styles are colwise,"} {
		err := Plan{{Pattern: "up", Style: style}, {Pattern: "down", Style: "rowwise"}}.Check()
		if err == nil || !strings.Contains(err.Error(), `up: there is no style "`+style+`"; `) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", style, err, want)
		}
	}
}

// TestPrograms compares the programs of models with golden files. The layers of a model become one loop.
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

// TestAllReduceOfModel checks a model that itself calls a reduction over ranks. Its weights remain whole. A matrix
// product is reduced in place, and a value that has other uses is copied first.
func TestAllReduceOfModel(t *testing.T) {
	g := &graph.Graph{}
	add := func(op graph.Op, a graph.Attrs, in ...*graph.Value) *graph.Value {
		n, err := g.Add(op, a, graph.Origin{Module: "layers.0"}, []graph.DType{graph.BF16}, in...)
		if err != nil {
			t.Fatal(err)
		}
		return n.Out[0]
	}
	x := g.Input("x", graph.BF16, []int64{2, 2, 8})
	w := g.Weight("w", "layers.0.weight", graph.BF16, []int64{8, 8})
	y := add(graph.AllReduce, graph.Attrs{Red: "sum"}, add(graph.Linear, graph.Attrs{}, x, w))
	z := add(graph.AllReduce, graph.Attrs{Red: "max"}, y)
	g.Outputs = []*graph.Value{add(graph.AddOp, graph.Attrs{}, y, z)}
	m, err := Make("m.pt2", g, Options{Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	const want = `func forward(%x: bf16[2, 2, 8], %n0: bf16[8, 8]) -> bf16[2, 2, 8] {
  %reshape = reshape %x, shape=(4, 8)
  %local = alloc bf16[4, 8]
  linear %reshape, %n0 into %local
  all_reduce %local into %local, over=tp, op=sum
  %n0_out: bf16[4, 8] = claim %local
  %reshape2 = reshape %n0_out, shape=(2, 2, 8)
  %local2 = alloc bf16[2, 2, 8]
  copy %reshape2 into %local2
  all_reduce %local2 into %local2, over=tp, op=max
  %copy: bf16[2, 2, 8] = claim %local2
  %out0 = add %reshape2, %copy
`
	if !strings.Contains(m.Text, want) {
		t.Errorf("got\n%s\nwant\n%s", m.Text, want)
	}
	_, err = Make("m.pt2", g, Options{Ranks: 2, Plan: Plan{{Pattern: "layers.*", Style: "rowwise"}}})
	if err == nil || !strings.Contains(err.Error(), "leave --plan and --shard out") {
		t.Errorf("with a plan: %v", err)
	}
}

// TestOverridingRules checks that rules of With override those of the plan with longer patterns, but not each other.
func TestOverridingRules(t *testing.T) {
	p := PlanOf(map[string]string{"layers.*.mlp.up": "colwise", "down": "rowwise", "layers.0.mlp.gate": "colwise"})
	p = p.With(PlanOf(map[string]string{"up": "rowwise", "down": "colwise"})).With(Plan{{Pattern: "mlp.gate",
		Style: "rowwise"}})
	p = p.With(Plan{{Pattern: "gate", Style: "moe_tp_experts"}})
	for path, want := range map[string]string{"layers.1.mlp.up": "rowwise", "layers.1.mlp.down": "colwise",
		"layers.0.mlp.gate": "rowwise", "layers.0.norm": ""} {
		if got := p.style(path+".weight", path); got != want {
			t.Errorf("%s has the style %q, want %q", path, got, want)
		}
	}
}
