package coll

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
)

// Norm describes the algorithm of an all_reduce fused with the add and rms_norm after it. It is not among Algorithms,
// because it cannot be selected by name.
var Norm = Info{Name: "lamport-norm", OneShot: true, Takes: "all_reduce and the add and rms_norm after it",
	How: "one shot, as lamport; reports name it, but it cannot be selected by name"}

// NormLimit limits the use of one fused launch: with up to Members members and rows of up to Packs packs, the launch
// is used for at most Rows rows.
type NormLimit struct {
	Members     int
	Packs, Rows int64
}

// The entries of NormLimits were measured on H200 and H100 (docs/measured). In the fused launch of the all_reduce and
// the rms_norm, every member sends its operand to all others. If there are two members, other all_reduce algorithms
// send as much data. Then the fused launch is used for rows of up to 64 MiB in total, which needs staging memory of
// four times this size. Rows that leave half of a block's threads idle are fused only if the blocks of all rows can run
// at once. With more members, the limit is the number of rows from which sending operands to all members takes longer
// than two additional launches.
var NormLimits = []NormLimit{
	{2, 128, 256},
	{2, 1024, 4096},
	{2, 2048, 2048},
	{3, 1024, 32},
	{4, 512, 32},
	{4, 1024, 16},
}

// NormLimitFor returns the first entry of NormLimits that covers the given numbers of members and packs. It returns
// zeros if there is none.
func NormLimitFor(members int, packs int64) NormLimit {
	for _, l := range NormLimits {
		if members <= l.Members && packs <= l.Packs {
			return l
		}
	}
	return NormLimit{}
}

// NormPart is a device.NormPart whose views are resolved to addresses. If the sum is not stored, sum is the zero View,
// which overlaps no other view.
type NormPart struct {
	In, residual, weight, sum, out strided.View
	across                         bool // set if a result overlaps an operand at another address
}

// List returns the operands and results, in the order of device.NormPart.
func (n *NormPart) List() []*strided.View {
	return []*strided.View{&n.In, &n.residual, &n.weight, &n.sum, &n.out}
}

// NormSum is the index of the sum in List.
const NormSum = 3

// Check returns an error if the kernel does not support n, or if n does not match the first member's part. The argument
// room is the number of thread blocks that can run at once.
func (n *NormPart) Check(first *NormPart, room int) error {
	last := len(n.In.Shape) - 1
	if last < 0 || n.In.DType.IsInt() || !slices.Equal(n.weight.Shape, n.In.Shape[last:]) {
		return fmt.Errorf("%s%v with weights %v", n.In.DType, n.In.Shape, n.weight.Shape)
	}
	if err := spares(n.In.DType); err != nil {
		return err
	}
	for k, r := range n.List() {
		if k == NormSum && !n.stores() {
			continue
		}
		if r.DType != first.In.DType || r != &n.weight && !slices.Equal(r.Shape, first.In.Shape) {
			return fmt.Errorf("operand %d is %s%v where member 0 adds up %s%v", k, r.DType, r.Shape, first.In.DType, first.In.Shape)
		}
		if !r.Dense() || r.Addr%16 != 0 {
			return fmt.Errorf("%w: operand %d has gaps, or does not begin at a multiple of 16 bytes", device.ErrUnsupported, k)
		}
	}
	if packs := n.Packs(); n.In.Shape[last]*n.In.DType.Size() != packs*16 || packs > kernels.NormPacks {
		return fmt.Errorf("%w: rows of %d × %s: they are multiples of 16 bytes, up to %d", device.ErrUnsupported, n.In.Shape[last], n.In.DType, 16*kernels.NormPacks)
	}
	// A thread reads its elements of a row before it writes them, and no other thread reads them, so a result may be at
	// the same address as an operand. If a result overlaps an operand at another address, all blocks must read before
	// any block writes. In that case all rows must be processed at once.
	for _, w := range []*strided.View{&n.sum, &n.out} {
		for _, r := range n.List() {
			switch operand := r == &n.In || r == &n.residual; {
			case r == w || !r.Overlaps(w) || operand && r.Same(w):
			case operand && n.rows() <= int64(room):
				n.across = true
			default:
				return fmt.Errorf("%w: a result overlaps the weights or the other result, or it overlaps an operand of more rows than run at once", device.ErrUnsupported)
			}
		}
	}
	return nil
}

// stores reports whether the kernel stores the sum.
func (n *NormPart) stores() bool { return n.sum.Addr != 0 }

func (n *NormPart) rows() int64 { return n.In.N / max(n.weight.N, 1) }

// Packs returns the number of packs of 16 bytes in a row.
func (n *NormPart) Packs() int64 { return n.weight.Bytes() / 16 }

// NormRoom returns the number of thread blocks that can run at once, for rows of the given number of packs.
func NormRoom(t Team, packs int64) int { return t.Room(kernels.NormThreads(packs)) }

// PlanNorm returns a plan of one launch on each member.
func PlanNorm(t Team, norm *device.Norm, all []NormPart) *Plan {
	rows, members, p := all[0].rows(), len(all), &Plan{}
	var lines, read Area
	if norm.Reduced {
		members = 1
	} else {
		p.resting(int64(members)*rows*all[0].Packs()*16, func(a Area) { lines = a })
	}
	if slices.ContainsFunc(all, func(n NormPart) bool { return n.across }) {
		p.halves("norm", 4*kernels.BlocksMost, func(a Area) { read = a })
	}
	blocks := min(rows, int64(NormRoom(t, all[0].Packs())))
	p.Launches = func() ([][]Action, error) {
		list := make([][]Action, len(all))
		for i := range all {
			n := &all[i]
			k := kernels.ReduceNorm{DType: n.In.DType, Members: members, Rows: int(rows), Packs: n.Packs(),
				Blocks: int(blocks), Eps: norm.Eps,
				In: n.In.Addr, Residual: n.residual.Addr, Weight: n.weight.Addr, Sum: n.sum.Addr, Out: n.out.Addr, Data: lines.At, Half: lines.half()}
			if n.across {
				k.Read, k.ReadHalf = read.At[i], read.half()
			}
			list[i] = []Action{Kernel{k.Meeting()}}
		}
		return list, nil
	}
	return p
}

// CheckNorm returns nil if one fused launch is faster than separate launches for all, which Check has accepted.
func CheckNorm(t Team, norm *device.Norm, all []NormPart) error {
	rows, packs := all[0].rows(), all[0].Packs()
	if norm.Reduced {
		if slices.ContainsFunc(all, func(n NormPart) bool { return n.across }) {
			return fmt.Errorf("%w: a result overlaps an operand at another address", device.ErrUnsupported)
		}
		return nil
	}
	if l := NormLimitFor(t.Members(), packs); rows > l.Rows {
		return fmt.Errorf("a normalised sum: %w: %d rows of %d bytes among %d members; with more than %d rows three launches are faster, or not known to be slower",
			device.ErrUnsupported, rows, 16*packs, t.Members(), l.Rows)
	}
	return nil
}
