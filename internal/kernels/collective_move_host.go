package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// MoveHost is a Move of MovePush, of blocks that lie together, whose last bytes go by
// way of host memory: MoveHostArgs of src/collective_move_host.cuh.
type MoveHost struct {
	Move       // Run is the bytes of a block that are stored
	Rest int64 // those behind them
	// Give is where in this member's host memory the rest of the block for each member
	// begins, at multiples of 16 bytes, Take where in each member's that of its block
	// for this one does. Put is where that belongs in this member's own memory, Put[Me]
	// where the rest of what it keeps does. With Once all that the member gives is one
	// block, and lies there once.
	Give, Take, Put [TeamMost]nvlib.Ptr
	Once            bool
	// Told is where each member has two halves of ToldHalf bytes, at least ToldBytes().
	Told             [TeamMost]nvlib.Ptr
	ToldHalf         int64
	Writers, Readers int64 // blocks of the grid, its first, that do that; the others store
}

// restRows is that of src/collective_move_host.cuh.
const restRows = 4

// ToldBytes is how many bytes of flags a member needs: one for each chunk of the rest
// of each member.
func (m *MoveHost) ToldBytes() int64 {
	return 4 * int64(m.Members) * ceil(m.Rest, restRows*16*int64(m.Threads))
}

// Meeting returns the launch that does m, but for its Team.
func (m *MoveHost) Meeting() (Meeting, error) {
	if err := m.check(); err != nil {
		return Meeting{}, err
	}
	switch aside := m.Writers + m.Readers; {
	case m.Kind != MovePush || len(m.Extents) > 0:
		return Meeting{}, fmt.Errorf("%w: blocks do not lie together", device.ErrUnsupported)
	case m.Rest < 1 || m.Writers < 1 || m.Readers < 1 || int64(m.Blocks) <= aside:
		return Meeting{}, fmt.Errorf("%w: %d bytes by way of host memory, by %d and %d blocks of %d", device.ErrUnsupported, m.Rest, m.Writers, m.Readers, m.Blocks)
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

// words is what follows Team in MoveHostArgs.
func (m *MoveHost) words() words {
	w := m.Move.words()
	w.addr(m.Give[:]...)
	w.addr(m.Take[:]...)
	w.addr(m.Put[:]...)
	w.addr(m.Told[:]...)
	w.ints(m.ToldHalf, m.Rest, m.Writers, m.Readers)
	return w
}
