package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/internal/tensor"
)

// weighty returns an MLP of 16 rows, with 90 MB of weights, or 940 MB with -soak.machine cuda.
func weighty() string {
	hidden, features := int64(1024), int64(22016)
	if *soakMachine == "cuda" {
		hidden, features = 8192, 28672
	}
	return fmt.Sprintf(`dim T = 16
dim H = %d
dim F = %d
mesh tp[%d]
func mlp(%%x: bf16[T, H], %%up: bf16[F/tp, H], %%down: bf16[H, F/tp]) -> bf16[T, H] {
  %%h = linear %%x, %%up
  %%g = relu %%h
  %%y = linear %%g, %%down
  return %%y
}
`, hidden, features, *soakRanks)
}

// BenchmarkWeights measures a run whose weights are passed to each run, and a run whose weights are
// bound.
func BenchmarkWeights(b *testing.B) {
	m, err := hocket.Open(b.Context(), hocket.MachineOptions{Name: *soakMachine})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for _, graph := range []bool{false, true} {
		if graph && *soakMachine == "cpu" {
			continue
		}
		model := modeltest.Load(b, m, weighty(), hocket.LoadOptions{Graph: graph})
		in, err := model.RandomInputs("ints:1")
		if err != nil {
			b.Fatal(err)
		}
		for _, bound := range []bool{false, true} {
			b.Run(fmt.Sprintf("graph %v, bound %v", graph, bound), func(b *testing.B) {
				args := maps.Clone(in)
				if bound {
					for _, name := range []string{"up", "down"} {
						delete(args, name)
						if err := model.Bind(name, in[name]); err != nil {
							b.Fatal(err)
						}
					}
				}
				run := func() {
					if _, err := model.Run(b.Context(), hocket.Args{In: args}); err != nil {
						b.Fatal(err)
					}
				}
				run() // the first run loads the plan, and uploads the bound weights
				run() // records the graph
				for b.Loop() {
					run()
				}
			})
		}
		if err := model.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMissed measures a run with bound weights that follows a run whose deadline passed halfway through.
func BenchmarkMissed(b *testing.B) {
	m, err := hocket.Open(b.Context(), hocket.MachineOptions{Name: *soakMachine})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for _, grace := range []time.Duration{0, -1} {
		model := modeltest.Load(b, m, weighty(), hocket.LoadOptions{Graph: *soakMachine != "cpu", Grace: grace})
		in, err := model.RandomInputs("ints:1")
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"up", "down"} {
			if err := model.Bind(name, in[name]); err != nil {
				b.Fatal(err)
			}
			delete(in, name)
		}
		run := func(ctx context.Context) error {
			_, err := model.Run(ctx, hocket.Args{In: in})
			return err
		}
		b.Run(fmt.Sprint("grace ", grace), func(b *testing.B) {
			var half time.Duration
			missed := 0
			for range 5 { // the first two runs load the plan and record the graph
				began := time.Now()
				if err := run(b.Context()); err != nil {
					b.Fatal(err)
				}
				half = time.Since(began) / 2
			}
			for b.Loop() {
				b.StopTimer()
				ctx, cancel := context.WithTimeout(b.Context(), half)
				if err := run(ctx); errors.Is(err, context.DeadlineExceeded) {
					missed++
				} else if err != nil {
					b.Fatal(err)
				}
				cancel()
				b.StartTimer()
				if err := run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(missed)/float64(b.N), "missed/op")
		})
		if err := model.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkState measures a run that adds a row to all rows of its state, on the machine of -soak.machine: with state
// in the host's memory, with state that is copied on the devices, and with state that is updated in place.
func BenchmarkState(b *testing.B) {
	m, err := hocket.Open(b.Context(), hocket.MachineOptions{Name: *soakMachine})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	sizes := []int64{16, 4096}
	if *soakMachine != "cpu" {
		sizes = []int64{16, 4096, 131072}
	}
	for _, rows := range sizes {
		for _, graph := range []bool{false, true} {
			if graph && *soakMachine == "cpu" {
				continue
			}
			model := modeltest.Load(b, m, fmt.Sprintf(`dim T = %d
mesh tp[%d]
func f(%%s: inout bf16[T/tp, 4096], %%x: bf16[4096]) {
  add %%s, %%x into %%s
}
`, rows, *soakRanks), hocket.LoadOptions{Graph: graph})
			in, err := model.RandomInputs("ints:1")
			if err != nil {
				b.Fatal(err)
			}
			state, err := model.NewDeviceTensor(b.Context(), "s", nil)
			if err == nil {
				err = errors.Join(state.Write(b.Context(), in["s"]), model.Bind("x", in["x"]))
			}
			if err != nil {
				b.Fatal(err)
			}
			s := map[string]*hocket.DeviceTensor{"s": state}
			for name, args := range map[string]hocket.Args{
				"host":    {In: map[string]*hocket.Tensor{"s": in["s"]}, Out: map[string]*hocket.Tensor{"s": in["s"]}},
				"devices": {DeviceIn: s, DeviceOut: s},
				"plan":    {},
			} {
				var on *hocket.DeviceTensor
				if name == "plan" {
					on = state
				}
				if err := model.BindDevice("s", on); err != nil {
					b.Fatal(err)
				}
				b.Run(fmt.Sprintf("%s, graph %v, by the %s", tensor.Size(rows*4096*2), graph, name),
					func(b *testing.B) {
						run := func() {
							if _, err := model.Run(b.Context(), args); err != nil {
								b.Fatal(err)
							}
						}
						run() // loads the plan
						run() // records the graph
						for b.Loop() {
							run()
						}
					})
			}
			if err := errors.Join(state.Close(), model.Close()); err != nil {
				b.Fatal(err)
			}
		}
	}
}
