package hocket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

const (
	// measuredVariants is the number of lowered variants of a program that are timed: the sequential variant and the
	// variants that are predicted to be fastest.
	measuredVariants = 4
	// measuredRuns is the number of back-to-back runs in one timing.
	measuredRuns = 5
	// measuredRounds is the largest number of times that each variant is timed, and leastRounds is the smallest number
	// that a comparison needs. measuredTime limits the time of all rounds after the first leastRounds.
	measuredRounds, leastRounds = 9, 3
	measuredTime                = 2 * time.Second
	// worthwhile is the largest ratio of a variant's time to the sequential time for which the variant is selected.
	worthwhile = 0.99
)

// autotuner times variants of a model's plans. Only the holder of the model's lease may use it.
type autotuner struct {
	machine *Machine
	fn      *function
	opts    LoadOptions
	chose   map[string]string // the fastest variants, keyed by everything on which the choice depends
}

// measures reports whether the model selects variants by measurement. Ranks in several processes would have to agree on
// the variants, so a model that is distributed over several processes does not measure.
func (a *autotuner) measures() bool {
	return a.opts.Measure && a.opts.Strategy == compile.Auto && a.machine.dev.Peers() == nil &&
		!a.machine.dev.Caps().Virtual
}

// choose selects the variant that is fastest on this machine for a binding. The measurement is made once, and the
// choice is stored in the directory of tuned tables. If measuring is not possible, the predicted choice remains. Like
// planning, choose stops early only if the machine is closed.
func (a *autotuner) choose(b Binding, dims map[string]int64) error {
	ctx := a.machine.ctx
	log := a.opts.Logger
	note := func(what string, args ...any) {
		if log != nil {
			log.Debug("strategy auto, measured: "+what, append([]any{"func", a.fn.def.Name, "dims", dims}, args...)...)
		}
	}
	how := fmt.Sprintf("graph %v, fixed %v, algorithm %q", a.opts.Graph, a.opts.FixedAlgorithms, a.opts.Algorithm)
	path, identity, err := a.fn.unit.MeasuredPath(b.ir(), how)
	if err != nil {
		return err
	}
	name := a.chose[identity]
	if name == "" {
		kept, err := compile.ReadMeasured(path, identity)
		if err != nil {
			note("the stored measurement of auto cannot be read", "error", err)
		}
		if kept == nil {
			if kept, err = a.race(ctx, b, identity); err != nil {
				if gone := ctx.Err(); gone != nil {
					return gone
				}
				note("the strategy is predicted instead", "error", err)
				kept = &compile.Measured{Strategy: compile.Auto}
			} else if err := kept.Write(path); err != nil {
				note("the measurement of auto cannot be stored", "error", err)
			}
			note("chosen", "strategy", kept.Strategy, "us", kept.Times)
		}
		name = kept.Strategy
		a.chose[identity] = name
	}
	return a.fn.unit.Choose(b.ir(), name)
}

// race times the variants alternately.
func (a *autotuner) race(ctx context.Context, b Binding, identity string) (kept *compile.Measured, err error) {
	list, err := a.fn.unit.Variants(b.ir(), measuredVariants)
	if err != nil {
		return nil, err
	}
	var entrants []*entrant
	defer func() {
		for _, e := range entrants {
			err = errors.Join(err, e.close())
		}
	}()
	for i := range list {
		e, err := a.enter(ctx, list[i].Plan)
		entrants = append(entrants, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", list[i].Name, err)
		}
	}
	run := func(i int) error {
		if err := entrants[i].run(ctx); err != nil {
			return fmt.Errorf("%s: %w", list[i].Name, err)
		}
		return nil
	}
	best, medians, err := race(len(list), run, time.Now)
	if err != nil {
		return nil, err
	}
	kept = &compile.Measured{Identity: identity, Func: a.fn.def.Name, Strategy: list[best].Name,
		Times: map[string]float64{}}
	for i := range list {
		kept.Times[list[i].Name] = medians[i] / measuredRuns
	}
	return kept, nil
}

// race times n candidates alternately, after two warm-up runs of each candidate. It returns the index of the fastest
// candidate and the times of all candidates in microseconds. The first candidate is considered fastest unless another
// one is faster by more than the spread of the measured differences and its median time is at most the constant
// worthwhile times the median time of the first.
func race(n int, run func(i int) error, now func() time.Time) (best int, medians []float64, err error) {
	samples := make([][]float64, n)
	began := now()
	const warm = 2
	for round := range measuredRounds + warm {
		for i := range n {
			at := now()
			if err := run(i); err != nil {
				return 0, nil, err
			}
			if round >= warm {
				samples[i] = append(samples[i], float64(now().Sub(at))/1e3)
			}
		}
		if round == warm-1 {
			began = now()
		}
		if round >= warm+leastRounds-1 && now().Sub(began) > measuredTime {
			break
		}
	}
	for i := range n {
		medians = append(medians, quartiles(samples[i])[1])
		if medians[i] < medians[best] {
			best = i
		}
	}
	differences := make([]float64, len(samples[0]))
	for k := range differences {
		differences[k] = samples[best][k] - samples[0][k]
	}
	if q := quartiles(differences); q[1] >= -(q[2]-q[0]) || medians[best] > worthwhile*medians[0] {
		best = 0
	}
	return best, medians, nil
}

// quartiles returns the three quartiles of the samples. There must be at least one sample.
func quartiles(samples []float64) (q [3]float64) {
	sorted := slices.Sorted(slices.Values(samples))
	for i := range q {
		q[i] = sorted[(len(sorted)-1)*(i+1)/4]
	}
	return q
}

// entrant is the loaded plan of a variant together with operands that only this variant uses.
type entrant struct {
	prog    *exec.Program
	batch   *exec.Batch
	tensors []*resident.DeviceTensor
}

func (e *entrant) run(ctx context.Context) error {
	_, err := e.prog.Execute(ctx, e.batch)
	return err
}

func (e *entrant) close() error {
	var errs []error
	if e.prog != nil {
		errs = append(errs, e.prog.Close())
	}
	for _, t := range e.tensors {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// enter loads a plan and allocates its parameters, state and results on the devices.
func (a *autotuner) enter(ctx context.Context, p *plan.Plan) (*entrant, error) {
	e := &entrant{}
	weights, args := map[string]*tensor.Tensor{},
		exec.Args{DeviceIn: map[string]*resident.DeviceTensor{}, DeviceOut: map[string]*resident.DeviceTensor{}}
	onDevices := func(io *plan.IO) (*resident.DeviceTensor, error) {
		t, err := a.machine.tensors.New(a.machine.ctx, p.Ranks, io)
		if err == nil {
			e.tensors = append(e.tensors, t)
		}
		return t, err
	}
	for i := range p.Inputs {
		io := &p.Inputs[i]
		t, err := noise(io)
		if err != nil {
			return e, err
		}
		if !io.Inout {
			weights[io.Name] = t
			continue
		}
		d, err := onDevices(io)
		if err == nil {
			err = d.Write(ctx, t)
		}
		if err != nil {
			return e, err
		}
		args.DeviceIn[io.Name], args.DeviceOut[io.Name] = d, d
	}
	for i := range p.Outputs {
		io := &p.Outputs[i]
		if io.Inout {
			continue
		}
		var err error
		if args.DeviceOut[io.Name], err = onDevices(io); err != nil {
			return e, err
		}
	}
	var err error
	e.batch = &exec.Batch{Runs: slices.Repeat([]exec.Args{args}, measuredRuns), Weights: exec.NewWeights(weights)}
	e.prog, err = exec.Load(a.machine.ctx, a.machine.dev, p, exec.Options{Graph: a.opts.Graph, Grace: time.Second,
		Options: image.Options{Logger: a.opts.Logger, Algorithm: a.opts.Algorithm, Fixed: a.opts.FixedAlgorithms,
			Resident: args.DeviceIn}})
	if errors.Is(err, device.ErrOutOfMemory) {
		err = fmt.Errorf("not enough memory in addition to the loaded plans: %w", err)
	}
	return e, err
}

// noise returns a tensor of random numbers that repeat periodically. Random numbers are used because products of zeros
// are faster than other products. Integers are zeros, since they may be indices.
func noise(io *plan.IO) (*tensor.Tensor, error) {
	t, err := tensor.New(io.DType, io.Shape)
	if err != nil || io.DType.IsInt() || len(t.Data) == 0 {
		return t, err
	}
	const period = 65521 // a prime number, so that rows of the usual lengths get different numbers
	some, err := tensor.New(io.DType, []int64{min(period, t.Len())})
	if err == nil {
		err = tensor.Fill(some, io.Name, tensor.Spec{Kind: tensor.SpecRand, Seed: 1})
	}
	if err != nil {
		return nil, err
	}
	for n := copy(t.Data, some.Data); n < len(t.Data); n *= 2 {
		copy(t.Data[n:], t.Data[:n])
	}
	return t, nil
}
