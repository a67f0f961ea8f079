package hocket_test

import (
	"context"
	"log"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
)

// A process that a launcher such as torchrun has started enqueues runs of a layer on a stream of another CUDA library.
// The operands are in that library's memory, the weight is used in place, and the host does not wait. This example
// needs GPUs, so tests only compile it.
func ExampleModel_Enqueue() {
	var stream, x, w, y uintptr // from the other library: a CUstream, and device pointers to this rank's blocks
	ctx := context.Background()
	world, err := hocket.Join(ctx, hocket.JoinOptions{})
	if err != nil {
		log.Fatal(err)
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: "cuda", World: world})
	if err != nil {
		log.Fatal(err)
	}
	p, err := hocket.Parse("layer.hkt", `mesh tp[2]
func layer(%x: bf16[8192/tp, 4096], %w: bf16[14336/tp, 4096]) -> bf16[8192, 14336/tp] {
  %y = linear %x, %w
  return %y
}
`)
	if err != nil {
		log.Fatal(err)
	}
	layer, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Strategy: "exchange"})
	if err != nil {
		log.Fatal(err)
	}
	rank := world.Rank()
	weight, err := layer.DeviceTensorAt(ctx, "w", nil, map[int]uintptr{rank: w})
	if err != nil {
		log.Fatal(err)
	}
	if err := layer.BindDevice("w", weight); err != nil {
		log.Fatal(err)
	}
	for range 3 { // after the first run, this works also while the stream is being captured
		err := layer.Enqueue(ctx, hocket.EnqueueArgs{
			Streams: []uintptr{stream},
			In:      map[string]map[int]uintptr{"x": {rank: x}},
			Out:     map[string]map[int]uintptr{"y": {rank: y}},
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := layer.Sync(ctx); err != nil { // waits until the run has ended, and returns its error
		log.Fatal(err)
	}
}
