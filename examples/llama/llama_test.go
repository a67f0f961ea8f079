package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/ir"
)

// golden is the output of tools/llama_golden.py: sequences, and the logits of each of their tokens.
type golden struct {
	ids     [][]int32
	logits  [][]float64
	prompts []int
}

func readGolden(t *testing.T, dir string) *golden {
	t.Helper()
	c, err := hocket.OpenCheckpoint(filepath.Join(dir, "golden"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	read := func(name string) []float64 {
		x, err := c.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		return x.Floats()
	}
	g := &golden{}
	for i, n := range read("prompts") {
		g.prompts = append(g.prompts, int(n))
		g.ids = append(g.ids, ints(read(fmt.Sprintf("ids.%d", i))))
		g.logits = append(g.logits, read(fmt.Sprintf("logits.%d", i)))
	}
	return g
}

func ints(x []float64) []int32 {
	var out []int32
	for _, v := range x {
		out = append(out, int32(v))
	}
	return out
}

func machine(t *testing.T) *hocket.Machine {
	t.Helper()
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// TestGolden decodes sequences of different lengths in one batch: prompts in chunks, then 64 steps with given tokens.
// The logits, and those of the golden file, must be within the evaluator's error bound.
func TestGolden(t *testing.T) {
	for _, name := range []string{"tied", "untied"} {
		dir := filepath.Join("testdata", name)
		g := readGolden(t, dir)
		for _, tp := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s, tp=%d", name, tp), func(t *testing.T) {
				m := machine(t)
				c, err := readConfig(dir)
				if err != nil {
					t.Fatal(err)
				}
				l, err := load(m, c, tp, hocket.LoadOptions{Strategy: "sequential"})
				if err != nil {
					t.Fatal(err)
				}
				if unused, err := l.bind(dir); err != nil || len(unused) > 0 {
					t.Fatalf("unused %q, %v", unused, err)
				}
				got := forced(t, l, g)
				worst, most := 0.0, 0.0
				for i := range got {
					if len(got[i]) != len(g.logits[i]) {
						t.Fatalf("%d logits, want %d", len(got[i]), len(g.logits[i]))
					}
					for k, v := range g.logits[i] {
						worst, most = max(worst, math.Abs(got[i][k]-v)), max(most, math.Abs(v))
					}
				}
				if t.Logf("largest difference %.3g, of logits up to %.3g", worst, most); worst > 2e-5 {
					t.Error("more than what f32 loses")
				}
				rep, ref := whole(t, m, c, dir, tp, g)
				for what, logits := range map[string][][]float64{"the machine's": got, "the golden": g.logits} {
					if v := ref.Compare(with(t, rep, logits, int(c.Vocab))); v.Verdict != hocket.Within {
						t.Errorf("%s logits: %v", what, v)
					}
				}
			})
		}
	}
}

// forced decodes the golden sequences and returns their logits: it runs the prompts in chunks, then one given token at
// a time.
func forced(t *testing.T, l *llama, g *golden) [][]float64 {
	t.Helper()
	room := 0
	for _, ids := range g.ids {
		room = max(room, len(ids))
	}
	b, err := l.open(t.Context(), len(g.ids), int64(room))
	if err != nil {
		t.Fatal(err)
	}
	out, from := make([][]float64, b.size), make([]int, b.size)
	for prefill := true; ; {
		width, chunk, more := 4, make([][]int32, b.size), false
		for i, ids := range g.ids {
			end := g.prompts[i]
			if !prefill {
				width, end = 1, len(ids)
			}
			chunk[i] = ids[from[i]:min(end, from[i]+width)]
			more = more || len(chunk[i]) > 0
		}
		if !more && !prefill {
			return out
		}
		if !more {
			prefill = false
			continue
		}
		logits, _, err := b.step(t.Context(), chunk, from, width)
		if err != nil {
			t.Fatal(err)
		}
		rows := logits.Floats()
		for i, ids := range chunk {
			at := i * width * int(l.Vocab)
			out[i], from[i] = append(out[i], rows[at:at+len(ids)*int(l.Vocab)]...), from[i]+len(ids)
		}
	}
}

// whole runs all tokens of all sequences at once, by the same program without argmax, and evaluates the reference of
// this run.
func whole(
	t *testing.T, m *hocket.Machine, c *config, dir string, tp int, g *golden,
) (*hocket.Report, *hocket.Reference) {
	t.Helper()
	text := strings.NewReplacer("-> (f32[B, T, V], i32[B, T])", "-> f32[B, T, V]",
		"  %next = argmax %logits\n", "", "%logits, %next", "%logits").Replace(c.text())
	p, err := hocket.Parse("llama.hkt", text)
	if err != nil {
		t.Fatal(err)
	}
	model, err := m.Load(p, hocket.Binding{Dims: c.dims(tp)}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&llama{c, model}).bind(dir); err != nil {
		t.Fatal(err)
	}
	most := slices.Max([]int{len(g.ids[0]), len(g.ids[1]), len(g.ids[2])})
	shape := []int64{int64(len(g.ids)), int64(most)}
	var ids, at, sees []float64
	for _, seq := range g.ids {
		for j := range most {
			if j < len(seq) {
				ids, at, sees = append(ids, float64(seq[j])), append(at, float64(j)), append(sees, float64(j+1))
			} else {
				ids, at, sees = append(ids, 0), append(at, -1), append(sees, 0)
			}
		}
	}
	in := map[string]*hocket.Tensor{}
	for name, vals := range map[string][]float64{"ids": ids, "at": at, "sees": sees} {
		if in[name], err = hocket.FromFloats(ir.I32, vals, shape...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"keys", "values"} {
		if in[name], err = hocket.NewTensor(ir.F32, c.Layers, shape[0], shape[1], c.KVHeads, c.HeadDim); err != nil {
			t.Fatal(err)
		}
	}
	rep, err := model.Run(t.Context(), hocket.Args{In: in})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := model.Reference(t.Context(), hocket.Args{In: in})
	if err != nil {
		t.Fatal(err)
	}
	return rep, ref
}

// with returns a copy of a report in which the logits of all tokens, except padding, are replaced.
func with(t *testing.T, rep *hocket.Report, logits [][]float64, vocab int) *hocket.Report {
	t.Helper()
	was := rep.Out["logits"]
	vals := was.Floats()
	for i, rows := range logits {
		copy(vals[i*int(was.Shape[1])*vocab:], rows)
	}
	out := *rep
	out.Out = map[string]*hocket.Tensor{"keys": rep.Out["keys"], "values": rep.Out["values"]}
	var err error
	if out.Out["logits"], err = hocket.FromFloats(ir.F32, vals, was.Shape...); err != nil {
		t.Fatal(err)
	}
	return &out
}

// TestAloneAsInBatch: the tokens of a sequence do not depend on the other sequences of its batch, on the number of
// ranks, on how its prompt is divided into chunks, or on the earlier contents of the state. Concurrent runs that miss
// their deadlines lose no state.
func TestAloneAsInBatch(t *testing.T) {
	c, err := ofSize("60K")
	if err != nil {
		t.Fatal(err)
	}
	x := aloneAsInBatch{machine: machine(t), config: c, ranks: []int{1, 2, 4},
		opts: hocket.LoadOptions{Strategy: "sequential"}}
	x.run(t, longtest.Of(12, 1000))
}

// aloneAsInBatch compares the tokens of sequences that are decoded alone with those of the same sequences decoded in
// batches.
type aloneAsInBatch struct {
	machine *hocket.Machine
	config  *config
	opts    hocket.LoadOptions
	ranks   []int
}

func (x *aloneAsInBatch) run(t *testing.T, rounds int) {
	t.Helper()
	m, c := x.machine, x.config
	rng := rand.New(rand.NewPCG(longtest.Seed(t), 2))
	opened := map[[2]int]*batch{} // by ranks and sequences
	open := func(tp, size int) *batch {
		t.Helper()
		if b := opened[[2]int{tp, size}]; b != nil {
			return b
		}
		l, err := load(m, c, tp, x.opts)
		if err == nil {
			err = l.draw(3)
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.open(t.Context(), size, 40)
		if err != nil {
			t.Fatal(err)
		}
		opened[[2]int{tp, size}] = b
		return b
	}
	missed := 0
	for range rounds {
		prompts := make([][]int32, 2+rng.IntN(3))
		for i := range prompts {
			for range 1 + rng.IntN(20) {
				prompts[i] = append(prompts[i], rng.Int32N(int32(c.Vocab)))
			}
		}
		b, width := open(x.ranks[rng.IntN(len(x.ranks))], len(prompts)), 1+rng.IntN(8)
		late := b.hurry(t, rand.New(rand.NewPCG(rng.Uint64(), 3)))
		batched, err := b.generate(t.Context(), prompts, 8, width)
		missed += late()
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range prompts {
			alone, err := open(x.ranks[0], 1).generate(t.Context(), [][]int32{p}, 8, 32)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(alone[0], batched[i]) || len(alone[0]) != 8 {
				t.Errorf("prompt %v: %v alone, %v in a batch of %d", p, alone[0], batched[i], len(prompts))
			}
		}
	}
	if t.Logf("%d deadlines were missed beside", missed); missed == 0 {
		t.Error("no deadline was missed")
	}
}

// hurry runs steps without tokens on the batch's state, with deadlines that are too short for many of them, until it is
// stopped. The returned function stops the runs and returns the number of missed deadlines.
func (b *batch) hurry(t *testing.T, rng *rand.Rand) (end func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		missed := 0
		for ctx.Err() == nil {
			soon, stop := context.WithTimeout(ctx, time.Duration(rng.IntN(3000))*time.Microsecond)
			_, _, err := b.step(soon, make([][]int32, b.size), make([]int, b.size), 1)
			stop()
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				missed++
			case err != nil && ctx.Err() == nil:
				t.Error(err)
				cancel()
			}
		}
		done <- missed
	}()
	return func() int { cancel(); return <-done }
}

// TestCommand: the command reads and writes lines, and returns the tokens that are most likely by the golden logits.
// Invalid lines are errors.
func TestCommand(t *testing.T) {
	dir := filepath.Join("testdata", "untied")
	g := readGolden(t, dir)
	var stdin, stdout, stderr bytes.Buffer
	enc := json.NewEncoder(&stdin)
	for i, ids := range g.ids {
		if err := enc.Encode(ids[:g.prompts[i]]); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"-model", dir, "-tp", "2", "-n", "1", "-chunk", "3"}
	if err := run(t.Context(), args, &stdin, &stdout, &stderr); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v, %s", err, &stderr)
	}
	dec := json.NewDecoder(&stdout)
	for i := range g.ids {
		vocab := len(g.logits[i]) / len(g.ids[i])
		row := g.logits[i][(g.prompts[i]-1)*vocab:][:vocab]
		var got []int32
		if err := dec.Decode(&got); err != nil || len(got) != 1 || row[got[0]] != slices.Max(row) {
			t.Errorf("sequence %d: %v, %v", i, got, err)
		}
	}
	for _, c := range []struct{ args, stdin, want string }{
		{"", "", "usage"},
		{"-random 10Q", "[1]", "want a number of weights"},
		{"-random 60K", "[]", "prompt 1: want a JSON array"},
		{"-random 60K", "[100000]", "there is no token"},
		{"-random 60K -tp 3", "[1]", "multiple of"},
		{"-model testdata", "[1]", "config.json"},
	} {
		err := run(t.Context(), strings.Fields(c.args), strings.NewReader(c.stdin), &stdout, &stderr)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}

// TestConfigRefuses: a config with a feature that the program does not compute is refused.
func TestConfigRefuses(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "tied", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		`"rope_scaling": {"type": "linear", "factor": 2.0}`:       `rope of type "linear"`,
		`"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}`: `rope of type "dynamic"`,
		`"attention_bias": true`:                                  "with a bias",
		`"mlp_bias": true`:                                        "with a bias",
		`"hidden_act": "gelu"`:                                    "activation",
		`"num_key_value_heads": 3`:                                "heads",
		`"num_hidden_layers": 0`:                                  "sizes are missing",
		`"model_type": "qwen2"`:                                   "this program runs llama",
		`"torch_dtype": "float8"`:                                 "weights of type",
	} {
		dir := t.TempDir()
		// If a key occurs twice, the last one is used.
		changed := strings.TrimSuffix(strings.TrimSpace(string(text)), "}") + ", " + in + "}"
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readConfig(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}

// TestProgram: llama.hkt is a valid program in canonical form, and contains the text that config.text replaces.
func TestProgram(t *testing.T) {
	src, err := os.ReadFile("llama.hkt")
	if err != nil {
		t.Fatal(err)
	}
	p, err := hocket.Parse("llama.hkt", string(src))
	if err != nil {
		t.Fatal(err)
	}
	if v, err := hocket.Check(p, hocket.Binding{Ranks: 2}); err != nil || v.Kind != hocket.Proved {
		t.Errorf("%v, %v", v, err)
	}
	c, err := readConfig(filepath.Join("testdata", "untied"))
	if err != nil {
		t.Fatal(err)
	}
	c.DType, c.Eps = "bfloat16", 0.25
	for _, want := range []string{"%x: bf16[B, T, H]", "eps=0.25",
		"theta=500000, factor=8, low=1, high=4, original=32"} {
		if !strings.Contains(c.text(), want) {
			t.Errorf("the text lacks %q:\n%s", want, c.text())
		}
	}
}
