package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	described "hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/tensor"
)

// acrossSizes lists the message sizes, in bytes, that are measured between nodes. Measurements between GPUs add
// acrossLargest. Tests use fewer sizes.
var acrossSizes = []int64{4 << 10, 64 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20}

const acrossLargest = 64 << 20

const (
	acrossWarm = 2 // number of runs before the measured ones
	acrossRuns = 5 // number of measured runs; their median counts, because programs observe typical times
)

// acrossChain returns the number of collectives of a message size that one run executes back to back, as programs do.
// The first collective finds the network idle and is slower, so its share of the run must be small.
func acrossChain(bytes int64) int64 { return min(32, max(4, 16<<20/bytes)) }

// acrossProgram is a program whose collectives have one member on each node. Each member holds one block for the
// all_gather and one term for the sums.
const acrossProgram = `dim E
dim C
mesh node[%d] place[%d]
func all_gather(%%x: i32[E/node]) -> i32[E] {
  %%y = alloc i32[E]
  for %%i in 0..C { all_gather %%x into %%y, over=node, axis=0 }
  return %%y
}
func all_reduce(%%x: i32[%[1]d*E/node]) -> i32[E] {
  %%y = alloc i32[E]
  for %%i in 0..C { all_reduce %%x into %%y, over=node, op=sum }
  return %%y
}
func reduce_scatter(%%x: i32[%[1]d*E/node]) -> i32[E/node] {
  %%y = alloc i32[floordiv(E, %[1]d)]
  for %%i in 0..C { reduce_scatter %%x into %%y, over=node, op=sum, axis=0 }
  return %%y
}
`

// tuneAcross measures the times of collectives between nodes, in one of the processes on these nodes. tuneAcross prints
// the times in the format of a machine description, and stores them for the strategy auto.
func (a *measurements) tuneAcross(ctx context.Context, o *tuneFlags) (err error) {
	n, err := hocket.Launched()
	if err != nil {
		return usagef("%w", err)
	}
	if n == 1 {
		return usagef("--across measures between nodes, but this process was not started by a launcher on one of several nodes").
			helping("hocket launch --nodes 2 -n 2 -- tune --across, or see docs/operations.md for hosts")
	}
	opts := hocket.JoinOptions{}
	if os.Getenv("HOCKET_STALL_TIMEOUT") == "" {
		opts.StallTimeout = 30 * time.Second
	}
	w, err := hocket.Join(ctx, opts)
	if err != nil {
		return ofMachine(err)
	}
	ctx, leave := within(ctx, w)
	defer func() { err = leave(err) }()
	if w.Rank() > 0 {
		a.mute()
	}
	if w.Nodes() == 1 || w.Size()%w.Nodes() != 0 {
		return usagef("--across needs nodes with equal numbers of processes, but there are %d processes on %d",
			w.Size(), w.Nodes())
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: o.machine, World: w})
	if err != nil {
		return ofMachine(err)
	}
	defer m.Close()
	sizes := acrossSizes
	if kind, err := device.KindNamed(o.machine); err == nil && !kind.OnHost {
		sizes = append(slices.Clone(sizes), acrossLargest)
	}
	tier, err := measureAcross(ctx, m, w, sizes)
	if err != nil {
		return ofMachine(err)
	}
	if w.Rank() == 0 { // only process 0 prints and stores the table
		if err := compile.KeepAcross(o.machine, w.Nodes(), tier); err != nil {
			return ofMachine(err)
		}
	}
	a.out.Machine, a.out.Ranks, a.out.Across = o.machine, w.Size(), tier
	if a.json {
		return nil
	}
	text, err := json.Marshal(map[string]*described.Across{"across": tier})
	if err == nil {
		_, err = fmt.Fprintf(a.text, "%s\n", text)
	}
	return err
}

// measureAcross measures every collective at every message size.
func measureAcross(ctx context.Context, m *hocket.Machine, w *hocket.World, sizes []int64) (*described.Across, error) {
	nodes := int64(w.Nodes())
	p, err := hocket.Parse("across", fmt.Sprintf(acrossProgram, nodes, int64(w.Size())/nodes))
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname() // the host name is only shown to users
	t := &described.Across{NICs: 1, Source: fmt.Sprintf("%d nodes, %d processes, by hocket tune --across %s on %s, %s",
		nodes,
		w.Size(), version(), host, time.Now().Format(time.DateOnly))}
	for _, c := range []struct {
		fn    string
		shots int64 // how often each byte of a block is sent through the network
		to    *[]described.Point
	}{{"all_gather", 1, &t.AllGather}, {"reduce_scatter", 1, &t.ReduceScatter}, {"all_reduce", 2, &t.AllReduce}} {
		for _, bytes := range sizes {
			elements := bytes / 4 / nodes * nodes
			chain := acrossChain(bytes)
			us, err := timeAcross(ctx, m, p, hocket.Binding{Func: c.fn, Dims: map[string]int64{"E": elements, "C": chain}})
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", c.fn, tensor.Size(bytes), err)
			}
			us = math.Round(us/float64(chain)*10) / 10
			if last := len(*c.to) - 1; last >= 0 {
				us = max(us, (*c.to)[last][1]) // times in a table must not decrease
			}
			*c.to = append(*c.to, described.Point{float64(c.shots * 4 * elements / nodes * (nodes - 1)), us})
		}
	}
	g := t.AllGather
	first, last := g[0], g[len(g)-1]
	if last[1] <= first[1] {
		return nil, errors.New("the largest all_gather takes no longer than the smallest: " +
			"the bandwidth cannot be determined")
	}
	t.Latency = first[1]
	t.Bandwidth = math.Round(max((last[0]-first[0])/(last[1]-first[1]), 1)) / 1e3 // bytes per microsecond equal MB/s
	return t, nil
}

// timeAcross returns the time of one chain of the program's collectives in microseconds.
func timeAcross(ctx context.Context, m *hocket.Machine, p *hocket.Program, b hocket.Binding) (float64, error) {
	model, err := m.Load(p, b, hocket.LoadOptions{Trace: true})
	if err != nil {
		return 0, err
	}
	defer model.Close()
	in, err := model.RandomInputs("ints:1")
	if err != nil {
		return 0, err
	}
	var took []int64
	for run := range acrossWarm + acrossRuns {
		r, err := model.Run(ctx, hocket.Args{In: in})
		if err != nil {
			return 0, err
		}
		if len(r.Overlap) != 1 {
			return 0, fmt.Errorf("%d collectives were timed", len(r.Overlap))
		}
		if run >= acrossWarm {
			took = append(took, r.Overlap[0].BusyNS)
		}
	}
	slices.Sort(took)
	return float64(took[acrossRuns/2]) / 1e3, nil
}
