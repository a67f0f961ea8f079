package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/testcorpus"
	"hocket.example/hocket/ir"
)

// exportedModels returns the folder of the models that torch exported.
func exportedModels(t *testing.T) string {
	t.Helper()
	return testcorpus.Need(t, "models")
}

// logitsError returns the largest error of the logits that a run saved, divided by the largest logit.
func logitsError(t *testing.T, dir, saved string) (float64, ir.DType) {
	t.Helper()
	read := func(path, name string) *tensor.Tensor {
		f, err := tensor.OpenSafetensors(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		x, err := f.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	want, got := read(filepath.Join(dir, "expected.safetensors"), "logits"), read(outputsFile(saved), "out0")
	if fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) {
		t.Fatalf("logits are %s, want %s", got, want)
	}
	worst, most := 0.0, 0.0
	for i := range got.Len() {
		worst = math.Max(worst, math.Abs(got.Float64(i)-want.Float64(i)))
		most = math.Max(most, math.Abs(want.Float64(i)))
	}
	return worst / most, got.DType
}

// TestExportedModels runs models that torch exported, on ranks of the CPU. The models' logits must equal torch's within
// a tolerance for torch's different rounding: 2e-5 of the largest logit in f32, 2e-2 in bf16.
func TestExportedModels(t *testing.T) {
	models := exportedModels(t)
	for _, name := range []string{"llama", "llama_bf16", "qwen2", "qwen3", "qwen3_bf16", "gpt_neox", "gpt2", "mixtral",
		"mixtral_bf16"} {
		dir := filepath.Join(models, name)
		layouts := []string{"--plan", filepath.Join(dir, "tp_plan.json")}
		if name == "gpt2" { // its plan is empty
			layouts = nil
			for _, shard := range []string{"attn.c_attn=packed_colwise", "attn.c_proj=rowwise", "mlp.c_fc=colwise",
				"mlp.c_proj=rowwise"} {
				layouts = append(layouts, "--shard", "h.*."+shard)
			}
		}
		ranks := []string{"1", "2", "4"}
		if testing.Short() {
			ranks = ranks[1:2]
		}
		for _, n := range ranks {
			for _, strategy := range []string{"sequential", "exchange", "auto"} {
				t.Run(name+"/"+n+"/"+strategy, func(t *testing.T) {
					saved := t.TempDir()
					out, errs, code := hocketHere(append([]string{"run", filepath.Join(dir, "static.pt2"), "-n", n,
						"--strategy", strategy, "--in",
						"input_ids=" + filepath.Join(dir, "expected.safetensors") + "#input_ids",
						"--save", saved}, layouts...)...)
					if code != 0 || strings.Contains(out, "not proved") {
						t.Fatalf("exit %d\n%s%s", code, out, errs)
					}
					limit := 2e-5
					worst, dt := logitsError(t, dir, saved)
					if dt == ir.BF16 {
						limit = 2e-2
					}
					if !(worst <= limit) {
						t.Errorf("the largest error is %g of the largest logit, of at most %g", worst, limit)
					}
				})
			}
		}
	}
}

// TestExportedWeights checks that weights in a safetensors file replace those in the archive: if all weights in the
// file are zero, the logits are zero.
func TestExportedWeights(t *testing.T) {
	dir := filepath.Join(exportedModels(t), "llama")
	args := []string{"run", filepath.Join(dir, "static.pt2"), "-n", "2", "--shard", "layers.*.mlp.up_proj=colwise",
		"--in",
		"input_ids=" + filepath.Join(dir, "expected.safetensors") + "#input_ids"}
	saved := t.TempDir()
	if out, errs, code := hocketHere(append(args, "--in", filepath.Join(dir, "model.safetensors"), "--save",
		saved)...); code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if worst, _ := logitsError(t, dir, saved); !(worst <= 2e-5) {
		t.Errorf("with the file's weights, the largest error is %g of the largest logit", worst)
	}
	f, err := tensor.OpenSafetensors(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var zeros []tensor.Named
	for _, name := range f.Names() {
		x, err := f.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		clear(x.Data)
		zeros = append(zeros, tensor.Named{Name: name, Tensor: x})
	}
	other := filepath.Join(t.TempDir(), "zeros.safetensors")
	if err := tensor.WriteSafetensorsFile(other, zeros, nil); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := hocketHere(append(args, "--in", other, "--save", saved)...); code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if worst, _ := logitsError(t, dir, saved); worst != 1 {
		t.Errorf("with weights of zero, the largest error is %g of the largest logit", worst)
	}
	foreign := filepath.Join(dir, "..", "gpt2", "model.safetensors")
	_, errs, code := hocketHere("run", filepath.Join(dir, "static.pt2"), "--in", foreign)
	if code != 2 || !strings.Contains(errs, "no tensor of "+foreign+" has the name of a weight") ||
		!strings.Contains(errs, "transformer.h.0.attn.c_attn.bias") ||
		!strings.Contains(errs, "m.model.embed_tokens.weight") {
		t.Errorf("with weights of another model: exit %d\n%s", code, errs)
	}
}

// TestExportedExperts checks that weights of experts in a file are found by the names that older versions of
// transformers use, and are packed.
func TestExportedExperts(t *testing.T) {
	dir := filepath.Join(exportedModels(t), "mixtral")
	saved := t.TempDir()
	out, errs, code := hocketHere("run", filepath.Join(dir, "static.pt2"), "-n", "2", "--plan",
		filepath.Join(dir, "tp_plan.json"), "--in",
		"input_ids="+filepath.Join(dir, "expected.safetensors")+"#input_ids",
		"--in", filepath.Join(dir, "model.safetensors"), "--save", saved)
	if code != 0 || strings.Contains(out+errs, "no parameter") {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if worst, _ := logitsError(t, dir, saved); !(worst <= 2e-5) {
		t.Errorf("the largest error is %g of the largest logit", worst)
	}
}

// TestExportedBench checks that hocket bench reads a model's weights from files as hocket run does.
func TestExportedBench(t *testing.T) {
	dir := filepath.Join(exportedModels(t), "llama")
	args := []string{"bench", filepath.Join(dir, "decode.pt2"), "--rounds", "1", "--runs", "2", "--strategy",
		"sequential"}
	if out, errs, code := hocketHere(append(args, "--in", filepath.Join(dir, "model.safetensors"))...); code != 0 ||
		strings.Contains(errs, "no parameter") || !strings.Contains(out, "device tensors: input_ids") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	_, errs, code := hocketHere(append(args, "--in", filepath.Join(dir, "..", "mixtral", "model.safetensors"))...)
	if want := "lack model.model.layers.0.mlp.gate_proj.weight"; code != 2 || !strings.Contains(errs, want) {
		t.Errorf("with the experts of another model: exit %d; %s lacks %q", code, errs, want)
	}
}

// TestExportedCommands checks that the other commands accept archives, and report the faults of invalid ones.
func TestExportedCommands(t *testing.T) {
	dir := filepath.Join(exportedModels(t), "llama")
	model, plan := filepath.Join(dir, "static.pt2"), filepath.Join(dir, "tp_plan.json")
	text, _, code := hocketHere("import", model, "--plan", plan, "-n", "2")
	if n := strings.Count(text, "\n"); code != 0 || n > 120 || !strings.Contains(text, "%q_proj: f32[2, 64/tp, 64]") {
		t.Errorf("import: exit %d, %d lines\n%s", code, n, text)
	}
	if out, errs, code := hocketHere("check", filepath.Join(dir, "decode.pt2"), "--plan", plan, "-n", "2"); code != 0 ||
		!strings.Contains(out, "proved") {
		t.Errorf("a model with a cache: exit %d\n%s%s", code, out, errs)
	}
	for _, command := range []string{"check", "opt", "plan", "memory"} {
		if out, errs, code := hocketHere(command, model, "--plan", plan, "-n", "2"); code != 0 {
			t.Errorf("%s: exit %d\n%s%s", command, code, out, errs)
		}
	}
	whole, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.pt2")
	if err := os.WriteFile(cut, whole[:len(whole)/2], 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"check", cut}, 2, "malformed archive"},
		{[]string{"check", model, "--shard", "lm_head=sideways"}, 2, `no style "sideways"`},
		{[]string{"check", model, "--shard", "lm_haed=colwise"}, 2,
			"--shard: " + model + ": no weight matches lm_haed"},
		{[]string{"check", model, "--plan", model}, 2, "--plan"},
		{[]string{"check", "../../examples/mlp.hkt", "--shard", "lm_head=colwise"}, 2, "is not one"},
	} {
		if _, errs, code := hocketHere(c.args...); code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%v: exit %d, want %d; %s", c.args, code, c.code, errs)
		}
	}
}

// TestPlanFits checks that a plan or a --shard that matches no weight is refused. Unused entries of a plan, and a plan
// without -n, must lead to warnings.
func TestPlanFits(t *testing.T) {
	const model = "../../testdata/layers.pt2"
	plan := func(text string) string {
		path := filepath.Join(t.TempDir(), "plan.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none, some := plan(`{"nothing": "colwise", "q": "rowwise"}`),
		plan(`{"nothing": "colwise", "up": "colwise", "q": "rowwise"}`)
	const warned = "warning: --plan: 1 of 3 entries match; no weight matches nothing, q\n"
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-n", "2", "--plan", none}, 2,
			"--plan " + none + ": the plan does not fit the model: no weight matches " +
				"nothing, q; the model's weights are layers.0.up.weight"},
		{[]string{"-n", "2", "--plan", some}, 0, warned},
		{[]string{"-n", "2", "--plan", none, "--shard", "up=colwise"}, 0, warned},
		{[]string{"-n", "2", "--plan", plan("{}")}, 0, "nothing is split"},
		{[]string{"--plan", plan("{}")}, 0, "has 1 rank"},
		{[]string{"-n", "2", "--plan", some, "--shard", "upp=colwise"}, 2,
			"--shard: " + model + ": no weight matches upp"},
		{[]string{"-n", "2", "--shard", "upp=colwise", "--shard", "upp=colwise"}, 2, "no weight matches upp"},
		{[]string{"--shard", "up=colwise"}, 0,
			"without -n, " + model + " has 1 rank, and --plan and --shard split nothing"},
		{[]string{"-n", "1", "--shard", "up=colwise"}, 0, ""},
	} {
		_, errs, code := hocketHere(append([]string{"check", model}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.says) || c.says == "" && errs != "" {
			t.Errorf("check %v: exit %d, want %d; %s", c.args, code, c.code, errs)
		}
	}
	if _, errs, code := hocketHere("import", model, "-n", "2", "--plan", some); code != 0 || errs != warned {
		t.Errorf("import: exit %d; %s", code, errs)
	}
	llama := filepath.Join(exportedModels(t), "llama", "static.pt2")
	_, errs, code := hocketHere("check", llama, "-n", "2", "--shard", "norm=colwise")
	if code != 2 || !strings.Contains(errs, "norm matches m.model.norm.weight, f32[64], but colwise splits only") ||
		!strings.Contains(errs, "and 9 more") {
		t.Errorf("a layout of a vector: exit %d; %s", code, errs)
	}
	if _, errs, code := hocketHere("check", llama, "-n", "2", "--shard",
		"norm=replicated_with_grad_allreduce"); code != 0 || !strings.Contains(errs, "nothing is split") {
		t.Errorf("a whole vector: exit %d; %s", code, errs)
	}
}

// TestModelsPage checks that the programs in docs/models.md are those that hocket import prints.
func TestModelsPage(t *testing.T) {
	models := exportedModels(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "models.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"llama", "mixtral"} {
		text, errs, code := hocketHere("import", filepath.Join(models, name, "static.pt2"), "--plan",
			filepath.Join(models, name, "tp_plan.json"), "-n", "2")
		if code != 0 {
			t.Fatal(errs)
		}
		command := "```\n$ hocket import " + name + "/static.pt2 --plan " + name + "/tp_plan.json -n 2\n"
		if !strings.Contains(string(page), command+text+"```\n") {
			t.Errorf("docs/models.md lacks the program of %s:\n%s", name, text)
		}
		if n := strings.Count(text, "\n"); n > 120 {
			t.Errorf("the program of %s has %d lines", name, n)
		}
	}
}

// forumArchive writes the model of a forum's question as torch exports it, without the contents of its weights. The
// model is a sequence of linears without bias. If reduces is set, dist.all_reduce is called for the result of each
// linear. Torch exports this call as a functional collective, a wait and a copy.
func forumArchive(t *testing.T, layers, batch, dim int, reduces bool) string {
	t.Helper()
	type object = map[string]any
	values, specs, inputs, nodes := object{}, []object{}, []object{}, []object{}
	named := func(name string) object { return object{"as_tensor": object{"name": name}} }
	tensor := func(name string, rows, columns int) object {
		ints := func(list ...int) (out []object) {
			for _, n := range list {
				out = append(out, object{"as_int": n})
			}
			return out
		}
		const bf16 = 13
		values[name] = object{"dtype": bf16, "sizes": ints(rows, columns), "strides": ints(columns, 1),
			"storage_offset": object{"as_int": 0}, "layout": 7}
		return named(name)
	}
	input := func(kind string, spec object, x object) {
		spec["arg"] = x["as_tensor"]
		if kind == "user_input" {
			spec["arg"] = x
		}
		specs, inputs = append(specs, object{kind: spec}), append(inputs, x)
	}
	call := func(target, out string, args ...object) {
		nodes = append(nodes, object{"target": "torch.ops." + target, "inputs": args,
			"outputs": []object{tensor(out, batch, dim)}, "metadata": object{}})
	}
	arg := func(name string, value object) object { return object{"name": name, "arg": value} }
	word := func(s string) object { return object{"as_string": s} }
	for i := range layers {
		name := fmt.Sprintf("p_layers_%d_weight", i)
		input("parameter", object{"parameter_name": fmt.Sprintf("layers.%d.weight", i)}, tensor(name, dim, dim))
	}
	input("user_input", object{}, tensor("x", batch, dim))
	x := "x"
	for i := range layers {
		n := func(s string) string { return fmt.Sprint(s, "_", i) }
		call("aten.linear.default", n("linear"), arg("input", named(x)),
			arg("weight", named(fmt.Sprintf("p_layers_%d_weight",
				i))))
		if x = n("linear"); !reduces {
			continue
		}
		call("_c10d_functional.all_reduce.default", n("all_reduce"), arg("input", named(n("linear"))),
			arg("reduce_op", word("sum")), arg("group_name", word("0")))
		call("_c10d_functional.wait_tensor.default", n("wait_tensor"), arg("tensor", named(n("all_reduce"))))
		call("aten.copy_.default", n("copy"), arg("self", named(n("linear"))), arg("src", named(n("wait_tensor"))))
	}
	program, err := json.Marshal(object{"schema_version": object{"major": 8, "minor": 17}, "graph_module": object{
		"graph": object{"inputs": inputs, "outputs": []object{named(x)}, "nodes": nodes, "tensor_values": values},
		"signature": object{"input_specs": specs,
			"output_specs": []object{{"user_output": object{"arg": named(x)}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range map[string]string{"models/model.json": string(program), "byteorder": "little",
		"archive_format": "pt2", "data/weights/model_weights_config.json": `{"config": {}}`,
		"data/constants/model_constants_config.json": `{"config": {}}`} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: "model/" + name})
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "forum.pt2")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestForumExport checks that the model of a forum's question, as torch exports it, needs as much memory as
// examples/forum.hkt, including freed memory that waits for other streams.
func TestForumExport(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	peak := regexp.MustCompile(`(?m)^peak .*? (\d+) bytes|^simulated.*$`)
	shown := func(words ...string) []string {
		out, errs, code := hocketHere(append([]string{"memory"}, append(words, "--policy", "deferred-free")...)...)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, errs)
		}
		return peak.FindAllString(out, -1)
	}
	want := shown("examples/forum.hkt", "--dim", "L=8", "--dim", "B=4096", "--dim", "D=8192")
	got := shown(forumArchive(t, 8, 4096, 8192, true), "-n", "2")
	if len(want) != 2 || slices.Compare(got, want) != 0 {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestQuantizedRun checks that run --quantize prints how much results differ from those of the unquantized model. The
// printed differences must equal those between the saved results of the two runs.
func TestQuantizedRun(t *testing.T) {
	dir := filepath.Join(exportedModels(t), "qwen2")
	args := []string{"run", filepath.Join(dir, "static.pt2"), "-n", "2", "--plan", filepath.Join(dir, "tp_plan.json"),
		"--in", "input_ids=" + filepath.Join(dir, "expected.safetensors") + "#input_ids"}
	logits := func(more ...string) (string, []float64) {
		saved := t.TempDir()
		out, errs, code := hocketHere(slices.Concat(args, more, []string{"--save", saved})...)
		if code != 0 {
			t.Fatalf("exit %d\n%s%s", code, out, errs)
		}
		f, err := tensor.OpenSafetensors(filepath.Join(saved, "outputs.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		x, err := f.Read("out0")
		if err != nil {
			t.Fatal(err)
		}
		list := make([]float64, x.Len())
		for i := range list {
			list[i] = x.Float64(int64(i))
		}
		return out, list
	}
	_, want := logits()
	text, got := logits("--quantize", "fp8-row")
	given := slices.Concat(args, []string{"--quantize", "fp8-row", "--in", "down_proj=ints:1"})
	if _, errs, code := hocketHere(given...); code != 2 || !strings.Contains(errs, "--in: %down_proj has values that "+
		"--quantize computes from m.model.layers.0.mlp.down_proj.weight") {
		t.Errorf("a weight that is quantized is given by the name of its parameter: exit %d, %s", code, errs)
	}
	mlir := filepath.Join("..", "..", "examples", "jax_mlp.mlir")
	for _, flag := range []string{"--quantize=fp8-row", "--shard=up=colwise", "--plan=no.json"} {
		_, errs, code := hocketHere("import", mlir, flag)
		if code != 2 || !strings.Contains(errs, "apply only to models that torch exported") {
			t.Errorf("import of StableHLO with %s: exit %d, %s", flag, code, errs)
		}
	}
	const vocabulary = 256
	sum, most, squares, same := 0.0, 0.0, 0.0, 0
	for at := 0; at < len(want); at += vocabulary {
		x, y := 0, 0
		for i := range vocabulary {
			d := math.Abs(got[at+i] - want[at+i])
			sum, most, squares = sum+d, max(most, d), squares+want[at+i]*want[at+i]
			if got[at+i] > got[at+x] {
				x = i
			}
			if want[at+i] > want[at+y] {
				y = i
			}
		}
		if x == y {
			same++
		}
	}
	n := float64(len(want))
	if sum == 0 || sum/n > math.Sqrt(squares/n)/4 {
		t.Errorf("the mean error is %g of numbers of %g", sum/n, math.Sqrt(squares/n))
	}
	for _, line := range []string{"quantized    14 weights to f8e4m3, fp8-row; unchanged: m.lm_head.weight\n",
		fmt.Sprintf("%%out0 differs from the unquantized model by %.4g on average, %.4g at most; its root mean square is %.4g; "+
			"the largest element is the same in %d of 12 rows\n", sum/n, most, math.Sqrt(squares/n), same)} {
		if !strings.Contains(text, line) {
			t.Errorf("%s\nlacks %s", text, line)
		}
	}
	for want, args := range map[string][]string{
		`--quantize is "fp4"; it can be fp8-tensor, fp8-row, fp8-block`: {"run", args[1], "--quantize", "fp4"},
		"--quantize is given without a value":                           {"run", args[1], "--quantize", ""},
		"--plan, --shard and --quantize apply only to models that torch exported": {"check", "../../examples/mlp.hkt",
			"--quantize", "fp8-row"},
	} {
		if _, errs, code := hocketHere(args...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
	}
}
