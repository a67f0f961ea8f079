// Command first runs a layer on four ranks from Go.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"hocket.example/hocket"
)

func main() {
	ctx := context.Background()
	src, err := os.ReadFile("examples/mlp.hkt")
	check(err)
	p, err := hocket.Parse("mlp.hkt", string(src))
	check(err)
	m, err := hocket.Open(ctx, hocket.MachineOptions{}) // Name: "cuda" for GPUs, with package cuda imported
	check(err)
	defer m.Close()
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Strategy: "exchange"})
	check(err)
	in, err := model.RandomInputs("rand:1")
	check(err)
	report, err := model.Run(ctx, hocket.Args{In: in}) // the first run also plans and proves the program
	check(err)
	fmt.Println(report.Proof, report.Out["y"])
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
