package cuda

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/tune"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// TestMeasuringHangs makes driver calls never return while collectives are measured. Tuning and benchmarks end with an
// error that names the call and the lost GPU.
func TestMeasuringHangs(t *testing.T) {
	measures := map[string]func(ctx context.Context, machine string) error{
		"tune": func(ctx context.Context, machine string) error {
			_, err := tune.Tune(ctx, tune.Options{Machine: machine, Ranks: 2, Ops: []ir.Op{ir.OpAllGather}, Again: true,
				Sizes: []int64{4 << 10}, File: filepath.Join(t.TempDir(), "table.json")})
			return err
		},
		"allgather": func(ctx context.Context, machine string) error {
			_, err := bench.Run(ctx, "allgather",
				bench.Options{Machine: machine, Ranks: 2, Sizes: []int64{4 << 10}, Rounds: 1})
			return err
		},
	}
	cases := [][2]string{{"tune", "cuMemcpyAsync"}, {"tune", "cuEventRecord"}, {"tune", "cuGraphLaunch"},
		{"allgather", "cuMemHostAlloc"}, {"allgather", "cuGraphLaunch"}, {"allgather", "cuStreamQuery"},
		{"allgather", "cuEventRecord"}}
	name := func(c [2]string) string { return c[0] + " " + c[1] }
	sideBySide(t, len(cases), cases, name, func(t *testing.T, c [2]string) {
		what, call := c[0], c[1]
		f := fakedriver.New(t, 2)
		f.Haunted = true
		sys := system(f)
		patience := 2 * time.Second
		if testing.Short() {
			patience = 8 * time.Second // under the race detector, copies of the fake driver take more than 2 s
		}
		sys.CallPatience = gpu.Patience{Call: patience, Late: 100 * time.Millisecond,
			Close: 200 * time.Millisecond}
		m := newMachine(sys, Options{Kernels: f})
		device.Register(device.Kind{Name: t.Name(), Open: func(*procs.World) (device.Machine, error) { return m, nil }})
		release := f.Block(call)
		defer f.Die()
		defer release()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		began := time.Now()
		err := measures[what](ctx, t.Name())
		if !errors.Is(err, device.ErrDeviceLost) || !strings.Contains(err.Error(), call+": the call has not returned for ") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 20*time.Second+patience {
			t.Errorf("measuring ended after %v, too late", took)
		}
	})
}
