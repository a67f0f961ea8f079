package cuda

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/ir"
)

// TestCopies runs collectives by copy engines on fake drivers, with and without graphs.
func TestCopies(t *testing.T) {
	for _, team := range [][]int{{0, 1}, {3, 0, 2}} {
		f := fakedriver.New(t, 4)
		w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 4)
		if err != nil {
			t.Fatal(err)
		}
		r := newTeamRig(t, w, "team", team)
		for _, op := range moveOps {
			took := 0
			for _, c := range goCases(op, "move-copy", len(team)) {
				if r.add(c, device.Tuning{}) {
					took++
				}
			}
			if moves := op != ir.OpReduce && op != ir.OpReduceScatter; moves != (took > 0) {
				t.Errorf("%s: %d cases were accepted", op, took)
			}
		}
		r.run(2)
		r.close()
		r.must(w.Close())
	}
}

// TestMoveDeclines checks that the algorithms that send blocks refuse some collectives, and the reasons.
func TestMoveDeclines(t *testing.T) {
	f := fakedriver.New(t, 2)
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	r := newTeamRig(t, w, "team", []int{0, 1})
	base := teamCase{op: ir.OpAllGather, red: ir.Sum, dt: ir.BF16, shape: []int64{6, 4}}
	for what, tc := range map[string]struct {
		algo   string
		op     ir.Op
		change func(*device.Collective)
		Want   string
	}{
		"fine":      {"move-push", ir.OpAllGather, func(*device.Collective) {}, ""},
		"axis":      {"move-push", ir.OpAllGather, func(c *device.Collective) { c.Axis = 2 }, "dimension 2 of [12 4] is not cut into 2"},
		"cut":       {"move-ll", ir.OpReduceScatter, func(c *device.Collective) { c.Parts[1].In.Shape = []int64{11, 4} }, "dimension 0 of [11 4] is not cut"},
		"root":      {"move-ll", ir.OpBroadcast, func(c *device.Collective) { c.Root = 2 }, "root 2 of 2 members"},
		"shapes":    {"move-ll", ir.OpAllGather, func(c *device.Collective) { c.Parts[1].In.Shape = []int64{5, 4} }, "blocks of shapes [6 4] and [5 4]"},
		"order":     {"move-ll", ir.OpBroadcast, func(c *device.Collective) { c.Together = false }, "wait for each other"},
		"integers":  {"move-pull", ir.OpReduceScatter, func(c *device.Collective) { c.Red = ir.Avg; retype(c, ir.I32) }, "the average of integers"},
		"private":   {"move-push", ir.OpAllGather, func(c *device.Collective) { c.Parts[0].Out.Mem.(*memory).kind = device.Private }, "private memory"},
		"reduction": {"move-push", ir.OpReduceScatter, func(*device.Collective) {}, "it runs all_gather"},
		"two":       {"move-spread", ir.OpBroadcast, func(*device.Collective) {}, "two others or more"},
		"tuned":     {"move-copy", ir.OpAllGather, func(*device.Collective) {}, "copy engines are not tuned"},
	} {
		c := base
		c.op = tc.op
		r.place(c)
		col := r.cases[len(r.cases)-1].collective()
		tc.change(col)
		tune := device.Tuning{Algo: tc.algo}
		if what == "tuned" {
			tune.Blocks = 8
		}
		if err := r.team.Supports(tune, col); (err == nil) != (tc.Want == "") || err != nil && !strings.Contains(err.Error(), tc.Want) {
			t.Errorf("%s: got %v, want %q", what, err, tc.Want)
		}
		r.cases = nil
	}
	r.must(w.Close())
}

func retype(c *device.Collective, dt ir.DType) {
	for i := range c.Parts {
		for _, v := range []*device.View{&c.Parts[i].In, &c.Parts[i].Out} {
			if v.Mem != nil {
				v.DType, v.Off = dt, 0
				v.Shape, v.Strides = []int64{v.Shape[0], 2}, []int64{2, 1}
			}
		}
	}
}
