package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// MoveHost is a MovePush of contiguous blocks, of which the last bytes are transferred through host memory:
// MoveHostArgs of src/collective_move_host.cuh. The bytes of a block that go through host memory are called the rest of
// the block.
type MoveHost struct {
	Move       // in Move, Run is the number of bytes of a block that are stored directly
	Rest int64 // number of bytes of the rest of a block
	// Give holds, for each receiver, the address in this member's host memory to which the rest of the receiver's block
	// is written; these addresses are multiples of 16. Take holds, for each sender, the address in the sender's host
	// memory of the rest of its block for this member. Put holds, for each sender, the destination of the rest in this
	// member's own memory; Put[Me] is that of the rest of its own block. Once reports whether the member sends the same
	// block to all members, and stores the rest in host memory only once.
	Give, Take, Put [TeamMost]nvlib.Ptr
	Once            bool
	// Told holds, for each member, the address of its flags for the rest: two halves of ToldHalf bytes each. ToldHalf
	// is at least ToldBytes().
	Told             [TeamMost]nvlib.Ptr
	ToldHalf         int64
	Writers, Readers int64 // numbers of thread blocks: the first ones write the rest, the next ones read it
}

// restRows must equal restRows of src/collective_move_host.cuh.
const restRows = 4

// ToldBytes returns the size in bytes of one of the two halves of a member's flags. There is one flag for each chunk of
// the rest of each member.
func (m *MoveHost) ToldBytes() int64 {
	return 4 * int64(m.Members) * ceil(m.Rest, restRows*16*int64(m.Threads))
}

// Meeting returns the launch of m, without its Team.
func (m *MoveHost) Meeting() (Meeting, error) {
	if err := m.check(); err != nil {
		return Meeting{}, err
	}
	switch aside := m.Writers + m.Readers; {
	case m.Kind != MovePush || len(m.Extents) > 0:
		return Meeting{}, fmt.Errorf("%w: blocks are not contiguous", device.ErrUnsupported)
	case m.Rest < 1 || m.Writers < 1 || m.Readers < 1 || int64(m.Blocks) <= aside:
		return Meeting{}, fmt.Errorf("%w: invalid transfer of %d bytes through host memory by %d writing and %d reading "+
			"blocks of %d", device.ErrUnsupported, m.Rest, m.Writers, m.Readers, m.Blocks)
	}
	full, same, vs := m.full(m.targets()), m.same(), m.apart()
	hs := common(m.align(m.sources(), 16), m.Run)
	hd := m.align(m.sides(&m.Put, &[TeamMost][3]int64{}, m.From|m.own()), 16)
	return Meeting{
		Upon: []string{"collective_move"}, File: "collective_move_host", Args: "MoveHostArgs",
		Symbol: symbol(fmt.Sprintf("move_push_host_%d_%d_%t_%t_%d_%d_%d_%t", m.Members, vs, full, same, m.Unroll, hs, hd, m.Once)),
		Body:   fmt.Sprintf("movePushHost<%d, %d, %t, %t, %d, %d, %d, %t>", m.Members, vs, full, same, m.Unroll, hs, hd, m.Once),
		Words:  m.words(), Blocks: m.Blocks, Threads: m.Threads,
	}, nil
}

// words returns the words of the kernel's argument, MoveHostArgs, that follow Team.
func (m *MoveHost) words() words {
	w := m.Move.words()
	w.addr(m.Give[:]...)
	w.addr(m.Take[:]...)
	w.addr(m.Put[:]...)
	w.addr(m.Told[:]...)
	w.ints(m.ToldHalf, m.Rest, m.Writers, m.Readers)
	return w
}
