package hocket_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// A model that torch exported runs on two ranks; a tensor-parallel plan sets the layouts of its weights. The model's
// state persists between runs.
func ExampleOpenExport() {
	ctx := context.Background()
	e, err := hocket.OpenExport("testdata/layers.pt2", hocket.ExportOptions{
		Plan:  map[string]string{"layers.*.up": "colwise", "layers.*.down": "rowwise"},
		Ranks: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(e.Program(), hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := e.Bind(ctx, model); err != nil { // binds the weights, and allocates the state on the devices
		log.Fatal(err)
	}
	x, err := hocket.FromFloats(ir.F32, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)
	if err != nil {
		log.Fatal(err)
	}
	in := hocket.Args{In: map[string]*hocket.Tensor{"x": x}}
	compared, err := model.Compare(ctx, in) // the state persists
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Inputs(), compared.Verdict, len(compared.Layers))

	var results [3]*hocket.Tensor
	for i := range results {
		if i == 2 {
			if err := e.Reset(ctx); err != nil {
				log.Fatal(err)
			}
		}
		report, err := model.Run(ctx, in)
		if err != nil {
			log.Fatal(err)
		}
		results[i] = report.Out["out0"]
	}
	fmt.Println(results[0], "changed:", !bytes.Equal(results[0].Data, results[1].Data),
		"reset:", bytes.Equal(results[0].Data, results[2].Data))
	// Output:
	// [x] within 4
	// f32[2, 4] changed: true reset: true
}
