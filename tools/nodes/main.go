// Command nodes measures collectives between nodes. It runs in each of several processes, and writes rows of
// docs/measured/nodes.tsv:
//
//	hocket launch --nodes 2 -n 2 -- ./nodes layers
//	HOCKET_RANKS_PER_GPU=2 hocket launch --nodes 2 -n 4 -- ./nodes all_reduce
//
// With the argument all_reduce, it measures two algorithms of an all_reduce over all ranks: the transport, and the
// one that is chosen by default. With the argument layers, it times a GEMM followed by an all_reduce under each
// strategy, and prints the prediction next to each time. All algorithms of a size are timed alternately, one batch
// of each in a round. To standard error, it writes the time of each algorithm relative to the first, by rounds, and
// the error of its prediction.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/tools/bound"
)

func main() {
	var b bench
	flag.StringVar(&b.device, "m", "cuda", "where to run: cuda or cpu")
	sizes := flag.String("mib", "", "sizes of an all_reduce's operand, in MiB (default 64; of layers 2,8,32,64)")
	flag.IntVar(&b.rounds, "rounds", 9, "batches of each algorithm or strategy that are counted, after a warm-up")
	flag.IntVar(&b.width, "width", 8192, "columns of a layer's operands, over all ranks")
	flag.StringVar(&b.described, "machine", "h100x2", "the `DESCRIPTION` to predict with, a file or a name")
	tier := flag.String("tier", "", "a `FILE` that hocket tune --across has printed: the tier between nodes, instead of "+
		"the description's, which must be a file then")
	flag.StringVar(&b.row, "row", "- - - -", "the first columns of rows: machine, driver, commit, date")
	flag.StringVar(&b.log, "log", "-", "the last column of rows")
	flag.Parse()
	if *sizes == "" {
		*sizes = "64"
		if flag.Arg(0) == "layers" {
			*sizes = "2,8,32,64"
		}
	}
	if err := b.run(context.Background(), flag.Arg(0), *sizes, *tier); err != nil {
		log.Fatal(err)
	}
}

// bench describes a measurement: the programs and the machine.
type bench struct {
	device, described, row, log string
	rounds, width               int

	world   *hocket.World
	machine *hocket.Machine
}

func (b *bench) run(ctx context.Context, what, sizes, tier string) (err error) {
	measure := map[string]func(context.Context, int) error{"all_reduce": b.allReduce, "layers": b.layer}[what]
	if measure == nil {
		return fmt.Errorf("all_reduce or layers, not %q", what)
	}
	if n, err := hocket.Launched(); err != nil || n == 1 {
		return errors.Join(err, errors.New("hocket launch --nodes 2 starts the processes"))
	}
	if b.world, err = hocket.Join(ctx, hocket.JoinOptions{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.world.Leave()) }()
	if tier != "" {
		if b.described, err = withTier(b.described, tier); err != nil {
			return err
		}
		defer os.Remove(b.described)
	}
	if b.machine, err = hocket.Open(ctx, hocket.MachineOptions{Name: b.device, World: b.world}); err != nil {
		return err
	}
	defer b.machine.Close()
	for size := range strings.SplitSeq(sizes, ",") {
		mib, err := strconv.Atoi(size)
		if err != nil || mib < 1 {
			return fmt.Errorf("-mib: %q", size)
		}
		if err := measure(ctx, mib); err != nil {
			return fmt.Errorf("%d MiB: %w", mib, err)
		}
	}
	return nil
}

// withTier writes a machine description with the data of the file tier for transfers between nodes, and returns the
// name of the written file.
func withTier(description, tier string) (string, error) {
	var all, other map[string]json.RawMessage
	for file, into := range map[string]*map[string]json.RawMessage{description: &all, tier: &other} {
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
	}
	if other["across"] == nil {
		return "", fmt.Errorf("%s has no tier", tier)
	}
	all["across"] = other["across"]
	text, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "*.json")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	return f.Name(), errors.Join(err, f.Close())
}

// way is one way to run a program: an algorithm or a strategy.
type way struct {
	name      string
	opts      hocket.LoadOptions
	predicted float64 // in microseconds; 0 if there is no prediction

	model *hocket.Model
	batch []hocket.Args
	took  []float64 // microseconds of a run, by rounds
}

func (b *bench) allReduce(ctx context.Context, mib int) error {
	flat := "nccl"
	if b.device == "cpu" {
		flat = "across" // TCP adds nothing
	}
	ways := []*way{{opts: hocket.LoadOptions{Algorithm: flat}}, {}}
	n := b.world.Size()
	text := fmt.Sprintf(`mesh d[%d]
func all_reduce(%%x: bf16[%d/d]) -> bf16[%[2]d/d] {
  %%y = alloc bf16[%[3]d]
  all_reduce %%x into %%y, over=d, op=sum, order=any
  return %%y
}`, n, n*mib<<19, mib<<19)
	return b.measure(ctx, "all_reduce", text, mib, ways)
}

func (b *bench) layer(ctx context.Context, mib int) error {
	text := fmt.Sprintf(`mesh tp[%d]
func layer(%%x: bf16[%d, %d/tp], %%w: bf16[%[3]d, %[3]d/tp]) -> bf16[%[2]d, %[3]d] {
  %%y = linear %%x, %%w
  return %%y
}`, b.world.Size(), mib<<19/b.width, b.width)
	p, err := hocket.Parse("layer", text)
	if err != nil {
		return err
	}
	var ways []*way
	for _, strategy := range []string{"sequential", "chunked(2)", "chunked(4)", "auto"} {
		w := &way{name: strategy, opts: hocket.LoadOptions{Strategy: strategy}}
		if strategy != "auto" { // auto is compared with the prediction for the strategy that it chooses: see measure
			x, err := p.Explain(hocket.LowerOptions{Strategy: strategy, Machine: b.described, Nodes: b.world.Nodes(),
				Binding: hocket.Binding{Ranks: b.world.Size()}})
			if err != nil {
				return err
			}
			w.predicted = x.Time
		}
		ways = append(ways, w)
	}
	return b.measure(ctx, fmt.Sprintf("GEMM and all_reduce, %d columns", b.width), text, mib, ways)
}

// measure times all ways of a program alternately, and prints their rows. If operands are small, a batch has more
// runs.
func (b *bench) measure(ctx context.Context, what, text string, mib int, ways []*way) error {
	p, err := hocket.Parse("program", text)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	var inputs map[string]*hocket.Tensor
	for _, w := range ways {
		if w.model, err = b.machine.Load(p, hocket.Binding{Ranks: b.world.Size()}, w.opts); err != nil {
			return err
		}
		defer w.model.Close()
		if inputs == nil {
			if inputs, err = w.model.RandomInputs("rand:1"); err != nil {
				return err
			}
		}
		if err := w.load(ctx, inputs, max(2, 128/mib)); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	for _, w := range ways {
		if took, ok := strings.CutPrefix(w.name, "auto: "); ok {
			if i := slices.IndexFunc(ways, func(w *way) bool { return w.name == took }); i >= 0 {
				w.predicted = ways[i].predicted
			}
		}
	}
	for round := range b.rounds + 1 {
		for i := range ways {
			w := ways[(i+round)%len(ways)] // over the rounds, each way runs after each other one
			began := time.Now()
			if _, err := w.model.RunBatch(ctx, w.batch); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if round > 0 {
				w.took = append(w.took, float64(time.Since(began).Nanoseconds())/1e3/float64(len(w.batch)))
			}
		}
	}
	if b.world.Rank() == 0 {
		b.print(what, mib, ways)
	}
	return nil
}

// load prepares a way to run a program: it binds parameters, keeps results on the devices, and runs the program once.
func (w *way) load(ctx context.Context, inputs map[string]*hocket.Tensor, runs int) error {
	args, err := bound.Args(ctx, w.model, inputs)
	if err != nil {
		return err
	}
	w.batch = slices.Repeat([]hocket.Args{args}, runs)
	report, err := w.model.Run(ctx, w.batch[0])
	if err != nil {
		return err
	}
	var by []string
	for _, o := range report.Overlap {
		if o.Algorithm != "" && !slices.Contains(by, o.Algorithm) {
			by = append(by, o.Algorithm)
		}
	}
	overlapped, err := w.model.Overlapped(nil)
	if err != nil {
		return err
	}
	switch {
	case w.name == "" && w.opts.Algorithm == "":
		w.name = "chosen: " + strings.Join(by, "+")
	case w.name == "":
		w.name = strings.Join(by, "+")
	case w.name == "auto" && len(overlapped) == 0:
		w.name = "auto: sequential"
	case w.name == "auto":
		w.name = "auto: " + overlapped[0].Strategy
	}
	return nil
}

// print prints a row for each way.
func (b *bench) print(what string, mib int, ways []*way) {
	for _, w := range ways {
		us, iqr := middle(w.took)
		var parts []float64
		for i, t := range w.took {
			parts = append(parts, t/ways[0].took[i])
		}
		part, spread := middle(parts)
		note := fmt.Sprintf("%s, %d MiB, %s: %.3f of %s, quartiles %.3f apart", what, mib, w.name, part, ways[0].name,
			spread)
		predicted := "-"
		if w.predicted > 0 {
			predicted = fmt.Sprintf("%.0f", w.predicted)
			note += fmt.Sprintf("; predicted %+.1f %%", 100*(w.predicted/us-1))
		}
		fmt.Fprintln(os.Stderr, note)
		cells := append(strings.Fields(b.row), "hocket", what, fmt.Sprint(mib<<20), fmt.Sprint(b.world.Nodes()),
			fmt.Sprint(b.world.Size()), w.name, "eager", fmt.Sprintf("%.0f", us), fmt.Sprintf("%.0f", iqr), predicted,
			b.log)
		fmt.Println(strings.Join(cells, "\t"))
	}
}

// middle is the median of a list and the distance between its quartiles.
func middle(list []float64) (median, iqr float64) {
	s := slices.Sorted(slices.Values(list))
	n := len(s)
	return s[n/2], s[n*3/4] - s[n/4]
}
