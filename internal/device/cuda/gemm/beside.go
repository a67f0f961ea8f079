package gemm

import (
	"errors"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// In graphs, GEMMs with a common operand that cannot fill a GPU alone run concurrently, each on its own branch: q, k
// and v of a layer, or the two halves of its gate. The results have the same bits.

// tileSide is what cuBLASLt's blocks have of rows and columns, about.
const tileSide = 128

// fills reports whether g has a block for each of so many multiprocessors. Two that have gain nothing beside each
// other: seen with gate and up of 512 rows on two H100, 2 % slower.
func (g *Problem) fills(sms int) bool {
	tiles := g.Batch * ((g.M + tileSide - 1) / tileSide) * ((g.N + tileSide - 1) / tileSide)
	return tiles >= int64(sms)
}

// PrepareBeside returns one launch for products that run side by side in graphs, and one after the other elsewhere;
// nil where each fills the GPU, some product is not cuBLASLt's, or rows are so few that hocket's kernel may take
// all or some. The context is current.
func (h *Host) PrepareBeside(list []Problem) (all *Launch, err error) {
	small := false
	for i := range list {
		if list[i].SMs != 0 || list[i].M <= skinnyRows || list[i].N == 0 {
			return nil, nil
		}
		small = small || !list[i].fills(h.gpu.SMs)
	}
	if !small {
		return nil, nil
	}
	var made []*Launch
	defer func() {
		if all == nil {
			for _, st := range made {
				st.Free()
			}
		}
	}()
	for _, g := range list {
		st, err := h.Prepare(g)
		if err != nil || st == nil {
			return nil, err
		}
		if made = append(made, st); st.Product == nil {
			return nil, nil
		}
	}
	made[0].beside = made[1:]
	return made[0], nil
}

// branch is a stream next to another, with its own workspace.
type branch struct {
	h     nvlib.Stream
	ended nvlib.Event
	ws    nvlib.Ptr
	bytes int64
}

// branches are beside a stream.
type branches struct {
	begun nvlib.Event
	list  []*branch
}

// room has a branch have a workspace of so many bytes. What it had stays the world's: a graph may use it.
func (b *branch) room(h *Host, bytes int64) error {
	if b.bytes >= bytes {
		return nil
	}
	ws, err := h.heaps[device.Private].Alloc(bytes)
	if err == nil {
		b.ws, b.bytes = ws, bytes
	}
	return err
}

// branchesOf returns branches of a stream with room for the products, and makes those that are missing.
func (h *Host) branchesOf(s nvlib.Stream, list []*Launch) (*branches, error) {
	all := h.branches[s]
	if all == nil {
		begun, err := h.drv.NewEvent(false)
		if err != nil {
			return nil, err
		}
		all = &branches{begun: begun}
		h.branches[s] = all
	}
	for i, st := range list {
		if i == len(all.list) {
			b := &branch{}
			all.list = append(all.list, b)
		}
		b := all.list[i]
		var err error
		if b.h == 0 {
			b.h, err = h.drv.NewStream(0)
		}
		if err == nil && b.ended == 0 {
			b.ended, err = h.drv.NewEvent(false)
		}
		if err == nil {
			err = b.room(h, st.Need)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// runBeside records the products into the graph that s is recorded into.
func (st *Launch) runBeside(ws nvlib.Ptr, s nvlib.Stream) error {
	all, err := st.host.branchesOf(s, st.beside)
	if errors.Is(err, device.ErrOutOfMemory) {
		return st.runInTurn(ws, s)
	}
	if err != nil {
		return err
	}
	drv := st.host.drv
	if err := drv.Record(all.begun, s); err != nil {
		return err
	}
	for i, other := range st.beside {
		b := all.list[i]
		if err := drv.WaitEvent(b.h, all.begun); err != nil {
			return err
		}
		if err := other.multiply(b.ws, b.h); err != nil {
			return err
		}
		if err := drv.Record(b.ended, b.h); err != nil {
			return err
		}
	}
	if err := st.multiply(ws, s); err != nil {
		return err
	}
	for i := range st.beside {
		if err := drv.WaitEvent(s, all.list[i].ended); err != nil {
			return err
		}
	}
	return nil
}

// runInTurn gives s the products one after the other.
func (st *Launch) runInTurn(ws nvlib.Ptr, s nvlib.Stream) error {
	err := st.multiply(ws, s)
	for i := 0; err == nil && i < len(st.beside); i++ {
		err = st.beside[i].multiply(ws, s)
	}
	return err
}

func (st *Launch) multiply(ws nvlib.Ptr, s nvlib.Stream) error {
	return st.Library.Multiply(st.Product, ws, st.Need, s)
}

// EndBranches gives the branches back with the world, but for workspaces, which go with its heaps. The context is
// current.
func (h *Host) EndBranches() error {
	var errs []error
	for _, all := range h.branches {
		for _, b := range all.list {
			if b.ended != 0 {
				errs = append(errs, h.drv.DestroyEvent(b.ended))
			}
			if b.h != 0 {
				errs = append(errs, h.drv.DestroyStream(b.h))
			}
		}
		errs = append(errs, h.drv.DestroyEvent(all.begun))
	}
	clear(h.branches)
	return errors.Join(errs...)
}
