package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// CopiedFlagBytes is the size of a half of the words that say which blocks are
// there, a power of two.
const CopiedFlagBytes = 4 * 2 * TeamMost

// Unwritten is what staging memory that is watched holds where nothing has been
// copied to: see src/collective_copysum.cuh.
const Unwritten = 0xfff5a5fb

// CopiedWay is how parts of blocks come.
type CopiedWay int

// Ways.
const (
	CopiedByEngine CopiedWay = iota
	CopiedByKernel
)

// Copied is one member's share of a reduction whose blocks come to staging memory
// by copy engines, and by kernels at their end: CopiedArgs of
// src/collective_copysum.cuh. It stands behind a launch of MoveMeet; each member
// pushes to the one behind it first and to the one before it last.
type Copied struct {
	Members, Me int
	Flags       [TeamMost]nvlib.Ptr // of each member: two halves
	FlagHalf    int64               // CopiedFlagBytes or more
	// Src is where each member's block is, its own among them, all at equal distances
	// from multiples of 16; Dst is where the sum goes.
	Src [TeamMost]nvlib.Ptr
	Dst nvlib.Ptr
	Run int64 // bytes of a block
	// Engines is how many cells of 16 bytes engines bring, as memory is cut.
	Engines int64
	// Watched: the block of member Me + 1 is looked at until it is there, and is put
	// back to Unwritten. For full blocks only.
	Watched bool
	DType   ir.DType
	Red     ir.Red

	Blocks, Threads, Unroll int
}

// Cells is how many cells of 16 bytes, as memory is cut, a block lies in.
func (p *Copied) Cells() int64 { return (p.before() + p.Run + 15) / 16 }

func (p *Copied) before() int64 { return int64(p.Src[p.Me] & 15) }

// Full reports whether the block begins and ends at multiples of 16.
func (p *Copied) Full() bool { return p.before() == 0 && p.Run%16 == 0 }

// EngineBytes is how many bytes of the block engines bring.
func (p *Copied) EngineBytes() int64 { return min(max(p.Engines*16-p.before(), 0), p.Run) }

// Raise returns the launch that tells members, a bit each, that what came to them in
// a way is there.
func (p *Copied) Raise(way CopiedWay, to uint64) Meeting {
	return Meeting{File: "collective_copysum", Upon: []string{"collective_move"}, Args: "CopiedArgs", Body: fmt.Sprintf("raiseCopied<%d>", p.Members),
		Symbol: symbol(fmt.Sprintf("raise_copied_%d", p.Members)), Words: p.words(way, to), Blocks: 1, Threads: 32}
}

// Sum returns the launch that adds up blocks as they come.
func (p *Copied) Sum() (Meeting, error) {
	switch {
	case p.Members < 2 || p.Members > TeamMost:
		return Meeting{}, fmt.Errorf("%w: %d members; 2 to %d are possible", device.ErrUnsupported, p.Members, TeamMost)
	case p.Cells() >= 1<<31:
		return Meeting{}, fmt.Errorf("%w: blocks of %d bytes", device.ErrUnsupported, p.Run)
	case p.Watched && !p.Full():
		return Meeting{}, fmt.Errorf("%w: a block that does not begin and end at multiples of 16 bytes is not watched", device.ErrUnsupported)
	case p.Blocks < 1 || p.Blocks > BlocksMost || p.Threads < 32 || p.Threads > 2*meetingThreads || p.Threads%32 != 0 || p.Unroll < 1 || p.Unroll > 8:
		return Meeting{}, fmt.Errorf("%w: %d blocks of %d threads, %d loads in flight", device.ErrUnsupported, p.Blocks, p.Threads, p.Unroll)
	}
	red, label, err := (&Move{DType: p.DType, Red: p.Red}).reduction()
	if err != nil {
		return Meeting{}, err
	}
	apart := common(16, int64(p.Src[p.Me])-int64(p.Dst))
	return Meeting{File: "collective_copysum", Upon: []string{"collective_move"}, Args: "CopiedArgs",
		Body:   fmt.Sprintf("sumCopied<%s, %d, %d, %t, %t, %d>", red, p.Members, apart, p.Full(), p.Watched, p.Unroll),
		Symbol: symbol("sum_copied", label, fmt.Sprintf("%d_%d_%t_%t_%d_%d", p.Members, apart, p.Full(), p.Watched, p.Unroll, max(meetingThreads, p.Threads))),
		Words:  p.words(0, 0), Blocks: p.Blocks, Threads: p.Threads}, nil
}

// words is what follows Team in CopiedArgs.
func (p *Copied) words(way CopiedWay, to uint64) words {
	var w words
	w.addr(p.Flags[:]...)
	w.ints(p.FlagHalf)
	w.addr(p.Src[:]...)
	w.addr(p.Dst)
	w.ints(p.Run, p.Engines, p.Cells())
	w.bits(to)
	w.ints(int64(way))
	return w
}
