package comm

import (
	"testing"

	"hocket.example/hocket/internal/device"
)

// TestRetired reads an old table with retired algorithms. Replacements that were measured keep their times, and a
// bracket that lists only retired algorithms gets their replacements.
func TestRetired(t *testing.T) {
	const text = `{"version": 1, "identity": "x", "ranks": 2, "made": "by hand", "entries": [
		{"op": "broadcast", "element_bytes": 2, "members": 2, "fixed": {"algorithm": "move-mixed", "blocks": 64},
		 "brackets": [{"up_to": 1024, "best": [{"algorithm": "move-mixed", "us": 1}, {"algorithm": "move-copy", "us": 2}]},
		              {"best": [{"algorithm": "move-mixed", "blocks": 9, "us": 3}]}]},
		{"op": "all_gather", "element_bytes": 2, "members": 2, "brackets": [{"best": [{"algorithm": "nccl-window", "us": 1}]}]}]}`
	table, err := ReadTable([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	e := table.Entries[0]
	push := device.Tuning{Algo: "move-push"}
	if *e.Fixed != push || len(e.Brackets[0].Best) != 1 || e.Brackets[0].Best[0] != (Timed{device.Tuning{Algo: "move-copy"}, 2}) ||
		len(e.Brackets[1].Best) != 1 || e.Brackets[1].Best[0] != (Timed{Tuning: push}) {
		t.Errorf("got %+v, fixed %+v", e.Brackets, *e.Fixed)
	}
	if got := table.Entries[1].Brackets[0].Best[0].Tuning; got != (device.Tuning{Algo: "nccl"}) {
		t.Errorf("got %+v", got)
	}
	if got := current(device.Tuning{Algo: "move-push-sum", Unroll: 8}, Shipped().Algorithms); got != (device.Tuning{Algo: "move-pull"}) {
		t.Errorf("got %+v", got)
	}
}
