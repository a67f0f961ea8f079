package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/tensor"
)

// HostCost is what one more op of a kind costs.
type HostCost struct {
	Op string `json:"op"`
	// Issued is "eager", "traced" for the same with every command timed, or
	// "graph" for replays of the recorded plan.
	Issued string `json:"issued"`
	Ranks  int    `json:"ranks"` // of the world
	Ops    int    `json:"ops"`   // over all ranks
	// Issue is the host's time, Total the time until all is done, in
	// nanoseconds an op.
	// Refused says why there are none; empty where there are.
	Refused string         `json:"refused,omitempty"`
	Issue   contest.Figure `json:"issue_ns"`
	Total   contest.Figure `json:"total_ns"`
}

// kernelOp and edgeOp are what host measures.
const kernelOp, edgeOp = "kernel", "edge"

// hostOps is how many ops, or edges, are issued on a rank.
const hostOps = 1000

// kernelText is a program of count tiny elementwise ops on each rank.
func kernelText(ranks, count int) string {
	return fmt.Sprintf(`mesh tp[%d]
func kernels(%%x: f32[64]) -> f32[64] {
  %%y = alloc f32[64]
  add %%x, %%x into %%y
  for %%i in 0..%d {
    add %%x, %%x into %%y
  }
  return %%y
}
`, ranks, count)
}

// edgeText is a program in which ranks 0 and 1 signal each other in turns: two
// signals and two waits for each of count/2 turns.
func edgeText(ranks, count int) string {
	return fmt.Sprintf(`mesh tp[%d]
func edges(%%x: f32[64]) -> f32[64] {
  %%there = counter[1]
  %%back = counter[1]
  barrier over=tp
  for %%i in 0..%d {
    if rank(tp) == 0 {
      signal %%there[0] at tp[1]
      wait %%back[0] >= %%i + 1
    }
    if rank(tp) == 1 {
      wait %%there[0] >= %%i + 1
      signal %%back[0] at tp[0]
    }
  }
  %%y = add %%x, %%x
  return %%y
}
`, ranks, count/2)
}

func (j *job) hostCosts(ctx context.Context) error {
	j.method("a plan with %d ops on each rank against the same without, in turns, through the loop that all programs are issued by; paired differences, median of %d after two to warm up", hostOps, j.Rounds)
	j.method("an edge is a signal and the wait for it on another rank, each waiting for the one before; kernels are elementwise sums of 64 numbers; traced is eager with every command timed")
	kinds := []struct {
		op    string
		ranks int // of the world
		ops   int // over all ranks
		text  func(ranks, count int) string
	}{
		{kernelOp, 1, hostOps, kernelText},
		{kernelOp, j.Ranks, hostOps * j.Ranks, kernelText},
		{edgeOp, j.Ranks, hostOps, edgeText},
	}
	for i, k := range kinds {
		if i > 0 && j.Ranks < 2 {
			break
		}
		for _, issued := range []string{"eager", "traced", "graph"} {
			if issued == "graph" && !j.graphs() {
				continue
			}
			opts := exec.Options{Graph: issued == "graph", Trace: issued == "traced"}
			c, err := j.hostCost(ctx, k.text(k.ranks, 0), k.text(k.ranks, hostOps), k.ranks, k.ops, opts)
			if err != nil && (issued != "graph" || ctx.Err() != nil) {
				return fmt.Errorf("%s on %d ranks: %w", k.op, k.ranks, err)
			}
			if err != nil {
				c.Refused = err.Error()
			}
			c.Op, c.Ranks, c.Issued = k.op, k.ranks, issued
			j.report.Host = append(j.report.Host, c)
		}
	}
	return nil
}

// hostCost times a program and another with ops more, in turns.
func (j *job) hostCost(ctx context.Context, without, with string, ranks, ops int, opts exec.Options) (c HostCost, err error) {
	var progs [2]*exec.Program
	var inputs map[string]*tensor.Tensor
	for i, text := range []string{without, with} {
		p, prog, err := load(ctx, j.machine, text, ranks, opts)
		if err != nil {
			return c, err
		}
		defer func() { err = errors.Join(err, prog.Close()) }()
		progs[i] = prog
		if inputs, err = randomInputs(p); err != nil {
			return c, err
		}
	}
	var issue, total []float64
	const warm = 2 // a graph is recorded before the second run
	for round := range j.Rounds + warm {
		var took, issued [2]time.Duration
		for i, prog := range progs {
			begun := time.Now()
			res, err := prog.Run(ctx, inputs)
			if err != nil {
				return c, err
			}
			took[i], issued[i] = time.Since(begun), res.Issue
		}
		if round >= warm {
			issue = append(issue, float64(issued[1]-issued[0])/float64(ops))
			total = append(total, float64(took[1]-took[0])/float64(ops))
		}
	}
	c.Ops, c.Issue, c.Total = ops, contest.FigureOf(issue), contest.FigureOf(total)
	return c, nil
}
