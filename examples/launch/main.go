// Command launch runs swish.hkt, a program that launches its own kernel, and compares the result with the
// reference. On the CPU machine a Go function replaces the kernel.
//
//	go run ./examples/launch -machine cuda -ranks 1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/ir"
)

func main() {
	machine := flag.String("machine", "cpu", "where to run: cpu or cuda")
	ranks := flag.Int("ranks", 2, "ranks")
	dir := flag.String("dir", "examples/launch", "the program's directory")
	flag.Parse()
	if err := run(context.Background(), *machine, *dir, *ranks); err != nil {
		fmt.Fprintln(os.Stderr, "launch:", err)
		os.Exit(1)
	}
}

func init() {
	hocket.RegisterKernel("swish.cu:swish", func(c *hocket.KernelCall) error { return swish(c, c.Args[3].Float) })
}

// swish replaces the kernel on the CPU machine. |y'| is at most 1.1·scale, so errors grow at most by this factor.
func swish(c *hocket.KernelCall, scale float64) error {
	x, y := c.Args[0].Tensor.Floats(), c.Args[1].Tensor
	out, errs := make([]float64, len(x)), make([]float64, len(x))
	for i, v := range x {
		out[i] = scale * v / (1 + math.Exp(-v))
		errs[i] = 1e-6 * math.Abs(out[i])
		if c.Args[0].Err != nil {
			errs[i] += 1.1 * math.Abs(scale) * c.Args[0].Err[i]
		}
	}
	t, err := hocket.FromFloats(y.DType, out, y.Shape...)
	if err != nil {
		return err
	}
	copy(y.Data, t.Data)
	c.Args[1].Err = errs
	return nil
}

func run(ctx context.Context, machine, dir string, ranks int) (err error) {
	path := filepath.Join(dir, "swish.hkt")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	prog, err := hocket.Parse(path, string(text))
	if err != nil {
		return err
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: machine})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	binding := hocket.Binding{Dims: map[string]int64{"P": int64(ranks)}}
	model, err := m.Load(prog, binding, hocket.LoadOptions{Graph: machine == "cuda"})
	if err != nil {
		return err
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{}}
	for i, name := range []string{"x", "w"} {
		if args.In[name], err = draw(int64(i), [][]int64{{64, 32}, {48, 32}}[i]); err != nil {
			return err
		}
	}
	ref, err := model.Reference(ctx, args)
	if err != nil {
		return err
	}
	for range 2 { // the second run replays a graph if the machine supports graphs
		rep, err := model.Run(ctx, args)
		if err != nil {
			return err
		}
		c := ref.Compare(rep)
		if fmt.Println(c); c.Err() != nil {
			return c.Err()
		}
	}
	return nil
}

// draw returns random numbers between -1 and 1.
func draw(seed int64, shape []int64) (*hocket.Tensor, error) {
	vals := make([]float64, shape[0]*shape[1])
	for i := range vals {
		vals[i] = math.Sin(float64(seed+1) * float64(i*i%997))
	}
	return hocket.FromFloats(ir.F32, vals, shape...)
}
