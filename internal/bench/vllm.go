package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"hocket.example/hocket/internal/contest"
)

// WriteVLLM writes measurements of collectives in the format of vLLM's benchmark_device_communicators.py:
// milliseconds per call by graph, one line for each number of rows of 8192 elements, and the speedup over NCCL. The
// report must have been made with Options.Rows.
func (r *Report) WriteVLLM(w io.Writer) error {
	rows := r.Collectives
	if len(rows) == 0 {
		return contest.Usagef("the output format of vLLM is only for benchmarks of collectives")
	}
	var names []string
	for i := range rows {
		for n := range rows[i].vllmTimes() {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	t := &table{contest.Lines{W: w}}
	rule := strings.Repeat("=", 130)
	dtype := map[string]string{"bf16": "torch.bfloat16", "f16": "torch.float16"}[rows[0].DType]
	t.Line("\n%s\nDevice Communicator Benchmark Results\nWorld Size: %d, Data Type: %s, Hidden Size: 8192\n%s", rule, r.Ranks, dtype, rule)
	head := pad("Tensor Shape", 20) + pad("Tensor Size", 15)
	for _, n := range names {
		head += pad(n, 20)
	}
	head += pad("Best (Speedup vs PyNccl)", 30)
	t.Line("%s\n%s", head, strings.Repeat("-", utf8.RuneCountInString(head)))
	for i := range rows {
		t.Line("%s", rows[i].vllm(names))
	}
	t.Line("%s\nAll times are in milliseconds (ms) per %s operation\nSpeedup column shows: fastest_algorithm (speedup_vs_pynccl)", rule, strings.ReplaceAll(rows[0].Op, "_", ""))
	return t.Err
}

// vllmTimes returns the times of a row in microseconds, by column. The column "hocket" has the times of the algorithm
// that hocket chooses. The column of NCCL has the name that vLLM uses, unless the peers include vLLM's own measurement
// of NCCL. Eager measurements are omitted.
func (c *Collective) vllmTimes() map[string]float64 {
	times := map[string]float64{}
	for i := range c.Ways {
		w := &c.Ways[i]
		name := w.Algorithm
		switch {
		case w.Refused != "" || w.Best() <= 0:
			continue
		case w.By != "asked":
			name = "hocket"
		case w.Library && c.Peers[pynccl] == 0:
			name = pynccl
		}
		times[name] = w.Best()
	}
	for name, us := range c.Peers {
		if !strings.HasSuffix(name, eagerSuffix) {
			times[name] = us
		}
	}
	return times
}

// pynccl is the name of NCCL in vLLM's benchmark.
const pynccl = "pynccl"

func (c *Collective) vllm(names []string) string {
	times := c.vllmTimes()
	line := pad(fmt.Sprintf("(%d, 8192)", (c.Bytes+rowBytes/2)/rowBytes), 20) + pad(fmt.Sprintf("%.2f MB", float64(c.Bytes)/(1<<20)), 15)
	best := ""
	for _, n := range names {
		us, ok := times[n]
		if !ok {
			line += pad("N/A", 20)
			continue
		}
		line += pad(fmt.Sprintf("%.3f", us/1e3), 20)
		if best == "" || us < times[best] {
			best = n
		}
	}
	switch nccl := times[pynccl]; {
	case best == "":
		return line + pad("N/A", 30)
	case nccl == 0:
		return line + pad(best+" (N/A)", 30)
	default:
		return line + pad(fmt.Sprintf("%s (%.2fx)", best, nccl/times[best]), 30)
	}
}

// pad appends spaces to s up to a width.
func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
