package kernels

import (
	"errors"
	"fmt"
)

// underWay is the number of accesses of 16 bytes that each thread of a transfer has in flight. The 256 threads of a
// thread block then have 64 KiB in flight. A thread block needs that much to read a peer's memory across NVLink as fast
// as a multiprocessor can.
const underWay = 16

// Transfer is a copy by at most Blocks thread blocks, between views of equal size without gaps. One of the two views
// may be in a peer's memory.
type Transfer struct {
	In, Out Operand
	Blocks  int
}

func (Transfer) String() string { return "copy" }

func (t Transfer) operands() (Operand, []Operand) { return t.Out, []Operand{t.In} }

func (t Transfer) plan(*job) ([]launch, error) {
	out, in := t.Out, t.In
	if in.DType != out.DType || in.elements() != out.elements() || t.Blocks < 1 {
		return nil, fmt.Errorf("%s%v from %s%v by %d blocks", out.DType, out.Shape, in.DType, in.Shape, t.Blocks)
	}
	if !out.isDense() || !in.isDense() {
		return nil, errors.New("a copy with a limited number of thread blocks needs contiguous operands")
	}
	bytes := out.elements() * out.DType.Size()
	if bytes == 0 {
		return nil, nil
	}
	width := int64(16)
	for uint64(out.Addr|in.Addr)%uint64(width) != 0 {
		width /= 2
	}
	access := map[int64]string{16: "Pack<u32, 4>", 8: "Pack<u32, 2>", 4: "u32", 2: "u16", 1: "u8"}[width]
	total := bytes / width
	var args words
	args.addr(out.Addr, in.Addr)
	args.ints(total, bytes%width)
	return []launch{{blocks: uint32(max(1, min(int64(t.Blocks), ceil(total, threads)))), args: args, code: code{
		files:  []string{"transfer"},
		symbol: symbol("transfer", fmt.Sprint("w", width)),
		args:   "TransferArgs",
		body:   fmt.Sprintf("transfer<%s, %d>", access, underWay),
	}}}, nil
}
