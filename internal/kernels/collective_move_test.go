package kernels

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// moveFloor is a team on the emulated GPU whose members execute moves.
type moveFloor struct {
	*teamBench
	t      *testing.T
	rng    *rand.Rand
	n      int
	flags  [TeamMost]nvlib.Ptr
	packs  [TeamMost]nvlib.Ptr
	sheets [TeamMost]nvlib.Ptr
	moves  [][]*Move // by member
	checks []func()
}

// moveSlots is the size in bytes of one half of the slots in these tests.
const moveSlots = 64 << 10

func newMoveFloor(t *testing.T, rng *rand.Rand, n int, epoch uint32) *moveFloor {
	f := &moveFloor{teamBench: newTeamBench(t, n, epoch), t: t, rng: rng, n: n, moves: make([][]*Move, n)}
	copy(f.flags[:], f.halves(MoveFlagBytes, 0))
	copy(f.packs[:], f.halves(moveSlots, 0))
	copy(f.sheets[:], f.halves(moveSlots, 0))
	return f
}

func (f *moveFloor) at(p nvlib.Ptr) []byte { return f.mem[p-memoryAt:] }

// moveShape is the shape of the blocks of a call, and the layout of their rows.
type moveShape struct {
	kind    MoveKind
	run     int64
	extents []int64
	unit    int64 // all addresses and strides are multiples of this number of bytes
	same    bool
	dt      ir.DType
	red     ir.Red
	blocks  int
	threads int
	unroll  int
}

// place reserves memory for a block, surrounded by bytes that must not change.
func (f *moveFloor) place(s moveShape, off int64) (nvlib.Ptr, [3]int64) {
	var strides [3]int64
	span := s.run
	for k, e := range s.extents {
		strides[k] = (span+s.unit-1)/s.unit*s.unit + s.unit*f.rng.Int64N(3)
		span = strides[k] * e
	}
	at := f.zeros(span + 64)
	for i := range span + 64 {
		f.at(at)[i] = 0xa5
	}
	return at + nvlib.Ptr(16+off), strides
}

// rows returns the addresses of the rows of a block.
func (s moveShape) rows(at nvlib.Ptr, strides [3]int64) []nvlib.Ptr {
	list := []nvlib.Ptr{at}
	for k, e := range s.extents {
		var next []nvlib.Ptr
		for i := range e {
			for _, r := range list {
				next = append(next, r+nvlib.Ptr(i*strides[k]))
			}
		}
		list = next
	}
	return list
}

// call adds a collective in which member i sends to member p if gives[i] has bit p.
func (f *moveFloor) call(what string, s moveShape, gives []uint64) {
	moves := make([]*Move, f.n)
	for i := range moves {
		moves[i] = &Move{Kind: s.kind, Members: f.n, Me: i, Run: s.run, Extents: s.extents, DType: s.dt, Red: s.red,
			Flags: f.flags, Slots: f.packs, SlotHalf: moveSlots, Blocks: s.blocks, Threads: s.threads, Unroll: s.unroll}
		if s.kind.LL128() {
			moves[i].Slots = f.sheets
		}
		f.moves[i] = append(f.moves[i], moves[i])
	}
	reduces := s.kind.reduces()
	offs := s.unit * f.rng.Int64N(16/s.unit)
	var ins, outs [TeamMost][TeamMost]side
	for i, set := range gives {
		for p := range f.n {
			if set>>p&1 == 0 {
				continue
			}
			off := offs
			if s.kind != MovePush && !s.kind.Pulls() {
				off = s.unit * f.rng.Int64N(16/s.unit)
			}
			if first := firstOf(set); s.same && p > first {
				ins[i][p] = ins[i][first]
			} else {
				at, strides := f.place(s, off)
				if s.kind.Pulls() && i > 0 {
					strides = ins[0][p].strides
					at, _ = f.placeAs(s, strides, off)
				}
				ins[i][p] = side{at, strides}
				f.fill(s, at, strides)
			}
			if !reduces {
				at, strides := f.place(s, off)
				if s.same && p > firstOf(set) {
					strides = outs[i][firstOf(set)].strides
					at, _ = f.placeAs(s, strides, off)
				}
				outs[i][p] = side{at, strides}
			}
		}
	}
	if reduces {
		for p := range f.n {
			at, strides := f.place(s, s.unit*f.rng.Int64N(16/s.unit))
			outs[p][p] = side{at, strides}
		}
	}
	for i, m := range moves {
		m.To, m.Own = gives[i]&^(1<<i), gives[i]>>i&1 != 0
		for p := range f.n {
			if gives[p]>>i&1 != 0 && p != i {
				m.From |= 1 << p
			}
			in, out := ins[i][p], outs[i][p]
			if s.kind == MoveLL || s.kind == MoveLL128 {
				out = outs[p][i]
			}
			if s.kind.Pulls() {
				in = ins[p][i]
			}
			m.Src[p], m.SrcStrides[p], m.Dst[p], m.DstStrides[p] = in.at, in.strides, out.at, out.strides
		}
		if s.kind == ReduceSpread {
			m.Root, m.To, m.From = firstOf(gives[0]), 0, 0
			m.Src[i] = ins[i][m.Root].at
		}
		if s.kind == MoveSpread {
			root := rootOf(gives)
			m.Root, m.Own, m.To, m.From = root, gives[root]>>root&1 != 0, 0, 0
			m.Src[root], m.Dst[i] = ins[root][firstOf(gives[root])].at, outs[root][i].at
		}
	}
	f.checks = append(f.checks, func() {
		f.t.Helper()
		for p := range f.n {
			if reduces && gives[p]>>p&1 != 0 {
				f.reduced(fmt.Sprintf("%s, member %d", what, p), s, ins, outs[p][p], p)
			}
			for i := range f.n {
				if !reduces && gives[i]>>p&1 != 0 {
					f.moved(fmt.Sprintf("%s, %d to %d", what, i, p), s, ins[i][p], outs[i][p])
				}
			}
		}
	})
}

// rootOf returns the only member that sends.
func rootOf(gives []uint64) int {
	return slices.IndexFunc(gives, func(set uint64) bool { return set != 0 })
}

func firstOf(set uint64) int {
	for p := range TeamMost {
		if set>>p&1 != 0 {
			return p
		}
	}
	return -1
}

func (f *moveFloor) placeAs(s moveShape, strides [3]int64, off int64) (nvlib.Ptr, int64) {
	span := s.run
	for k, e := range s.extents {
		span = strides[k] * e
	}
	at := f.zeros(span + 64)
	for i := range span + 64 {
		f.at(at)[i] = 0xa5
	}
	return at + nvlib.Ptr(16+off), span
}

// fill fills the rows of a block with bytes, or with small integers of the type.
func (f *moveFloor) fill(s moveShape, at nvlib.Ptr, strides [3]int64) {
	for _, r := range s.rows(at, strides) {
		b := f.at(r)[:s.run]
		if s.dt == ir.InvalidDType {
			for i := range b {
				b[i] = byte(f.rng.Uint32())
			}
			continue
		}
		size := s.dt.Size()
		for i := range s.run / size {
			tensor.FromFloat64(b[i*size:], []float64{float64(f.rng.IntN(17) - 8)}, s.dt)
		}
	}
}

func (f *moveFloor) moved(what string, s moveShape, in, out side) {
	f.t.Helper()
	src, dst := s.rows(in.at, in.strides), s.rows(out.at, out.strides)
	covered := map[nvlib.Ptr]bool{}
	for k := range src {
		if got, want := f.at(dst[k])[:s.run], f.at(src[k])[:s.run]; !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			f.t.Fatalf("%s, row %d: byte %d is %#x, want %#x", what, k, i, got[i], want[i])
		}
		for i := range s.run {
			covered[dst[k]+nvlib.Ptr(i)] = true
		}
	}
	f.around(what, out.at, covered)
}

// around checks that the bytes next to the rows of a block have not changed.
func (f *moveFloor) around(what string, at nvlib.Ptr, covered map[nvlib.Ptr]bool) {
	f.t.Helper()
	for a := at - 8; a < at; a++ {
		if f.at(a)[0] != 0xa5 {
			f.t.Fatalf("%s: a byte before was written", what)
		}
	}
	last := at
	for a := range covered {
		last = max(last, a)
	}
	for a := at; a < last+8; a++ {
		if !covered[a] && f.at(a)[0] != 0xa5 {
			f.t.Fatalf("%s: byte %d, which is between rows, was written", what, a-at)
		}
	}
}

func (f *moveFloor) reduced(what string, s moveShape, ins [TeamMost][TeamMost]side, out side, p int) {
	f.t.Helper()
	size := s.dt.Size()
	covered := map[nvlib.Ptr]bool{}
	for k, r := range s.rows(out.at, out.strides) {
		for i := range s.run / size {
			var sum float64
			for q := range f.n {
				in := s.rows(ins[q][p].at, ins[q][p].strides)[k]
				var x [1]float64
				tensor.ToFloat64(x[:], f.at(in)[i*size:][:size], s.dt)
				v := x[0]
				switch {
				case q == 0:
					sum = v
				case s.red == ir.Max:
					sum = max(sum, v)
				case s.red == ir.Min:
					sum = min(sum, v)
				default:
					sum += v
				}
			}
			if s.red == ir.Avg {
				sum /= float64(f.n)
			}
			want := make([]byte, 8)
			tensor.FromFloat64(want, []float64{sum}, s.dt)
			if got := f.at(r)[i*size:][:size]; !bytes.Equal(got, want[:size]) {
				f.t.Fatalf("%s, row %d, element %d: %x, want %x", what, k, i, got, want[:size])
			}
		}
		for i := range s.run {
			covered[r+nvlib.Ptr(i)] = true
		}
	}
	f.around(what, out.at, covered)
}

// finish runs all added calls, and checks their results.
func (f *moveFloor) finish(seeds int) {
	f.t.Helper()
	for i, list := range f.moves {
		for _, m := range list {
			if m.SlotBytes() > moveSlots {
				f.t.Fatalf("%d bytes of slots", m.SlotBytes())
			}
			k, err := m.Meeting()
			if err != nil {
				f.t.Fatal(err)
			}
			f.launch(i, k)
		}
	}
	f.runTeam(seeds, func(int) {
		f.t.Helper()
		for _, check := range f.checks {
			check()
		}
	})
}

// told returns the first fault that a member has reported.
func (f *moveFloor) told() (Fault, bool) {
	for _, r := range f.record {
		if told, ok := ReadFault(f.at(r)); ok {
			return told, ok
		}
	}
	return Fault{}, false
}

// randomGives randomly chooses which members send to which: all to all, one to all, all to one, or any pairs.
func randomGives(rng *rand.Rand, n int) []uint64 {
	gives := make([]uint64, n)
	root := rng.IntN(n)
	switch how := rng.IntN(4); how {
	case 0:
		for i := range gives {
			gives[i] = 1<<n - 1
		}
	case 1:
		gives[root] = 1<<n - 1
	case 2:
		for i := range gives {
			gives[i] = 1 << root
		}
	default:
		for i := range gives {
			gives[i] = rng.Uint64N(1 << n)
		}
	}
	return gives
}

func randomShape(rng *rand.Rand, kind MoveKind) moveShape {
	s := moveShape{kind: kind, unit: int64(1) << rng.IntN(5), blocks: 1 + rng.IntN(3), threads: 32, unroll: 1 << rng.IntN(3), same: rng.IntN(2) == 0}
	s.run = 1 + rng.Int64N(200)
	for range rng.IntN(4) {
		s.extents = append(s.extents, 1+rng.Int64N(3))
	}
	if kind.LL128() {
		s.extents, s.threads, s.run = nil, 32+32*rng.IntN(2), 1+rng.Int64N(3000)
	}
	if rng.IntN(2) == 0 {
		s.run = (s.run + 15) / 16 * 16
	}
	if kind == ReduceSMLimited {
		s.extents, s.unit, s.run, s.threads = nil, 16, 16*(1+rng.Int64N(800)), 64+32*rng.IntN(2)
	}
	if kind.reduces() {
		types := []ir.DType{ir.BF16, ir.F16, ir.F32, ir.I32, ir.F64, ir.I64}
		s.dt, s.red, s.same = types[rng.IntN(len(types))], []ir.Red{ir.Sum, ir.Max, ir.Min, ir.Avg}[rng.IntN(4)], false
		if s.dt.IsInt() && s.red == ir.Avg {
			s.red = ir.Sum
		}
		s.unit = max(s.unit, s.dt.Size())
		s.run = (s.run + s.dt.Size() - 1) / s.dt.Size() * s.dt.Size()
	}
	return s
}

// TestMoves runs many calls of all kinds of moves on teams, with threads in any order. The number of the first call is
// the initial one, or one shortly before numbers wrap around.
func TestMoves(t *testing.T) {
	t.Parallel()
	rounds := longtest.Of(4, 24)
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			rng := drawn(t, uint64(round), 7)
			n := 2 + round%4
			epoch := uint32(FirstEpoch)
			if round%2 == 1 {
				epoch = 1<<32 - 1 - uint32(rng.IntN(4))
			}
			f := newMoveFloor(t, rng, n, epoch)
			f.checks = append(f.checks, func() {
				if told, ok := f.told(); ok {
					t.Fatal(told)
				}
			})
			for c := range 24 {
				kind := MoveKind(rng.IntN(int(moveKinds)))
				s := randomShape(rng, kind)
				gives := randomGives(rng, n)
				if kind.reduces() {
					for i := range gives {
						gives[i] = 1<<n - 1
						if c%3 == 0 || kind == ReduceSpread {
							gives[i] = 1 << (c % n)
						}
					}
				}
				if kind == MoveMeet {
					clear(gives)
				}
				if kind == MoveSpread {
					clear(gives)
					gives[c%n] = 1<<n - 1 - uint64(c%3/2<<(c%n))
					s.same = true
				}
				f.call(fmt.Sprintf("call %d, %+v, %b", c, s, gives), s, gives)
			}
			f.finish(3)
		})
	}
}

// TestMovesOneWay runs calls in which one member repeatedly sends to others that send nothing. The sending member must
// not be more launches ahead than the two halves permit.
func TestMovesOneWay(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	f := newMoveFloor(t, rng, 3, FirstEpoch)
	for c := range 10 {
		s := moveShape{kind: MoveLL, run: 64, unit: 16, blocks: 1, threads: 32, unroll: 1}
		f.call(fmt.Sprint("call ", c), s, []uint64{0, 7, 0})
	}
	f.finish(20)
}

// TestMoveAbsent starts all members but one: they time out, and report which member they waited for.
func TestMoveAbsent(t *testing.T) {
	t.Parallel()
	for kind := range moveKinds {
		if testing.Short() && kind%3 != 0 || !longtest.On() && kind%2 != 0 {
			continue
		}
		rng := rand.New(rand.NewPCG(uint64(kind), 9))
		f := newMoveFloor(t, rng, 3, FirstEpoch)
		s := moveShape{kind: kind, run: 32, unit: 16, blocks: 2, threads: 64, unroll: 1}
		if kind.reduces() {
			s.dt, s.red = ir.F32, ir.Sum
		}
		gives := []uint64{7, 7, 7}
		switch kind {
		case MoveSpread:
			gives[1], gives[2], s.same = 0, 0, true
		case ReduceSpread:
			gives = []uint64{4, 4, 4}
		}
		f.call("absent", s, gives)
		f.moves[1], f.checks = nil, nil
		f.timeout = 3 * time.Microsecond
		f.finish(1)
		// members may also wait for a member that itself waits
		if told, ok := f.told(); !ok || told.Kind != FaultTimeout || told.Words[0] != FirstEpoch+1 || told.Words[1] != 1 && kind != ReduceSpread {
			t.Errorf("kind %d: reported fault: %v, %v", kind, told, ok)
		}
	}
}

// TestMoveClang checks the syntax of the sources as CUDA.
func TestMoveClang(t *testing.T) {
	clang, err := exec.LookPath("clang++")
	if err != nil {
		t.Skip("no clang++ to check CUDA sources with")
	}
	src := filepath.Join(t.TempDir(), "move.cu")
	if err := os.WriteFile(src, []byte(everyMove(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(clang, "-x", "cuda", "--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib", "--cuda-device-only", "-fsyntax-only", "-std=c++17",
		"-Wall", "-Werror", "-Wno-unused-function", "-Wno-unknown-cuda-version", "-include", filepath.Join("testdata", "device.h"), src)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, firstLines(string(out), 40))
	}
}

// TestMoveNVRTC compiles the sources to machine code.
func TestMoveNVRTC(t *testing.T) {
	n, err := nvlib.OpenNVRTC()
	if err != nil {
		t.Skipf("no NVRTC to compile with: %v", err)
	}
	image, log, err := Using(n).Compile(everyMove(t), []string{"--gpu-architecture=sm_90a", "--std=c++17"})
	if err != nil {
		t.Fatal(firstLines(err.Error(), 40))
	}
	t.Logf("%d bytes\n%s", len(image), log)
}

// everyMove returns a source with instances of all kinds of moves.
func everyMove(t *testing.T) string {
	t.Helper()
	var entries strings.Builder
	seen := map[string]bool{}
	for kind := range moveKinds {
		for _, n := range []int{2, 3, 4, 8} {
			for _, unit := range []nvlib.Ptr{16, 8, 2} {
				m := &Move{Kind: kind, Members: n, To: 1<<n - 2, From: 1<<n - 2, Own: true, Run: 1 << 10 * int64(unit), DType: ir.BF16, Red: ir.Sum,
					Blocks: 8, Threads: 512, Unroll: 4, Extents: []int64{2, 3, 4}[:int(unit)%3]}
				if kind == ReduceSMLimited && unit != 16 {
					continue
				}
				if kind.LL128() {
					m.Extents = nil
				}
				if kind == ReduceSMLimited {
					m.Extents, m.Threads = nil, 64
				}
				for p := range n {
					m.Src[p], m.Dst[p] = 1<<20, nvlib.Ptr(p+1)<<21+unit
					for k := range 3 {
						m.SrcStrides[p][k], m.DstStrides[p][k] = int64(unit)<<12, int64(unit)<<13
					}
				}
				k, err := m.Meeting()
				if err != nil {
					t.Fatal(err)
				}
				if !seen[k.Symbol] {
					seen[k.Symbol] = true
					entries.WriteString(k.launch().code.entry())
				}
			}
		}
	}
	for n := 2; n <= TeamMost; n *= 2 {
		m := &MoveHost{Move: Move{Kind: MovePush, Members: n, To: 1<<n - 2, From: 1<<n - 2, Own: true, Run: 1 << 10, Blocks: 8, Threads: 512, Unroll: 4}, Rest: 100, Writers: 2, Readers: 3, Once: n < 4}
		k, err := m.Meeting()
		if err != nil {
			t.Fatal(err)
		}
		entries.WriteString(k.launch().code.entry())
	}
	return file("prelude") + file("sync") + file("collective") + file("collective_move") + file("collective_move_host") + file("collective_reduce") + file("collective_few") + entries.String()
}
