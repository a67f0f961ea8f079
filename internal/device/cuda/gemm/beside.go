package gemm

import (
	"errors"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// In graphs, GEMMs that share an operand and are too small to fill a GPU run concurrently, each on a separate branch of
// the graph. Examples are the linears that compute q, k and v of a layer, and the gate and up projections. The results
// have the same bits as without concurrency, unless algorithms for shares of the multiprocessors are faster.

// tileSide is the approximate side of the square of the result that one thread block of cuBLASLt computes.
const tileSide = 128

// fills reports whether g has at least one thread block for each multiprocessor, of which there are sms. For such
// GEMMs, running two concurrently is not faster: for the gate and up projections with 512 rows it was 2 % slower on two
// H100 GPUs.
func (g *Problem) fills(sms int) bool {
	tiles := g.Batch * ((g.M + tileSide - 1) / tileSide) * ((g.N + tileSide - 1) / tileSide)
	return tiles >= int64(sms)
}

// PrepareBeside returns one launch for several GEMMs: a batched GEMM if that is faster (see batch.go), or else GEMMs
// that run concurrently, with shares of the multiprocessors if that is faster (see fasterShares), and otherwise in
// graphs only. PrepareBeside returns nil in three cases: no batched GEMM is faster and each GEMM fills the GPU;
// cuBLASLt does not compute some of them; they have so few rows that hocket's own kernel may compute some of them. The
// caller has made the context current.
func (h *Host) PrepareBeside(j Joint) (all *Launch, err error) {
	list, small := j.List, false
	for i := range list {
		if list[i].SMs != 0 || list[i].M <= skinnyRows || list[i].N == 0 {
			return nil, nil
		}
		small = small || !list[i].fills(h.gpu.SMs)
	}
	if !small && !j.batches() {
		return nil, nil
	}
	var made []*Launch
	defer func() {
		if len(made) > 0 && all != made[0] {
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
	if all, err = h.fasterBatch(j, made, small); err != nil || all != nil || !small {
		return all, err
	}
	if all, err = h.fasterShares(j, made); err != nil || all != nil {
		return all, err
	}
	made[0].beside = made[1:]
	return made[0], nil
}

// fasterShares returns one launch that computes the linears concurrently, each with an algorithm for a share of the
// multiprocessors that corresponds to its part of the work. Algorithms for the whole GPU would run almost one after
// another, because each occupies all multiprocessors. fasterShares returns nil unless the shares are faster than the
// launches in alone, run concurrently, and give the same bits when all sums are exact.
func (h *Host) fasterShares(j Joint, alone []*Launch) (all *Launch, err error) {
	columns, key := int64(0), "shares 1"
	for i := range j.List {
		if g := &j.List[i]; g.Fixed || g.scaled() {
			return nil, nil
		}
		columns += j.List[i].N
		key += "; " + alone[i].key()
	}
	var shares []*Launch
	defer func() {
		if all == nil {
			for _, st := range shares {
				st.Free()
			}
		}
	}()
	for _, g := range j.List {
		g.SMs = max(1, int(int64(h.gpu.SMs)*g.N/columns))
		st, err := h.Prepare(g)
		if err != nil || st == nil {
			return nil, err
		}
		if shares = append(shares, st); st.Product == nil {
			return nil, nil
		}
	}
	faster, err := h.decide(&j, key, func() (bool, error) { return h.raceShares(j, alone, shares) })
	if err != nil {
		return nil, err
	}
	if h.chosen[sumOf(key)] = jointChoice(faster); !faster {
		return nil, nil
	}
	shares[0].beside, shares[0].shares = shares[1:], true
	return shares[0], nil
}

// raceShares reports whether the launches in shares are faster than those in alone, each list run concurrently, and
// give the same bits.
func (h *Host) raceShares(j Joint, alone, shares []*Launch) (faster bool, err error) {
	t, err := h.newJointTrial(Joint{List: j.List}, alone)
	if err != nil {
		return false, err
	}
	defer func() {
		if h.branches[t.h] != nil {
			err = errors.Join(err, h.dropBranches(t.h))
		}
		err = t.close(err)
	}()
	// Each branch has a workspace for both algorithms from the beginning: branchesOf does not free one that is too small.
	most := slices.Clone(alone[1:])
	for i, st := range shares[1:] {
		if st.Need > most[i].Need {
			most[i] = st
		}
	}
	all, err := h.branchesOf(t.h, most)
	if err != nil {
		return false, err
	}
	concurrent := func(list []*Launch) variant {
		return func(at *jointOperands) ([]func() error, error) { return t.runConcurrent(all, list, at) }
	}
	return t.faster(concurrent(alone), concurrent(shares))
}

// branch holds an additional stream, on which a GEMM runs concurrently, with its own workspace.
type branch struct {
	h     nvlib.Stream
	ended nvlib.Event
	ws    nvlib.Ptr
	bytes int64
}

// branches holds the branches of one stream.
type branches struct {
	begun nvlib.Event
	list  []*branch
}

// room ensures that b has a workspace of at least the given number of bytes. The world frees a replaced workspace only
// at its end, because a graph may use it.
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

// branchesOf returns the branches of a stream, with workspaces that are large enough for the GEMMs in list. It creates
// missing branches.
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

// Reserve creates the branches of stream s on which st runs outside graphs, with their workspaces. If there is too
// little memory, st runs on s alone. The caller has made the context current.
func (st *Launch) Reserve(s nvlib.Stream) error {
	if !st.shares {
		return nil
	}
	if _, err := st.host.branchesOf(s, st.beside); !errors.Is(err, device.ErrOutOfMemory) {
		return err
	}
	return nil
}

// runBeside issues the GEMMs to branches of stream s. A graph that is being recorded from s gets concurrent branches.
func (st *Launch) runBeside(ws nvlib.Ptr, s nvlib.Stream) error {
	all, err := st.host.branchesOf(s, st.beside)
	if errors.Is(err, device.ErrOutOfMemory) {
		return st.runInTurn(ws, s)
	}
	if err != nil {
		return err
	}
	return all.run(st.host.drv, len(st.beside), s, ws, func(i int, ws nvlib.Ptr, s nvlib.Stream) error {
		if i > 0 {
			return st.beside[i-1].multiply(ws, s)
		}
		return st.multiply(ws, s)
	})
}

// run issues GEMM 0 to s, and each other GEMM to a branch.
func (b *branches) run(
	drv *nvlib.Driver, n int, s nvlib.Stream, ws nvlib.Ptr, multiply func(i int, ws nvlib.Ptr, s nvlib.Stream) error,
) error {
	list := b.list[:n]
	if err := drv.Record(b.begun, s); err != nil {
		return err
	}
	for i, o := range list {
		if err := drv.WaitEvent(o.h, b.begun); err != nil {
			return err
		}
		if err := multiply(i+1, o.ws, o.h); err != nil {
			return err
		}
		if err := drv.Record(o.ended, o.h); err != nil {
			return err
		}
	}
	if err := multiply(0, ws, s); err != nil {
		return err
	}
	for _, o := range list {
		if err := drv.WaitEvent(s, o.ended); err != nil {
			return err
		}
	}
	return nil
}

// runInTurn issues the GEMMs to stream s one after another.
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

// EndBranches frees the branches when the world ends. The workspaces of the branches are freed with the world's heaps.
// The caller has made the context current.
func (h *Host) EndBranches() error {
	var errs []error
	for _, all := range h.branches {
		errs = append(errs, all.end(h.drv))
	}
	clear(h.branches)
	return errors.Join(errs...)
}

// end destroys the streams and events of the branches.
func (b *branches) end(drv *nvlib.Driver) error {
	var errs []error
	for _, o := range b.list {
		if o.ended != 0 {
			errs = append(errs, drv.DestroyEvent(o.ended))
		}
		if o.h != 0 {
			errs = append(errs, drv.DestroyStream(o.h))
		}
	}
	return errors.Join(append(errs, drv.DestroyEvent(b.begun))...)
}
