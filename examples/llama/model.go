package main

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

//go:embed llama.hkt
var program string

// rules maps the program's weights to tensors of a checkpoint.
func rules(c *config) hocket.Rules {
	head := "lm_head"
	if c.Tied {
		head = "model.embed_tokens"
	}
	r := hocket.Rules{Inputs: []string{"ids", "at", "sees", "keys", "values"}}
	for param, name := range map[string]string{
		"embed": "model.embed_tokens", "last": "model.norm", "head": head,
		"wq": "model.layers.*.self_attn.q_proj", "wk": "model.layers.*.self_attn.k_proj",
		"wv": "model.layers.*.self_attn.v_proj", "wo": "model.layers.*.self_attn.o_proj",
		"gate": "model.layers.*.mlp.gate_proj", "up": "model.layers.*.mlp.up_proj",
		"down":   "model.layers.*.mlp.down_proj",
		"before": "model.layers.*.input_layernorm", "inner": "model.layers.*.post_attention_layernorm",
	} {
		r.Weights = append(r.Weights, hocket.WeightRule{Param: param, From: []string{name + ".weight"}})
	}
	return r
}

// llama is a loaded model.
type llama struct {
	*config
	model *hocket.Model
}

// load loads the program for a model without weights.
func load(m *hocket.Machine, c *config, tp int, opts hocket.LoadOptions) (*llama, error) {
	p, err := hocket.Parse("llama.hkt", c.text())
	if err != nil {
		return nil, err
	}
	model, err := m.Load(p, hocket.Binding{Dims: c.dims(tp)}, opts)
	if err != nil {
		return nil, err
	}
	return &llama{c, model}, nil
}

// bind loads the weights of the checkpoint in dir into the model's parameters. bind returns the names of tensors that
// the model does not use.
func (l *llama) bind(dir string) ([]string, error) {
	c, err := hocket.OpenCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return l.model.BindFrom(c, rules(l.config))
}

// draw binds random weights. The weights of norms are 1, and matrices are scaled so that results have the magnitude of
// operands.
func (l *llama) draw(seed uint64) error {
	ports, err := l.model.Inputs(map[string]int64{"B": 1, "T": 1, "S": 1})
	if err != nil {
		return err
	}
	inputs := rules(l.config).Inputs
	for i, p := range ports {
		if slices.Contains(inputs, p.Name) {
			continue
		}
		t, err := hocket.NewTensor(p.DType, p.Shape...)
		if err != nil {
			return err
		}
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		vals := t.Floats()
		last := p.Shape[len(p.Shape)-1]
		for k := range vals {
			if vals[k] = 1; !slices.Contains([]string{"before", "inner", "last"}, p.Name) {
				vals[k] = rng.NormFloat64() / math.Sqrt(float64(last))
			}
		}
		if t, err = hocket.FromFloats(p.DType, vals, p.Shape...); err != nil {
			return err
		}
		if err := l.model.Bind(p.Name, t); err != nil {
			return err
		}
	}
	return nil
}

// batch is a set of sequences whose keys and values stay on the devices.
type batch struct {
	*llama
	size int
}

// open allocates the state for the given number of sequences, each of at most the given number of tokens.
func (l *llama) open(ctx context.Context, size int, room int64) (*batch, error) {
	for _, name := range []string{"keys", "values"} {
		d, err := l.model.NewDeviceTensor(ctx, name, map[string]int64{"B": int64(size), "T": 1, "S": room})
		if err != nil {
			return nil, err
		}
		zeros, err := hocket.NewTensor(d.DType(), d.Shape()...)
		if err == nil {
			err = d.Write(ctx, zeros)
		}
		if err == nil {
			err = l.model.BindDevice(name, d)
		}
		if err != nil {
			return nil, err
		}
	}
	return &batch{l, size}, nil
}

// step runs the model on width tokens of each sequence i: tokens[i], which begin at position from[i]. step returns the
// logits, and the likeliest next token after each token.
func (b *batch) step(ctx context.Context, tokens [][]int32, from []int, width int) (*hocket.Tensor, []int32, error) {
	ids, at, sees := make([]float64, b.size*width), make([]float64, b.size*width), make([]float64, b.size*width)
	for i := range at {
		at[i] = -1
	}
	for i, seq := range tokens {
		for j, id := range seq {
			k := i*width + j
			ids[k], at[k], sees[k] = float64(id), float64(from[i]+j), float64(from[i]+j+1)
			if id < 0 || int64(id) >= b.Vocab {
				return nil, nil, fmt.Errorf("sequence %d: there is no token %d; the vocabulary has %d", i, id, b.Vocab)
			}
		}
	}
	in := map[string]*hocket.Tensor{}
	for name, vals := range map[string][]float64{"ids": ids, "at": at, "sees": sees} {
		t, err := hocket.FromFloats(ir.I32, vals, int64(b.size), int64(width))
		if err != nil {
			return nil, nil, err
		}
		in[name] = t
	}
	rep, err := b.model.Run(ctx, hocket.Args{In: in})
	if err != nil {
		return nil, nil, err
	}
	var next []int32
	for _, v := range rep.Out["next"].Floats() {
		next = append(next, int32(v))
	}
	return rep.Out["logits"], next, nil
}

// generate returns n new tokens for each prompt. Prompts are read in chunks of width tokens.
func (b *batch) generate(ctx context.Context, prompts [][]int32, n, width int) ([][]int32, error) {
	out, from := make([][]int32, b.size), make([]int, b.size)
	for {
		chunk, more := make([][]int32, b.size), false
		for i, p := range prompts {
			chunk[i] = p[from[i]:min(len(p), from[i]+width)]
			more = more || len(chunk[i]) > 0
		}
		if !more || n == 0 {
			break
		}
		_, next, err := b.step(ctx, chunk, from, width)
		if err != nil {
			return nil, err
		}
		for i, c := range chunk {
			if from[i] += len(c); len(c) > 0 && from[i] == len(prompts[i]) {
				out[i] = []int32{next[i*width+len(c)-1]}
			}
		}
	}
	for range n - 1 {
		last := make([][]int32, b.size)
		for i := range last {
			last[i] = out[i][len(out[i])-1:]
		}
		_, next, err := b.step(ctx, last, from, 1)
		if err != nil {
			return nil, err
		}
		for i := range out {
			out[i], from[i] = append(out[i], next[i]), from[i]+1
		}
	}
	return out, nil
}
