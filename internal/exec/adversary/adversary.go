// Package adversary makes incorrect plans produce wrong results on a virtual machine. The machine fills arenas with
// poison at the start. During a run an Adversary overwrites
//
//   - every byte of a buffer, except inputs, as soon as the last command of the run that uses it has finished, in
//     stream order after that command. A later access in this run, or by late work during the next run, reads poison or
//     destroys the next run's data;
//   - every rank's inputs and outputs after its last command on main, because the caller may reuse them (S14), except
//     inputs that remain on the devices.
//
// A command uses exactly the bytes that its operands name, on any rank. It does not use the other bytes of the
// operands' buffers, because the next run may have written them. For a collective or a send/recv pair, each side uses
// only its own bytes, because the language lets peers access a rank's bytes only during the command. Bytes that several
// buffers share need no special treatment: in a correct plan, the first use of one buffer is ordered after all uses of
// the other, and therefore after the other's poison.
package adversary

import (
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
)

// Adversary records which bytes of a program to overwrite, and when.
type Adversary struct {
	uses  [][]int32 // by command: the indices of the spots that the command uses
	spots []spot
	// for the last command of each rank on stream main: the memory that the caller may reuse after this command
	exits map[int][]spot
}

// spot is an interval of bytes of a buffer on one rank; each command uses either all of these bytes or none.
type spot struct {
	mem    device.Memory
	off, n int64
	uses   int32 // number of uses of the spot in each run
	input  bool
	block  int // index of the input block, as in the argument skip of After; -1 if the spot is not an input
}

// New returns an Adversary for an image on a virtual machine.
func New(im *image.Image) (*Adversary, error) {
	if !im.Caps.HostCalls || !im.Caps.Poison {
		return nil, fmt.Errorf("the virtual machine has no host calls, or cannot poison memory: %w", device.ErrUnsupported)
	}
	p := im.Plan
	a := &Adversary{uses: make([][]int32, len(p.Cmds)), exits: map[int][]spot{}}
	cuts := cutUses(p)
	first := map[place]int32{} // index of the first spot of each buffer
	for c := range p.Cmds {
		seen := map[int32]bool{}
		for _, r := range p.Touches(&p.Cmds[c]) {
			at := place{r.Rank, r.Buf}
			if r.Elements() == 0 {
				continue // a command need not be ordered because of an operand without bytes
			}
			if _, ok := first[at]; !ok {
				first[at] = int32(len(a.spots))
				a.addSpots(im, r, cuts[at])
			}
			for s := range spotsOf(r, cuts[at]) {
				if s += first[at]; !seen[s] {
					seen[s] = true
					a.uses[c] = append(a.uses[c], s)
					a.spots[s].uses++
				}
			}
		}
	}
	a.watchExits(im, first)
	return a, nil
}

// place identifies a buffer of a rank.
type place struct{ rank, buf int32 }

// cutUses returns, for each buffer and in ascending order, the offsets at which byte intervals that commands use begin
// or end.
func cutUses(p *plan.Plan) map[place][]int64 {
	cuts := map[place][]int64{}
	for c := range p.Cmds {
		for _, r := range p.Touches(&p.Cmds[c]) {
			at := place{r.Rank, r.Buf}
			for lo, hi := range runsOf(r) {
				cuts[at] = append(cuts[at], lo, hi)
			}
		}
	}
	for at, list := range cuts {
		slices.Sort(list)
		cuts[at] = slices.Compact(list)
	}
	return cuts
}

// spotsOf yields the indices of the spots that a reference r to a tensor uses. cuts are the boundaries of the spots in
// r's buffer. Some indices occur more than once.
func spotsOf(r plan.Ref, cuts []int64) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for lo, hi := range runsOf(r) {
			i, _ := slices.BinarySearch(cuts, lo)
			for ; cuts[i] < hi; i++ {
				if !yield(int32(i)) {
					return
				}
			}
		}
	}
}

// mostRuns is the largest number of contiguous parts of a tensor for which the gaps between the parts do not count as
// used.
const mostRuns = 1 << 16

// runsOf yields, for each contiguous part of the tensor r, the part's interval of bytes in r's buffer. If there are
// more than mostRuns parts, it yields one interval from the first to the last element.
func runsOf(r plan.Ref) iter.Seq2[int64, int64] {
	run, dims, runs := r.DType.Size(), len(r.Shape), int64(1)
	for dims > 0 && (r.Shape[dims-1] == 1 || r.Strides[dims-1]*r.DType.Size() == run) {
		dims--
		run *= r.Shape[dims]
	}
	for _, e := range r.Shape[:dims] {
		runs *= e
	}
	return func(yield func(lo, hi int64) bool) {
		if runs > mostRuns {
			yield(r.Span())
			return
		}
		for i := range runs {
			at := r.Off
			for d := dims - 1; d >= 0; d-- {
				at += i % r.Shape[d] * r.Strides[d] * r.DType.Size()
				i /= r.Shape[d]
			}
			if run > 0 && !yield(at, at+run) {
				return
			}
		}
	}
}

// addSpots adds the spots of r's buffer, whose boundaries are the offsets in cuts.
func (a *Adversary) addSpots(im *image.Image, r plan.Ref, cuts []int64) {
	whole := wholeSpot(im, r)
	for i, lo := range cuts[:len(cuts)-1] {
		s := whole
		s.off, s.n = whole.off+lo, cuts[i+1]-lo
		a.spots = append(a.spots, s)
	}
}

// wholeSpot returns the spot that covers the whole buffer of r.
func wholeSpot(im *image.Image, r plan.Ref) spot {
	b := &im.Plan.Buffers[r.Buf]
	v := im.View(plan.Ref{Rank: r.Rank, Buf: r.Buf, DType: r.DType})
	return spot{mem: v.Mem, off: v.Off, n: b.Bytes, input: b.Role == plan.RoleInput, block: -1}
}

// watchExits finds each rank's last command on stream main, and the memory that the caller may reuse after that
// command.
func (a *Adversary) watchExits(im *image.Image, used map[place]int32) {
	last := map[int32]int{}
	for c := range im.Plan.Cmds {
		if cmd := &im.Plan.Cmds[c]; im.Plan.Main[cmd.Rank] == cmd.Stream {
			last[cmd.Rank] = c
		}
	}
	given := map[place]bool{}
	for n, ios := range [][]plan.IO{im.Inputs, im.Outputs} {
		block := -1
		for i := range ios {
			for k := range ios[i].Parts {
				block++
				r := ios[i].Parts[k].Ref
				at := place{r.Rank, r.Buf}
				_, used := used[at]
				c, any := last[r.Rank]
				if !used || !any || given[at] {
					continue
				}
				given[at] = true
				x := wholeSpot(im, r)
				if n == 0 {
					x.block = block
				}
				a.exits[c] = append(a.exits[c], x)
			}
		}
	}
}

// Begin returns the counts of remaining uses for a run. left holds the counts of a run that has ended, which Begin
// reuses; left may be nil. A nil Adversary has no counts.
func (a *Adversary) Begin(left []int32) []int32 {
	if a == nil {
		return nil
	}
	if left == nil {
		left = make([]int32, len(a.spots))
	}
	for i := range a.spots {
		left[i] = a.spots[i].uses
	}
	return left
}

// After enqueues the overwriting of the memory that is not used after command c of a run. left holds the run's counts
// of remaining uses. skip reports the input blocks that the run does not upload.
func (a *Adversary) After(c int, s device.Stream, left []int32, skip []bool) error {
	uses, exits := a.uses[c], a.exits[c]
	if len(uses) == 0 && len(exits) == 0 {
		return nil
	}
	return s.Call(func() {
		for _, i := range uses {
			if atomic.AddInt32(&left[i], -1) == 0 && !a.spots[i].input {
				a.spots[i].poison()
			}
		}
		for _, x := range exits {
			if x.block < 0 || !skip[x.block] {
				x.poison()
			}
		}
	})
}

func (s spot) poison() { s.mem.Poison(s.off, s.n) }
