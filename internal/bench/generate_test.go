package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/testcorpus"
	"hocket.example/hocket/ir"
)

// cached is a program whose cache has the form of an import: positions for all sequences, from which the program
// computes the lengths of attention.
const cached = `dim B = 1
dim T = 2
dim S = 12
func forward(%input_ids: i64[B, T], %position: i64[T], %table: f32[9, 8], %w: f32[8, 8], %freqs: f32[2],
    %keys: inout f32[B, S, 2, 4]) -> f32[B, T, 2, 4] {
  %one: i64[T] = fill value=1
  %sees = broadcast (reshape (add %position, %one), shape=(1, T)), shape=(B, T)
  %x = embedding %input_ids, %table
  %k = rope (reshape (linear %x, %w), shape=(B, T, 2, 4)), %position, %freqs
  index_copy %k, %position into %keys, axis=1
  %out: f32[B, T, 2, 4] = claim (attention %k, %keys, %keys, %sees)
  return %out
}
`

func readProgram(t *testing.T, name, text string) *hocket.Program {
	t.Helper()
	p, err := hocket.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func llamaText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "llama", "llama.hkt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// prepared returns a generator whose cases are planned, and a machine.
func prepared(t *testing.T, p *hocket.Program, dims map[string]int64, in map[string]*hocket.Tensor,
	o GenerateOptions) *generator {
	t.Helper()
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	dev, err := contest.Open("")
	if err != nil {
		t.Fatal(err)
	}
	opts := StepOptions{Options: Options{Rounds: 1}, Binding: hocket.Binding{Dims: dims}, Inputs: in, Generate: o}
	g := &generator{stepJob: &stepJob{StepOptions: opts, program: p, machine: m,
		job: &job{Options: opts.Options, machine: dev}, now: time.Now}}
	if err := g.prepare(); err != nil {
		t.Fatal(err)
	}
	return g
}

// integers returns a tensor whose element i is at(i).
func integers(t *testing.T, dt ir.DType, shape []int64, at func(i int64) int64) *hocket.Tensor {
	t.Helper()
	n := int64(1)
	for _, extent := range shape {
		n *= extent
	}
	vals := make([]int64, n)
	for i := range vals {
		vals[i] = at(int64(i))
	}
	x, err := hocket.FromInts(dt, vals, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestGenerate compares the results of the measured runs with those of ordinary runs, for which the test computes
// positions and lengths itself.
func TestGenerate(t *testing.T) {
	type testCase struct {
		program *hocket.Program
		dims    map[string]int64
		in      map[string]*hocket.Tensor
		o       GenerateOptions
		ids     string
		logits  string
		batch   string
		set     func(in map[string]*hocket.Tensor, batch, from, n int64) // positions and lengths
	}
	cases := map[string]testCase{
		"llama": {readProgram(t, "llama.hkt", llamaText(t)), map[string]int64{"S": 9, "P": 2}, nil,
			GenerateOptions{Prompt: "T=5,1", Batch: "B=1,3", Tokens: 4}, "ids", "logits", "B",
			func(in map[string]*hocket.Tensor, b, from, n int64) {
				in["at"] = integers(t, ir.I32, []int64{b, n}, func(i int64) int64 { return from + i%n })
				in["sees"] = integers(t, ir.I32, []int64{b, n}, func(i int64) int64 { return from + i%n + 1 })
			}},
		"as imported": {readProgram(t, "cached.hkt", cached), nil, nil,
			GenerateOptions{Prompt: "T=6", Batch: "B=2", Tokens: 6}, "input_ids", "out", "B",
			func(in map[string]*hocket.Tensor, b, from, n int64) {
				in["position"] = integers(t, ir.I64, []int64{n}, func(i int64) int64 { return from + i })
			}},
		"one token a run": {readProgram(t, "cached.hkt", cached), map[string]int64{"T": 1}, nil,
			GenerateOptions{Prompt: "3,5", Tokens: 2}, "input_ids", "out", "",
			func(in map[string]*hocket.Tensor, b, from, n int64) {
				in["position"] = integers(t, ir.I64, []int64{1}, func(int64) int64 { return from })
			}},
	}
	if models := testcorpus.Folder(t, "models"); models != "" {
		e, err := exported.Open(filepath.Join(models, "llama", "decode.pt2"), modelprogram.Options{Ranks: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		p, err := hocket.New(e.Info.Prog)
		if err != nil {
			t.Fatal(err)
		}
		list, _, err := e.Contents(nil, func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		in := map[string]*hocket.Tensor{}
		for _, c := range list {
			x, err := c.Read(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			in[c.Param.Name] = (*hocket.Tensor)(x)
		}
		cases["archive"] = testCase{p, nil, in, GenerateOptions{Prompt: "7", Tokens: 3}, "input_ids", "out0", "",
			func(in map[string]*hocket.Tensor, b, from, n int64) {
				in["cache_position"] = integers(t, ir.I64, []int64{1}, func(int64) int64 { return from })
			}}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			g := prepared(t, c.program, c.dims, c.in, c.o)
			if g.tokens != int64(c.o.Tokens) {
				t.Errorf("%d tokens after the first, want %d", g.tokens, c.o.Tokens)
			}
			b := g.binding(g.batch.values[0], 1)
			delete(b.Dims, g.prompt.dim)
			delete(b.Dims, g.batch.dim)
			model, err := g.machine.Load(c.program, b, hocket.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.bindFixed(model); err != nil {
				t.Fatal(err)
			}
			ordinary, err := g.machine.Load(c.program, b, hocket.LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range g.params.fixed {
				if err := ordinary.Bind(name, g.fixed[name]); err != nil {
					t.Fatal(err)
				}
			}
			for i := range g.result.Cases {
				one := &g.result.Cases[i]
				kept, err := g.bindState(ctx, model, one.value)
				if err != nil {
					t.Fatal(err)
				}
				s, err := g.sequence(ctx, model, one)
				if err != nil {
					t.Fatal(err)
				}
				state := map[string]*hocket.Tensor{}
				for _, name := range g.params.state {
					ports, _, err := g.ports(one.value, 1)
					if err != nil {
						t.Fatal(err)
					}
					if state[name], err = hocket.NewTensor(ports[name].DType, ports[name].Shape...); err != nil {
						t.Fatal(err)
					}
					if c.in[name] != nil {
						state[name].Data = slices.Clone(c.in[name].Data)
					}
				}
				var want []*hocket.Tensor
				from := int64(0)
				runs := slices.Concat(s.prompt, s.tokens)
				for _, args := range runs {
					ids := args.In[c.ids]
					n := ids.Shape[len(ids.Shape)-1]
					in := map[string]*hocket.Tensor{c.ids: ids}
					c.set(in, one.Batch, from, n)
					for name, x := range state {
						in[name] = x
					}
					rep, err := ordinary.Run(ctx, hocket.Args{In: in})
					if err != nil {
						t.Fatal(err)
					}
					for name := range state {
						state[name] = rep.Out[name]
					}
					want = append(want, rep.Out[c.logits])
					from += n
				}
				if from != one.Prompt+g.tokens {
					t.Errorf("prompt %d: %d positions, want %d", one.Prompt, from, one.Prompt+g.tokens)
				}
				for round := range 2 { // the second begins with an empty state, too
					if err := kept.reset(ctx); err != nil {
						t.Fatal(err)
					}
					for i, args := range runs {
						if _, err := g.timeRuns(ctx, model, []hocket.Args{args}, 1, map[string]bool{}); err != nil {
							t.Fatal(err)
						}
						got, err := args.DeviceOut[c.logits].Read(ctx)
						if err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(got.Shape, want[i].Shape) || !bytes.Equal(got.Data, want[i].Data) {
							t.Errorf("prompt %d, batch %d, round %d: the results of run %d differ", one.Prompt,
								one.Batch, round, i)
						}
					}
				}
				if err := errors.Join(s.shut(), kept.shut()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestFeeds checks which integer parameters are positions and lengths, and their elements for a run of three tokens
// from position 5.
func TestFeeds(t *testing.T) {
	const head = "dim B = 2\ndim T = 3\ndim S = 16\n"
	for _, c := range []struct {
		name, text string
		want       map[string][]int64
	}{
		{"positions of rope alone", "func f(%x: f32[B, T, 2, 4], %at: i32[B, T]) -> f32[B, T, 2, 4] {\n" +
			"  %y = rope %x, %at\n  return %y\n}\n", map[string][]int64{"at": {5, 6, 7, 5, 6, 7}}},
		{"a length for each sequence",
			"func f(%x: f32[B, T, 2, 4], %k: f32[B, S, 2, 4], %n: i32[B]) -> f32[B, T, 2, 4] {\n" +
				"  %y = attention %x, %k, %k, %n, causal=true\n  return %y\n}\n", map[string][]int64{"n": {8, 8}}},
		{"the tokens in front",
			"func f(%x: f32[B, T, 2, 4], %k: f32[B, S, 2, 4], %n: i32[T, B]) -> f32[B, T, 2, 4] {\n" +
				"  %m = transpose %n\n  %y = attention %x, %k, %k, %m\n  return %y\n}\n",
			map[string][]int64{"n": {6, 6, 7, 7, 8, 8}}},
		{"a cast and a call",
			"func g(%x: f32[T, 4], %p: i32[T], %c: inout f32[S, 4]) {\n  index_copy %x, %p into %c\n}\n" +
				"func f(%x: f32[T, 4], %at: i64[T], %c: inout f32[S, 4], %other: i32[T]) -> f32[T, 4] {\n" +
				"  %p: i32[T] = cast %at\n  call g %x, %p, %c\n  %y = add %x, %x\n  return %y\n}\n",
			map[string][]int64{"at": {5, 6, 7}, "other": {0, 0, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := prepared(t, readProgram(t, "feeds.hkt", head+c.text), nil, nil,
				GenerateOptions{Prompt: "T=3", Tokens: 1})
			ports, _, err := g.ports(0, 3)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string][]int64{}
			for _, f := range g.params.feeds {
				x, err := f.tensor(ports[f.param.Name], 5, 3)
				if err != nil {
					t.Fatal(err)
				}
				got[f.param.Name] = x.Ints()
			}
			for name, want := range c.want {
				if !slices.Equal(got[name], want) {
					t.Errorf("%%%s is %v, want %v", name, got[name], want)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("integer parameters %v, want %v", got, c.want)
			}
		})
	}
}

// TestGenerationReport compares the JSON of a report with a golden file, without the numbers, and checks its text with
// figures of a peer.
func TestGenerationReport(t *testing.T) {
	peer := func(op string, us float64) contest.Peer {
		return contest.Peer{Op: op, Name: "torch", Ranks: 1, Prompt: 4, Batch: 2, Issued: "graph", Micros: us,
			Spread: us / 450}
	}
	rep, err := RunStep(t.Context(), readProgram(t, "llama.hkt", llamaText(t)), StepOptions{Memory: 3,
		Options:  Options{Rounds: 1, Peers: []contest.Peer{peer(peerFirst, 900), peer(peerToken, 300)}},
		Binding:  hocket.Binding{Dims: map[string]int64{"S": 8}},
		Generate: GenerateOptions{Prompt: "T=4,2", Batch: "B=2", Tokens: 2}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, filepath.Join("testdata", "generation.json.txt"), shapeOf(t, data))
	g := rep.Generation
	if len(g.Cases) != 2 || g.Cases[0].Prompt != 2 || g.Cases[1].Prompt != 4 || len(g.Cases[0].Peers) != 0 ||
		g.Cases[1].FirstBound <= g.Cases[0].FirstBound || g.Cases[0].TokenBound != g.Cases[1].TokenBound {
		t.Errorf("cases %+v", g.Cases)
	}
	for i := range g.Cases { // figures that do not vary
		w := &g.Cases[i].Ways[0]
		w.First, w.TokensPerSecond, w.Token = contest.Figure{Median: 450, Spread: 1}, 5000, &contest.Figure{Median: 200}
		g.Cases[i].FirstBound, g.Cases[i].TokenBound = 45, 20
		for k := range g.Cases[i].Peers {
			g.Cases[i].Peers[k] = GenerationPeer{Name: "torch", Issued: "graph"}
			g.Cases[i].add(&g.Cases[i].Peers[k], peer(peerFirst, 900))
			g.Cases[i].add(&g.Cases[i].Peers[k], peer(peerToken, 300))
		}
	}
	rep.Method = nil
	var text bytes.Buffer
	if err := rep.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	golden.File(t, filepath.Join("testdata", "generation.txt"), text.String())
}

// TestGenerationTimes checks the figures with a clock that advances by one millisecond between two readings.
func TestGenerationTimes(t *testing.T) {
	g := prepared(t, readProgram(t, "llama.hkt", llamaText(t)), map[string]int64{"S": 8}, nil,
		GenerateOptions{Prompt: "T=4", Batch: "B=2", Tokens: 4})
	clock := time.Unix(0, 0)
	g.now = func() time.Time {
		clock = clock.Add(time.Millisecond)
		return clock
	}
	if err := g.strategy(t.Context(), "sequential"); err != nil {
		t.Fatal(err)
	}
	w := g.result.Cases[0].Ways[0]
	if w.First.Median != 1000 || w.Token == nil || w.Token.Median != 250 || w.TokensPerSecond != 8000 {
		t.Errorf("%+v, per token %v; want 1000 µs, then 250 µs for each of two sequences", w, w.Token)
	}
}

// TestGenerateWithoutState checks that a program without state is measured up to the first token.
func TestGenerateWithoutState(t *testing.T) {
	p := readProgram(t, "stateless.hkt", `dim T = 4
func f(%ids: i32[T], %table: f32[8, 16]) -> f32[T, 16] {
  %x = embedding %ids, %table
  return %x
}
`)
	rep, err := RunStep(t.Context(), p, StepOptions{Options: Options{Rounds: 1},
		Generate: GenerateOptions{Prompt: "T=2,3"}})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := rep.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "only the first token is measured") ||
		strings.Contains(text.String(), "per token µs") {
		t.Errorf("%s", &text)
	}
	if w := rep.Generation.Cases[1].Ways[0]; w.Token != nil || rep.Generation.Cases[1].TokenBound != 0 {
		t.Errorf("%+v", w)
	}
}

func TestWrongGenerations(t *testing.T) {
	llama, ids := readProgram(t, "llama.hkt", llamaText(t)),
		integers(t, ir.I32, []int64{2, 3}, func(int64) int64 { return 0 })
	for _, c := range []struct {
		o    GenerateOptions
		dims map[string]int64
		in   map[string]*hocket.Tensor
		want string
	}{
		{o: GenerateOptions{Prompt: "T="}, want: `--prompt "T=": "" is not a positive integer`},
		{o: GenerateOptions{Prompt: "=4"}, want: "the name of the dim before = is missing"},
		{o: GenerateOptions{Prompt: "T=4,0"}, want: `"0" is not a positive integer`},
		{o: GenerateOptions{Prompt: "T=4,x"}, want: `"x" is not a positive integer`},
		{o: GenerateOptions{Prompt: "T=4", Batch: "8"}, want: `--batch "8": the dim is missing`},
		{o: GenerateOptions{Prompt: "T=4", Batch: "T=8"}, want: "both vary T"},
		{o: GenerateOptions{Prompt: "T=4", Tokens: -1}, want: "--tokens is -1"},
		{o: GenerateOptions{Prompt: "N=4,8"},
			want: "the program has no dim N that counts the tokens of a run; its dims are " +
				"B, D, F, H, KV, L, P, Q, S, T, V. For a program that takes one token a run, give the lengths alone: " +
				"--prompt 4,8"},
		{o: GenerateOptions{Prompt: "T=4", Batch: "N=8"}, want: "--batch: the program has no dim N; its dims are B,"},
		{o: GenerateOptions{Prompt: "T=4"}, dims: map[string]int64{"T": 4},
			want: "--dim T and --prompt set the same dim"},
		{o: GenerateOptions{Prompt: "T=4,8", Tokens: 16},
			want: "a prompt of 8 tokens and 16 further ones need 24 positions, but %at allows " +
				"8: pass --dim S=24, or use shorter prompts or fewer --tokens"},
		{o: GenerateOptions{Prompt: "T=9"},
			want: "a prompt of 9 tokens and 0 further ones need 9 positions, but %at allows 8: " +
				"pass --dim S=9, or"},
		{o: GenerateOptions{Prompt: "4"},
			want: "a run has 3 tokens, as the shape of %at shows: name the dim that counts them, " +
				"as in --prompt T=4"},
		{o: GenerateOptions{Prompt: "T=4", Tokens: 1}, in: map[string]*hocket.Tensor{"ids": ids},
			want: "--in ids: its shape, i32[B, T], depends on a dim that --prompt or --batch varies"},
	} {
		dims := map[string]int64{}
		for name, v := range c.dims {
			dims[name] = v
		}
		err := c.o.Bind(llama, dims)
		if err == nil {
			_, err = RunStep(context.Background(), llama, StepOptions{Options: Options{Rounds: 1}, Inputs: c.in,
				Binding: hocket.Binding{Dims: dims}, Generate: c.o})
		}
		if !errors.Is(err, contest.ErrUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.o, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"func f(%x: f32[T, 4], %m: i32[T], %k: f32[8, 1, 4]) -> f32[T, 1, 4] {\n" +
			"  %y = rope (reshape %x, shape=(T, 1, 4)), %m\n" +
			"  %z = attention %y, %k, %k, %m\n  return %z\n}\n": "%m contains both positions and lengths",
		"func f(%x: f32[2, T, 1, 4], %m: i32[2 * T]) -> f32[2, T, 1, 4] {\n" +
			"  %y = rope %x, (reshape %m, shape=(2, T))\n  return %y\n}\n": "but T is only a part of an extent",
	} {
		_, err := RunStep(t.Context(), readProgram(t, "wrong.hkt", "dim T = 2\n"+text),
			StepOptions{Options: Options{Rounds: 1}, Generate: GenerateOptions{Prompt: "T=4"}})
		if !errors.Is(err, contest.ErrUsage) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
