package compile

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestGatheredGEMMs compares, for a GEMM and the all_gather of its result, the strategy that auto chooses with recorded
// measurements. The chosen strategy must have taken at most 5 % longer than the fastest measured strategy.
func TestGatheredGEMMs(t *testing.T) {
	type layer struct {
		machine string
		m, n, k int64
	}
	us := map[layer]map[string]float64{
		// These layers were called from torch by two processes.
		{"h200x2", 8192, 8192, 28672}: {"sequential": 2735, "exchange": 2571},
		{"h200x2", 8192, 8192, 32768}: {"sequential": 3107, "exchange": 2954},
	}
	text, err := os.ReadFile("../../docs/measured/layers.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	head := strings.Split(lines[0], "\t")
	for _, line := range lines[1:] {
		r := map[string]string{}
		for i, cell := range strings.Split(line, "\t") {
			r[head[i]] = cell
		}
		if r["op"] != "gemm-ag" || r["who"] != "hocket" || r["issue"] != "graph" || r["strategy"] == "auto" {
			continue
		}
		var e [3]int64
		for i, x := range []string{"m", "n", "k"} {
			if e[i], err = strconv.ParseInt(r[x], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		l := layer{map[string]string{"2xH100": "h100x2", "2xH200": "h200x2"}[r["machine"]], e[0], e[1], e[2]}
		if us[l] == nil {
			us[l] = map[string]float64{}
		}
		if us[l][r["strategy"]], err = strconv.ParseFloat(r["us"], 64); err != nil {
			t.Fatal(err)
		}
	}
	if len(us) < 5 {
		t.Fatalf("%d layers", len(us))
	}
	const program = "dim M\ndim N\ndim K\nmesh tp[2]\nfunc f(%x: bf16[M/tp, K], %w: bf16[N, K]) -> bf16[M, N] {\n" +
		"  %y = linear %x, %w\n  return %y\n}\n"
	for l, measured := range us {
		u, err := Build(check(t, program), Options{Strategy: Auto, Machine: l.machine})
		if err != nil {
			t.Fatal(err)
		}
		e, err := u.Explain(ir.Binding{Dims: map[string]int64{"M": l.m, "N": l.n, "K": l.k}})
		if err != nil {
			t.Fatal(err)
		}
		took, least := e.Pairs[0].Chosen, measured["sequential"]
		for _, x := range measured {
			least = min(least, x)
		}
		if x, ok := measured[took]; !ok || x > 1.05*least {
			t.Errorf("%+v: auto takes %s, of %v\n%+v", l, took, measured, e.Pairs[0].Strategies)
		}
	}
}
