package main

import (
	"context"
	"fmt"
	"hash/crc32"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
)

// alike returns an error if processes that run a program together have different inputs. Each process reads the blocks
// of its ranks from the whole input tensors. If the processes had different inputs, the results would be computed from
// a mixture of them. A nil world means that there is a single process.
func (in *inputs) alike(ctx context.Context, w *hocket.World, sig *hocket.Signature, got map[string]*hocket.Tensor) error {
	if w == nil {
		return nil
	}
	for _, p := range sig.In {
		if err := w.Same(ctx, "the input %"+p.Name+" (--in, --seed)", in.text(p.Name, got[p.Name])); err != nil {
			w.Abort(err) // so that the launcher also receives the cause
			return &failure{code: exitUsage, kind: "input", err: err}
		}
	}
	return nil
}

// text describes an input, either by the rule that generates it or by the checksum of the tensor in a file.
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
