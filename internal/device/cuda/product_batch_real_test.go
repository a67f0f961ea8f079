package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestBatchReal compares gated linears of many rows, which cuBLASLt may compute as one batched GEMM, with single
// linears followed by silu and mul. It logs the times of both in a graph.
func TestBatchReal(t *testing.T) {
	world, err := real(t, Options{Skinny: true}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	d, must := world.Device(0).(*dev), mustOf(t)
	s, err := d.NewStream(device.StreamOptions{})
	must(err)
	room, fetch := noises(t, d)
	const n, depth, repeats = 7168, 4096, 20
	weight := func(skip int64) device.View { // tensors have equal contents, so each weight begins at another row
		v := room(ir.BF16, n+skip, depth)
		v.Shape, v.Off = []int64{n, depth}, skip*depth
		return v
	}
	weights := []device.View{weight(0), weight(3)}
	batches := 0
	for _, rows := range []int64{96, 128, 192, 256, 512, 1024} {
		x := room(ir.BF16, rows, depth)
		for range 2 { // once for each order of the weights
			outs := []device.View{room(ir.BF16, rows, n), room(ir.BF16, rows, n), room(ir.BF16, rows, n)}
			alone := []device.View{room(ir.BF16, rows, n), room(ir.BF16, rows, n), room(ir.BF16, rows, n)}
			gate := device.Kernel{Op: device.SiluMul(ir.BF16), Ins: alone[:2], Outs: alone[2:]}
			graph := func(list ...device.Kernel) device.Graph {
				var launches []device.Launch
				for _, k := range list {
					l, err := d.Prepare(k)
					must(err)
					launches = append(launches, l)
				}
				must(s.(*stream).PrepareLaunches(launches))
				g, err := world.Capture(func() error {
					for range repeats {
						for _, l := range launches {
							if err := s.Launch(l); err != nil {
								return err
							}
						}
					}
					return nil
				})
				must(err)
				return g
			}
			together := device.Kernel{Op: device.Linears{Constant: true},
				Ins: []device.View{x, weights[0], weights[1]}, Outs: alone[:2]}
			l, err := d.Prepare(together)
			single := []device.Kernel{together, gate}
			if err != nil { // each fills the GPU
				single = nil
				for i := range 2 {
					single = append(single, device.Kernel{Op: device.Linear{Constant: true}, Ins: []device.View{x, weights[i]}, Outs: alone[i : i+1]})
				}
				single = append(single, gate)
			} else {
				l.Release()
			}
			gated := device.Kernel{Op: device.Linears{Gated: true, Constant: true}, Ins: together.Ins, Outs: outs}
			if l, err = d.Prepare(gated); err != nil {
				t.Logf("%d rows: one after another: %v", rows, err)
				continue
			}
			batch := slices.ContainsFunc(l.(*launch).steps, func(st step) bool {
				g, ok := st.(gemmLaunch)
				return ok && g.Problem.Batch == 2
			})
			l.Release()
			if batch {
				batches++
			}
			ways, took := []device.Graph{graph(single...), graph(gated)}, [2][]float64{}
			for range 7 {
				for i, g := range ways {
					must(world.Sync(t.Context()))
					began := time.Now()
					for range 5 {
						must(g.Launch(t.Context()))
					}
					must(world.Sync(t.Context()))
					took[i] = append(took[i], float64(time.Since(began).Nanoseconds())/5e3/repeats)
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			t.Logf("%d rows, the second weight first: %v: a batch: %v; apart %.1f µs, gated %.1f µs", rows,
				weights[0].Off > 0, batch, took[0][3], took[1][3])
			got, want := fetch(outs[2]), fetch(alone[2])
			for e, v := range got {
				if !(math.Abs(v-want[e]) <= math.Abs(want[e])/32+0.05*math.Sqrt(depth/64)) {
					t.Fatalf("%d rows: element %d is %v, by single linears %v", rows, e, v, want[e])
				}
			}
			if fmt.Sprint(got[:1000]) == fmt.Sprint(make([]float64, 1000)) {
				t.Fatalf("%d rows: the result is zero", rows)
			}
			for _, g := range ways {
				must(g.Close())
			}
			slices.Reverse(weights)
		}
	}
	t.Logf("%d of 12 are batches", batches)
}
