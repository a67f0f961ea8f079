package torchexport

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
)

// small is a program that multiplies a weight by an input and adds a constant in place.
const small = `{"graph_module": {"graph": {
"inputs": [{"as_tensor": {"name": "p_w"}}, {"as_tensor": {"name": "b_c"}}, {"as_tensor": {"name": "x"}}],
"outputs": [{"as_tensor": {"name": "y"}}],
"nodes": [
{"target": "torch.ops.aten.mul.Tensor", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "p_w"}}},
 {"name": "other", "arg": {"as_tensor": {"name": "x"}}}], "outputs": [{"as_tensor": {"name": "m"}}],
 "metadata": {"stack_trace": "File \"model.py\", line 7, in forward",
 "nn_module_stack": "L__self__,,M;L__self__a,a.b,N"}},
{"target": "torch.ops.aten.add_.Tensor", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "m"}}},
 {"name": "other", "arg": {"as_tensor": {"name": "b_c"}}}], "outputs": [{"as_tensor": {"name": "y"}}], "metadata": {}}],
"tensor_values": {"p_w": META, "b_c": META, "x": META, "m": META, "y": META}},
"signature": {"input_specs": [{"parameter": {"arg": {"name": "p_w"}, "parameter_name": "a.w"}},
 {"buffer": {"arg": {"name": "b_c"}, "buffer_name": "a.c", "persistent": true}},
 {"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
 "output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "y"}}}}]}},
"schema_version": {"major": 8, "minor": 17}}`

const (
	meta = `{"dtype": 7, "sizes": [{"as_int": 2}],
		"strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}, "layout": 7}`
	weights = `{"config": {"a.w": {"path_name": "weight_0", "use_pickle": false, "tensor_meta": META}}}`
	buffers = `{"config": {"a.c": {"path_name": "tensor_0", "use_pickle": false, "tensor_meta": META}}}`
)

// archive returns an archive in which some files are replaced. Files whose replacement is "" are omitted.
func archive(t testing.TB, replaced map[string]string) []byte {
	t.Helper()
	all := map[string]string{
		"models/model.json": small, "data/weights/model_weights_config.json": weights,
		"data/constants/model_constants_config.json": buffers,
		"data/weights/weight_0":                      "\x00\x00\x80\x3f\x00\x00\x00\x40",
		"data/constants/tensor_0":                    "\x00\x00\x80\x3f\x00\x00\x80\x3f", "byteorder": "little",
	}
	for name, text := range replaced {
		all[name] = text
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for name, text := range all {
		if text == "" {
			continue
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: "m/" + name, Method: zip.Store})
		if err == nil {
			_, err = f.Write([]byte(strings.ReplaceAll(text, "META", meta)))
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

// readAll reads an archive with its graph and weights.
func readAll(text []byte) (*graph.Graph, error) {
	a, err := Read("m.pt2", bytes.NewReader(text), int64(len(text)))
	if err != nil {
		return nil, err
	}
	g, err := a.Graph(nil)
	if err != nil {
		return nil, err
	}
	for _, v := range g.Weights {
		if v.Count() > 1<<16 {
			continue
		}
		if _, err := a.Tensor(v.Path); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// TestSmall evaluates the small program. TestSmall shows that the errors in TestHostile have no other causes than the
// changes of that test.
func TestSmall(t *testing.T) {
	g, err := readAll(archive(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	x := &graph.Tensor{DType: graph.F32, Shape: []int64{2}, Elems: []float64{3, 4}}
	w := &graph.Tensor{DType: graph.F32, Shape: []int64{2}, Elems: []float64{1, 2}}
	out, err := graph.Eval(g, map[*graph.Value]*graph.Tensor{g.Inputs[0]: x, g.Weights[0]: w})
	if err != nil || fmt.Sprint(out[0].Elems) != "[4 9]" {
		t.Errorf("%v, %v", out, err)
	}
	if from := g.Nodes[0].From.String(); from != "aten.mul.Tensor of module a.b (model.py:7)" {
		t.Error(from)
	}
}

// TestHostile checks the errors for archives that torch cannot have written, and for features that hocket lacks.
func TestHostile(t *testing.T) {
	change := func(file, text, old, new string) map[string]string {
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not there", old)
		}
		return map[string]string{file: strings.Replace(text, old, new, 1)}
	}
	program := func(old, new string) map[string]string { return change("models/model.json", small, old, new) }
	index := func(old, new string) map[string]string {
		return change("data/weights/model_weights_config.json", strings.ReplaceAll(weights, "META", meta), old, new)
	}
	for name, c := range map[string]struct {
		files map[string]string
		kind  error
		says  string
	}{
		"no program": {map[string]string{"models/model.json": ""}, ErrMalformed, "models/*.json"},
		"a pickle": {map[string]string{"models/model.json": "", "data.pkl": "\x80\x02"},
			ErrUnsupported, "torch.save"},
		"TorchScript": {map[string]string{"models/model.json": "", "data.pkl": "\x80\x02", "constants.pkl": "\x80\x02",
			"code/__torch__.py": "class M(Module):\n"}, ErrUnsupported, "TorchScript archive of torch.jit.save"},
		"no JSON": {map[string]string{"models/model.json": "{"}, ErrMalformed, "unexpected end"},
		"many values": {map[string]string{"models/model.json": strings.Repeat("[", maxSeparators+1)},
			ErrMalformed, "values"},
		"two programs": {map[string]string{"models/b.json": small}, ErrUnsupported, "several models"},
		"other bytes":  {map[string]string{"byteorder": "big"}, ErrUnsupported, "byte order"},
		"other schema": {program(`"major": 8`, `"major": 9`), ErrUnsupported, "schema version 9"},
		"cyclic": {program(`{"name": "p_w"}}},`, `{"name": "y"}}},`),
			ErrMalformed, `an argument is "y", which no earlier call computes`},
		"missing input": {program(`{"name": "x"}}}], "outputs"`, `{"name": "z"}}}], "outputs"`),
			ErrMalformed, `an argument is "z", which no earlier call computes`},
		"twice": {program(`[{"as_tensor": {"name": "m"}}]`, `[{"as_tensor": {"name": "x"}}]`),
			ErrMalformed, "two calls have the result"},
		"no output": {program(`"outputs": [{"as_tensor": {"name": "y"}}]`,
			`"outputs": [{"as_tensor": {"name": "q"}}]`),
			ErrMalformed, "no call computes the output"},
		"wrong type": {program(`"m": META`,
			`"m": {"dtype": 7, "sizes": [{"as_int": 3}], "strides": [{"as_int": 1}]}`),
			ErrMalformed, "its operands give"},
		"huge": {program(`"x": META`,
			`"x": {"dtype": 7, "sizes": [{"as_int": 1073741824}, {"as_int": 1073741824}],
 "strides": [{"as_int": 1}, {"as_int": 1}]}`),
			ErrMalformed, "too large"},
		"negative": {program(`"x": META`,
			`"x": {"dtype": 7, "sizes": [{"as_int": -1}], "strides": [{"as_int": 1}]}`),
			ErrMalformed, "extent"},
		"dynamic": {program(`"x": META`,
			`"x": {"dtype": 7, "sizes": [{"as_expr": {"expr_str": "Symbol('s0')"}}], "strides": [{"as_int": 1}]}`),
			ErrUnsupported, `no value is given for the extent "s0"`},
		"no expression": {program(`"x": META`,
			`"x": {"dtype": 7, "sizes": [{"as_expr": {}}], "strides": [{"as_int": 1}]}`),
			ErrMalformed, "expression"},
		"unknown operator": {program("aten.mul.Tensor", "aten.conv3d.default"),
			ErrUnsupported, "aten.conv3d.default of module a.b (model.py:7)"},
		"changes a weight": {program(`{"name": "self", "arg": {"as_tensor": {"name": "m"}}}`,
			`{"name": "self", "arg": {"as_tensor": {"name": "p_w"}}}`),
			ErrUnsupported, "it changes"},
		"pickled weight": {index(`"use_pickle": false`, `"use_pickle": true`), ErrUnsupported, "pickle"},
		"leads out":      {index("weight_0", "../../etc/passwd"), ErrMalformed, "names no file for tensor"},
		"missing weight": {index("weight_0", "weight_9"), ErrMalformed, "is not in the archive"},
		"past the end":   {index(`{"as_int": 0}`, `{"as_int": 1}`), ErrMalformed, "does not lie within"},
		"far past the end": {index(`{"as_int": 0}`, `{"as_int": 1099511627776}`),
			ErrMalformed, "does not lie within"},
		"10 GB": {index(`[{"as_int": 2}]`, `[{"as_int": 2684354560}]`), ErrMalformed, "extent"},
		"cut short": {map[string]string{"data/weights/weight_0": "\x00\x00"},
			ErrMalformed, "does not lie within"},
		"no constant": {map[string]string{"data/constants/model_constants_config.json": ""},
			ErrMalformed, "not in the archive"},
		"a path": {map[string]string{"../../x": "x"}, ErrMalformed, "leads out"},
		"complex": {program(`"x": META`, `"x": {"dtype": 10, "sizes": [], "strides": []}`),
			ErrUnsupported, "complex64"},
		"no such dtype": {program(`"x": META`, `"x": {"dtype": 99, "sizes": [], "strides": []}`),
			ErrMalformed, "element type 99"},
		"argument of kinds": {program(`{"as_tensor": {"name": "x"}}}], "outputs"`,
			`{"as_tensor": {"name": "x"}, "as_int": 1}}], "outputs"`),
			ErrMalformed, "2 kinds"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readAll(archive(t, c.files))
			if err == nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v; want %v that says %q", err, c.kind, c.says)
			}
		})
	}
}

// TestClaimedSize checks that no memory is allocated for the size of an entry that is larger than its data.
func TestClaimedSize(t *testing.T) {
	text := archive(t, map[string]string{"models/model.json": small + strings.Repeat(" ", 1000)})
	for _, cut := range []int{1, 4, 22, 100, len(text) / 2, len(text) - 10} {
		if _, err := readAll(text[:len(text)-cut]); !errors.Is(err, ErrMalformed) {
			t.Errorf("cut by %d: %v", cut, err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	big := strings.Replace(strings.ReplaceAll(weights, "META", meta), `[{"as_int": 2}]`,
		fmt.Sprintf(`[{"as_int": %d}]`, 1<<29), 1)
	if _, err := readAll(archive(t, map[string]string{"data/weights/model_weights_config.json": big})); err == nil {
		t.Error("a weight of 2 GiB is not there")
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("it allocated %d bytes", used)
	}
}

// FuzzProgram checks that any program is either read or refused, and that the evaluation of a program that was read
// terminates.
func FuzzProgram(f *testing.F) {
	f.Add(strings.ReplaceAll(small, "META", meta))
	for _, target := range []string{"view.default", "cat.default", "embedding.default", "index.Tensor", "topk.default",
		"expand.default"} {
		f.Add(strings.ReplaceAll(strings.Replace(small, "mul.Tensor", target, 1), "META", meta))
	}
	f.Fuzz(func(t *testing.T, program string) {
		if len(program) > 1<<16 {
			return
		}
		g, err := readAll(archive(t, map[string]string{"models/model.json": program}))
		if err != nil {
			return
		}
		given := map[*graph.Value]*graph.Tensor{}
		for _, v := range append(append([]*graph.Value{}, g.Inputs...), g.Weights...) {
			if v.Count() > 1<<12 {
				return
			}
			given[v] = graph.NewTensor(v.DType, v.Shape)
		}
		total := 0.0
		for _, n := range g.Nodes {
			for _, v := range n.Out {
				total += float64(v.Count())
			}
		}
		if total < 1<<16 && !math.IsInf(total, 0) {
			_, _ = graph.Eval(g, given)
		}
	})
}

// TestState checks that a buffer that is changed, either in place or by a result that the signature assigns to it, has
// the new contents in the next call.
func TestState(t *testing.T) {
	self := func(old, new string) func(string) string {
		return func(text string) string {
			return strings.Replace(text, `{"name": "self", "arg": {"as_tensor": {"name": "`+old+`"}}},
 {"name": "other", "arg": {"as_tensor": {"name": "b_c"}}}`,
				`{"name": "self", "arg": {"as_tensor": {"name": "`+new+`"}}},
 {"name": "other", "arg": {"as_tensor": {"name": "m"}}}`, 1)
		}
	}
	inPlace := self("m", "b_c")(small)
	functional := strings.NewReplacer("add_.Tensor", "add.Tensor",
		`"outputs": [{"as_tensor": {"name": "y"}}],
"nodes"`, `"outputs": [{"as_tensor": {"name": "y"}}, {"as_tensor": {"name": "y"}}],
"nodes"`,
		`"output_specs": [`, `"output_specs": [{"buffer_mutation": {"arg": {"name": "y"}, "buffer_name": "a.c"}}, `).Replace(inPlace)
	for name, text := range map[string]string{"in place": inPlace, "by a result": functional} {
		t.Run(name, func(t *testing.T) {
			g, err := readAll(archive(t, map[string]string{"models/model.json": text}))
			if err != nil {
				t.Fatal(err)
			}
			if len(g.States) != 1 || g.States[0].Path != "a.c" || len(g.Outputs) != 1 {
				t.Fatalf("states %v, outputs %v", g.States, g.Outputs)
			}
			vector := func(a, b float64) *graph.Tensor {
				return &graph.Tensor{DType: graph.F32, Shape: []int64{2}, Elems: []float64{a, b}}
			}
			given := map[*graph.Value]*graph.Tensor{g.Inputs[0]: vector(3, 4), g.Weights[0]: vector(1, 2),
				g.States[0]: vector(1, 1)}
			for _, want := range []string{"[4 9]", "[7 17]", "[10 25]"} {
				out, err := graph.Eval(g, given)
				if err != nil || fmt.Sprint(out[0].Elems) != want {
					t.Errorf("%v, %v; want %s", out, err, want)
				}
			}
		})
	}
}

// TestCorruptWeights: no part of a tensor is read from a file whose contents do not have the recorded checksum.
func TestCorruptWeights(t *testing.T) {
	const values = "\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40" // 1, 2, 3, 4
	strided := strings.Replace(weights, "META", strings.ReplaceAll(meta, `{"as_int": 1}`, `{"as_int": 2}`), 1)
	for _, c := range []struct {
		name, index string
		from, bytes int64
	}{
		{"whole", strings.Replace(weights, "META", strings.ReplaceAll(meta, `{"as_int": 2}`, `{"as_int": 4}`), 1), 0, 16},
		{"part", weights, 0, 8},
		{"second element", weights, 4, 4},
		{"strided", strided, 0, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			good := archive(t, map[string]string{"data/weights/weight_0": values,
				"data/weights/model_weights_config.json": c.index})
			at := bytes.Index(good, []byte(values))
			for i := -1; i < len(values); i++ {
				text := bytes.Clone(good)
				if i >= 0 {
					text[at+i] ^= 1
				}
				a, err := Read("m.pt2", bytes.NewReader(text), int64(len(text)))
				if err != nil {
					t.Fatal(err)
				}
				to := make([]byte, c.bytes)
				for range 2 { // the second call returns the error, too
					err := a.ReadAt(to, "a.w", c.from)
					if i < 0 && err != nil {
						t.Errorf("intact: %v", err)
					}
					if i >= 0 && (!errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), `m.pt2: `) ||
						!strings.Contains(err.Error(), `tensor "a.w" is corrupt`)) {
						t.Errorf("byte %d is wrong: %v", i, err)
					}
				}
			}
		})
	}
	bad := archive(t, map[string]string{"data/constants/tensor_0": values[8:]})
	bad[bytes.Index(bad, []byte(values[8:]))] ^= 1
	if _, err := readAll(bad); !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), `tensor "a.c" is corrupt`) {
		t.Errorf("a corrupt constant: %v", err)
	}
}
