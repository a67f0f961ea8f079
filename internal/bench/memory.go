package bench

import (
	"context"
	"fmt"
	"strings"
)

// MemoryUse is what a plan reserves on each rank, in bytes.
type MemoryUse struct {
	Program string `json:"program"`
	// Inputs are the parameters, which live as long as the plan.
	Inputs int64 `json:"inputs"`
	// Peak is the arena; Bound the most that is live at once in issue order. A
	// peak above it is the price of streams that may run at the same time.
	Peak  int64 `json:"peak"`
	Bound int64 `json:"bound"`
	// Unit is the bytes of one activation, whole.
	Unit int64 `json:"activation"`
}

// memory plans programs of full size, and runs nothing.
func (j *job) memory(context.Context) error {
	j.method("plans only, nothing runs; peak and bound with the parameters; activations = (peak - parameters) / bytes of one whole activation")
	n := int64(j.Ranks)
	batch, width, layers := (4096+n-1)/n*n, (8192+n-1)/n*n, 32
	programs := []struct {
		name, text string
		unit       int64
	}{
		{"8 linears, all-reduce after each", allReduceText(batch, width, j.Ranks), batch * width * 2},
		{fmt.Sprintf("%d layers of two linears, sharded rows", layers), modelText(batch, width, 4*width, layers, j.Ranks), batch * width * 2},
	}
	for _, p := range programs {
		for _, strategy := range []string{"sequential", "chunked(4)", "exchange"} {
			built, err := build(p.text, strategy, j.Ranks)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", p.name, strategy, err)
			}
			m := built.Memory
			j.report.Memory = append(j.report.Memory, MemoryUse{Program: p.name + ", " + strategy, Inputs: m.Inputs, Peak: m.Peak, Bound: m.Bound, Unit: p.unit})
		}
	}
	return nil
}

// allReduceText is eight linears with an all-reduce after each.
func allReduceText(batch, width int64, ranks int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "dim B = %d\ndim D = %d\nmesh tp[%d]\n", batch, width, ranks)
	b.WriteString("func layers(%x: bf16[B, D], %w: bf16[8, D, D/tp]) -> bf16[B, D] {\n  %h0 = copy %x\n")
	for i := range 8 {
		fmt.Fprintf(&b, "  %%w%d = select %%w, axis=0, index=%d\n  %%h%d: bf16[B, D] = linear %%h%d, %%w%d\n", i, i, i+1, i, i)
	}
	b.WriteString("  return %h8\n}\n")
	return b.String()
}

// modelText is layers of two linears and a residual, each a call.
func modelText(batch, width, hidden int64, layers, ranks int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "dim T = %d\ndim H = %d\ndim F = %d\nmesh tp[%d]\n", batch, width, hidden, ranks)
	b.WriteString(`func layer(%x: bf16[T/tp, H], %up: bf16[F/tp, H], %down: bf16[H, F/tp]) -> bf16[T/tp, H] {
  %h = linear %x, %up
  %g = relu %h
  %y: bf16[T/tp, H] = linear %g, %down
  %z = add %y, %x
  return %z
}
`)
	fmt.Fprintf(&b, "func model(%%x: bf16[T/tp, H], %%up: bf16[%d, F/tp, H], %%down: bf16[%d, H, F/tp]) -> bf16[T/tp, H] {\n  %%x0 = copy %%x\n", layers, layers)
	for i := range layers {
		fmt.Fprintf(&b, "  %%u%d = select %%up, axis=0, index=%d\n  %%d%d = select %%down, axis=0, index=%d\n  %%x%d = call layer %%x%d, %%u%d, %%d%d\n", i, i, i, i, i+1, i, i, i)
	}
	fmt.Fprintf(&b, "  return %%x%d\n}\n", layers)
	return b.String()
}
