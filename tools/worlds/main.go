// Command worlds measures programs whose ranks are in several processes, for comparison with one process that
// drives all ranks:
//
//	worlds -n 2 -k 50 layer.hkt                               # one process
//	HOCKET_WORLD_SIZE=2 HOCKET_RANK=0 HOCKET_RUN_ID=x worlds -n 2 -k 50 layer.hkt &
//	HOCKET_WORLD_SIZE=2 HOCKET_RANK=1 HOCKET_RUN_ID=x worlds -n 2 -k 50 layer.hkt
//
// Results stay on the devices, and all parameters are bound. It prints the time of loading, and the time of a run
// within a batch, as the median of several batches.
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
	"time"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/tools/bound"
)

func main() {
	ranks := flag.Int("n", 2, "ranks")
	runs := flag.Int("k", 50, "runs in a batch")
	batches := flag.Int("batches", 9, "batches")
	graph := flag.Bool("graph", false, "by graph")
	strategy := flag.String("strategy", "sequential", "strategy")
	machine := flag.String("m", "cuda", "machine")
	loads := flag.Int("loads", 1, "number of times to load and unload the program")
	flag.Parse()
	if err := measure(*machine, flag.Arg(0), *ranks, *runs, *batches, *graph, *strategy, *loads); err != nil {
		log.Fatal(err)
	}
}

// row is the printed result.
type row struct {
	Program   string  `json:"program"`
	Processes int     `json:"processes"`
	Graph     bool    `json:"graph"`
	Strategy  string  `json:"strategy"`
	LoadMS    float64 `json:"load_ms"`
	US        float64 `json:"us"`
	Least     float64 `json:"us_least"`
}

func measure(machine, file string, ranks, runs, batches int, graph bool, strategy string, loads int) error {
	ctx := context.Background()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	n, err := hocket.Launched()
	if err != nil {
		return err
	}
	var w *hocket.World
	if n > 1 {
		if w, err = hocket.Join(ctx, hocket.JoinOptions{}); err != nil {
			return err
		}
		defer w.Leave()
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: machine, World: w})
	if err != nil {
		return err
	}
	defer m.Close()
	p, err := hocket.Parse(file, string(text))
	if err != nil {
		return err
	}
	out := row{Program: file, Processes: n, Graph: graph, Strategy: strategy}
	for i := range loads {
		began := time.Now()
		model, err := m.Load(p, hocket.Binding{Ranks: ranks}, hocket.LoadOptions{Strategy: strategy, Graph: graph})
		if err != nil {
			return err
		}
		if err := model.Prepare(ctx, nil); err != nil {
			return err
		}
		took := time.Since(began)
		if i == loads-1 {
			out.LoadMS = float64(took.Microseconds()) / 1e3
			err = out.time(ctx, model, p, runs, batches)
		}
		if err = errors.Join(err, model.Close()); err != nil {
			return err
		}
	}
	if w == nil || w.Rank() == 0 {
		return json.NewEncoder(os.Stdout).Encode(out)
	}
	return nil
}

// time measures batches of runs.
func (r *row) time(ctx context.Context, model *hocket.Model, p *hocket.Program, runs, batches int) error {
	inputs, err := model.RandomInputs("rand:1")
	if err != nil {
		return err
	}
	args, err := bound.Args(ctx, model, inputs)
	if err != nil {
		return err
	}
	batch := slices.Repeat([]hocket.Args{args}, runs)
	var took []float64
	for i := range batches + 2 {
		began := time.Now()
		if _, err := model.RunBatch(ctx, batch); err != nil {
			return fmt.Errorf("batch %d: %w", i, err)
		}
		if i >= 2 {
			took = append(took, float64(time.Since(began).Nanoseconds())/1e3/float64(runs))
		}
	}
	slices.Sort(took)
	r.US, r.Least = took[len(took)/2], took[0]
	return nil
}
