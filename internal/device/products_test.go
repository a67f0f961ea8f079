package device

import "testing"

func TestCheckProducts(t *testing.T) {
	type shapes = [][]int64
	for _, c := range []struct {
		name   string
		out    []int64
		ins    shapes
		matmul bool
		ta, tb bool
		ok     bool
	}{
		{name: "linear", out: []int64{2, 3, 5}, ins: shapes{{2, 3, 7}, {5, 7}}, ok: true},
		{name: "linear of one row", out: []int64{5}, ins: shapes{{7}, {5, 7}, {5}}, ok: true},
		{name: "linear of a scalar", out: []int64{5}, ins: shapes{{}, {5, 7}}},
		{name: "linear, another depth", out: []int64{3, 5}, ins: shapes{{3, 6}, {5, 7}}},
		{name: "linear, another result", out: []int64{5, 3}, ins: shapes{{3, 7}, {5, 7}}},
		{name: "linear, another bias", out: []int64{3, 5}, ins: shapes{{3, 7}, {5, 7}, {7}}},
		{name: "linear, a batch of weights", out: []int64{3, 5}, ins: shapes{{3, 7}, {1, 5, 7}}},
		{name: "linear, one operand", out: []int64{3, 5}, ins: shapes{{3, 7}}},
		{name: "linear, four operands", out: []int64{3, 5}, ins: shapes{{3, 7}, {5, 7}, {5}, {5}}},
		{name: "matmul", matmul: true, out: []int64{4, 2, 3}, ins: shapes{{4, 2, 7}, {4, 7, 3}}, ok: true},
		{name: "matmul, both exchanged", matmul: true, ta: true, tb: true, out: []int64{2, 3}, ins: shapes{{7, 2}, {3, 7}}, ok: true},
		{name: "matmul, exchanged and not said", matmul: true, out: []int64{2, 3}, ins: shapes{{7, 2}, {3, 7}}},
		{name: "matmul, another batch", matmul: true, out: []int64{4, 2, 3}, ins: shapes{{1, 2, 7}, {4, 7, 3}}},
		{name: "matmul, another depth", matmul: true, out: []int64{2, 3}, ins: shapes{{2, 7}, {6, 3}}},
		{name: "matmul of vectors", matmul: true, out: []int64{2}, ins: shapes{{2}, {2}}},
		{name: "matmul, ranks differ", matmul: true, out: []int64{2, 3}, ins: shapes{{1, 2, 7}, {7, 3}}},
		{name: "matmul, one operand", matmul: true, out: []int64{2, 3}, ins: shapes{{2, 7}}},
	} {
		err := CheckLinear(c.out, c.ins)
		if c.matmul {
			err = CheckMatmul(c.out, c.ins, c.ta, c.tb)
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
