package sim

import (
	"math"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestDecodeAttention checks that attention with one query per sequence is predicted to take the
// time of reading its keys and values, as measured.
func TestDecodeAttention(t *testing.T) {
	m := h200(t)
	text, err := os.ReadFile("../../docs/measured/attention.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	head := strings.Split(lines[0], "\t")
	n := 0
	for _, line := range lines[1:] {
		r := map[string]string{}
		for i, cell := range strings.Split(line, "\t") {
			r[head[i]] = cell
		}
		if r["who"] != "hocket" || r["queries"] != "1" || !strings.HasSuffix(r["machine"], "H200") {
			continue
		}
		n++
		tensor := func(rows, heads string) Tensor {
			t := Tensor{Shape: []int64{integer(t, r["batch"]), integer(t, r[rows]), integer(t, r[heads]),
				integer(t, r["head_dim"])}, DType: ir.BF16, Bytes: 2}
			for _, e := range t.Shape {
				t.Bytes *= e
			}
			return t
		}
		q, k := tensor("queries", "heads"), tensor("keys", "kv_heads")
		op := NewOp(ir.OpAttention, []Tensor{q, k, k}, q, false)
		if us, want := op.Time(m), number(t, r["us"]); math.Abs(us/want-1) > 0.2 {
			t.Errorf("%s: predicted %.1f µs, measured %.1f", line, us, want)
		}
	}
	if n < 3 {
		t.Errorf("%d rows", n)
	}
}

// TestScaledLinear checks that linears of 8-bit operands are predicted at the rate of their scales, and not at that of
// their 16-bit results.
func TestScaledLinear(t *testing.T) {
	m := h200(t)
	const rows, n, k = 2048, 14336, 8192
	typed := func(dt ir.DType, shape ...int64) Tensor {
		t := Tensor{Shape: shape, DType: dt, Bytes: dt.Size()}
		for _, e := range shape {
			t.Bytes *= e
		}
		return t
	}
	y := typed(ir.BF16, rows, n)
	bf16 := NewOp(ir.OpLinear, []Tensor{typed(ir.BF16, rows, k), typed(ir.BF16, n, k)}, y, false)
	x, w := typed(ir.F8E4M3, rows, k), typed(ir.F8E4M3, n, k)
	times := map[string]float64{"bf16": bf16.Time(m)}
	for name, scales := range map[string][2]Tensor{
		"one":    {typed(ir.F32), typed(ir.F32)},
		"rows":   {typed(ir.F32, rows), typed(ir.F32, n)},
		"blocks": {typed(ir.F32, rows, k/128), typed(ir.F32, n/128, k/128)},
		"mixed":  {typed(ir.F32, rows), typed(ir.F32, n/128, k/128)},
	} {
		op := NewOp(ir.OpLinear, []Tensor{x, w, scales[0], scales[1]}, y, false)
		if op.M != rows || op.N != n || op.K != k || op.DType != ir.F8E4M3 {
			t.Errorf("%s: %+v", name, op)
		}
		times[name] = op.Time(m)
	}
	if times["one"] != times["rows"] || times["mixed"] != times["blocks"] || !(times["rows"] < times["blocks"]) ||
		!(times["blocks"] < times["bf16"]*0.7) {
		t.Errorf("%v", times)
	}
}
