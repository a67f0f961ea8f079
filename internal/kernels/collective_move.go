package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// MoveFlagBytes is the size in bytes of each of the two halves of a Move's flags, a power of two: see flagRoom.
const MoveFlagBytes = 4 * 4 * TeamMost * BlocksMost

// MoveKind is an algorithm by which members send blocks to each other.
type MoveKind uint8

// These are the algorithms.
const (
	// MoveLL sends packs of 8 bytes, each with flags, into buffers of the receiver (slots). The receiver copies them to
	// their destination.
	MoveLL MoveKind = iota
	// MovePush stores blocks directly into the other members' memory.
	MovePush
	// ReduceLL is like MoveLL, but the receiver reduces the blocks.
	ReduceLL
	// ReducePull loads blocks from the other members' memory and reduces them.
	ReducePull
	// MoveLL128 is like MoveLL, but with one flag in each 128 bytes, for contiguous blocks. It requires that devices
	// write 128 aligned bytes of a warp as a unit.
	MoveLL128
	// ReduceLL128 is like MoveLL128, but the receiver reduces the blocks.
	ReduceLL128
	// MoveSpread broadcasts the block of the member Root in LL128 lines, from Src[Root] to Dst[Me] of every member.
	// Each member passes a part of the lines on to the others. The fields To, From and Own are ignored, except that
	// Root also receives the block if its Own is set.
	MoveSpread
	// ReduceSpread reduces all members' blocks, Src[Me], in LL128 lines. For each line, one member reduces it and sends
	// the result to Dst[Root] of the member Root.
	ReduceSpread
	// ReduceSMLimited is like ReducePull but uses few multiprocessors. The members' blocks must be contiguous and
	// aligned to 16 bytes.
	ReduceSMLimited
	// MoveMeet moves no data. Each member's kernel ends after all members have begun it, and makes the earlier work of
	// their streams visible to all members.
	MoveMeet
	moveKinds
)

// reduces reports whether the receiver reduces the blocks.
func (k MoveKind) reduces() bool {
	return k == ReduceLL || k == ReduceLL128 || k == ReduceSpread || k.Pulls()
}

// LL128 reports whether blocks go through slots in LL128 lines. Slots must hold data of only one format, packs or
// lines: data in one format could look like flags of the other.
func (k MoveKind) LL128() bool { return k == MoveLL128 || k == ReduceLL128 || k.spreads() }

// Pulls reports whether members load blocks from each other's memory.
func (k MoveKind) Pulls() bool { return k == ReducePull || k == ReduceSMLimited }

// threads returns the largest number of threads of a thread block.
func (k MoveKind) threads() int {
	if k == ReduceSMLimited {
		return 2 * meetingThreads
	}
	return meetingThreads
}

// spreads reports whether members pass on data of other members.
func (k MoveKind) spreads() bool { return k == MoveSpread || k == ReduceSpread }

// Move is one member's part of a collective in which members send blocks to each other. The blocks have one shape and
// consist of rows of bytes. The fields Kind, Threads, Run and Extents are the same for all members.
type Move struct {
	Kind        MoveKind
	Members, Me int
	// To is the set of members, as bits, to which this member sends, and From that from which it receives, both without
	// itself. Own reports whether the member also copies its own block. A member that pulls and has Own set reduces all
	// members' blocks, regardless of From.
	To, From uint64
	Own      bool
	// Src holds the addresses of the blocks for each member in this member's memory. If members pull, Src holds the
	// addresses of the block in each member's memory. Dst holds the addresses in this member's memory for the block
	// from each member. For MovePush, Dst holds the addresses in the other members' memory. Reductions are stored in
	// Dst[Me].
	Src, Dst [TeamMost]nvlib.Ptr
	// A block consists of rows of Run contiguous bytes. Extents are the numbers of rows in each dimension, the
	// innermost first; strides are in bytes.
	Run                    int64
	Extents                []int64 // at most 3
	SrcStrides, DstStrides [TeamMost][3]int64

	Root int // for MoveSpread and ReduceSpread: the member that owns the block

	DType ir.DType // element type of reductions
	Red   ir.Red

	// For each member, Slots and Flags hold the address of memory that consists of two halves. A half of Slots has
	// SlotHalf bytes (at least SlotBytes, unless no data goes through slots); a half of Flags has MoveFlagBytes.
	Slots, Flags [TeamMost]nvlib.Ptr
	SlotHalf     int64

	Blocks, Threads, Unroll int
	Shared                  int // for ReduceSMLimited: bytes of shared memory that a block may use, or 0 for the default
}

// Meeting returns the launch of m, without its Team.
func (m *Move) Meeting() (Meeting, error) {
	if err := m.check(); err != nil {
		return Meeting{}, err
	}
	if m.Kind == ReduceSMLimited {
		return m.smLimited()
	}
	name, body, err := m.instance()
	k := Meeting{File: "collective_move", Args: "MoveArgs", Symbol: symbol(name), Body: body, Words: m.words(), Blocks: m.Blocks, Threads: m.Threads}
	return k, err
}

// SlotBytes returns the size in bytes of one of the two halves of the slots that m needs.
func (m *Move) SlotBytes() int64 {
	switch {
	case m.Kind.LL128():
		r := int64(m.Unroll)
		packs := 32*r - 4
		return int64(m.Members) * ((m.Run + 16*packs - 1) / (16 * packs)) * 512 * r
	case m.Kind != MoveLL && m.Kind != ReduceLL:
		return 0
	}
	return int64(m.Members) * (m.Run + 7) / 8 * m.rows() * 16
}

func (m *Move) rows() int64 {
	n := int64(1)
	for _, e := range m.Extents {
		n *= e
	}
	return n
}

// check returns an error for a Move that the kernels do not support.
func (m *Move) check() error {
	switch {
	case m.Members < 2 || m.Members > TeamMost || m.Me < 0 || m.Me >= m.Members:
		return fmt.Errorf("%w: member %d of %d; the kernels support 2 to %d members", device.ErrUnsupported, m.Me, m.Members,
			TeamMost)
	case len(m.Extents) > 3:
		return fmt.Errorf("%w: blocks with %d dimensions of rows; at most 3 are supported", device.ErrUnsupported, len(m.Extents))
	case m.Run < 1 || m.rows() < 1 || (m.Run+30)/8*m.rows() >= 1<<31:
		return fmt.Errorf("%w: a block of %d rows of %d bytes is empty or too large", device.ErrUnsupported, m.rows(), m.Run)
	case m.Blocks < 1 || m.Blocks > BlocksMost || m.Threads < 32 || m.Threads > m.Kind.threads() || m.Threads%32 != 0:
		return fmt.Errorf("%w: invalid launch of %d blocks of %d threads", device.ErrUnsupported, m.Blocks, m.Threads)
	case m.Unroll < 1 || m.Unroll > 8:
		return fmt.Errorf("%w: %d loads in flight", device.ErrUnsupported, m.Unroll)
	case m.Kind.reduces() && m.DType.Size() > m.Run:
		return fmt.Errorf("%w: rows of %d bytes, which are no whole elements of %s", device.ErrUnsupported, m.Run, m.DType)
	case m.Kind.spreads() && (m.Root < 0 || m.Root >= m.Members):
		return fmt.Errorf("root %d of %d members", m.Root, m.Members)
	case m.Kind.LL128() && len(m.Extents) > 0:
		return fmt.Errorf("%w: blocks are not contiguous", device.ErrUnsupported)
	case m.Kind.LL128() && m.Unroll > 4:
		return fmt.Errorf("%w: LL128 lines of %d rows; at most 4 are supported", device.ErrUnsupported, m.Unroll)
	}
	return nil
}

// instance returns the name and the template instance of the kernel. Name and instance depend on the properties that
// all members share, on the alignment of addresses, and on which members get the same block.
func (m *Move) instance() (name, body string, err error) {
	w, d := m.Members, len(m.Extents)
	red, label := "", ""
	if m.Kind.reduces() {
		if red, label, err = m.reduction(); err != nil {
			return "", "", err
		}
	}
	switch m.Kind {
	case MoveLL, ReduceLL:
		vs, vd := m.align(m.sources(), 8), m.align(m.targets(), 8)
		if m.Kind == MoveLL {
			return fmt.Sprintf("move_ll_%d_%d_%d_%d", w, d, vs, vd), fmt.Sprintf("moveLL<%d, %d, %d, %d>", w, d, vs, vd), nil
		}
		return fmt.Sprintf("reduce_ll_%s_%d_%d_%d_%d", label, w, d, vs, vd), fmt.Sprintf("reduceLL<%s, %d, %d, %d, %d>", red, w, d, vs, vd), nil
	case MoveMeet:
		return fmt.Sprintf("move_meet_%d", w), fmt.Sprintf("moveMeet<%d>", w), nil
	case MoveLL128:
		t, as, ad, same := m.unit(), m.align(m.sources(), 16) == 16, m.align(m.targets(), 16) == 16, m.One()
		return fmt.Sprintf("move_sheets_%s_%d_%d_%t_%t_%t", t, w, m.Unroll, as, ad, same),
			fmt.Sprintf("moveSheets<%s, %d, %d, %t, %t, %t>", t, w, m.Unroll, as, ad, same), nil
	case MoveSpread:
		t, as, ad := m.unit(), m.align(m.sources(), 16) == 16, m.align(m.targets(), 16) == 16
		return fmt.Sprintf("spread_sheets_%s_%d_%d_%t_%t", t, w, m.Unroll, as, ad), fmt.Sprintf("spreadSheets<%s, %d, %d, %t, %t>", t, w, m.Unroll, as, ad), nil
	case ReduceLL128, ReduceSpread:
		as, ad := m.align(m.sources(), 16) == 16, m.align(m.targets(), 16) == 16
		f := map[MoveKind]string{ReduceLL128: "reduceSheets", ReduceSpread: "reduceSpread"}[m.Kind]
		return fmt.Sprintf("%s_%s_%d_%d_%t_%t", f, label, w, m.Unroll, as, ad), fmt.Sprintf("%s<%s, %d, %d, %t, %t>", f, red, w, m.Unroll, as, ad), nil
	case MovePush:
		full, same, vs := m.full(m.targets()), m.same(), m.apart()
		return fmt.Sprintf("movePush_%d_%d_%d_%t_%t_%d", w, d, vs, full, same, m.Unroll),
			fmt.Sprintf("movePush<%d, %d, %d, %t, %t, %d>", w, d, vs, full, same, m.Unroll), nil
	}
	if err := m.level(); err != nil {
		return "", "", err
	}
	full, vd := m.full(m.sources()), m.apart()
	return fmt.Sprintf("reduce_pull_%s_%d_%d_%d_%t_%d", label, w, d, vd, full, m.Unroll),
		fmt.Sprintf("reducePull<%s, %d, %d, %d, %t, %d>", red, w, d, vd, full, m.Unroll), nil
}

// unit returns the largest unit in which blocks can be counted and addressed, as a type of the sources.
func (m *Move) unit() string {
	n := common(m.align(m.sources(), 8), m.Run)
	return fmt.Sprint("u", 8*m.align(m.targets(), n))
}

// reduction returns the first template arguments of reductions, and a label for them.
func (m *Move) reduction() (args, label string, err error) {
	fold := map[ir.Red]string{ir.Sum: "FoldSum", ir.Avg: "FoldSum", ir.Max: "FoldMax", ir.Min: "FoldMin"}[m.Red]
	if fold == "" || m.DType.Size() == 0 {
		return "", "", fmt.Errorf("%w: reduction %d of type %s", device.ErrUnsupported, m.Red, m.DType)
	}
	return fmt.Sprintf("%s, %s, %t", ctype(m.DType), fold, m.Red == ir.Avg), m.DType.String() + "_" + m.Red.String(), nil
}

// side is one end of a move: the address of the block's first byte there, and the block's strides.
type side struct {
	at      nvlib.Ptr
	strides [3]int64
}

// sources returns the blocks that m reads, and targets those that it writes.
func (m *Move) sources() []side { return m.sides(&m.Src, &m.SrcStrides, m.reads()) }
func (m *Move) targets() []side { return m.sides(&m.Dst, &m.DstStrides, m.writes()) }

func (m *Move) own() uint64 {
	if m.Own {
		return 1 << m.Me
	}
	return 0
}

func (m *Move) reads() uint64 {
	switch {
	case m.Kind.Pulls() && m.Own:
		return 1<<m.Members - 1
	case m.Kind == MoveSpread && m.Me == m.Root:
		return 1 << m.Root
	case m.Kind == MoveSpread:
		return 0
	case m.Kind == ReduceSpread:
		return 1 << m.Me
	}
	return m.To | m.own()
}

func (m *Move) writes() uint64 {
	switch m.Kind {
	case MoveLL, MoveLL128:
		return m.From | m.own()
	case MovePush:
		return m.To | m.own()
	case MoveSpread:
		if m.Me != m.Root {
			return 1 << m.Me
		}
	}
	return m.own()
}

func (m *Move) sides(at *[TeamMost]nvlib.Ptr, strides *[TeamMost][3]int64, set uint64) []side {
	var list []side
	for p := range m.Members {
		if set>>p&1 != 0 {
			list = append(list, side{at[p], strides[p]})
		}
	}
	return list
}

// align returns the greatest power of two, up to most, that divides the addresses of all rows.
func (m *Move) align(sides []side, most int64) int64 {
	for _, s := range sides {
		most = common(most, int64(s.at))
		for k := range m.Extents {
			most = common(most, s.strides[k])
		}
	}
	return most
}

// common returns the greatest power of two that divides v and most, which itself is a power of two.
func common(most, v int64) int64 {
	for v&(most-1) != 0 {
		most /= 2
	}
	return most
}

// full reports whether all rows of these blocks begin and end at multiples of 16 bytes.
func (m *Move) full(sides []side) bool { return m.Run%16 == 0 && m.align(sides, 16) == 16 }

// The method apart returns the greatest power of two, up to 16, that divides the difference between the address of
// every row's source and that of its destination.
func (m *Move) apart() int64 {
	most := int64(16)
	src, dst := m.sources(), m.targets()
	for i, s := range src {
		d := dst[0:]
		if len(dst) == len(src) {
			d = dst[i : i+1]
		}
		for _, t := range d {
			most = common(most, int64(s.at)-int64(t.at))
			for k := range m.Extents {
				most = common(most, s.strides[k]-t.strides[k])
			}
		}
	}
	return most
}

// One is a predicate: it reports whether m sends the same block to all members.
func (m *Move) One() bool {
	src := m.sources()
	return !slices.ContainsFunc(src, func(s side) bool { return s != src[0] })
}

// same reports whether m sends the same block to all members, and whether all destinations have equal strides and equal
// alignment modulo 16 bytes.
func (m *Move) same() bool {
	dst := m.targets()
	for i := range dst {
		if dst[i].strides != dst[0].strides || (dst[i].at-dst[0].at)%16 != 0 {
			return false
		}
	}
	return m.One()
}

// level returns an error unless the rows of all sources have equal alignment modulo 16 bytes.
func (m *Move) level() error {
	src := m.sources()
	for _, s := range src {
		off := (s.at - src[0].at) % 16
		for k := range m.Extents {
			off |= nvlib.Ptr(s.strides[k]-src[0].strides[k]) % 16
		}
		if off != 0 {
			return fmt.Errorf("%w: the members' blocks are not equally aligned modulo 16 bytes", device.ErrUnsupported)
		}
	}
	return nil
}

// words returns the words of the kernel's argument, MoveArgs, that follow Team.
func (m *Move) words() words {
	var w words
	w.bits(m.To)
	w.bits(m.From)
	w.bits(m.own() >> m.Me)
	w.addr(m.Slots[:]...)
	w.ints(m.SlotHalf)
	w.addr(m.Flags[:]...)
	w.addr(m.Src[:]...)
	w.addr(m.Dst[:]...)
	w.ints(m.Run)
	extents := [3]int64{1, 1, 1}
	copy(extents[:], m.Extents)
	w.ints(extents[:]...)
	for p := range TeamMost {
		w.ints(m.SrcStrides[p][:]...)
	}
	for p := range TeamMost {
		w.ints(m.DstStrides[p][:]...)
	}
	w.ints(int64(m.Root))
	return w
}
