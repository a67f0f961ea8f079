package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

// chunked is an all_reduce of any size with little staging: pieces of up to
// chunkBytes, one after the other, each in two shots. A member copies the next
// piece in while others still reduce the one before.
type chunked struct{ twoShot }

// chunkBytes is the size of a piece; tests make it small.
var chunkBytes int64 = 1 << 20

// mostChunks bounds the steps that an instance is built to.
const mostChunks = 4096

func (chunked) Info() device.Algorithm {
	return device.Algorithm{Name: "chunked", Ops: allReduce, Memory: device.MemoryFixed,
		How: "two shots of 1 MiB at a time: 2 MiB of staging and some, however large the tensor"}
}

// Usual is false: it is for those who are short of memory.
func (chunked) Usual(*Instance) bool { return false }

func (chunked) Supports(in *Instance, _ device.Caps) error {
	if err := in.flat(); err != nil {
		return err
	}
	if in.Bytes()/chunkBytes >= mostChunks {
		return fmt.Errorf("%w: more than %d pieces", device.ErrUnsupported, mostChunks)
	}
	return in.aside(true) // else a piece's result would lie over the next one
}

func (chunked) Split(in *Instance) []Instance { return in.split(chunkBytes) }

// split cuts an instance with dense operands of one size into pieces.
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
