package kernels

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

var lamportKinds = []ReduceBy{AllReduceLamport{}, AllReduceLamportx2{}}

// TestAllReduceLamport runs mixed sequences of all_reduces in which receivers recognize data by its value. Operands
// have all bit patterns that elements may have, including the word that is never sent, and all launches use the same
// memory. After the sequence, the memory must have its initial contents.
func TestAllReduceLamport(t *testing.T) {
	ofTeams(t, []int{2, 3, TeamMost}, testAllReduceLamport)
}

func testAllReduceLamport(t *testing.T, members int, epoch uint32) {
	b := newTeamBench(t, members, epoch)
	rng := drawn(t, uint64(members), uint64(epoch))
	const most, half = 3000, 1 << 17
	data := b.resting(half)
	const slots = 200 + BlocksMost
	flagHalf := roundTo(int64(members)*slots*4, 16)
	flags := b.halves(flagHalf, staleBefore(epoch))
	var host, halved []nvlib.Ptr
	for range members {
		host, halved = append(host, b.alloc(4*most)), append(halved, b.alloc(2*4*most))
	}
	kinds := append(slices.Clone(lamportKinds), AllReduceLamportResults{})
	if members == 2 {
		kinds = append(kinds, AllReduceLamportHost{})
	}
	var checks []func(int)
	for n := range 6 * len(kinds) {
		r := AllReduce{By: kinds[n%len(kinds)], DType: []ir.DType{ir.F32, ir.F16, ir.BF16}[rng.IntN(3)], Red: ir.Sum + ir.Red(rng.IntN(4)),
			Unroll: 1 << rng.IntN(2), Threads: 32 * (1 + rng.IntN(2)), Blocks: 1 + rng.IntN(3), Count: 1 + rng.Int64N(most), Data: data, Half: half}
		if rng.IntN(4) == 0 {
			r.Count = 1 + rng.Int64N(9)
		}
		r.Share = r.rows(int64(members))
		odd, inPlace := rng.IntN(2) == 0, rng.IntN(2) == 0
		byHost := func(part ByHost) ByHost {
			odd = false
			part.Writers, part.Readers = 1+rng.Int64N(2), 1+rng.Int64N(2)
			r.Blocks += int(part.Writers + part.Readers)
			r.Flags, r.FlagHalf = flags, flagHalf
			return part
		}
		switch r.By.(type) {
		case AllReduceLamportx2:
			r.By = AllReduceLamportx2{Throttled: rng.IntN(2) == 0}
		case AllReduceLamportResults:
			split := rng.Int64N(r.Share/int64(r.Threads/32) + 1)
			r.By, r.Slots = AllReduceLamportResults{byHost(ByHost{Host: host, Split: split})}, split+BlocksMost
		case AllReduceLamportHost:
			inPlace, r.Share = false, rng.Int64N(r.Share)
			split := r.Share * RowsPacks(r.Unroll)
			r.By = AllReduceLamportHost{ByHost: byHost(ByHost{Host: halved, Split: split}), Half: 4 * most}
			r.Slots = HostChunks(ceil(r.Count*r.DType.Size(), 16)-split, r.Threads) + BlocksMost
		}
		checks = append(checks, b.addAnyBits(r, rng, odd, inPlace))
	}
	checks = append(checks, func(seed int) {
		for m, at := range data {
			for i, c := range b.mem[int64(at)-memoryAt:][:2*half] {
				if c != 0xff {
					t.Fatalf("seed %d: member %d: byte %d of the receive memory is %#x after all launches", seed, m,
						i, c)
				}
			}
		}
	})
	b.runChecks(3, checks)
}

// resting allocates two halves on every member, filled with the word that is never sent.
func (b *teamBench) resting(half int64) (at []nvlib.Ptr) {
	for range b.streams {
		p := b.alloc(2 * half)
		for i := nvlib.Ptr(0); i < nvlib.Ptr(2*half); i += 4 {
			b.word32(p+i, Unsent)
		}
		at = append(at, p)
	}
	return at
}

// rows returns the number of rows that a member reduces. A row has r.Unroll lines for each thread of a warp.
func (r *AllReduce) rows(members int64) int64 {
	n := ceil(ceil(r.Count*r.DType.Size(), 16), RowsPacks(r.Unroll))
	switch r.By.(type) {
	case AllReduceLamport, AllReduceLamportHost:
		return n
	}
	return ceil(n, members)
}

// TestLamportLate starts all members but one: they time out, report which member they waited for, and end.
func TestLamportLate(t *testing.T) {
	for _, kind := range lamportKinds {
		b := newTeamBench(t, 3, FirstEpoch)
		b.timeout = 3 * time.Microsecond
		r := AllReduce{By: kind, DType: ir.F32, Red: ir.Sum, Unroll: 1, Threads: 32, Blocks: 2, Count: 200, Half: 1 << 14}
		r.Data, r.Share = b.resting(r.Half), r.rows(3)
		b.addAnyBits(r, rand.New(rand.NewPCG(1, 2)), false, false)
		b.runLate(kind.String())
	}
}

// addAnyBits launches r on all members with operands that are small integers and NaNs. It returns a function that
// checks that results are NaN where an operand is NaN, and that all members have the same bits.
func (b *teamBench) addAnyBits(r AllReduce, rng *rand.Rand, odd, inPlace bool) func(seed int) {
	lay := layout{"", func(s []int64) ([]int64, int64) { return rowMajor(s), 0 }}
	if odd {
		lay.lay = func(s []int64) ([]int64, int64) { return rowMajor(s), 1 }
	}
	nans := map[int64][]uint32{4: {0xffffffff, 0xfffffffe, 0x7fffffff, 0x7f800001, 0xff800001, 0x7fff7fff}, 2: {0xffff, 0xfffe, 0x7fff, 0x7f81, 0xff81}}[r.DType.Size()]
	ins, outs := make([][]float64, len(b.streams)), make([]Operand, len(b.streams))
	r.In, r.Out = nil, nil
	for m := range ins {
		for range r.Count {
			ins[m] = append(ins[m], tensor.Round(r.DType, float64(rng.IntN(33)-16)))
		}
		in := b.put(r.DType, lay, ins[m], r.Count)
		at := places(in)
		for k := rng.IntN(40); k < len(at); k += 1 + rng.IntN(40) {
			for end := k + rng.IntN(5); k < min(end, len(at)); k++ { // some of them are contiguous
				var raw [4]byte
				binary.LittleEndian.PutUint32(raw[:], nans[max(0, rng.IntN(2*len(nans))-len(nans))])
				copy(b.mem[at[k]:], raw[:r.DType.Size()])
				ins[m][k] = math.NaN()
			}
		}
		if outs[m] = in; !inPlace {
			outs[m] = b.room(r.DType, lay, r.Count)
		}
		r.In, r.Out = append(r.In, in.Addr), append(r.Out, outs[m].Addr)
	}
	for m := range ins {
		b.launch(m, r.Meeting(m))
	}
	return func(seed int) {
		x, bits := make([]float64, len(ins)), r.Count*r.DType.Size()
		first := b.mem[int64(outs[0].Addr)-memoryAt:][:bits]
		for m, o := range outs {
			what := fmt.Sprintf("seed %d, %s of %s %s, odd %v, in place %v, %dx%d/%d, %d elements, member %d of %d",
				seed, r.By, r.DType, r.Red, odd, inPlace, r.Blocks, r.Threads, r.Unroll, r.Count, m, len(ins))
			for i, got := range b.vals(o) {
				for k := range ins {
					x[k] = ins[k][i]
				}
				if want := folded(r.DType, r.Red, x); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
					b.t.Fatalf("%s, element %d: got %v, want %v", what, i, got, want)
				}
			}
			if !bytes.Equal(b.mem[int64(o.Addr)-memoryAt:][:bits], first) {
				b.t.Fatalf("%s: bits differ from those of member 0", what)
			}
		}
	}
}
