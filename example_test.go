package hocket_test

import (
	"context"
	"fmt"
	"log"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// A server binds weights, which stay on the devices, prepares plans for the numbers of rows that it expects, and runs
// requests of any size.
func Example() {
	const text = `dim T
mesh tp[2]
func mlp(%x: f32[T, 2], %up: f32[4/tp, 2], %down: f32[2, 4/tp]) -> f32[T, 2] {
  %h = linear %x, %up
  %g = relu %h
  %y: f32[T, 2] = linear %g, %down  // all-reduced, because the declared type is not partial
  return %y
}
`
	ctx := context.Background()
	p, err := hocket.Parse("mlp.hkt", text)
	if err != nil {
		log.Fatal(err) // with the position of the error, and a remedy
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{}) // set Name to "cuda" for GPUs, and import package cuda
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	up, err := hocket.FromFloats(ir.F32, []float64{1, 0, -1, 0, 0, 1, 0, -1}, 4, 2)
	if err != nil {
		log.Fatal(err)
	}
	down, err := hocket.FromFloats(ir.F32, []float64{1, 1, 0, 0, 0, 0, 1, 1}, 2, 4)
	if err != nil {
		log.Fatal(err)
	}
	for name, w := range map[string]*hocket.Tensor{"up": up, "down": down} {
		if err := model.Bind(name, w); err != nil {
			log.Fatal(err)
		}
	}
	for _, rows := range []int64{1, 3} {
		if err := model.Prepare(ctx, map[string]int64{"T": rows}); err != nil {
			log.Fatal(err)
		}
	}
	for _, request := range [][]float64{{3, -4}, {1, 2, -3, 4, -5, -6}} {
		x, err := hocket.FromFloats(ir.F32, request, int64(len(request)/2), 2)
		if err != nil {
			log.Fatal(err)
		}
		report, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(report.Proof, report.Out["y"].Floats())
	}
	// Output:
	// proved [3 4]
	// proved [1 2 3 4 5 6]
}

// State stays on the devices: each run updates it in place, and only Read copies it to the host.
func ExampleDeviceTensor() {
	const text = `mesh tp[2]
func average(%x: f32[4/tp, 2], %mean: inout f32[4/tp, 2]) {
  %new = scale %x, by=0.5
  %old = scale %mean, by=0.5
  add %new, %old into %mean
}
`
	ctx := context.Background()
	p, err := hocket.Parse("average.hkt", text)
	if err != nil {
		log.Fatal(err)
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close() // and of its device tensors
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	mean, err := model.NewDeviceTensor(ctx, "mean", nil)
	if err != nil {
		log.Fatal(err)
	}
	zeros, err := hocket.NewTensor(ir.F32, 4, 2)
	if err != nil {
		log.Fatal(err)
	}
	if err := mean.Write(ctx, zeros); err != nil {
		log.Fatal(err)
	}
	if err := model.BindDevice("mean", mean); err != nil { // runs update the state in place
		log.Fatal(err)
	}
	for _, v := range []float64{8, 4, 2} {
		x, err := hocket.FromFloats(ir.F32, []float64{v, 0, 0, v, v, v, 0, -v}, 4, 2)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": x}}); err != nil {
			log.Fatal(err)
		}
	}
	now, err := mean.Read(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(now, now.Floats())
	// Output:
	// f32[4, 2] [3 0 0 3 3 3 0 -3]
}
