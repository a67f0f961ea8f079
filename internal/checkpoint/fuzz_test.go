package checkpoint

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// FuzzIndex checks that an index opens only files in its own directory, and only for tensors that these files contain;
// that an index that is written from the opened checkpoint lists the same tensors; and that errors name the index and
// leave no file open.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":8},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"one.safetensors","b":"one.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../one.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"/dev/zero"}}`))
	f.Add([]byte(`{"weight_map":{"a":"fifo"}}`))
	f.Add([]byte(`{"weight_map":{"a":"model.safetensors.index.json","b":".","":".."}}`))
	f.Add([]byte(`{"weight_map":{}}`))
	f.Add([]byte(`[`))
	dir := f.TempDir()
	for file, name := range map[string]string{"one.safetensors": "a", "two.safetensors": "b"} {
		x, err := tensor.New(ir.F32, []int64{2})
		if err != nil {
			f.Fatal(err)
		}
		var b bytes.Buffer
		if err := tensor.WriteSafetensors(&b, []tensor.Named{{Name: name, Tensor: x}}, nil); err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), b.Bytes(), 0o600); err != nil {
			f.Fatal(err)
		}
	}
	hostile(f, dir)
	path := filepath.Join(dir, indexName)
	open := func(t *testing.T, b []byte) (map[string]string, error) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Open(dir)
		if err != nil {
			return nil, err
		}
		in := map[string]string{}
		for _, name := range c.Names() {
			x, err := c.View(name)
			if err != nil || x.DType != ir.F32 || len(x.Shape) != 1 || x.Shape[0] != 2 {
				t.Errorf("%q is %v, %v", name, x, err)
			}
			in[name] = map[string]string{"a": "one.safetensors", "b": "two.safetensors"}[name]
		}
		return in, c.Close()
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := open(t, b)
		if err != nil {
			if !strings.Contains(err.Error(), indexName) {
				t.Errorf("the error does not name the index: %v", err)
			}
			return
		}
		if len(in) == 0 {
			t.Errorf("%q opens nothing", b)
		}
		text, err := json.Marshal(map[string]any{"weight_map": in})
		if err != nil {
			t.Fatal(err)
		}
		again, err := open(t, text)
		if err != nil || len(again) != len(in) {
			t.Errorf("%q has %v; written again %v, %v", b, in, again, err)
		}
	})
}
