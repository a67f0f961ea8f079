package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestRows: reports and figures of peers become rows, whatever stands between them.
func TestRows(t *testing.T) {
	const in = `{"hocket": "x", "bench": {"ranks": 2, "step": {"func": "step", "dims": {"T": 8, "H": 64}, "bound_us": 290.04, "bound_by": "memory", "ways": [
	  {"strategy": "sequential", "issued": "graph", "back_to_back_us": {"median": 606, "spread": 1.5}, "single_us": {"median": 697, "spread": 2},
	   "host_us": {"median": 91, "spread": 3}, "ops": [{"op": "linear", "line": 36, "times": 4, "shapes": "bf16[8,64] -> bf16[8,32]",
	   "us": {"median": 44, "spread": 1}, "bound_us": 30, "bound_by": "memory"}, {"op": "add"}]},
	  {"strategy": "exchange", "issued": "graph", "refused": "no"}]}}}
some words
{"who": "torch graph nccl", "T": 8, "step_us": 658, "back_to_back_us": 629, "attention": "default", "attention_us": 3}
{"op": "step", "name": "other", "ranks": 2, "shape": "H=64 T=8", "issued": "graph", "us": 640}
`
	s := source{machine: "2xH100", driver: "580.159", commit: "0123456", date: "2026-11-27", log: "h100x2-step"}
	rows := func(ops int) string {
		var out bytes.Buffer
		if err := s.convert(strings.NewReader(in), &out, ops, "H=64", 2); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(out.String(), "\t", "|")
	}
	const want = `2xH100|580.159|0123456|2026-11-27|hocket|step|H=64 T=8|2|sequential|graph|606.0|1.5|697.0|91.0|290.0|memory|h100x2-step
2xH100|580.159|-|2026-11-27|torch graph nccl|step|H=64 T=8|2|-|graph|629.0|-|658.0|-|-|-|h100x2-step
2xH100|580.159|-|2026-11-27|other|step|H=64 T=8|2|-|graph|640.0|-|-|-|-|-|h100x2-step
`
	if got := rows(0); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	const ops = "2xH100|580.159|0123456|2026-11-27|hocket|step|H=64 T=8|2|sequential|graph|linear|36|4|bf16[8,64] -> bf16[8,32]|44.0|1.0|30.0|memory|h100x2-step\n"
	if got := rows(1); got != ops {
		t.Errorf("got\n%swant\n%s", got, ops)
	}
	if s.products = "own"; !strings.Contains(rows(0), "|sequential own|graph|606.0|") {
		t.Errorf("own products: %s", rows(0))
	}
	for _, bad := range []string{`{"x": 1}`, `{"bench": `} {
		if err := s.convert(strings.NewReader(bad), &bytes.Buffer{}, 0, "", 2); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
