package exported

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/torchexport"
)

// program is a model with a linear layer, a cache into which it copies rows, and a counter that it increments.
const program = `{"graph_module": {"graph": {
"inputs": [{"as_tensor": {"name": "w"}}, {"as_tensor": {"name": "cache"}}, {"as_tensor": {"name": "count"}},
 {"as_tensor": {"name": "x"}}, {"as_tensor": {"name": "at"}}],
"outputs": [{"as_tensor": {"name": "y"}}, {"as_tensor": {"name": "z"}}],
"nodes": [
{"target": "torch.ops.aten.linear.default", "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "x"}}},
 {"name": "weight", "arg": {"as_tensor": {"name": "w"}}}], "outputs": [{"as_tensor": {"name": "rows"}}],
 "metadata": {"nn_module_stack": "L__self__,,M;L__self__p,p,N"}},
{"target": "torch.ops.aten.index_copy_.default", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "cache"}}},
 {"name": "dim", "arg": {"as_int": 0}}, {"name": "index", "arg": {"as_tensor": {"name": "at"}}},
 {"name": "source", "arg": {"as_tensor": {"name": "rows"}}}], "outputs": [{"as_tensor": {"name": "y"}}],
 "metadata": {}},
{"target": "torch.ops.aten.add_.Tensor", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "count"}}},
 {"name": "other", "arg": {"as_int": 1}}], "outputs": [{"as_tensor": {"name": "z"}}], "metadata": {}}],
"tensor_values": {"w": T2x2, "cache": T4x2, "count": {"dtype": 5, "sizes": [], "strides": []}, "x": T1x2,
 "at": {"dtype": 5, "sizes": [{"as_int": 1}], "strides": [{"as_int": 1}]}, "rows": T1x2, "y": T4x2,
 "z": {"dtype": 5, "sizes": [], "strides": []}}},
"signature": {"input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "p.weight"}},
 {"buffer": {"arg": {"name": "cache"}, "buffer_name": "cache", "persistent": true}},
 {"buffer": {"arg": {"name": "count"}, "buffer_name": "count", "persistent": true}},
 {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}, {"user_input": {"arg": {"as_tensor": {"name": "at"}}}}],
 "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}},
 {"user_output": {"arg": {"as_tensor": {"name": "z"}}}}]}},
"schema_version": {"major": 8, "minor": 17}}`

const (
	weightIndex = `{"config": {"p.weight": {"path_name": "weight_0", "use_pickle": false, "tensor_meta": T2x2}}}`
	bufferIndex = `{"config": {"cache": {"path_name": "tensor_0", "use_pickle": false, "tensor_meta": T4x2},
 "count": {"path_name": "tensor_1", "use_pickle": false,
 "tensor_meta": {"dtype": 5, "sizes": [], "strides": []}}}}`
)

// zipped returns the archive of a program and its indexes.
func zipped(t testing.TB, program, weights, buffers string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range [][2]string{{"models/model.json", program}, {"data/weights/model_weights_config.json", weights},
		{"data/constants/model_constants_config.json", buffers},
		{"data/weights/weight_0", strings.Repeat("\x00\x00\x80\x3f", 4)},
		{"data/constants/tensor_0", strings.Repeat("\x00\x00\x00\x40", 8)},
		{"data/constants/tensor_1", strings.Repeat("\x00", 8)},
		{"byteorder", "little"}} {
		text := e[1]
		for _, n := range []int{1, 2, 4} {
			text = strings.ReplaceAll(text, fmt.Sprintf("T%dx2", n), fmt.Sprintf(`{"dtype": 7, "sizes": [{"as_int": %d},
				{"as_int": 2}], "strides": [{"as_int": 2}, {"as_int": 1}], "storage_offset": {"as_int": 0}}`, n))
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: "m/" + e[0], Method: zip.Store})
		if err == nil {
			_, err = f.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readModel converts the model of an archive to a program and reads its small parameters. The fuzzer reports panics.
func readModel(text []byte) (*modelprogram.Model, error) {
	a, err := torchexport.Read("m.pt2", bytes.NewReader(text), int64(len(text)))
	if err != nil {
		return nil, err
	}
	m, err := programOf("m.pt2", a, modelprogram.Options{Ranks: 2,
		Plan: modelprogram.Plan{{Pattern: "p", Style: "colwise"}}})
	if err != nil {
		return nil, err
	}
	contents, _, err := (&Model{m, a}).Contents(nil, func(string) bool { return false })
	if err != nil {
		return m, err
	}
	for i := range contents {
		if n := bytesOf(&contents[i].Header); n > 1<<20 {
			continue
		}
		if _, err := contents[i].Read(0, 0); err != nil {
			return m, err
		}
	}
	return m, nil
}

// classified reports whether an error about an archive wraps one of the documented errors.
func classified(err error) bool {
	return errors.Is(err, torchexport.ErrMalformed) || errors.Is(err, torchexport.ErrUnsupported) ||
		errors.Is(err, modelprogram.ErrUnsupported) || errors.Is(err, graph.ErrTooLarge)
}

// TestModel checks that the fuzzer's first model becomes a program with two states.
func TestModel(t *testing.T) {
	m, err := readModel(zipped(t, program, weightIndex, bufferIndex))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"%cache: inout f32[4, 2/tp]", "%count: inout i64[]", "into %cache"} {
		if !strings.Contains(m.Text, want) {
			t.Errorf("it lacks %q:\n%s", want, m.Text)
		}
	}
}

// TestCut truncates an archive at any byte or changes one bit. The archive must either be read or be refused with a
// classified error, without using much memory.
func TestCut(t *testing.T) {
	text := zipped(t, program, weightIndex, bufferIndex)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	tries := 0
	for at := 0; at < len(text); at += 7 {
		flipped := bytes.Clone(text)
		flipped[at] ^= 1 << (at % 8)
		for name, x := range map[string][]byte{"cut": text[:at], "flipped": flipped} {
			tries++
			if _, err := readModel(x); err != nil && !classified(err) || name == "cut" && err == nil {
				t.Errorf("%s at %d: %v", name, at, err)
			}
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / uint64(tries); each > 4<<20 {
		t.Errorf("an archive of %d bytes took %d bytes of memory", len(text), each)
	}
}

// FuzzModel checks that any archive is either converted to a program or refused with a classified error.
func FuzzModel(f *testing.F) {
	f.Add(program, weightIndex, bufferIndex)
	for _, c := range [][2]string{{"aten.linear.default", "aten.matmul.default"}, {"index_copy_", "copy_"},
		{"index_copy_", "index_copy"}, {`"as_int": 4`, `"as_int": 1073741824`}, {"weight_0", "../weight_0"},
		{"use_pickle\": false", "use_pickle\": true"}, {`"buffer": {`, `"tensor_constant": {`},
		{`"user_output"`, `"buffer_mutation"`}, {`"dtype": 5`, `"dtype": 12`}} {
		f.Add(strings.ReplaceAll(program, c[0], c[1]), strings.ReplaceAll(weightIndex, c[0], c[1]),
			strings.ReplaceAll(bufferIndex, c[0], c[1]))
	}
	f.Fuzz(func(t *testing.T, program, weights, buffers string) {
		if len(program)+len(weights)+len(buffers) > 1<<16 {
			return
		}
		if _, err := readModel(zipped(t, program, weights, buffers)); err != nil && !classified(err) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzArchive checks the same as FuzzModel, for zip files of arbitrary bytes.
func FuzzArchive(f *testing.F) {
	text := zipped(f, program, weightIndex, bufferIndex)
	f.Add(text)
	f.Add(text[:len(text)-40])
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		if _, err := readModel(text); err != nil && !classified(err) {
			t.Errorf("%v", err)
		}
	})
}
