package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// StepOptions select how a program is measured.
type StepOptions struct {
	Options
	Binding hocket.Binding
	// Inputs holds arguments by the names of parameters. A parameter without an argument gets elements uniform in
	// [-1, 1), or 0 if it has an integer type.
	Inputs map[string]*hocket.Tensor
	// Runs is the number of consecutive runs in a batch; 0 for 20.
	Runs int
	// Describe selects the machine description from which bounds are computed: its name, or the name of a file
	// FILE.json. If it is empty, the description that fits the machine is used.
	Describe string
	// Memory, if not 0, replaces the rate at which, according to the description, a plain kernel reads memory. It
	// is in GB/s.
	Memory float64
	// Fixed sets hocket.LoadOptions.FixedAlgorithms. Measure adds the strategy measuredAuto.
	Fixed, Measure bool
	// Generate, if its Prompt is not empty, measures the generation of tokens instead of single runs.
	Generate GenerateOptions
}

// Step is the measurement of a program under each strategy. Times are microseconds per run.
type Step struct {
	Func string           `json:"func"`
	Dims map[string]int64 `json:"dims"`
	// Weights are the parameters that were bound as weights. All other parameters were in bound device tensors.
	Weights []string `json:"weights,omitempty"`
	State   []string `json:"device_tensors,omitempty"`
	// Bound is a lower bound of the time of all commands of a rank (see sim.Bounds.Whole), for the sequential plan.
	// BoundBy is the resource that needs the most time. At is the name of the machine description, and Fits reports
	// whether it describes this machine.
	Bound   sim.Bound     `json:"bound"`
	BoundUS float64       `json:"bound_us"`
	BoundBy string        `json:"bound_by,omitempty"`
	Rates   machine.Rates `json:"rates"`
	At      string        `json:"description"`
	Fits    bool          `json:"description_fits"`
	Ways    []StepTimes   `json:"ways"`
}

// StepTimes is the measurement of a program under one strategy, with commands issued one by one or as a graph.
type StepTimes struct {
	Strategy string `json:"strategy"`
	Issued   string `json:"issued"` // "eager" or "graph"
	// Refused is the reason why it cannot be measured; empty if it can.
	Refused string `json:"refused,omitempty"`
	// Overlap lists the pairs of operations that the strategy overlaps, one line each.
	Overlap []string `json:"overlap,omitempty"`
	// BackToBack is the time that each further run adds to a batch of runs. Single is the time of a run for which
	// the host waits. Host is Single minus BackToBack: the time of the host, provided that devices do not wait for
	// the host within a batch. If a batch took no longer than a single run, BackToBack and the figures derived from
	// it have no meaning.
	BackToBack contest.Figure `json:"back_to_back_us"`
	Single     contest.Figure `json:"single_us"`
	Host       contest.Figure `json:"host_us"`
	OverBound  float64        `json:"over_bound,omitempty"` // BackToBack divided by the bound
	// Against is the paired difference of BackToBack between this strategy and the first strategy that is issued in
	// the same way. Verdict is the conclusion that the difference supports.
	Against *contest.Figure `json:"minus_first_us,omitempty"`
	Verdict string          `json:"verdict,omitempty"`
	Guesses []string        `json:"guesses,omitempty"` // see StrategyTimes.Guesses
	// OpsBound is the time that a rank's commands would take one after another, each at its bound.
	OpsBound float64 `json:"ops_bound_us,omitempty"`
	// Ops are the statements of the program, ordered by how much their times exceed their bounds, the largest
	// excess first.
	Ops []OpTime `json:"ops,omitempty"`
}

// conclusive reports whether BackToBack is positive. Otherwise the variation of the measurements exceeds it.
func (t *StepTimes) conclusive() bool { return t.BackToBack.Median > 0 }

// stepWay is a program that was loaded with a strategy, and the way in which its commands are issued.
type stepWay struct {
	StepTimes
	model *hocket.Model
	// run executes n consecutive runs, and returns the GEMMs whose algorithm was guessed.
	run   func(ctx context.Context, n int) (guesses []string, err error)
	close []func() error

	single, chain []float64
}

// RunStep measures a program.
func RunStep(ctx context.Context, p *hocket.Program, opts StepOptions) (*Report, error) {
	o := &opts.Options
	if o.Rounds == 0 {
		o.Rounds = 7
	}
	if opts.Runs == 0 {
		opts.Runs = 20
	}
	switch {
	case o.Rounds < 0:
		return nil, contest.Usagef("%d rounds", o.Rounds)
	case opts.Runs < 2:
		return nil, contest.Usagef("a batch of %d runs is too short: at least 2 are needed", opts.Runs)
	}
	dev, err := contest.Open(o.Machine)
	if err != nil {
		return nil, err
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: dev.Name()})
	if err != nil {
		return nil, err
	}
	s := &stepJob{StepOptions: opts, program: p, machine: m, job: &job{Options: *o, machine: dev}, now: time.Now}
	if opts.Generate.Prompt != "" {
		err = (&generator{stepJob: s}).run(ctx)
	} else {
		err = s.run(ctx)
	}
	return s.job.report, errors.Join(err, m.Close())
}

// stepJob is the measurement of a program in progress.
type stepJob struct {
	StepOptions
	*job
	program *hocket.Program
	machine *hocket.Machine
	step    Step
	plan    *plan.Plan // for strategy sequential
	now     func() time.Time
	ways    []*stepWay
}

func (s *stepJob) run(ctx context.Context) (err error) {
	defer func() {
		for _, w := range s.ways {
			err = errors.Join(err, w.shut())
		}
	}()
	if s.plan, err = s.planOf("sequential"); err != nil {
		return err
	}
	s.begin()
	for _, d := range s.plan.Dims {
		if s.step.Dims == nil {
			s.step.Dims = map[string]int64{}
		}
		s.step.Dims[d.Name] = d.Value
	}
	s.step.Func = s.plan.Func
	described, err := s.describe()
	if err != nil {
		return err
	}
	bounds := sim.NewBounds(s.plan, described)
	s.step.Bound = bounds.Whole()
	s.step.BoundUS, s.step.BoundBy = s.step.Bound.Time(), s.step.Bound.By()
	s.notes()
	inputs, err := s.inputs()
	if err != nil {
		return err
	}
	if err := s.load(ctx, inputs); err != nil {
		return err
	}
	if err := s.measure(ctx); err != nil {
		return err
	}
	for _, w := range s.ways { // frees memory for the programs whose statements are timed one by one
		if err := w.shut(); err != nil {
			return err
		}
	}
	for _, w := range s.ways {
		if w.Refused == "" {
			if err := s.timeOps(ctx, w, described, inputs); err != nil {
				return fmt.Errorf("%s, %s, op by op: %w", w.Strategy, w.Issued, err)
			}
		}
		s.step.Ways = append(s.step.Ways, w.StepTimes)
	}
	s.job.report.Step = &s.step
	s.job.report.Peers = layerPeers(s.job.Peers, s.step.Func, "", s.plan.Ranks)
	s.job.Ranks = s.plan.Ranks
	s.job.lackPeers(s.step.Func, nil)
	return nil
}

// begin creates the report of a plan.
func (s *stepJob) begin() {
	s.job.report = &Report{Bench: s.plan.Func, Machine: s.job.machine.Name(), Ranks: s.plan.Ranks}
}

// unit lowers the program as the model does.
func (s *stepJob) unit(strategy string) (*compile.Unit, error) {
	info, ds := checker.Check(s.program.IR())
	if err := ds.Err(); err != nil {
		return nil, err
	}
	return compile.Build(info, compile.Options{Strategy: strategy, Device: s.job.machine})
}

// planOf plans the program as the model does.
func (s *stepJob) planOf(strategy string) (*plan.Plan, error) {
	u, err := s.unit(strategy)
	if err != nil {
		return nil, err
	}
	return u.Plan(bindingOf(s.Binding))
}

func bindingOf(b hocket.Binding) ir.Binding {
	return ir.Binding{Func: b.Func, Ranks: b.Ranks, Dims: b.Dims, Defines: b.Defines}
}

// describe returns the machine description from which bounds are computed.
func (s *stepJob) describe() (d *machine.Description, err error) {
	if s.Memory < 0 {
		return nil, contest.Usagef("the memory rate must be positive, not %v GB/s", s.Memory)
	}
	fits := true
	if s.Describe != "" {
		if d, err = machine.Load(s.Describe); err != nil {
			return nil, contest.Usagef("%v", err)
		}
	} else if d, fits, err = compile.DescriptionFor(s.job.machine, s.plan.Ranks); err != nil {
		return nil, err
	}
	if s.Memory > 0 {
		d.Memory, d.Reduce = s.Memory, s.Memory
	}
	s.step.At, s.step.Fits, s.step.Rates = d.Name, fits, d.Rates()
	return d, nil
}

// notes adds to the report a description of the measurement.
func (s *stepJob) notes() {
	s.method("weights bound, all other parameters in bound device tensors, results copied to device tensors; " +
		"inputs without an argument are uniform in [-1, 1), or 0 for integers")
	s.method("strategies are measured alternately in one process; median of %d rounds after two warm-up rounds; "+
		"back to back: time that "+
		"each further run of a batch of %d takes; single: a run for which the host waits; host: single "+
		"minus back to back", s.job.Rounds, s.Runs)
	s.boundNote()
	s.method("ops: from separate runs in which every command is timed, which itself takes some time; on " +
		"the rank where a statement takes longest; ops that are launched as one have one bound")
	s.descriptionNote()
}

// boundNote adds to the report how bounds are computed.
func (s *stepJob) boundNote() {
	s.method("bound: parameters read and results written once at %.0f GB/s; multiplications at peak; bytes "+
		"received at %.0f GB/s; the longest of the three", s.step.Rates.Memory, s.step.Rates.Wire)
}

// descriptionNote adds to the report from which machine description bounds are computed.
func (s *stepJob) descriptionNote() {
	switch {
	case s.job.embedded():
		s.method("bounds are computed from the CPU's description, %s: only their order of magnitude is meaningful",
			s.step.At)
	case !s.step.Fits:
		s.method("bounds are computed from the description %s, which is not of this machine: set another one with "+
			"--describe", s.step.At)
	default:
		s.method("bounds are computed from the machine description %s", s.step.At)
	}
}

// inputs returns a tensor for every parameter.
func (s *stepJob) inputs() (map[string]*hocket.Tensor, error) {
	out := map[string]*hocket.Tensor{}
	for i := range s.plan.Inputs {
		io := &s.plan.Inputs[i]
		if t := s.Inputs[io.Name]; t != nil {
			out[io.Name] = t
			continue
		}
		t, err := tensor.New(io.DType, io.Shape)
		if err != nil {
			return nil, err
		}
		if !io.DType.IsInt() {
			if err := tensor.Fill(t, io.Name, tensor.Spec{Kind: tensor.SpecRand, Seed: 1}); err != nil {
				return nil, err
			}
		}
		out[io.Name] = (*hocket.Tensor)(t)
	}
	return out, nil
}

// weights lists the parameters that a plan uses only as weights: as the second operand or bias of a GEMM, as the
// weight or bias of a norm, or as the table of an embedding.
func weights(p *plan.Plan) []string {
	other, used := map[int32]bool{}, map[int32]bool{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Kind == plan.Input {
			continue
		}
		reads, writes := p.Accesses(c)
		for _, r := range writes {
			other[r.Buf] = true
		}
		for j, r := range reads {
			if c.Kind == plan.Compute && weighs(c.Op, j) {
				used[r.Buf] = true
			} else {
				other[r.Buf] = true
			}
		}
	}
	var names []string
	for _, in := range p.Inputs {
		if len(in.Parts) > 0 && !in.Inout && used[in.Parts[0].Ref.Buf] && !other[in.Parts[0].Ref.Buf] {
			names = append(names, in.Name)
		}
	}
	return names
}

// weighs reports whether an operand of an op is usually a weight.
func weighs(op ir.Op, operand int) bool {
	switch op {
	case ir.OpLinear, ir.OpMatmul, ir.OpRMSNorm, ir.OpLayerNorm, ir.OpEmbedding:
		return operand > 0
	}
	return false
}

// load loads the program for every strategy and way of issuing, and binds the parameters.
func (s *stepJob) load(ctx context.Context, inputs map[string]*hocket.Tensor) error {
	bound := weights(s.plan)
	s.step.Weights = bound
	for _, in := range s.plan.Inputs {
		if !slices.Contains(bound, in.Name) {
			s.step.State = append(s.step.State, in.Name)
		}
	}
	for _, strategy := range s.strategies("sequential", compile.Auto) {
		for _, issued := range []string{"graph", "eager"} {
			if issued == "graph" && !s.job.graphs() {
				continue
			}
			w := &stepWay{StepTimes: StepTimes{Strategy: strategy, Issued: issued}}
			s.ways = append(s.ways, w)
			if err := s.loadWay(ctx, w, inputs); err != nil {
				if ctx.Err() != nil || errors.Is(err, hocket.ErrOutOfMemory) {
					return fmt.Errorf("%s, %s: %w", strategy, issued, err)
				}
				w.Refused = err.Error()
			}
		}
	}
	return nil
}

// measuredAuto is the strategy auto with hocket.LoadOptions.Measure.
const measuredAuto = "auto measured"

// strategies lists the strategies to measure. The defaults apply if the options name none.
func (s *stepJob) strategies(defaults ...string) []string {
	list := s.job.Strategies
	if list == nil {
		list = defaults
	}
	if s.Measure {
		list = append(list[:len(list):len(list)], measuredAuto)
	}
	return list
}

// loadOptions returns the options with which a strategy is loaded.
func (s *stepJob) loadOptions(strategy, issued string) hocket.LoadOptions {
	opts := hocket.LoadOptions{Strategy: strategy, Graph: issued == "graph", FixedAlgorithms: s.Fixed}
	if strategy == measuredAuto {
		opts.Strategy, opts.Measure = compile.Auto, true
	}
	return opts
}

func (s *stepJob) loadWay(ctx context.Context, w *stepWay, inputs map[string]*hocket.Tensor) error {
	model, err := s.machine.Load(s.program, s.Binding, s.loadOptions(w.Strategy, w.Issued))
	if err != nil {
		return err
	}
	w.model, w.close = model, append(w.close, model.Close)
	for _, name := range s.step.Weights {
		if err := model.Bind(name, inputs[name]); err != nil {
			return err
		}
	}
	for _, name := range s.step.State {
		d, err := w.onDevices(ctx, name)
		if err != nil {
			return err
		}
		if err := d.Write(ctx, inputs[name]); err != nil {
			return err
		}
		if err := model.BindDevice(name, d); err != nil {
			return err
		}
	}
	args := hocket.Args{DeviceOut: map[string]*hocket.DeviceTensor{}}
	for _, out := range s.plan.Outputs {
		if out.Inout {
			continue // the parameter is already bound
		}
		if args.DeviceOut[out.Name], err = w.onDevices(ctx, out.Name); err != nil {
			return err
		}
	}
	w.run = func(ctx context.Context, n int) ([]string, error) {
		reports, err := model.RunBatch(ctx, slices.Repeat([]hocket.Args{args}, n))
		if err != nil {
			return nil, err
		}
		return reports[0].Guesses, nil
	}
	if err := model.Prepare(ctx, nil); err != nil {
		return err
	}
	pairs, err := model.Overlapped(nil)
	for _, o := range pairs {
		w.Overlap = append(w.Overlap, o.String())
	}
	return err
}

func (w *stepWay) onDevices(ctx context.Context, name string) (*hocket.DeviceTensor, error) {
	d, err := w.model.NewDeviceTensor(ctx, name, nil)
	if err == nil {
		w.close = append(w.close, d.Close)
	}
	return d, err
}

// shut closes the tensors and then the model of a way. In the reverse order, closing each tensor would unload
// plans.
func (w *stepWay) shut() error {
	var errs []error
	for _, c := range w.close {
		errs = append(errs, c())
	}
	w.close = nil
	return errors.Join(errs...)
}

// measure times all ways alternately.
func (s *stepJob) measure(ctx context.Context) error {
	const warm = 2 // a graph is recorded before the second run
	for round := range s.job.Rounds + warm {
		for _, w := range s.ways {
			if w.Refused != "" {
				continue
			}
			one, err := s.timeSingle(ctx, w)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", w.Strategy, w.Issued, err)
			}
			all, err := s.time(ctx, w, s.Runs)
			if err != nil {
				return fmt.Errorf("%s, %s, back to back: %w", w.Strategy, w.Issued, err)
			}
			if round >= warm {
				w.single = append(w.single, one)
				w.chain = append(w.chain, (all-one)/float64(s.Runs-1))
			}
		}
	}
	first := map[string]*stepWay{} // the strategy that was measured first, by way of issuing
	for _, w := range s.ways {
		if w.Refused != "" {
			continue
		}
		slices.Sort(w.Guesses)
		w.Guesses = slices.Compact(w.Guesses)
		w.BackToBack, w.Single = contest.FigureOf(w.chain), contest.FigureOf(w.single)
		w.Host = contest.FigureOf(contest.Differences(w.single, w.chain))
		if s.step.BoundUS > 0 && w.conclusive() {
			w.OverBound = w.BackToBack.Median / s.step.BoundUS
		}
		if f := first[w.Issued]; f != nil {
			diff := contest.FigureOf(contest.Differences(w.chain, f.chain))
			if w.Against = &diff; w.conclusive() && f.conclusive() {
				w.Verdict = contest.Verdict(diff)
			}
		} else {
			first[w.Issued] = w
		}
	}
	return nil
}

// timeSingle returns the median time of a few runs. The host waits for each of them. An additional first run is a
// warm-up.
func (s *stepJob) timeSingle(ctx context.Context, w *stepWay) (float64, error) {
	const singles = 5
	var took []float64
	for i := range 1 + singles {
		us, err := s.time(ctx, w, 1)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			took = append(took, us)
		}
	}
	return contest.FigureOf(took).Median, nil
}

// time runs a batch of n runs, and returns its time for the caller in microseconds.
func (s *stepJob) time(ctx context.Context, w *stepWay, n int) (float64, error) {
	begun := s.now()
	guesses, err := w.run(ctx, n)
	took := s.now().Sub(begun)
	w.Guesses = append(w.Guesses, guesses...)
	return float64(took) / 1e3, err
}

// timeOps times the commands of a way's plan one by one.
func (s *stepJob) timeOps(ctx context.Context, w *stepWay, m *machine.Description,
	inputs map[string]*hocket.Tensor) (err error) {
	if w.Strategy == measuredAuto {
		return nil // the commands belong to another strategy, or to a variant of this one
	}
	p, err := s.planOf(w.Strategy)
	if err != nil {
		return err
	}
	prog, err := exec.Load(ctx, s.job.machine, p, exec.Options{Trace: true, Graph: w.Issued == "graph"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prog.Close()) }()
	in := map[string]*tensor.Tensor{}
	for name, t := range inputs {
		in[name] = (*tensor.Tensor)(t)
	}
	list := newOpTimes(p, prog.Members, sim.NewBounds(p, m))
	const warm = 2
	for round := range s.job.Rounds + warm {
		res, err := prog.Run(ctx, maps.Clone(in))
		if err != nil {
			return err
		}
		if round >= warm {
			list.add(res.Trace)
		}
	}
	w.Ops, w.OpsBound = list.ops(), list.bound()
	return nil
}
