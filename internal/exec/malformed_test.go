package exec

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestMalformed checks that each kind of malformed plan is refused with a message.
func TestMalformed(t *testing.T) {
	find := func(p *plan.Plan, k plan.Kind) *plan.Cmd {
		for i := range p.Cmds {
			if p.Cmds[i].Kind == k {
				return &p.Cmds[i]
			}
		}
		panic("no such command")
	}
	tests := map[string]struct {
		change func(p *plan.Plan)
		want   string
	}{
		"ranks":          {func(p *plan.Plan) { p.Ranks = 0 }, "the plan is for 0 ranks"},
		"too many ranks": {func(p *plan.Plan) { p.Ranks = 1 << 20 }, "this machine has at most 256"},
		"main":           {func(p *plan.Plan) { p.Main[1] = p.Main[0] }, "the main stream of rank 1 is not one of its streams"},
		"buffer":         {func(p *plan.Plan) { p.Buffers[1].Offset = 1 << 40 }, "is not inside the arena"},
		"host buffer":    {func(p *plan.Plan) { p.Buffers[1].Space, p.HostBytes = plan.Host, 8 }, "is not inside the host memory of 8"},
		"ref":            {func(p *plan.Plan) { find(p, plan.Copy).Ins[0].Off = 1 << 20 }, "is not inside buffer %x"},
		"ref overflow": {func(p *plan.Plan) {
			c := find(p, plan.Copy)
			c.Ins[0].Shape, c.Ins[0].Strides = []int64{1 << 62, 1 << 62}, []int64{1 << 62, 1}
			c.Outs[0].Shape = c.Ins[0].Shape
		}, "is not inside buffer"},
		"peer memory": {func(p *plan.Plan) { find(p, plan.Compute).Ins[0].Rank ^= 1 }, "it refers to memory of rank"},
		"copy shapes": {func(p *plan.Plan) { find(p, plan.Copy).Ins[0].Shape = []int64{1, 3} }, "differ"},
		"stream":      {func(p *plan.Plan) { find(p, plan.Compute).Stream = 99 }, "stream 99 is not one of the rank's"},
		"event": {func(p *plan.Plan) { find(p, plan.Record).Kind = plan.WaitEvent }, "which no earlier " +
			"command records"},
		"event of another rank": {func(p *plan.Plan) {
			c := find(p, plan.WaitEvent)
			c.Rank ^= 1
			c.Stream = p.Main[c.Rank]
		}, "a rank can wait for other ranks only by counters"},
		"signal count": {func(p *plan.Plan) { p.Counters[0].PerRun[0]++ }, "counter here: the commands signal it " +
			"another number of times"},
		"signal peer": {func(p *plan.Plan) { find(p, plan.Signal).Peer = 7 }, "on rank 7"},
		"member":      {func(p *plan.Plan) { find(p, plan.Collective).Part ^= 1 }, "is not this rank's on this stream"},
		"unissued": {func(p *plan.Plan) {
			c := find(p, plan.Collective)
			c.Kind, c.Peer = plan.Signal, 0
			p.Counters[0].PerRun[0]++
		}, "issues 0 of 1 collectives"},
		"not on main": {func(p *plan.Plan) { c := find(p, plan.Output); c.Stream = find(p, plan.Copy).Stream },
			"it is not on the main stream"},
		"twice": {func(p *plan.Plan) { p.Cmds = append(p.Cmds, *find(p, plan.Output)) }, "is uploaded or read " +
			"back twice"},
		"unread": {func(p *plan.Plan) { p.Cmds = p.Cmds[:len(p.Cmds)-1] },
			"output y of rank 1 is never read back"},
		"uncovered": {func(p *plan.Plan) { p.Outputs[0].Shape = []int64{99, 3} }, "y: its blocks hold 12 of 297 elements"},
		"no kind":   {func(p *plan.Plan) { find(p, plan.Copy).Kind = 77 }, "its kind does not exist"},
		"op":        {func(p *plan.Plan) { find(p, plan.Compute).Op = ir.OpWait }, "wait"},
		"algorithm": {func(p *plan.Plan) { p.Colls[0].Algo = "magic" }, `barrier over=tp (hand.hkt:3:3): barrier: unknown algorithm "magic"; the algorithms are staged, two-shot, one-shot-push`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := exchange(2, "")
			tc.change(p)
			prog, err := Load(context.Background(), cpu.New(cpu.Options{}), p, Options{})
			if err == nil {
				_ = prog.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// TestMutations changes random numbers in plans, and checks that each changed plan gives an error or runs, and never
// panics or hangs.
func TestMutations(t *testing.T) {
	count := 3000
	if testing.Short() {
		count = 300
	}
	values := []int64{-1, 0, 1, 2, 3, 1 << 31, math.MaxInt64, math.MinInt64}
	refused := 0
	for seed := range count {
		rng := rand.New(rand.NewPCG(uint64(seed), 9))
		name := []string{"chunked", "exchange"}[seed%2]
		p := programs[name].plan(2, "")
		var fields []reflect.Value
		numbers(reflect.ValueOf(p).Elem(), &fields)
		for range 1 + rng.IntN(2) {
			f, v := fields[rng.IntN(len(fields))], values[rng.IntN(len(values))]
			if f.CanInt() {
				f.SetInt(v)
			} else {
				f.SetUint(uint64(v))
			}
		}
		if err := loadAndRun(t, p, programs[name], int64(seed)); err != nil {
			refused++
		}
	}
	if refused < count/4 || refused == count {
		t.Errorf("%d of %d mutated plans refused: most mutations have no effect", refused, count)
	}
}

func loadAndRun(t *testing.T, p *plan.Plan, pr program, seed int64) (err error) {
	defer func() {
		if r := recover(); r != nil {
			panic(fmt.Sprintf("seed %d: %v", seed, r))
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	prog, err := Load(ctx, cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed, Memory: 1 << 26}), p, Options{Options: image.Options{MaxArena: 1 << 24}})
	if err != nil {
		return err
	}
	_, err = prog.RunBatch(ctx, Inputs([]map[string]*tensor.Tensor{pr.inputs(t, 2, 1), pr.inputs(t, 2, 2)}), nil)
	if ctx.Err() != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if cerr := prog.Close(); cerr != nil {
		t.Fatalf("seed %d: close: %v", seed, cerr)
	}
	return err
}

// numbers collects every integer of v that can be set.
func numbers(v reflect.Value, out *[]reflect.Value) {
	switch {
	case v.CanInt() || v.CanUint():
		*out = append(*out, v)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			numbers(v.Field(i), out)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			numbers(v.Index(i), out)
		}
	}
}
