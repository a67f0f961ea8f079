package exec

import (
	"context"
	"errors"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

func TestGraphNeedsAMachine(t *testing.T) {
	b := newBuilder(1, ir.F32)
	_, err := Load(context.Background(), cpu.New(cpu.Options{}), b.p, Options{Graph: true})
	if !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

func TestCut(t *testing.T) {
	cut := func(r *replay, p *plan.Plan) error {
		var own []int
		for i := range p.Cmds {
			own = append(own, i)
		}
		return r.cut(p, own)
	}
	kinds := func(list ...plan.Kind) *plan.Plan {
		p := &plan.Plan{Ranks: 2, Inputs: make([]plan.IO, 1), Outputs: make([]plan.IO, 1)}
		for _, k := range list {
			p.Cmds = append(p.Cmds, plan.Cmd{Kind: k})
		}
		return p
	}
	const in, out, do, rec, wait = plan.Input, plan.Output, plan.Compute, plan.Record, plan.WaitEvent
	r := &replay{}
	if err := cut(r, kinds(rec, in, wait, in, do, do, out, rec, out)); err != nil || len(r.body) != 5 || len(r.outputs) != 2 {
		t.Errorf("got %+v, %v", r, err)
	}
	// The order of commands of different ranks does not matter.
	mixed := kinds(in, do, in, do, out, do, out)
	for i, rank := range []int32{0, 0, 1, 1, 0, 1, 1} {
		mixed.Cmds[i].Rank = rank
	}
	if err := cut(&replay{}, mixed); err != nil {
		t.Errorf("two ranks: %v", err)
	}
	for _, bad := range []*plan.Plan{kinds(in, do, in, out), kinds(in, do, out, do), kinds(do, out, do, out)} {
		if err := cut(&replay{}, bad); !errors.Is(err, device.ErrUnsupported) {
			t.Errorf("%v: %v", bad.Cmds, err)
		}
	}
}
