package main

import (
	"context"
	"fmt"
	"hash/crc32"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
)

// alike returns how the inputs of processes differ that run a program together: each takes its ranks' blocks of whole
// tensors, so a result would be mixed of both. A nil world is of one process.
func (in *inputs) alike(ctx context.Context, w *hocket.World, sig *hocket.Signature, got map[string]*hocket.Tensor) error {
	if w == nil {
		return nil
	}
	for _, p := range sig.In {
		if err := w.Same(ctx, "the input %"+p.Name+" (--in, --seed)", in.text(p.Name, got[p.Name])); err != nil {
			w.Abort(err) // so that the launcher, too, has the cause
			return &failure{code: exitUsage, kind: "input", err: err}
		}
	}
	return nil
}

// text says what an input is: how it is made, or the checksum of what a file holds.
func (in *inputs) text(name string, t *hocket.Tensor) string {
	if sums := in.sums[name]; sums != "" {
		return fmt.Sprintf("%s of an archive, with checksums%s", t, sums)
	}
	if t != nil {
		sum := crc32.Checksum(t.Data, crc32.MakeTable(crc32.Castagnoli))
		return fmt.Sprintf("%s of a file, with checksum %08x", t, sum)
	}
	spec, ok := in.specs[name]
	if !ok {
		spec = in.rest
	}
	switch spec.Kind {
	case tensor.SpecInts:
		return fmt.Sprint("ints:", spec.Seed)
	case tensor.SpecRand:
		return fmt.Sprint("rand:", spec.Seed)
	case tensor.SpecZeros:
		return "zeros"
	}
	return "arange"
}
