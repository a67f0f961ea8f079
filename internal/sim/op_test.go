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
