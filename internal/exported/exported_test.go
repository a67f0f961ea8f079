package exported

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/testcorpus"
	"hocket.example/hocket/internal/torchexport"
	"hocket.example/hocket/ir"
)

// memory is a source of f32 tensors. The elements of a tensor are consecutive numbers that begin with the argument
// first. The field read counts the bytes that are read from the source.
type memory struct {
	tensors map[string]*tensor.Tensor
	read    int64
}

func (m *memory) Header(name string) (*tensor.Tensor, error) {
	t := m.tensors[name]
	if t == nil {
		return nil, fmt.Errorf("there is no %q", name)
	}
	return &tensor.Tensor{DType: t.DType, Shape: t.Shape}, nil
}

func (m *memory) ReadAt(to []byte, name string, from int64) error {
	m.read += int64(copy(to, m.tensors[name].Data[from:]))
	return nil
}

func (m *memory) add(name string, first int, shape ...int64) map[string]Source {
	t, err := tensor.New(ir.F32, shape)
	if err != nil {
		panic(err)
	}
	for i := range t.Len() {
		t.SetFloat64(i, float64(first)+float64(i))
	}
	if m.tensors == nil {
		m.tensors = map[string]*tensor.Tensor{}
	}
	m.tensors[name] = t
	files := map[string]Source{}
	for name := range m.tensors {
		files[name] = m
	}
	return files
}

func header(shape ...int64) *tensor.Tensor { return &tensor.Tensor{DType: ir.F32, Shape: shape} }

// contents reads pieces one after another.
func contents(t *testing.T, pieces []piece) (list []float64) {
	t.Helper()
	at := int64(0)
	for _, p := range pieces {
		raw := make([]byte, p.size)
		if err := p.from.ReadAt(raw, p.name, 0); err != nil {
			t.Fatal(err)
		}
		if p.at != at {
			t.Errorf("%s is at %d, want %d", p.name, p.at, at)
		}
		at += p.size
		e := make([]float64, p.size/4)
		tensor.ToFloat64(e, raw, ir.F32)
		list = append(list, e...)
	}
	return list
}

// TestPacked checks that the experts in a file of Mixtral are packed into the two weights of the module, with gate
// before up for each expert.
func TestPacked(t *testing.T) {
	m := &memory{}
	for e := range 2 {
		m.add(fmt.Sprintf("model.layers.3.block_sparse_moe.experts.%d.w1.weight", e), 100*e, 2, 2)
		m.add(fmt.Sprintf("model.layers.3.block_sparse_moe.experts.%d.w3.weight", e), 100*e+10, 2, 2)
		m.add(fmt.Sprintf("model.layers.3.block_sparse_moe.experts.%d.w2.weight", e), 100*e+20, 2, 2)
	}
	files := m.add("model.layers.3.block_sparse_moe.gate.weight", 7, 2, 2)
	for _, c := range []struct {
		weight string
		shape  []int64
		want   []float64
	}{
		{"m.model.layers.3.mlp.experts.gate_up_proj", []int64{2, 4, 2},
			[]float64{0, 1, 2, 3, 10, 11, 12, 13, 100, 101, 102, 103, 110, 111, 112, 113}},
		{"m.model.layers.3.mlp.experts.down_proj", []int64{2, 2, 2}, []float64{20, 21, 22, 23, 120, 121, 122, 123}},
		{"model.layers.3.mlp.gate.weight", []int64{2, 2}, []float64{7, 8, 9, 10}},
		{"model.layers.4.mlp.gate.weight", []int64{2, 2}, nil},
	} {
		pieces, err := find(files, []string{c.weight}, header(c.shape...))
		if err != nil {
			t.Fatal(err)
		}
		if got := contents(t, pieces); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.weight, got, c.want)
		}
	}
	for name, c := range map[string]struct {
		lose  string
		shape []int64
		says  string
	}{
		"an expert too few":  {"", []int64{3, 4, 2}, "experts.2.w1.weight"},
		"another shape":      {"", []int64{2, 6, 2}, "is f32[2, 2], want f32[3, 2]"},
		"a part of a weight": {"model.layers.3.block_sparse_moe.experts.1.w3.weight", []int64{2, 4, 2}, "experts.1.w3"},
	} {
		some := map[string]Source{}
		for name, from := range files {
			if name != c.lose {
				some[name] = from
			}
		}
		_, err := find(some, []string{"model.layers.3.mlp.experts.gate_up_proj"}, header(c.shape...))
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want one that says %q", name, err, c.says)
		}
	}
}

// TestTied checks that a weight that two modules share is found under the name of either module.
func TestTied(t *testing.T) {
	m := &memory{}
	files := m.add("transformer.wte.weight", 5, 2, 1)
	pieces, err := find(files, []string{"model.lm_head.weight", "model.transformer.wte.weight"}, header(2, 1))
	if err != nil || !slices.Equal(contents(t, pieces), []float64{5, 6}) {
		t.Errorf("%v, %v", pieces, err)
	}
}

// TestRows checks that a rank reads only its own rows of each layer.
func TestRows(t *testing.T) {
	m := &memory{}
	m.add("a", 0, 2, 4)
	m.add("b", 100, 2, 4)
	c := Content{Param: modelprogram.Param{Split: 2}, Header: tensor.Tensor{DType: ir.F32, Shape: []int64{2, 2, 4}},
		pieces: []piece{{from: m, name: "a", size: 32}, {from: m, name: "b", at: 32, size: 32}}}
	x, err := c.Read(1, 2)
	if err != nil {
		t.Fatal(err)
	}
	var got []float64
	for i := range x.Len() {
		got = append(got, x.Float64(i))
	}
	if want := []float64{0, 0, 2, 3, 0, 0, 6, 7, 0, 0, 102, 103, 0, 0, 106, 107}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if m.read != 32 {
		t.Errorf("it read %d bytes of 64, want half of them", m.read)
	}
	if _, err := c.Read(0, 0); err != nil || m.read != 96 {
		t.Errorf("all of it are %d bytes, want 64; %v", m.read-32, err)
	}
}

// TestPermuted checks that a cache of shape [H, S] is read into a parameter of shape [S, H], also if layers are
// stacked.
func TestPermuted(t *testing.T) {
	m := &memory{}
	m.add("a", 0, 2, 3)
	m.add("b", 10, 2, 3)
	for _, c := range []Content{
		{Param: modelprogram.Param{Perm: []int64{1, 0}, Split: -1},
			Header: tensor.Tensor{DType: ir.F32, Shape: []int64{3, 2}},
			pieces: []piece{{from: m, name: "a", size: 24}}},
		{Param: modelprogram.Param{Perm: []int64{1, 0}, Split: -1},
			Header: tensor.Tensor{DType: ir.F32, Shape: []int64{2, 3, 2}},
			pieces: []piece{{from: m, name: "a", size: 24}, {from: m, name: "b", at: 24, size: 24}}},
	} {
		x, err := c.Read(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := []float64{0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15}[:x.Len()]
		for i, w := range want {
			if x.Float64(int64(i)) != w {
				t.Errorf("element %d is %v, want %v", i, x.Float64(int64(i)), w)
			}
		}
	}
}

// TestFiles checks that each weight of the corpus's models is found in the file that save_pretrained wrote, with the
// same bytes as in the archive, and that every tensor of the file is used.
func TestFiles(t *testing.T) {
	models := corpus(t)
	for _, name := range []string{"gpt2", "gpt_neox", "llama", "llama_bf16", "mixtral", "mixtral_bf16", "qwen2",
		"qwen3",
		"qwen3_bf16"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := torchexport.Open(filepath.Join(models, name, "static.pt2"))
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			g, err := a.Graph(nil)
			if err != nil {
				t.Fatal(err)
			}
			f, err := tensor.OpenSafetensors(filepath.Join(models, name, "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files := map[string]Source{}
			for _, name := range f.Names() {
				files[name] = f
			}
			used := map[string]bool{}
			for _, w := range g.Weights {
				want, err := a.Tensor(w.Path)
				if err != nil {
					t.Fatal(err)
				}
				pieces, err := find(files, append([]string{w.Path}, w.Also...), want)
				if err != nil || pieces == nil {
					t.Fatalf("%s is not found: %v", w.Path, err)
				}
				var got []byte
				for _, p := range pieces {
					raw := make([]byte, p.size)
					if err := p.from.ReadAt(raw, p.name, 0); err != nil {
						t.Fatal(err)
					}
					used[p.name] = true
					got = append(got, raw...)
				}
				if !bytes.Equal(got, want.Data) {
					t.Errorf("%s differs from the archive's", w.Path)
				}
			}
			if len(used) != len(files) {
				t.Errorf("%d of %d tensors of the file are used", len(used), len(files))
			}
		})
	}
}

func corpus(t *testing.T) string {
	t.Helper()
	return testcorpus.Need(t, "models")
}

// TestConstant checks that a parameter whose contents are constant needs no weights.
func TestConstant(t *testing.T) {
	raw := binary.LittleEndian.AppendUint32(nil, 3)
	c := Content{Param: modelprogram.Param{Split: -1, Constant: constantOf(3)},
		Header: tensor.Tensor{DType: ir.I32, Shape: []int64{1}}}
	if x, err := c.Read(0, 0); err != nil || !bytes.Equal(x.Data, raw) {
		t.Errorf("%v, %v", x, err)
	}
}

func constantOf(x float64) *graph.Tensor {
	return &graph.Tensor{DType: graph.I32, Shape: []int64{1}, Elems: []float64{x}}
}
