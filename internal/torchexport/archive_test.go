package torchexport

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/testcorpus"
)

// models returns the folder of the corpus that contains the exported models.
func models(t testing.TB) string {
	t.Helper()
	return testcorpus.Need(t, "models")
}

// modelNames lists the models of the corpus.
var modelNames = []string{"gpt2", "gpt_neox", "llama", "llama_bf16", "mixtral", "mixtral_bf16",
	"qwen2", "qwen3", "qwen3_bf16"}

// TestLogits computes each model's logits by the graph alone, and compares them with torch's.
func TestLogits(t *testing.T) {
	dir := models(t)
	for _, name := range modelNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := Open(filepath.Join(dir, name, "static.pt2"))
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			g, err := a.Graph(nil)
			if err != nil {
				t.Fatal(err)
			}
			f, err := tensor.OpenSafetensors(filepath.Join(dir, name, "expected.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			given := contents(t, a, g)
			for _, v := range g.Inputs {
				x, err := f.Read(v.Name)
				if err != nil {
					t.Fatal(err)
				}
				given[v] = elems(v, x)
			}
			out, err := graph.Eval(g, given)
			if err != nil {
				t.Fatal(err)
			}
			want, err := f.Read("logits")
			if err != nil {
				t.Fatal(err)
			}
			worst, most := 0.0, 0.0
			for i, v := range out[0].Elems {
				w := want.Float64(int64(i))
				worst, most = math.Max(worst, math.Abs(v-w)), math.Max(most, math.Abs(w))
			}
			limit := 2e-6
			if g.Outputs[0].DType == graph.BF16 {
				limit = 2e-2
			}
			if len(out[0].Elems) != int(want.Len()) || !(worst <= limit*most) {
				t.Errorf("the largest error is %g of %g", worst, most)
			}
			t.Logf("%d nodes, error %.3g", len(g.Nodes), worst/most)
		})
	}
}

// TestDecode computes each model's logits token by token, by the graph alone, and compares them with those of the
// prefill. The states of a model are the caches of keys and values, which are zeros in the archive.
func TestDecode(t *testing.T) {
	dir := models(t)
	for _, name := range modelNames {
		if strings.HasPrefix(name, "mixtral") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := Open(filepath.Join(dir, name, "decode.pt2"))
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			g, err := a.Graph(nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(g.States) != 4 || len(g.Updates) != 4 {
				t.Fatalf("%d states and %d updates, want the keys and values of two layers", len(g.States),
					len(g.Updates))
			}
			f, err := tensor.OpenSafetensors(filepath.Join(dir, name, "expected.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			ids, err := f.Read("input_ids")
			if err != nil {
				t.Fatal(err)
			}
			want, err := f.Read("logits")
			if err != nil {
				t.Fatal(err)
			}
			given := contents(t, a, g)
			worst, most := 0.0, 0.0
			for at := range ids.Len() {
				for _, v := range g.Inputs {
					given[v] = graph.NewTensor(v.DType, v.Shape)
					given[v].Elems[0] = float64(at)
					if v.Name == "input_ids" {
						given[v].Elems[0] = ids.Float64(at)
					}
				}
				out, err := graph.Eval(g, given)
				if err != nil {
					t.Fatal(err)
				}
				for i, v := range out[0].Elems {
					w := want.Float64(at*int64(len(out[0].Elems)) + int64(i))
					worst, most = math.Max(worst, math.Abs(v-w)), math.Max(most, math.Abs(w))
				}
			}
			limit := 5e-6
			if g.Outputs[0].DType == graph.BF16 {
				limit = 2e-2
			}
			if !(worst <= limit*most) {
				t.Errorf("the largest error is %g of %g", worst, most)
			}
		})
	}
}

// contents reads the weights and states of a graph.
func contents(t *testing.T, a *Archive, g *graph.Graph) map[*graph.Value]*graph.Tensor {
	t.Helper()
	given := map[*graph.Value]*graph.Tensor{}
	for _, v := range slices.Concat(g.Weights, g.States) {
		x, err := a.Tensor(v.Path)
		if err != nil {
			t.Fatal(err)
		}
		given[v] = elems(v, x)
	}
	return given
}

func elems(v *graph.Value, x *tensor.Tensor) *graph.Tensor {
	t := graph.NewTensor(v.DType, v.Shape)
	for i := range t.Elems {
		t.Elems[i] = x.Float64(int64(i))
	}
	return t
}
