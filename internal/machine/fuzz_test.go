package machine

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// FuzzParse checks that a description stays the same if it is written and read again, and that every prediction from it
// is a time. Errors must name the file.
func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		d, err := Load(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(d.GEMM.Measured) > 3 {
			d.GEMM.Measured = d.GEMM.Measured[:3]
		}
		text, err := json.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"copy":[[1e400,1]]}`))
	f.Add([]byte(`{} {}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse("here.json", b)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "here.json: ") {
				t.Errorf("the error does not name the file: %v", err)
			}
			return
		}
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again", text)
		if err != nil {
			t.Fatalf("%s, written again: %v", text, err)
		}
		if more, _ := json.Marshal(again); !reflect.DeepEqual(text, more) {
			t.Errorf("%s has become %s", text, more)
		}
		predicted(t, d)
	})
}

// predicted checks that a description predicts times.
func predicted(t *testing.T, d *Description) {
	is := func(what string, us float64) {
		if !(us >= 0 && us <= math.MaxFloat64) {
			t.Errorf("%s takes %v µs", what, us)
		}
	}
	for _, n := range []int64{0, 1, 1 << 20, 1 << 50} {
		is("a copy", d.CopyTime(n))
		is("touching", d.TouchTime(n))
		is("a reduction", d.ReduceTime(n))
		is("memory", d.MemoryBound(n))
		is("the wire", d.WireBound(n))
		for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpBroadcast} {
			c := &Collective{Op: op, Red: ir.Sum, DType: ir.BF16, Members: 8, Message: n, Moved: n}
			is(op.String(), d.CollectiveTime(c))
			d.Nodes = []int{0, 0, 0, 1, 1, 1, 1, 2}
			d.Span(c, []int{0, 1, 2, 3, 4, 5, 6, 7})
			is(op.String()+" across", d.CollectiveTime(c))
		}
	}
	for _, k := range []int64{1, 1000, 1 << 24} {
		is("a product", d.GEMMTime(ir.BF16, k, k, k))
		is("a product", d.GEMMTime(ir.F64, 1, k, 1))
		is("computing", d.ComputeBound(ir.F32, float64(k)))
	}
}
