package main

import (
	"flag"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
)

var (
	largeFlag = flag.String("large", "", "a `FOLDER` that tools/llama_large.py wrote, for TestLargeCUDA")
	batchFlag = flag.Int("batches", 25, "how many batches TestFixedCUDA draws")
)

// TestLargeCUDA runs a bf16 model on given tokens that is too large for the evaluator. The mean and the largest
// difference between its logits and those of the f32 model must not exceed the differences that Hugging Face
// transformers have in bf16. tools/llama_large.py wrote both.
func TestLargeCUDA(t *testing.T) {
	if *largeFlag == "" {
		t.Skip("no folder with a large model: -large, see tools/README.md")
	}
	c, err := readConfig(*largeFlag)
	if err != nil {
		t.Fatal(err)
	}
	g := readGolden(t, *largeFlag)
	theirs, err := hocket.OpenCheckpoint(filepath.Join(*largeFlag, "golden"))
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	x, err := theirs.Tensor("transformers.0")
	if err != nil {
		t.Fatal(err)
	}
	mean, most := errorsOf(x.Floats(), g.logits[0], int(c.Vocab))
	t.Logf("transformers: rows of logits off by %.3g in the mean, %.3g at most, of their length", mean, most)
	m := modeltest.GPUs(t)
	for _, graph := range []bool{false, true} {
		t.Run(fmt.Sprintf("graph=%v", graph), func(t *testing.T) {
			l, err := load(m, c, 2, hocket.LoadOptions{Strategy: "auto", Graph: graph})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := l.model.Close(); err != nil {
					t.Error(err)
				}
			}()
			if unused, err := l.bind(*largeFlag); err != nil || len(unused) > 0 {
				t.Fatalf("unused %q, %v", unused, err)
			}
			got := forced(t, l, g)
			if len(got[0]) != len(g.logits[0]) {
				t.Fatalf("%d logits, want %d", len(got[0]), len(g.logits[0]))
			}
			ourMean, ourMost := errorsOf(got[0], g.logits[0], int(c.Vocab))
			t.Logf("hocket: rows of logits off by %.3g in the mean, %.3g at most", ourMean, ourMost)
			if !(ourMean <= 1.1*mean && ourMost <= 1.5*most) {
				t.Error("that is farther than transformers'")
			}
		})
	}
}

// errorsOf returns the mean and the largest error of rows of logits: the Euclidean distance from the expected row,
// divided by the length of that row.
func errorsOf(got, want []float64, vocab int) (mean, most float64) {
	var all []float64
	for at := 0; at < len(want); at += vocab {
		off, length := 0.0, 0.0
		for i := at; i < at+vocab; i++ {
			off += (got[i] - want[i]) * (got[i] - want[i])
			length += want[i] * want[i]
		}
		all = append(all, math.Sqrt(off/length))
		mean += all[len(all)-1]
	}
	return mean / float64(len(all)), slices.Max(all)
}

// TestFixedCUDA: with fixed algorithms, the tokens of a sequence in bf16 do not depend on the other sequences of its
// batch or on how its prompt is divided into chunks, although many rows use other kernels than few rows. Concurrent
// runs that miss their deadlines lose no state. There are two ranks, on two GPUs or, with HOCKET_RANKS_PER_GPU=2, on
// one.
func TestFixedCUDA(t *testing.T) {
	c := &config{Type: "llama", Act: "silu", Eps: 1e-5, DType: "bfloat16", Layers: 3, Hidden: 1024, Inner: 2816,
		Heads:   16,
		KVHeads: 4, HeadDim: 64, Vocab: 2048}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	m := modeltest.GPUs(t)
	for _, graph := range []bool{false, true} {
		t.Run(fmt.Sprintf("graph=%v", graph), func(t *testing.T) {
			x := aloneAsInBatch{machine: m, config: c, ranks: []int{2},
				opts: hocket.LoadOptions{Strategy: "sequential", FixedAlgorithms: true, Graph: graph}}
			x.run(t, *batchFlag)
		})
	}
}
