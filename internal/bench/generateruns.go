package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// strategy measures all cases with one strategy.
func (g *generator) strategy(ctx context.Context, strategy string) (err error) {
	times := GenerationTimes{Strategy: strategy, Issued: "eager"}
	if g.graphs() {
		times.Issued = "graph"
	}
	opts := g.loadOptions(strategy, times.Issued)
	opts.Cache = math.MaxInt64 // keeps the plans of the prompt and of one token loaded
	b := g.Binding
	b.Dims = maps.Clone(b.Dims) // without the dims that vary, which each run sets
	delete(b.Dims, g.prompt.dim)
	delete(b.Dims, g.batch.dim)
	model, err := g.machine.Load(g.program, b, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	if err := g.bindFixed(model); err != nil {
		return err
	}
	for cases := g.result.Cases; len(cases) > 0; cases = cases[len(g.prompt.values):] {
		if err := g.ofBatch(ctx, model, cases[:len(g.prompt.values)], times); err != nil {
			return err
		}
	}
	return nil
}

// ofBatch measures the cases of one batch, which share the state and so the plan for one token.
func (g *generator) ofBatch(ctx context.Context, model *hocket.Model, cases []GenerationCase,
	times GenerationTimes) (err error) {
	state, err := g.bindState(ctx, model, cases[0].value)
	for i := 0; i < len(cases) && err == nil; i++ {
		c, t := &cases[i], times
		err = g.measure(ctx, state, c, &t)
		if err != nil && ctx.Err() == nil && !errors.Is(err, hocket.ErrOutOfMemory) {
			t.Refused, err = err.Error(), nil
		}
		if c.Ways = append(c.Ways, t); err != nil {
			err = fmt.Errorf("prompt %d, batch %d: %w", c.Prompt, c.Batch, err)
		}
	}
	return errors.Join(err, state.shut())
}

// bindFixed binds the parameters that are the same for all cases. Those without a value get random reals.
func (g *generator) bindFixed(model *hocket.Model) error {
	if g.fixed == nil {
		g.fixed = map[string]*hocket.Tensor{}
		ports, _, err := g.ports(g.batch.values[0], g.ofRun(g.prompt.values[0]))
		if err != nil {
			return err
		}
		for _, name := range g.params.fixed {
			if g.fixed[name] = g.Inputs[name]; g.fixed[name] != nil {
				continue
			}
			if g.fixed[name], err = random(ports[name]); err != nil {
				return err
			}
		}
	}
	for _, name := range g.params.fixed {
		if err := model.Bind(name, g.fixed[name]); err != nil {
			return err
		}
	}
	return nil
}

// random returns a tensor of a parameter with elements uniform in [-1, 1).
func random(port hocket.Port) (*hocket.Tensor, error) {
	t, err := tensor.New(port.DType, port.Shape)
	if err == nil {
		err = tensor.Fill(t, port.Name, tensor.Spec{Kind: tensor.SpecRand, Seed: 1})
	}
	return (*hocket.Tensor)(t), err
}

// devices holds the device tensors that were allocated for a model.
type devices struct {
	model *hocket.Model
	close []func() error
}

func (d *devices) tensor(ctx context.Context, name string, dims map[string]int64) (*hocket.DeviceTensor, error) {
	t, err := d.model.NewDeviceTensor(ctx, name, dims)
	if err == nil {
		d.close = append(d.close, t.Close)
	}
	return t, err
}

// shut closes the tensors.
func (d *devices) shut() error {
	var errs []error
	for _, c := range d.close {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// state holds the bound state of a batch.
type state struct {
	devices
	initial map[string]*hocket.Tensor
	on      map[string]*hocket.DeviceTensor
}

// bindState allocates and binds the state of a batch. The caller must shut it also after an error.
func (g *generator) bindState(ctx context.Context, model *hocket.Model, batch int64) (*state, error) {
	s := &state{devices{model: model}, map[string]*hocket.Tensor{}, map[string]*hocket.DeviceTensor{}}
	for _, name := range g.params.state {
		d, err := s.tensor(ctx, name, g.dims(batch, g.ofRun(g.prompt.values[0])))
		if err != nil {
			return s, err
		}
		if s.initial[name] = g.Inputs[name]; s.initial[name] == nil {
			if s.initial[name], err = hocket.NewTensor(d.DType(), d.Shape()...); err != nil {
				return s, err
			}
		}
		s.on[name] = d
		if err := model.BindDevice(name, d); err != nil {
			return s, err
		}
	}
	return s, nil
}

// reset sets the state to its initial values.
func (s *state) reset(ctx context.Context) error {
	for name, d := range s.on {
		if err := d.Write(ctx, s.initial[name]); err != nil {
			return err
		}
	}
	return nil
}

// sequence holds the runs that generate tokens after one prompt.
type sequence struct {
	devices
	// prompt are the runs up to the first token, and tokens those of the further tokens.
	prompt, tokens []hocket.Args
}

// sequence prepares the runs of a case. The caller must shut it also after an error.
func (g *generator) sequence(ctx context.Context, model *hocket.Model, c *GenerationCase) (s *sequence, err error) {
	s = &sequence{devices: devices{model: model}}
	if s.prompt, err = g.runs(ctx, s, c.value, 0, c.Prompt, g.ofRun(c.Prompt)); err != nil || g.tokens == 0 {
		return s, err
	}
	s.tokens, err = g.runs(ctx, s, c.value, c.Prompt, c.Prompt+g.tokens, 1)
	return s, err
}

// runs returns the arguments of runs of n tokens each, for the positions from..to. The runs share device tensors.
func (g *generator) runs(ctx context.Context, s *sequence, batch, from, to, n int64) ([]hocket.Args, error) {
	ports, _, err := g.ports(batch, n)
	if err != nil {
		return nil, err
	}
	shared := hocket.Args{Dims: g.dims(batch, n), DeviceIn: map[string]*hocket.DeviceTensor{},
		DeviceOut: map[string]*hocket.DeviceTensor{}}
	for _, name := range g.params.varied {
		t, err := random(ports[name])
		if err != nil {
			return nil, err
		}
		if shared.DeviceIn[name], err = s.tensor(ctx, name, shared.Dims); err != nil {
			return nil, err
		}
		if err := shared.DeviceIn[name].Write(ctx, t); err != nil {
			return nil, err
		}
	}
	for i, name := range ir.OutputNames(g.fn)[:len(g.fn.Results)] {
		if g.fn.Results[i].DType.IsInt() {
			continue // the host reads it
		}
		if shared.DeviceOut[name], err = s.tensor(ctx, name, shared.Dims); err != nil {
			return nil, err
		}
	}
	var list []hocket.Args
	for at := from; at < to; at += n {
		args := shared
		args.In = map[string]*hocket.Tensor{}
		for i := range g.params.feeds {
			f := &g.params.feeds[i]
			if args.In[f.param.Name], err = f.tensor(ports[f.param.Name], at, n); err != nil {
				return nil, err
			}
		}
		list = append(list, args)
	}
	return list, nil
}

// measure times one case.
func (g *generator) measure(ctx context.Context, kept *state, c *GenerationCase, t *GenerationTimes) (err error) {
	s, err := g.sequence(ctx, kept.model, c)
	defer func() { err = errors.Join(err, s.shut()) }()
	if err != nil {
		return err
	}
	const warm = 2 // a graph is recorded before the second run
	var first, token []float64
	guesses := map[string]bool{}
	for round := range g.job.Rounds + warm {
		if err := kept.reset(ctx); err != nil {
			return err
		}
		one, err := g.timeRuns(ctx, kept.model, s.prompt, len(s.prompt), guesses)
		if err != nil {
			return err
		}
		more, err := g.timeRuns(ctx, kept.model, s.tokens, 1, guesses)
		if err != nil {
			return err
		}
		if round >= warm {
			first, token = append(first, one), append(token, more/float64(max(1, g.tokens)))
		}
	}
	t.First, t.Guesses = contest.FigureOf(first), slices.Sorted(maps.Keys(guesses))
	if g.tokens > 0 {
		f := contest.FigureOf(token)
		if t.Token = &f; f.Median > 0 {
			t.TokensPerSecond = float64(c.Batch) * 1e6 / f.Median
		}
	}
	return nil
}

// timeRuns executes runs in batches of n, each of which the host waits for, and returns their time in microseconds.
func (g *generator) timeRuns(ctx context.Context, model *hocket.Model, runs []hocket.Args, n int,
	guesses map[string]bool) (float64, error) {
	begun := g.now()
	for batch := range slices.Chunk(runs, n) {
		reports, err := model.RunBatch(ctx, batch)
		if err != nil {
			return 0, err
		}
		for _, name := range reports[0].Guesses {
			guesses[name] = true
		}
	}
	return float64(g.now().Sub(begun)) / 1e3, nil
}
