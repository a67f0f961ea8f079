package comm

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// FuzzTable checks that a table that can be read is unchanged after it has been written and read again, that every
// entry has a bracket for every size, and that every predicted time is valid.
func FuzzTable(f *testing.F) {
	f.Add([]byte(`{"version":1,"identity":"x","ranks":2,"made":"","entries":[]}`))
	f.Add([]byte(`{"version":1,"identity":"cpu, linux/amd64","ranks":2,"made":"by hand","entries":[{"op":"all_reduce",
"reduction":"sum","element_bytes":2,"members":2,"checked":[1024,4096],"brackets":[{"up_to":4096,"at":1024,
"best":[{"algorithm":"one-shot","us":3.5},{"algorithm":"ring","grid":4,"us":7}]},{"best":[{"algorithm":"two-shot"}]}],
"fixed":{"algorithm":"one-shot"}}]}`))
	f.Add([]byte(`{"version":1,"entries":[{"op":"all_gather","element_bytes":4,"members":4,"brackets":[{"at":-1,"best":[{"algorithm":"ring","us":1e308}]}]}]}`))
	var table Table
	if err := json.Unmarshal(h200, &table); err != nil || len(table.Entries) < 2 {
		f.Fatal(err, len(table.Entries))
	}
	table.Entries = table.Entries[:2]
	few, err := json.Marshal(table)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(few)
	cpu, err := machine.Load("cpu")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := ReadTable(b)
		if err != nil {
			if err.Error() == "" {
				t.Error("no reason")
			}
			return
		}
		text, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadTable(text)
		if err != nil {
			t.Fatalf("%s, written again: %v", text, err)
		}
		if more, _ := json.Marshal(again); !bytes.Equal(text, more) {
			t.Errorf("%s has become %s", text, more)
		}
		found := Found{Identity: first.Identity, Table: first, From: "here"}
		d := *cpu
		d.Times = &found
		for i := range first.Entries {
			e := &first.Entries[i]
			for _, size := range []int64{0, 1, 4096, 1 << 40, math.MaxInt64} {
				if e.Bracket(size) == nil {
					t.Errorf("entry %d has no bracket for %d bytes", i, size)
				}
			}
			op, _ := ir.ParseOp(e.Op)
			c := &machine.Collective{Op: op, Red: ir.Sum, DType: ir.BF16, Members: int64(e.Members), AnyOrder: true}
			last := 0.0
			for _, p := range found.Points(c) {
				if !(p[0] > last && p[1] > 0 && p[1] <= machine.MostMicros) {
					t.Errorf("entry %d: point %v follows %v", i, p, last)
				}
				last = p[0]
			}
			for _, c.Message = range []int64{1, 1 << 20, machine.MostBytes} {
				if c.Moved = c.Message; !(d.CollectiveTime(c) >= 0 && d.CollectiveTime(c) < math.MaxFloat32) {
					t.Errorf("entry %d: %d bytes take %v µs", i, c.Message, d.CollectiveTime(c))
				}
			}
		}
	})
}
