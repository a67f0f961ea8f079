package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// PiecesMost is how many pieces a Pieces has at most.
const PiecesMost = 8

// PieceFlagBytes is the size of the words that say which pieces are there.
const PieceFlagBytes = 4 * TeamMost * PiecesMost

// Pieces is one member's share of a reduction whose blocks come in pieces, by copy
// engines: PieceArgs of src/collective_copysum.cuh. Members meet before the copies
// begin, with their Flags cleared by that (see MoveMeet).
type Pieces struct {
	Members, Me int
	Flags       [TeamMost]nvlib.Ptr // of each member, PieceFlagBytes
	// Src is where each member's block is, its own among them, all at equal distances
	// from multiples of 16; Dst is where the sum goes.
	Src [TeamMost]nvlib.Ptr
	Dst nvlib.Ptr
	Run int64 // bytes of a block
	// Ends is where pieces end, in cells: see Cells.
	Ends  []int64
	DType ir.DType
	Red   ir.Red

	Blocks, Threads, Unroll int
}

// Cells is how many cells of 16 bytes, as memory is cut, a block lies in.
func (p *Pieces) Cells() int64 { return (p.before() + p.Run + 15) / 16 }

func (p *Pieces) before() int64 { return int64(p.Src[p.Me] & 15) }

// Bytes is which bytes of the block piece k is: from first up to last.
func (p *Pieces) Bytes(k int) (first, last int64) {
	at := func(cells int64) int64 { return min(max(cells*16-p.before(), 0), p.Run) }
	if k > 0 {
		first = at(p.Ends[k-1])
	}
	return first, at(p.Ends[k])
}

// Raise returns the launch that tells the other members that n pieces, k the first,
// have been copied to them.
func (p *Pieces) Raise(k, n int) Meeting {
	return Meeting{File: "collective_copysum", Upon: []string{"collective_move"}, Args: "PieceArgs", Body: fmt.Sprintf("raisePieces<%d>", p.Members),
		Symbol: symbol(fmt.Sprintf("raise_pieces_%d", p.Members)), Words: p.words(k, n), Blocks: 1, Threads: 32}
}

// Sum returns the launch that adds up n pieces, k the first, as they come.
func (p *Pieces) Sum(k, n int) (Meeting, error) {
	switch {
	case p.Members < 2 || p.Members > TeamMost || len(p.Ends) > PiecesMost:
		return Meeting{}, fmt.Errorf("%w: %d pieces of %d members; up to %d of %d are possible", device.ErrUnsupported, len(p.Ends), p.Members, PiecesMost, TeamMost)
	case p.Cells() >= 1<<31:
		return Meeting{}, fmt.Errorf("%w: %d bytes", device.ErrUnsupported, p.Run)
	case p.Blocks < 1 || p.Blocks > BlocksMost || p.Threads < 32 || p.Threads > 2*meetingThreads || p.Threads%32 != 0 || p.Unroll < 1 || p.Unroll > 8:
		return Meeting{}, fmt.Errorf("%w: %d blocks of %d threads, %d loads in flight", device.ErrUnsupported, p.Blocks, p.Threads, p.Unroll)
	}
	red, label, err := (&Move{DType: p.DType, Red: p.Red}).reduction()
	if err != nil {
		return Meeting{}, err
	}
	full := p.before() == 0 && p.Run%16 == 0
	apart := common(16, int64(p.Src[p.Me])-int64(p.Dst))
	form := fmt.Sprintf("%d, %d, %t, %d", p.Members, apart, full, p.Unroll)
	return Meeting{File: "collective_copysum", Upon: []string{"collective_move"}, Args: "PieceArgs", Body: fmt.Sprintf("sumPieces<%s, %s>", red, form),
		Symbol: symbol("sum_pieces", label, fmt.Sprintf("%d_%d_%t_%d_%d", p.Members, apart, full, p.Unroll, max(meetingThreads, p.Threads))),
		Words:  p.words(k, n), Blocks: p.Blocks, Threads: p.Threads}, nil
}

// words is what follows Team in PieceArgs.
func (p *Pieces) words(k, n int) words {
	var w words
	w.addr(p.Flags[:]...)
	w.addr(p.Src[:]...)
	w.addr(p.Dst)
	w.ints(p.Run, int64(k), int64(n))
	var ends [PiecesMost]int64
	copy(ends[:], p.Ends)
	w.ints(ends[:]...)
	return w
}
