package cuda

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestCopies has copy engines move what they can, on fakes, call by call and
// within graphs.
func TestCopies(t *testing.T) {
	for _, team := range [][]int{{0, 1}, {3, 0, 2}} {
		f := newFake(t, 4)
		w, err := newMachine(f.system(), Options{Kernels: f}).Open(t.Context(), 4)
		if err != nil {
			t.Fatal(err)
		}
		r := newTeamRig(t, w, "team", team)
		for _, op := range moveOps {
			took := 0
			for _, c := range moveCases(op, "move-copy", len(team)) {
				if !large(c.shape) && r.add(c, device.Tuning{}) {
					took++
				}
			}
			if moves := op != ir.OpReduce && op != ir.OpReduceScatter; moves != (took > 0) {
				t.Errorf("%s: %d cases were taken", op, took)
			}
		}
		r.run(2)
		r.close()
		r.must(w.Close())
	}
}
