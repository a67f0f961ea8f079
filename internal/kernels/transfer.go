package kernels

import (
	"errors"
	"fmt"
)

// underWay is how many accesses each thread of a transfer has under way: of 16
// bytes, 256 threads then have 64 KiB, which is what a block needs to read a peer's memory
// across NVLink at the rate that a multiprocessor can.
const underWay = 16

// transfer is a copy of bytes by at most Blocks blocks, between views without gaps of
// which one may be a peer's.
func (j *job) transfer(out, in Operand) ([]launch, error) {
	if !out.isDense() || !in.isDense() {
		return nil, errors.New("a copy by so many blocks is for operands without gaps")
	}
	bytes := out.elements() * out.DType.Size()
	if bytes == 0 {
		return nil, nil
	}
	width := int64(16)
	for uint64(out.Addr|in.Addr)%uint64(width) != 0 {
		width /= 2
	}
	access := map[int64]string{16: "Pack<u32, 4>", 8: "Pack<u32, 2>", 4: "u32", 2: "u16"}[width] // no element has one byte
	total := bytes / width
	var args words
	args.addr(out.Addr, in.Addr)
	args.ints(total, bytes%width)
	return []launch{{blocks: uint32(max(1, min(int64(j.Blocks), ceil(total, threads)))), args: args, code: code{
		files:  []string{"transfer"},
		symbol: symbol("transfer", fmt.Sprint("w", width)),
		args:   "TransferArgs",
		body:   fmt.Sprintf("transfer<%s, %d>", access, underWay),
	}}}, nil
}
