package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// teamMachine is a CPU machine whose worlds have algorithms for whole collectives: "ready" accepts all collectives and
// does nothing; "choosy" declines all.
type teamMachine struct{ device.Machine }

type teamWorld struct{ device.World }

type idleTeam struct {
	device.DefaultTeam
	n int
}

func (m teamMachine) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	return &teamWorld{w}, err
}

func (*teamWorld) TeamAlgorithms() []device.Algorithm {
	return []device.Algorithm{{Name: "ready", Ops: device.Even}, {Name: "choosy", Ops: device.Even}}
}
func (*teamWorld) Identity() string { return "abacus" }
func (*teamWorld) OpenTeam(ms []device.Member) (device.Team, error) {
	return idleTeam{n: len(ms)}, nil
}

func (idleTeam) Supports(t device.Tuning, _ *device.Collective) error {
	if t.Algo == "choosy" {
		return fmt.Errorf("%w: not this one", device.ErrUnsupported)
	}
	return nil
}
func (t idleTeam) Prepare(device.Tuning, *device.Collective) ([]device.Launch, error) {
	return make([]device.Launch, t.n), nil
}
func (idleTeam) Bytes() int64 { return 1 << 20 }
func (idleTeam) Close() error { return nil }

// TestTeams checks that the options and the program's text determine the algorithms on a machine with launches for
// whole collectives. An algorithm that declines is skipped, an algorithm that does nothing gives a wrong result (and so
// was used), and the memory of teams counts against the budget.
func TestTeams(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	m := teamMachine{cpu.New(cpu.Options{})}
	run := func(p *plan.Plan, o Options) (*Result, *Program, error) {
		prog, err := Load(context.Background(), m, p, o)
		if err != nil {
			return nil, nil, err
		}
		defer prog.Close()
		in := chunkedInputs(t, 2, 1)
		r, err := prog.Run(context.Background(), in)
		if err == nil && o.Algorithm != "ready" && !slices.Equal(floats(r.Outputs["y"]), wantChunked(2, in)) {
			t.Errorf("%+v: the result is wrong", o)
		}
		return r, prog, err
	}
	for _, o := range []Options{{}, {Options: image.Options{Algorithm: "choosy"}}, {Options: image.Options{Algorithm: "two-shot-push"}}, {Options: image.Options{Fixed: true}}, {Options: image.Options{Algorithm: "direct"}, Trace: true}} {
		r, _, err := run(chunked(2, ""), o)
		if err != nil {
			t.Fatal(err)
		}
		want := "staged"
		if o.Algorithm != "" && o.Algorithm != "choosy" {
			want = o.Algorithm
		}
		if slices.ContainsFunc(r.Algorithms, func(a string) bool { return a != want }) || len(r.Algorithms) != 3 {
			t.Errorf("%+v: algorithms %v, want %s", o, r.Algorithms, want)
		}
		if o.Trace && !slices.ContainsFunc(r.Trace.Events, func(e trace.Event) bool {
			return e.Name == ir.OpAllReduce.String() && strings.HasSuffix(e.Detail, ", by direct")
		}) {
			t.Errorf("the trace names no algorithm: %+v", r.Trace.Events)
		}
	}
	r, prog, err := run(chunked(2, ""), Options{Options: image.Options{Algorithm: "ready"}})
	if err != nil || slices.ContainsFunc(r.Algorithms, func(a string) bool { return a != "ready" }) || prog.Stats().Staging != 2<<20 {
		t.Errorf("%v, %+v, staging %d", err, r, prog.Stats().Staging)
	}
	if _, _, err := run(chunked(2, ""), Options{Options: image.Options{Algorithm: "ready", MaxArena: 1 << 20}}); err == nil || !strings.Contains(err.Error(), "staging of collectives 2") {
		t.Errorf("a budget of 1 MiB: %v", err)
	}
	var unknown *image.UnknownAlgorithm
	if _, _, err := run(chunked(2, ""), Options{Options: image.Options{Algorithm: "magic"}}); !errors.As(err, &unknown) || !strings.Contains(err.Error(), "ready, choosy") {
		t.Errorf("%v", err)
	}
	pinned := chunked(2, "")
	for i := range pinned.Colls {
		pinned.Colls[i].Algo = "choosy"
	}
	if _, _, err := run(pinned, Options{}); !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), "algorithm choosy: ") {
		t.Errorf("pinned: %v", err)
	}
}
