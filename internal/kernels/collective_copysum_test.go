package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// pieced is a reduction in pieces on a floor, with kernels that store where copy
// engines would push.
type pieced struct {
	*moveFloor
	words, staging [TeamMost]nvlib.Ptr
	late           int // a member that does not tell of its pieces; -1 for none
}

const pieceRoom = 8 << 10

func newPieced(t *testing.T, rng *rand.Rand, n int, epoch uint32) *pieced {
	p := &pieced{moveFloor: newMoveFloor(t, rng, n, epoch), late: -1}
	for q := range n {
		p.words[q], p.staging[q] = p.zeros(PieceFlagBytes), p.zeros(int64(n)*pieceRoom)
	}
	return p
}

func (f *pieced) launchMove(i int, m Move) {
	m.Members, m.Me, m.Flags = f.n, i, f.flags
	k, err := m.Meeting()
	if err != nil {
		f.t.Fatal(err)
	}
	f.launch(i, k)
}

// reduce adds up blocks of s in pieces, by a launch for all pieces or one for each.
func (f *pieced) reduce(what string, s moveShape, pieces int, apart bool) {
	var ins [TeamMost][TeamMost]side
	shares := make([]*Pieces, f.n)
	for i := range f.n {
		for q := range f.n {
			at, _ := f.place(s, s.unit*f.rng.Int64N(16/s.unit))
			ins[i][q] = side{at: at}
			f.fill(s, at, ins[i][q].strides)
		}
	}
	for q := range f.n {
		at, _ := f.place(s, s.unit*f.rng.Int64N(16/s.unit))
		p := &Pieces{Members: f.n, Me: q, Flags: f.words, Dst: at, Run: s.run, DType: s.dt, Red: s.red, Blocks: s.blocks, Threads: s.threads, Unroll: s.unroll}
		p.Src[q] = ins[q][q].at
		for i := range f.n {
			if i != q {
				p.Src[i] = f.staging[q] + nvlib.Ptr(i*pieceRoom) + p.Src[q]&15
			}
		}
		last := p.Cells()
		for k := range pieces {
			last = last / 2
			if k == 0 {
				last = p.Cells()
			}
			p.Ends = append([]int64{last}, p.Ends...)
		}
		shares[q] = p
	}
	slow := f.rng.IntN(f.n)
	for i, mine := range shares {
		meet := Move{Kind: MoveMeet, Run: 1, Blocks: 1, Threads: 32, Unroll: 1, Slots: f.words, SlotHalf: PieceFlagBytes}
		f.launchMove(i, meet)
		for k := range pieces {
			for range 8 * f.n {
				if i == slow { // others are where they wait for it
					f.launchMove(i, Move{Kind: MoveStore, Run: 1, Blocks: 1, Threads: 32, Unroll: 1})
				}
			}
			for q, theirs := range shares {
				if lo, hi := theirs.Bytes(k); q != i && hi > lo {
					m := Move{Kind: MoveStore, To: 1 << q, Run: hi - lo, Blocks: 1, Threads: 32, Unroll: 1}
					m.Src[q], m.Dst[q] = ins[i][q].at+nvlib.Ptr(lo), theirs.Src[i]+nvlib.Ptr(lo)
					f.launchMove(i, m)
				}
			}
			if i != f.late {
				f.launch(i, mine.Raise(k, 1))
			}
		}
		each := pieces
		if apart {
			each = 1
		}
		for k := 0; k < pieces; k += each {
			sum, err := mine.Sum(k, each)
			if err != nil {
				f.t.Fatal(err)
			}
			f.launch(i, sum)
		}
	}
	f.checks = append(f.checks, func() {
		f.t.Helper()
		for q, p := range shares {
			f.reduced(fmt.Sprintf("%s, member %d", what, q), s, ins, side{at: p.Dst}, q)
		}
	})
}

// TestPieces has members add up pieces again and again through the same staging
// memory, blocks anywhere and of any size, with call numbers across the end.
func TestPieces(t *testing.T) {
	for round, n := range []int{2, 3, 5, TeamMost} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(n), 8))
			f := newPieced(t, rng, n, []uint32{FirstEpoch, 1<<32 - 3}[round%2])
			f.checks = append(f.checks, func() {
				if told, ok := f.told(); ok {
					t.Fatal(told)
				}
			})
			for c := range 5 {
				s := randomShape(rng, ReducePull)
				s.extents, s.run, s.threads = nil, (s.run+rng.Int64N(3000))/s.dt.Size()*s.dt.Size()+s.dt.Size(), 32+32*rng.IntN(2)
				if c%3 == 0 {
					s.run, s.unit = (s.run+15)/16*16, 16
				}
				f.reduce(fmt.Sprintf("call %d, %+v", c, s), s, 1+rng.IntN(PiecesMost), c%2 == 1)
			}
			f.finish(2)
		})
	}
}

// TestPiecesLate has a member meet the others, and then not tell of its pieces.
func TestPiecesLate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	f := newPieced(t, rng, 3, FirstEpoch)
	f.late, f.timeout = 2, 300*time.Microsecond
	f.reduce("late", moveShape{run: 640, unit: 16, blocks: 2, threads: 32, unroll: 1, dt: ir.F32, red: ir.Sum}, 3, false)
	f.checks = nil
	f.finish(2)
	if told, ok := f.told(); !ok || told.Kind != FaultTimeout || told.Words[0] != FirstEpoch+1 || told.Words[1] != 2 {
		t.Errorf("told %v, %v", told, ok)
	}
}

// TestPiecesDeclined looks at what Sum refuses.
func TestPiecesDeclined(t *testing.T) {
	fine := Pieces{Members: 2, Run: 1 << 10, Ends: []int64{64}, DType: ir.BF16, Red: ir.Sum, Blocks: 1, Threads: 32, Unroll: 1}
	if _, err := fine.Sum(0, 1); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(p *Pieces){
		"members": func(p *Pieces) { p.Members = 9 },
		"pieces":  func(p *Pieces) { p.Ends = make([]int64, PiecesMost+1) },
		"bytes":   func(p *Pieces) { p.Run = 1 << 36 },
		"blocks":  func(p *Pieces) { p.Blocks = BlocksMost + 1 },
		"threads": func(p *Pieces) { p.Threads = 48 },
		"unroll":  func(p *Pieces) { p.Unroll = 16 },
		"type":    func(p *Pieces) { p.DType = ir.InvalidDType },
	} {
		p := fine
		change(&p)
		if _, err := p.Sum(0, 1); err == nil {
			t.Errorf("%s: it was not refused", what)
		}
	}
}

// everyPiece is instances of what reduces in pieces.
func everyPiece(t *testing.T) string {
	t.Helper()
	var text string
	for _, n := range []int{2, 8} {
		for _, odd := range []nvlib.Ptr{0, 4} {
			p := Pieces{Members: n, Dst: 1<<20 + 2*odd, Run: 1 << 10, Ends: []int64{8, 65}, DType: ir.BF16, Red: ir.Avg, Blocks: 8, Threads: 1024, Unroll: 2}
			p.Src[0] = 1<<21 + odd
			sum, err := p.Sum(0, 2)
			if err != nil {
				t.Fatal(err)
			}
			text += sum.launch().code.entry()
			if odd == 0 {
				text += p.Raise(0, 1).launch().code.entry()
			}
		}
	}
	return text
}
