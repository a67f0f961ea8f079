package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// byHost adds the launches of the call that was added last, with the bytes from the offset cut on transferred through
// host memory.
func (f *moveFloor) byHost(cut int64, host, told []nvlib.Ptr, each, half, writers, readers int64) {
	f.t.Helper()
	calls := make([]*MoveHost, f.n)
	for i, list := range f.moves {
		m := &MoveHost{Move: *list[len(list)-1], Rest: list[len(list)-1].Run - cut, ToldHalf: half, Writers: writers, Readers: readers}
		f.moves[i] = list[:len(list)-1]
		m.Run, m.Once = cut, m.One()
		copy(m.Told[:], told)
		calls[i] = m
	}
	for i, m := range calls {
		for q, o := range calls {
			if !m.Once {
				m.Give[q] = nvlib.Ptr(int64(q) * each)
			}
			m.Give[q] += host[i]
			m.Take[q] = host[q]
			if !o.Once {
				m.Take[q] += nvlib.Ptr(int64(i) * each)
			}
			m.Put[q] = o.Dst[i] + nvlib.Ptr(cut)
		}
		if m.ToldBytes() > half {
			f.t.Fatalf("%d bytes of flags", m.ToldBytes())
		}
		k, err := m.Meeting()
		if err != nil {
			f.t.Fatal(err)
		}
		f.launch(i, k)
	}
}

// TestMoveHost checks members that send each other blocks whose last bytes are transferred through host memory,
// repeatedly through the same memory, between pushes of whole blocks.
func TestMoveHost(t *testing.T) {
	ofTeams(t, []int{2, 4, TeamMost}, func(t *testing.T, n int, epoch uint32) {
		rng := drawn(t, uint64(n), uint64(epoch))
		f := newMoveFloor(t, rng, n, epoch)
		const most, half = 12 << 10, 2 << 10
		told := f.halves(half, staleBefore(epoch))
		var host []nvlib.Ptr
		for range n {
			host = append(host, f.alloc(int64(n)*most))
		}
		f.checks = append(f.checks, func() {
			if told, ok := f.told(); ok {
				t.Fatal(told)
			}
		})
		for c := range 8 {
			s := randomShape(rng, MovePush)
			s.extents, s.run, s.threads = nil, 2+rng.Int64N(most-2), 32+32*rng.IntN(2)
			gives := randomGives(rng, n)
			cut := 1 + rng.Int64N(s.run-1)
			if rng.IntN(3) > 0 && s.run > 256 {
				cut = max(cut/256*256, 256)
			}
			writers, readers := 1+rng.Int64N(2), 1+rng.Int64N(2)
			s.blocks += int(writers + readers)
			f.call(fmt.Sprintf("call %d, %+v, %d stored, %d and %d blocks aside, %b", c, s, cut, writers, readers, gives), s, gives)
			if c%4 == 3 {
				for i, list := range f.moves {
					k, err := list[0].Meeting()
					if err != nil {
						t.Fatal(err)
					}
					f.launch(i, k)
					f.moves[i] = nil
				}
				continue
			}
			f.byHost(cut, host, told, most, half, writers, readers)
		}
		f.finish(3)
	})
}

// TestMoveHostAbsent starts all members but one: they time out, and report which member they waited for.
func TestMoveHostAbsent(t *testing.T) {
	f := newMoveFloor(t, rand.New(rand.NewPCG(3, 9)), 3, FirstEpoch)
	f.timeout = 3 * time.Microsecond
	told := f.halves(1<<10, 0)
	f.call("absent", moveShape{kind: MovePush, run: 9000, unit: 16, blocks: 4, threads: 64, unroll: 1}, []uint64{7, 7, 7})
	f.byHost(512, []nvlib.Ptr{f.alloc(32 << 10), f.alloc(32 << 10), f.alloc(32 << 10)}, told, 10<<10, 1<<10, 1, 1)
	f.streams[1], f.checks = nil, nil
	f.finish(2)
	if told, ok := f.told(); !ok || told.Kind != FaultTimeout || told.Words[0] != FirstEpoch+1 || told.Words[1] != 1 {
		t.Errorf("reported fault: %v, %v", told, ok)
	}
}

// TestMoveHostRefuses checks calls that MoveHost does not support.
func TestMoveHostRefuses(t *testing.T) {
	for what, change := range map[string]func(*MoveHost){
		"rows":       func(m *MoveHost) { m.Extents = []int64{2} },
		"pull":       func(m *MoveHost) { m.Kind = MoveLL },
		"nothing":    func(m *MoveHost) { m.Rest = 0 },
		"no writers": func(m *MoveHost) { m.Writers = 0 },
		"no stores":  func(m *MoveHost) { m.Readers = 7 },
		"too long":   func(m *MoveHost) { m.Run = math.MaxInt64 / 2 },
	} {
		m := &MoveHost{Move: Move{Kind: MovePush, Members: 2, To: 2, From: 2, Run: 256, Blocks: 8, Threads: 64, Unroll: 1}, Rest: 16, Writers: 1, Readers: 1}
		if _, err := m.Meeting(); err != nil {
			t.Fatal(err)
		}
		change(m)
		if _, err := m.Meeting(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
