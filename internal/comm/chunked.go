package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

// chunked is an all_reduce for any size that uses little staging memory. The operand is reduced in pieces of up to
// chunkBytes, one after the other, each in two shots. A member copies the next piece into staging while other members
// still reduce the current piece.
type chunked struct{ twoShot }

// chunkBytes is the largest size of a piece in bytes; tests lower it.
var chunkBytes int64 = 1 << 20

// mostChunks is the largest number of pieces of an instance, which bounds the number of its steps.
const mostChunks = 4096

func (chunked) Info() device.Algorithm {
	return device.Algorithm{Name: "chunked", Ops: allReduce, Memory: device.MemoryFixed,
		How: "reduce-scatter and all-gather for each piece of 1 MiB, one piece after the other: a little over 2 MiB of staging for a tensor of " +
			"any size"}
}

// Usual returns false: chunked is meant for programs that are short of memory.
func (chunked) Usual(*Instance) bool { return false }

func (chunked) Supports(in *Instance, _ device.Caps) error {
	if err := in.flat(); err != nil {
		return err
	}
	if in.Bytes()/chunkBytes >= mostChunks {
		return fmt.Errorf("%w: the operand has %d or more pieces", device.ErrUnsupported, mostChunks)
	}
	return in.aside(true) // otherwise a piece's result would overwrite the input of the next piece
}

func (chunked) Split(in *Instance) []Instance { return in.split(chunkBytes) }

// split splits an instance whose operands are dense and equal in size into pieces of at most the given number of bytes.
func (in *Instance) split(bytes int64) []Instance {
	whole, step := in.Parts[0].In.Elements(), bytes/in.dtype().Size()
	list := []Instance{}
	for lo := int64(0); lo < whole || len(list) == 0; lo += step {
		piece := *in
		piece.Parts = make([]Part, len(in.Parts))
		hi := min(lo+step, whole)
		for m, p := range in.Parts {
			p.In, p.Out = flat(p.In, lo, hi), flat(p.Out, lo, hi)
			piece.Parts[m] = p
		}
		list = append(list, piece)
	}
	return list
}
