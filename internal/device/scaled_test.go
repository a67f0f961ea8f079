package device

import (
	"testing"

	"hocket.example/hocket/ir"
)

// TestCheckScaled checks the shapes of scales of a weight whose rows have up to 128 elements: one
// scale for each row, or for each block of 128 rows.
func TestCheckScaled(t *testing.T) {
	k := &Kernel{Outs: []View{{DType: ir.F32}}}
	for _, dt := range []ir.DType{ir.F8E4M3, ir.F8E4M3, ir.F32, ir.F32} {
		k.Ins = append(k.Ins, View{DType: dt})
	}
	for _, c := range []struct {
		n, d   int64
		scales []int64
		ok     bool
	}{
		{300, 128, nil, true}, {300, 128, []int64{300}, true}, {300, 128, []int64{3, 1}, true}, {1, 128, []int64{1, 1}, true},
		{300, 128, []int64{300, 1}, false}, {300, 256, []int64{300, 2}, false}, {300, 256, []int64{3, 2}, true},
	} {
		_, _, err := CheckScaled(k, []int64{4, c.n}, [][]int64{{4, c.d}, {c.n, c.d}, {4}, c.scales})
		if (err == nil) != c.ok {
			t.Errorf("scales%v of a weight[%d %d]: %v", c.scales, c.n, c.d, err)
		}
	}
}
