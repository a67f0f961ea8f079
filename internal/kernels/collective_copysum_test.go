package kernels

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// copiedFloor has kernels that store where copy engines would push.
type copiedFloor struct {
	*moveFloor
	words, staging, watched [TeamMost]nvlib.Ptr
	late                    int // a member that gives nothing; -1 for none
}

const copiedRoom = 4 << 10

func newCopiedFloor(t *testing.T, rng *rand.Rand, n int, epoch uint32) *copiedFloor {
	f := &copiedFloor{moveFloor: newMoveFloor(t, rng, n, epoch), late: -1}
	copy(f.words[:], f.halves(CopiedFlagBytes, 0))
	for q := range n {
		f.staging[q], f.watched[q] = f.zeros(int64(n)*copiedRoom), f.zeros(copiedRoom)
		for i := nvlib.Ptr(0); i < copiedRoom; i += 4 {
			f.word32(f.watched[q]+i, Unwritten)
		}
	}
	return f
}

func (f *copiedFloor) launchMove(i int, m Move) {
	m.Members, m.Me, m.Flags = f.n, i, f.flags
	k, err := m.Meeting()
	if err != nil {
		f.t.Fatal(err)
	}
	f.launch(i, k)
}

// dawdle keeps a member from going on, and others waiting for it.
func (f *copiedFloor) dawdle(i int) {
	for range 4 * f.n {
		f.launchMove(i, Move{Kind: MoveStore, Run: 1, Blocks: 1, Threads: 32, Unroll: 1})
	}
}

// reduce adds up blocks of s, of which kernels store so many cells.
func (f *copiedFloor) reduce(what string, s moveShape, stored int64, watched bool) {
	var ins [TeamMost][TeamMost]side
	for i := range f.n {
		for q := range f.n {
			at, _ := f.place(s, s.unit*f.rng.Int64N(16/s.unit))
			ins[i][q] = side{at: at}
			f.fill(s, at, ins[i][q].strides)
			for k := int64(0); s.dt == ir.I32 && k+4 < s.run; k += 4 << f.rng.IntN(12) {
				binary.LittleEndian.PutUint32(f.moveFloor.at(at)[k:], Unwritten) // what data hardly ever is
			}
		}
	}
	shares := make([]*Copied, f.n)
	for q := range f.n {
		at, _ := f.place(s, s.unit*f.rng.Int64N(16/s.unit))
		p := &Copied{Members: f.n, Me: q, Flags: f.words, FlagHalf: CopiedFlagBytes, Dst: at, Run: s.run, Watched: watched, DType: s.dt, Red: s.red,
			Blocks: s.blocks, Threads: s.threads, Unroll: s.unroll}
		p.Src[q] = ins[q][q].at
		for i := range f.n {
			if i != q {
				p.Src[i] = f.staging[q] + nvlib.Ptr(i*copiedRoom) + p.Src[q]&15
			}
		}
		if watched {
			p.Src[(q+1)%f.n] = f.watched[q]
		}
		p.Engines = max(p.Cells()-stored, 1)
		shares[q] = p
	}
	slow := f.rng.IntN(f.n)
	store := func(i, q int, lo, hi int64) {
		if m := (Move{Kind: MoveStore, To: 1 << q, Run: hi - lo, Blocks: 1, Threads: 32, Unroll: 1}); hi > lo && i != f.late {
			m.Src[q], m.Dst[q] = ins[i][q].at+nvlib.Ptr(lo), shares[q].Src[i]+nvlib.Ptr(lo)
			f.launchMove(i, m)
		}
	}
	for i, mine := range shares {
		f.launchMove(i, Move{Kind: MoveMeet, Run: 1, Blocks: 1, Threads: 32, Unroll: 1})
		raise := func(way CopiedWay, to uint64) {
			if i == slow {
				f.dawdle(i)
			}
			if i != f.late {
				f.launch(i, mine.Raise(way, to))
			}
		}
		for q := range f.n {
			if q != i {
				store(i, q, shares[q].EngineBytes(), s.run)
			}
		}
		raise(CopiedByKernel, (1<<f.n-1)&^(1<<i))
		for d := 1; d < f.n; d++ {
			q := (i + d) % f.n
			if i == slow {
				f.dawdle(i)
			}
			store(i, q, 0, shares[q].EngineBytes())
			raise(CopiedByEngine, 1<<q)
		}
		sum, err := mine.Sum()
		if err != nil {
			f.t.Fatal(err)
		}
		f.launch(i, sum)
	}
	f.checks = append(f.checks, func() {
		f.t.Helper()
		for q, p := range shares {
			f.reduced(fmt.Sprintf("%s, member %d", what, q), s, ins, side{at: p.Dst}, q)
		}
	})
}

// TestCopied has members add up blocks again and again through the same staging
// memory, anywhere and of any size, with call numbers across the end.
func TestCopied(t *testing.T) {
	for round, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if n > 3 && testing.Short() {
				t.Skip("it takes long")
			}
			rng := rand.New(rand.NewPCG(uint64(n), 8))
			f := newCopiedFloor(t, rng, n, []uint32{FirstEpoch, 1<<32 - 3}[round%2])
			f.checks = append(f.checks, func() {
				if told, ok := f.told(); ok {
					t.Fatal(told)
				}
				for q := range n {
					for i := nvlib.Ptr(0); i < copiedRoom; i += 4 {
						if v := binary.LittleEndian.Uint32(f.at(f.watched[q] + i)); v != Unwritten {
							t.Fatalf("member %d: %#x is left at %d of what is watched", q, v, i)
						}
					}
				}
			})
			for c := range 6 {
				s := randomShape(rng, ReducePull)
				s.extents, s.run, s.threads = nil, (s.run+rng.Int64N(2000))/s.dt.Size()*s.dt.Size()+s.dt.Size(), 32+32*rng.IntN(2)
				watched := c%3 > 0
				if watched {
					s.run, s.unit = (s.run+15)/16*16, 16
				}
				if c == 1 {
					s.dt, s.red = ir.I32, ir.Sum
				}
				f.reduce(fmt.Sprintf("call %d, %+v, watched %t", c, s, watched), s, rng.Int64N(2)*rng.Int64N(40), watched)
			}
			f.finish(2)
		})
	}
}

// TestCopiedLate has a member meet the others, and then give nothing.
func TestCopiedLate(t *testing.T) {
	for _, watched := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(1, 9))
		f := newCopiedFloor(t, rng, 3, FirstEpoch)
		f.late, f.timeout = 2, 300*time.Microsecond
		f.reduce("late", moveShape{run: 640, unit: 16, blocks: 2, threads: 32, unroll: 1, dt: ir.F32, red: ir.Sum}, 0, watched)
		f.checks = nil
		f.finish(2)
		if told, ok := f.told(); !ok || told.Kind != FaultTimeout || told.Words[0] != FirstEpoch+1 || told.Words[1] != 2 {
			t.Errorf("watched %t: told %v, %v", watched, told, ok)
		}
	}
}

// TestCopiedDeclined looks at what Sum refuses.
func TestCopiedDeclined(t *testing.T) {
	fine := Copied{Members: 2, Run: 1 << 10, Engines: 64, Watched: true, DType: ir.BF16, Red: ir.Sum, Blocks: 1, Threads: 32, Unroll: 1}
	if _, err := fine.Sum(); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(p *Copied){
		"members": func(p *Copied) { p.Members = 9 },
		"bytes":   func(p *Copied) { p.Run = 1 << 36 },
		"watched": func(p *Copied) { p.Run++ },
		"blocks":  func(p *Copied) { p.Blocks = BlocksMost + 1 },
		"threads": func(p *Copied) { p.Threads = 48 },
		"unroll":  func(p *Copied) { p.Unroll = 16 },
		"type":    func(p *Copied) { p.DType = ir.InvalidDType },
	} {
		p := fine
		change(&p)
		if _, err := p.Sum(); err == nil {
			t.Errorf("%s: it was not refused", what)
		}
	}
}

// everyCopied is instances of what reduces blocks that were copied.
func everyCopied(t *testing.T) string {
	t.Helper()
	var text string
	for _, n := range []int{2, 8} {
		for _, odd := range []nvlib.Ptr{0, 4} {
			p := Copied{Members: n, Dst: 1<<20 + 2*odd, Run: 1 << 10, Engines: 60, Watched: odd == 0, DType: ir.BF16, Red: ir.Avg, Blocks: 8, Threads: 1024, Unroll: 2}
			p.Src[0] = 1<<21 + odd
			sum, err := p.Sum()
			if err != nil {
				t.Fatal(err)
			}
			text += sum.launch().code.entry()
			if odd == 0 {
				text += p.Raise(CopiedByEngine, 2).launch().code.entry()
			}
		}
	}
	return text
}
