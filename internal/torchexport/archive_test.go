package torchexport

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/tensor"
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

// models returns the folder of exported models of the corpus.
func models(t testing.TB) string {
	t.Helper()
	dir, err := unpacked()
	if err != nil {
		t.Fatal(err)
	}
	if dir == "" {
		t.Skip("there is no corpus beside the repository")
	}
	return dir
}

// modelNames are the models of the corpus.
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
			g, err := a.Graph()
			if err != nil {
				t.Fatal(err)
			}
			f, err := tensor.OpenSafetensors(filepath.Join(dir, name, "expected.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			given := map[*graph.Value]*graph.Tensor{}
			for _, v := range g.Inputs {
				x, err := f.Read(v.Name)
				if err != nil {
					t.Fatal(err)
				}
				given[v] = elems(v, x)
			}
			for _, v := range g.Weights {
				x, err := a.Tensor(v.Path)
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

func elems(v *graph.Value, x *tensor.Tensor) *graph.Tensor {
	t := graph.NewTensor(v.DType, v.Shape)
	for i := range t.Elems {
		t.Elems[i] = x.Float64(int64(i))
	}
	return t
}
