package bench

import (
	"context"
	"fmt"
	"slices"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// generator is the measurement of a generation in progress.
type generator struct {
	*stepJob
	prompt, batch sweep
	tokens        int64 // after the first
	fn            *ir.Func
	params        parameters
	fixed         map[string]*hocket.Tensor // values of parameters.fixed
	described     *machine.Description
	result        Generation
}

func (g *generator) run(ctx context.Context) error {
	if err := g.prepare(); err != nil {
		return err
	}
	g.notes()
	for _, strategy := range g.strategies("sequential") {
		if err := g.strategy(ctx, strategy); err != nil {
			return fmt.Errorf("%s: %w", strategy, err)
		}
	}
	g.job.Ranks = g.job.report.Ranks
	g.comparePeers()
	g.job.report.Generation = &g.result
	return nil
}

// prepare sorts the parameters, and computes the bounds of all cases.
func (g *generator) prepare() (err error) {
	o := &g.Generate
	if g.prompt, g.batch, err = o.sweeps(); err != nil {
		return err
	}
	if o.Tokens < 0 {
		return contest.Usagef("--tokens is %d, but must be at least 0", o.Tokens)
	}
	unit, err := g.unit("sequential")
	if err != nil {
		return err
	}
	g.fn = unit.Source.Prog.Entry(g.Binding.Func)
	if g.fn == nil {
		return contest.Usagef("the program has no function %s", g.Binding.Func)
	}
	if g.params, err = parametersOf(unit.Source, g.fn, g.Inputs, g.prompt.dim, g.batch.dim); err != nil {
		return err
	}
	if len(g.params.state) > 0 {
		g.tokens = int64(o.Tokens)
	}
	if err := g.checkRoom(); err != nil {
		return err
	}
	for _, b := range g.batch.values {
		for _, p := range g.prompt.values {
			c := GenerationCase{Prompt: p, Batch: b, value: b}
			if g.batch.dim == "" {
				if c.Batch, err = g.sequences(b, g.ofRun(p)); err != nil {
					return err
				}
			}
			if c.FirstBound, err = g.bound(unit, b, g.ofRun(p)); err != nil {
				return err
			}
			c.FirstBound *= float64(p / g.ofRun(p))
			if g.tokens > 0 {
				if c.TokenBound, err = g.bound(unit, b, 1); err != nil {
					return err
				}
			}
			g.result.Cases = append(g.result.Cases, c)
		}
	}
	return nil
}

// ofRun returns the number of tokens of each run that processes a prompt: the whole prompt if a dim counts tokens.
func (g *generator) ofRun(prompt int64) int64 {
	if g.prompt.dim == "" {
		return 1
	}
	return prompt
}

// binding returns the binding for runs of n tokens.
func (g *generator) binding(batch, n int64) hocket.Binding {
	b := g.Binding
	b.Dims = g.dims(batch, n)
	for name, v := range g.Binding.Dims {
		if name != g.prompt.dim && name != g.batch.dim {
			b.Dims[name] = v
		}
	}
	return b
}

// dims returns the dims that vary, for runs of n tokens.
func (g *generator) dims(batch, n int64) map[string]int64 {
	out := map[string]int64{}
	if g.batch.dim != "" {
		out[g.batch.dim] = batch
	}
	if g.prompt.dim != "" {
		out[g.prompt.dim] = n
	}
	return out
}

// ports returns the parameters, by name, and all dims for runs of n tokens.
func (g *generator) ports(batch, n int64) (map[string]hocket.Port, map[string]int64, error) {
	sig, err := g.program.Bind(g.binding(batch, n))
	if err != nil {
		return nil, nil, err
	}
	out := map[string]hocket.Port{}
	for _, p := range sig.In {
		out[p.Name] = p
	}
	return out, sig.Dims, nil
}

// sequences returns the number of sequences of a run of n tokens, which is the largest number of elements that an
// integer parameter has for each token; at least 1.
func (g *generator) sequences(batch, n int64) (most int64, err error) {
	ports, _, err := g.ports(batch, n)
	most = 1
	for _, f := range g.params.feeds {
		if f.kind == feedZeros || f.axis < 0 && g.prompt.dim != "" {
			continue
		}
		elements := int64(1)
		for _, extent := range ports[f.param.Name].Shape {
			elements *= extent
		}
		most = max(most, elements/n)
	}
	return most, err
}

// checkRoom returns an error if the program has fewer positions than the longest prompt and the further tokens need, or
// if a program without a dim of tokens has several tokens in a run.
func (g *generator) checkRoom() error {
	longest := slices.Max(g.prompt.values)
	ports, dims, err := g.ports(g.batch.values[0], g.ofRun(longest))
	if err != nil {
		return err
	}
	for _, f := range g.params.feeds {
		if f.kind < feedPositions {
			continue
		}
		port := ports[f.param.Name]
		if s := port.Shape; g.prompt.dim == "" && len(s) > 0 && s[len(s)-1] > 1 {
			return contest.Usagef("a run has %d tokens, as the shape of %%%s shows: name the dim that counts them, as "+
				"in --prompt T=%s", s[len(s)-1], f.param.Name, joined(g.prompt.values, ","))
		}
		room, dim := f.room(port, dims)
		if need := longest + g.tokens; room > 0 && room < need {
			help := "use shorter prompts or fewer --tokens"
			if dim != "" && dim != g.prompt.dim {
				help = fmt.Sprintf("pass --dim %s=%d, or %s", dim, need, help)
			}
			return contest.Usagef("a prompt of %d tokens and %d further ones need %d positions, but %%%s allows %d: %s",
				longest, g.tokens, need, f.param.Name, room, help)
		}
	}
	return nil
}

// bound returns the lower bound of a run of n tokens. It begins the report when it plans the first run.
func (g *generator) bound(unit *compile.Unit, batch, n int64) (float64, error) {
	p, err := unit.Plan(bindingOf(g.binding(batch, n)))
	if err != nil {
		return 0, err
	}
	if g.plan == nil {
		g.plan = p
		g.begin()
		if g.described, err = g.describe(); err != nil {
			return 0, err
		}
		r := &g.result
		r.Func, r.Dims, r.PromptDim, r.BatchDim = p.Func, map[string]int64{}, g.prompt.dim, g.batch.dim
		for _, d := range p.Dims {
			if d.Name != g.prompt.dim && d.Name != g.batch.dim {
				r.Dims[d.Name] = d.Value
			}
		}
		r.Tokens, r.State = int(g.tokens), g.params.state
		r.Rates, r.At, r.Fits = g.step.Rates, g.step.At, g.step.Fits
	}
	return sim.NewBounds(p, g.described).Whole().Time(), nil
}

// notes adds to the report a description of the measurement.
func (g *generator) notes() {
	g.method("weights are bound, state is in bound device tensors and set to its initial values before each prompt; " +
		"integer results are read back, other results stay on the devices")
	if note := g.params.note(); note != "" {
		g.method("each run uploads %s", note)
	}
	first := "the run of the whole prompt"
	if g.prompt.dim == "" {
		first = "one run for each token of the prompt, back to back"
	}
	g.method("first token: %s; median of %d rounds after two warm-up rounds", first, g.job.Rounds)
	switch {
	case g.tokens > 0:
		g.method("per token: the mean of %d runs of one token that follow, each waited for; tokens/s: of the whole "+
			"batch, after the first token", g.tokens)
	case len(g.params.state) == 0:
		g.method("the program has no inout parameter, so it keeps nothing of a prompt, and only the first token is " +
			"measured")
	}
	g.boundNote()
	g.descriptionNote()
}
