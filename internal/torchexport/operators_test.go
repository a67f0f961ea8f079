package torchexport

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
)

// The programs of these tests are lines such as
//
//	y f32[2,3] = add.Tensor self=x other=2.5
//
// Each line contains the name of a result, its type, an operator of ATen and its arguments: names of tensors, numbers,
// lists as [1,2] or [a,b], bools and 'words'.

var (
	typeForm = regexp.MustCompile(`^(\w+) (\w+)\[([\d,]*)\]$`)
	typeCode = map[string]int{"i32": 4, "i64": 5, "f32": 7, "bool": 12}
)

type object = map[string]any

// metaOf returns the export's description of a type such as "f32[2,3]".
func metaOf(t testing.TB, typ string) object {
	dt, dims, _ := strings.Cut(strings.TrimSuffix(typ, "]"), "[")
	sizes, strides := []object{}, []object{}
	if dims != "" {
		for _, d := range strings.Split(dims, ",") {
			n, err := strconv.Atoi(d)
			if err != nil {
				t.Fatal(err)
			}
			sizes, strides = append(sizes, object{"as_int": n}), append(strides, object{"as_int": 1})
		}
	}
	step := 1
	for i := len(sizes) - 1; i >= 0; i-- {
		strides[i] = object{"as_int": step}
		step *= sizes[i]["as_int"].(int)
	}
	return object{"dtype": typeCode[dt], "sizes": sizes, "strides": strides, "storage_offset": object{"as_int": 0},
		"layout": 7}
}

// argOf returns the export's form of an argument.
func argOf(text string, graphs map[string]object) object {
	if g, ok := graphs[text]; ok {
		return object{"as_graph": object{"name": text, "graph": g}}
	}
	if n, err := strconv.Atoi(text); err == nil {
		return object{"as_int": n}
	}
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return object{"as_float": x}
	}
	switch {
	case text == "None":
		return object{"as_none": true}
	case text == "true" || text == "false":
		return object{"as_bool": text == "true"}
	case strings.HasPrefix(text, "'"):
		return object{"as_string": strings.Trim(text, "'")}
	case strings.HasPrefix(text, "["):
		list := strings.Split(strings.Trim(text, "[]"), ",")
		ints, tensors, optional := []int{}, []object{}, false
		for _, e := range list {
			if n, err := strconv.Atoi(e); err == nil {
				ints = append(ints, n)
			} else {
				tensors = append(tensors, object{"name": e})
				optional = optional || e == "None"
			}
		}
		switch {
		case len(tensors) == 0:
			return object{"as_ints": ints}
		case optional:
			all := []object{}
			for _, e := range list {
				if e == "None" {
					all = append(all, object{"as_none": true})
				} else {
					all = append(all, object{"as_tensor": object{"name": e}})
				}
			}
			return object{"as_optional_tensors": all}
		}
		return object{"as_tensors": tensors}
	}
	return object{"as_tensor": object{"name": text}}
}

// graphOf returns the export's form of lines. The first lines declare inputs: "x f32[2]"; "return y z" names results.
func graphOf(t testing.TB, text string, graphs map[string]object) object {
	t.Helper()
	values, inputs, outputs, nodes := object{}, []object{}, []object{}, []object{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "return "); ok {
			for _, name := range strings.Fields(rest) {
				outputs = append(outputs, object{"as_tensor": object{"name": name}})
			}
			continue
		}
		left, call, isCall := strings.Cut(line, " = ")
		var names []object
		for _, typed := range strings.Split(left, "; ") {
			m := typeForm.FindStringSubmatch(typed)
			if m == nil {
				t.Fatalf("line %q", line)
			}
			values[m[1]] = metaOf(t, m[2]+"["+m[3]+"]")
			names = append(names, object{"name": m[1]})
		}
		if !isCall {
			inputs = append(inputs, object{"as_tensor": names[0]})
			continue
		}
		words := strings.Fields(call)
		target := "torch.ops.aten." + words[0]
		if strings.HasPrefix(words[0], "higher_order.") || strings.HasPrefix(words[0], "_c10d_functional.") {
			target = "torch.ops." + words[0]
		}
		args := []object{}
		for _, w := range words[1:] {
			name, value, _ := strings.Cut(w, "=")
			args = append(args, object{"name": name, "arg": argOf(value, graphs)})
		}
		outs := []object{}
		for _, n := range names {
			outs = append(outs, object{"as_tensor": n})
		}
		if len(names) > 1 && (strings.HasPrefix(words[0], "split") || strings.HasPrefix(words[0], "unbind")) {
			outs = []object{{"as_tensors": names}}
		}
		if words[0] == "t.default" {
			slices.Reverse(values[names[0]["name"].(string)].(object)["strides"].([]object))
		}
		nodes = append(nodes, object{"target": target, "inputs": args, "outputs": outs, "metadata": object{}})
	}
	return object{"inputs": inputs, "outputs": outputs, "nodes": nodes, "tensor_values": values}
}

// archiveOf returns the archive of a program.
func archiveOf(t testing.TB, text string, graphs map[string]object) []byte {
	t.Helper()
	g := graphOf(t, text, graphs)
	in, out := []object{}, []object{}
	for _, x := range g["inputs"].([]object) {
		in = append(in, object{"user_input": object{"arg": x}})
	}
	in = append(in, object{"constant_input": object{"name": "use_cache", "value": object{"as_bool": false}}})
	for _, x := range g["outputs"].([]object) {
		out = append(out, object{"user_output": object{"arg": x}})
	}
	program, err := json.Marshal(object{
		"graph_module":   object{"graph": g, "signature": object{"input_specs": in, "output_specs": out}},
		"schema_version": object{"major": 8, "minor": 17}})
	if err != nil {
		t.Fatal(err)
	}
	return archive(t, map[string]string{"models/model.json": string(program),
		"data/weights/model_weights_config.json":     `{"config": {}}`,
		"data/constants/model_constants_config.json": `{"config": {}}`})
}

// importedGraph imports a program.
func importedGraph(t testing.TB, text string, graphs map[string]object) (*graph.Graph, error) {
	t.Helper()
	file := archiveOf(t, text, graphs)
	a, err := Read("m.pt2", bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, err
	}
	return a.Graph(nil)
}

// computed evaluates a program. The inputs are lists of elements, in the order of the program's inputs.
func computed(t testing.TB, text string, graphs map[string]object, inputs ...[]float64) ([]*graph.Tensor, error) {
	t.Helper()
	g, err := importedGraph(t, text, graphs)
	if err != nil {
		return nil, err
	}
	given := map[*graph.Value]*graph.Tensor{}
	for i, v := range g.Inputs {
		if int(v.Count()) != len(inputs[i]) {
			t.Fatalf("input %d has %d elements, want %d", i, len(inputs[i]), v.Count())
		}
		given[v] = &graph.Tensor{DType: v.DType, Shape: v.Shape, Elems: inputs[i]}
	}
	return graph.Eval(g, given)
}

// TestOperators computes operators whose results are worked out by hand, or by the formula of their definition.
func TestOperators(t *testing.T) {
	e := math.E
	for _, c := range []struct {
		name, text string
		in         [][]float64
		want       []float64
	}{
		{"floor and ceil", "x f32[4]\ny f32[4] = floor.default self=x\nz f32[4] = ceil.default self=x\n" +
			"w f32[8] = cat.default tensors=[y,z]\nreturn w",
			[][]float64{{-1.5, -1, 0.25, 2}}, []float64{-2, -1, 0, 2, -1, -1, 1, 2}},
		{"expm1", "x f32[2]\ny f32[2] = expm1.default self=x\nreturn y", [][]float64{{0, 1}}, []float64{0, e - 1}},
		{"log1p", "x f32[2]\ny f32[2] = log1p.default self=x\nreturn y", [][]float64{{0, e - 1}}, []float64{0, 1}},
		{"log_sigmoid", "x f32[2]\ny f32[2] = log_sigmoid.default self=x\nreturn y", [][]float64{{0, 40}},
			[]float64{-math.Ln2, 0}},
		{"leaky_relu", "x f32[2]\ny f32[2] = leaky_relu.default self=x negative_slope=0.5\nreturn y",
			[][]float64{{-3, 4}}, []float64{-1.5, 4}},
		{"hardtanh", "x f32[3]\ny f32[3] = hardtanh.default self=x min_val=-2 max_val=3\nreturn y",
			[][]float64{{-5, 1, 5}}, []float64{-2, 1, 3}},
		{"glu", "x f32[1,4]\ny f32[1,2] = glu.default self=x\nreturn y", [][]float64{{3, 5, 0, math.Log(3)}},
			[]float64{1.5, 3.75}},
		{"lerp", "x f32[2]\nz f32[2]\ny f32[2] = lerp.Scalar self=x end=z weight=0.25\nreturn y",
			[][]float64{{0, 8}, {4, 0}}, []float64{1, 6}},
		{"addcmul", "x f32[2]\nz f32[2]\ny f32[2] = addcmul.default self=x tensor1=z tensor2=z value=2\nreturn y",
			[][]float64{{1, 1}, {2, 3}}, []float64{9, 19}},
		{"logsumexp", "x f32[2,2]\ny f32[2] = logsumexp.default self=x dim=[1]\nreturn y",
			[][]float64{{0, 0, 1000, 1000}}, []float64{math.Ln2, 1000 + math.Ln2}},
		{"max of a dimension", "x f32[2,3]\ny f32[2]; i i64[2] = max.dim self=x dim=1\nreturn y",
			[][]float64{{1, 5, 2, 7, 7, 0}}, []float64{5, 7}},
		{"where min is", "x f32[2,3]\ny f32[2]; i i64[2] = min.dim self=x dim=1\nreturn i",
			[][]float64{{1, 5, 0, 7, 7, 9}}, []float64{2, 0}},
		{"max of all", "x f32[2,2]\ny f32[] = max.default self=x\nreturn y", [][]float64{{1, -5, 2, 0}}, []float64{2}},
		{"max of two", "x f32[2]\nz f32[2]\ny f32[2] = max.other self=x other=z\nreturn y", [][]float64{{1, 4}, {3, 2}},
			[]float64{3, 4}},
		{"any and all", "x bool[2,2]\ny bool[2] = any.dim self=x dim=1\nz bool[2] = all.dim self=x dim=1\n" +
			"w bool[4] = cat.default tensors=[y,z]\nreturn w", [][]float64{{1, 0, 1, 1}}, []float64{1, 1, 0, 1}},
		{"where of numbers", "x bool[3]\ny f32[3] = where.Scalar condition=x self=2.5 other=-1\nreturn y",
			[][]float64{{1, 0, 1}}, []float64{2.5, -1, 2.5}},
		{"stack", "x f32[2]\nz f32[2]\ny f32[2,2] = stack.default tensors=[x,z] dim=-1\nreturn y",
			[][]float64{{1, 2}, {3, 4}}, []float64{1, 3, 2, 4}},
		{"numpy_T", "x f32[2,3]\ny f32[3,2] = numpy_T.default self=x\nreturn y", [][]float64{{1, 2, 3, 4, 5, 6}},
			[]float64{1, 4, 2, 5, 3, 6}},
		{"movedim", "x f32[2,2,2]\ny f32[2,2,2] = movedim.int self=x source=0 destination=-1\nreturn y",
			[][]float64{{0, 1, 2, 3, 4, 5, 6, 7}}, []float64{0, 4, 1, 5, 2, 6, 3, 7}},
		{"every second", "x f32[7]\ny f32[3] = slice.Tensor self=x dim=0 start=1 end=9223372036854775807 step=2\nreturn y",
			[][]float64{{0, 1, 2, 3, 4, 5, 6}}, []float64{1, 3, 5}},
		{"every third of five", "x f32[5]\ny f32[2] = slice.Tensor self=x dim=0 start=1 end=5 step=3\nreturn y",
			[][]float64{{0, 1, 2, 3, 4}}, []float64{1, 4}},
		{"every second from the last", "x f32[5]\ny f32[1] = slice.Tensor self=x dim=0 start=4 end=5 step=2\nreturn y",
			[][]float64{{0, 1, 2, 3, 4}}, []float64{4}},
		{"roll", "x f32[5]\ny f32[5] = roll.default self=x shifts=[2] dims=[0]\nreturn y",
			[][]float64{{0, 1, 2, 3, 4}}, []float64{3, 4, 0, 1, 2}},
		{"pad", "x f32[1,3]\ny f32[2,3] = pad.default self=x pad=[-1,1,1,0] value=9\nreturn y",
			[][]float64{{1, 2, 3}}, []float64{9, 9, 9, 2, 3, 9}},
		{"eye", "x f32[2,2]\ni f32[2,2] = eye.default n=2\ny f32[2,2] = add.Tensor self=x other=i\nreturn y",
			[][]float64{{1, 2, 3, 4}}, []float64{2, 2, 3, 5}},
		{"scatter of a number", "x f32[2,4]\ni i64[2,2]\ny f32[2,4] = scatter.value self=x dim=1 index=i value=1\nreturn y",
			[][]float64{{0, 0, 0, 0, 5, 5, 5, 5}, {0, 2, 3, 3}}, []float64{1, 0, 1, 0, 5, 5, 5, 1}},
		{"put by a mask", "x f32[2,2]\nm bool[2]\nv f32[]\ny f32[2,2] = index_put.default self=x indices=[m] values=v\n" +
			"return y", [][]float64{{1, 2, 3, 4}, {0, 1}, {9}}, []float64{1, 2, 9, 9}},
		{"baddbmm", "x f32[1,1,1]\na f32[1,1,2]\nb f32[1,2,1]\n" +
			"y f32[1,1,1] = baddbmm.default self=x batch1=a batch2=b beta=0.5 alpha=2\nreturn y",
			[][]float64{{8}, {1, 2}, {3, 4}}, []float64{26}},
		{"baddbmm that ignores self", "x f32[1,1,1]\na f32[1,1,2]\nb f32[1,2,1]\n" +
			"y f32[1,1,1] = baddbmm.default self=x batch1=a batch2=b beta=0\nreturn y",
			[][]float64{{math.NaN()}, {1, 2}, {3, 4}}, []float64{11}},
		{"conv1d of each channel", "x f32[1,2,3]\nw f32[2,1,2]\n" +
			"y f32[1,2,4] = conv1d.default input=x weight=w stride=[1] padding=[1] dilation=[1] groups=2\nreturn y",
			[][]float64{{1, 2, 3, 4, 5, 6}, {1, 10, 100, 1}}, []float64{10, 21, 32, 3, 4, 405, 506, 600}},
		{"conv1d", "x f32[1,2,3]\nw f32[1,2,2]\nb f32[1]\ny f32[1,1,2] = conv1d.default input=x weight=w bias=b\nreturn y",
			[][]float64{{1, 2, 3, 4, 5, 6}, {1, 10, 100, 1000}, {7}}, []float64{1 + 20 + 400 + 5000 + 7,
				2 + 30 + 500 + 6000 + 7}},
		{"einsum", "a f32[2,3]\nb f32[4,3]\ny f32[4,2] = einsum.default equation='ik,jk->ji' tensors=[a,b]\nreturn y",
			[][]float64{{1, 2, 3, 4, 5, 6}, {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}},
			[]float64{1, 4, 2, 5, 3, 6, 6, 15}},
		{"einsum over batches", "a f32[2,1,2]\nb f32[2,2]\ny f32[1,2] = einsum.default equation='bij,bj->ib' tensors=[a,b]\n" +
			"return y", [][]float64{{1, 2, 3, 4}, {10, 1, 10, 1}}, []float64{12, 34}},
		{"detach_ of a clone", "x f32[2]\nc f32[2] = clone.default self=x\nd f32[2] = detach_.default self=c\n" +
			"y f32[2] = add.Tensor self=d other=1\nreturn y", [][]float64{{1, 2}}, []float64{2, 3}},
		{"cat skips what is empty", "x f32[0]\nz f32[1,2]\ny f32[1,2] = cat.default tensors=[x,z] dim=1\nreturn y",
			[][]float64{{}, {1, 2}}, []float64{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := computed(t, c.text, nil, c.in...)
			if err != nil {
				t.Fatal(err)
			}
			if len(out[0].Elems) != len(c.want) {
				t.Fatalf("%v, want %v", out[0].Elems, c.want)
			}
			for i, x := range out[0].Elems {
				if math.Abs(x-c.want[i]) > 1e-6*math.Max(1, math.Abs(c.want[i])) {
					t.Errorf("%v, want %v", out[0].Elems, c.want)
					break
				}
			}
		})
	}
}

// TestTruncation computes the operand of a cast of floats to integers. The operand is rounded towards zero, so that a
// cast that rounds to the nearest integer has torch's result.
func TestTruncation(t *testing.T) {
	for _, call := range []string{"to.dtype self=x", "_to_copy.default self=x", "type_as.default self=x other=i"} {
		g, err := importedGraph(t, "x f32[5]\ni i64[5]\ny i64[5] = "+call+"\nreturn y", nil)
		if err != nil {
			t.Fatal(err)
		}
		g.Outputs = g.Outputs[0].Made(graph.Cast).In
		given := map[*graph.Value]*graph.Tensor{
			g.Inputs[0]: {DType: graph.F32, Shape: []int64{5}, Elems: []float64{1.5, -1.5, 2.75, -2.75, 3}},
			g.Inputs[1]: graph.NewTensor(graph.I64, []int64{5})}
		out, err := graph.Eval(g, given)
		if err != nil {
			t.Fatal(err)
		}
		if want := []float64{1, -1, 2, -2, 3}; !slices.Equal(out[0].Elems, want) {
			t.Errorf("%s casts %v, want %v", call, out[0].Elems, want)
		}
	}
}

// TestBoolInput reads an input of bools as an input of i32.
func TestBoolInput(t *testing.T) {
	const text = "x bool[3]\ny f32[3] = where.Scalar condition=x self=2.5 other=-1\nreturn y"
	g, err := importedGraph(t, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if dt := g.Inputs[0].DType; dt != graph.I32 {
		t.Errorf("the input is of type %s", dt)
	}
	out, err := computed(t, text, nil, []float64{1, 0, -2})
	if want := []float64{2.5, -1, 2.5}; err != nil || !slices.Equal(out[0].Elems, want) {
		t.Errorf("%v (error: %v), want %v", out, err, want)
	}
}

// TestSame checks that an operator is replaced by its operand only if it changes neither elements nor their order.
func TestSame(t *testing.T) {
	for name := range views {
		if got := reflect.ValueOf(operators[name]).Pointer(); got == reflect.ValueOf(same).Pointer() &&
			!slices.Contains(
				[]string{"alias", "detach", "contiguous", "to", "type_as", "_to_copy"}, name) {
			t.Errorf("%s is read as if it moved nothing", name)
		}
	}
}

// TestInPlace changes tensors and parts of tensors in place, and checks that views of the same memory change too.
func TestInPlace(t *testing.T) {
	const double = "x f32[2,2]\nb f32[2,2] = mul.Tensor self=x other=2\n" // b is [[2, 4], [6, 8]]
	for _, c := range []struct {
		name, text string
		want       []float64
	}{
		{"a row", "r f32[2] = select.int self=b dim=0 index=1\ns f32[2] = add_.Tensor self=r other=1\nreturn b",
			[]float64{2, 4, 7, 9}},
		{"a column of the transposed", "t f32[2,2] = t.default self=b\nr f32[2] = select.int self=t dim=0 index=0\n" +
			"s f32[2] = zero_.default self=r\nreturn b", []float64{0, 4, 0, 8}},
		{"a view sees the owner change",
			"v f32[4] = view.default self=b size=[4]\ns f32[2,2] = add_.Tensor self=b other=1\n" +
				"return v", []float64{3, 5, 7, 9}},
		{"a reshape of the whole sees a change", "v f32[4] = reshape.default self=b shape=[4]\n" +
			"s f32[2,2] = zero_.default self=b\nreturn v", []float64{0, 0, 0, 0}},
		{"a view sees another change", "v f32[4] = view.default self=b size=[4]\nr f32[2] = select.int self=b dim=1 index=1\n" +
			"s f32[2] = fill_.Scalar self=r value=0\ny f32[4] = mul.Tensor self=v other=10\nreturn y",
			[]float64{20, 0, 60, 0}},
		{"a copy does not", "v f32[2,2] = clone.default self=b\ns f32[2,2] = zero_.default self=b\nreturn v",
			[]float64{2, 4, 6, 8}},
		{"twice", "r f32[2] = select.int self=b dim=0 index=0\ns f32[2] = add_.Tensor self=r other=1\n" +
			"u f32[2] = mul_.Tensor self=r other=10\nreturn b", []float64{30, 50, 6, 8}},
		{"by the name of a change", "r f32[2] = select.int self=b dim=0 index=0\ns f32[2] = add_.Tensor self=r other=1\n" +
			"u f32[2] = mul_.Tensor self=s other=10\ny f32[2,2] = add.Tensor self=b other=r\nreturn y",
			[]float64{60, 100, 36, 58}},
		{"one number into a row", "r f32[1,2] = slice.Tensor self=b dim=0 start=1 end=2\n" +
			"e f32[] = full.default size=[] fill_value=5\ns f32[1,2] = copy_.default self=r src=e\nreturn b",
			[]float64{2, 4, 5, 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := computed(t, double+c.text, nil, []float64{1, 2, 3, 4})
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(out[0].Elems) != fmt.Sprint(c.want) {
				t.Errorf("%v, want %v", out[0].Elems, c.want)
			}
		})
	}
	for text, want := range map[string]string{
		"s f32[2,2] = add_.Tensor self=x other=1\nreturn s":                                     `it changes "x", an input or parameter`,
		"r f32[2] = select.int self=x dim=0 index=0\ns f32[2] = zero_.default self=r\nreturn s": `it changes "x", an input`,
		"t f32[2,2] = t.default self=b\nv f32[4] = reshape.default self=t shape=[4]\ns f32[2,2] = zero_.default self=b\n" +
			"return v": `"b" in place while "v" is in use, which is a view or a copy of it`,
		"e f32[2,2] = mul.Tensor self=x other=1\nr f32[2] = select.int self=e dim=0 index=0\n" +
			"w f32[2,2] = expand.default self=r size=[2,2]\ns f32[2,2] = zero_.default self=w\nreturn e": "that broadcast creates",
	} {
		if _, err := computed(t, double+text, nil, []float64{1, 2, 3, 4}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestInline reads programs in which calls have graphs as arguments.
func TestInline(t *testing.T) {
	graphs := map[string]object{
		"inner": graphOf(t, "a f32[2]\nc f32[2] = mul.Tensor self=a other=3\nreturn c", nil),
	}
	graphs["outer"] = graphOf(t, "p f32[2]\nq f32[2] = higher_order.wrap_with_set_grad_enabled enable_grad=false "+
		"wrapped_func=inner arg=p\nr f32[2] = add.Tensor self=q other=1\nreturn r", graphs)
	const text = "x f32[2]\ny f32[2] = higher_order.wrap_with_autocast device='cuda' dtype=None enabled=%s cache=None " +
		"wrapped_func=outer arg=x\nz f32[2] = add.Tensor self=y other=x\nreturn z"
	out, err := computed(t, fmt.Sprintf(text, "false"), graphs, []float64{1, 2})
	if err != nil || fmt.Sprint(out[0].Elems) != "[5 9]" {
		t.Errorf("%v, %v", out, err)
	}
	_, err = computed(t, fmt.Sprintf(text, "true"), graphs, []float64{1, 2})
	if err == nil || !strings.Contains(err.Error(), "torch.autocast") {
		t.Errorf("autocast: %v", err)
	}
}

// TestAllReduce: torch exports dist.all_reduce(y) as a functional collective, a wait and a copy into y.
func TestAllReduce(t *testing.T) {
	program := func(calls string) string {
		return "x f32[2]\ny f32[2] = relu.default self=x\n" + calls + "z f32[2] = neg.default self=y\nreturn z"
	}
	reduce := func(name, red, group string) string {
		return fmt.Sprintf(`r%[1]s f32[2] = _c10d_functional.all_reduce.default input=y reduce_op='%[2]s' group_name='%[3]s'
			w%[1]s f32[2] = _c10d_functional.wait_tensor.default tensor=r%[1]s
			c%[1]s f32[2] = copy_.default self=y src=w%[1]s
			`, name, red, group)
	}
	file := archiveOf(t, program(reduce("1", "sum", "0")), nil)
	a, err := Read("m.pt2", bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	g, err := a.Graph(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := g.Outputs[0].Node.In[0].Node // the operand of neg is the result of the reduction
	if n == nil || n.Op != graph.AllReduce || n.Attrs.Red != "sum" || n.In[0].Node.Op != graph.ReLU {
		t.Errorf("neg reads %+v", n)
	}
	for calls, want := range map[string]string{
		reduce("1", "product", "0"): `an all_reduce with the reduction "product"`,
		reduce("1", "sum", "3"):     `a reduction over process group "3"`,
	} {
		if _, err := computed(t, program(calls), nil, []float64{1, 2}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
