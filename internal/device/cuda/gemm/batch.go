package gemm

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// cuBLASLt can compute the two linears of a gate as one batched GEMM. The distances between the two weights, and
// between the two results, are the strides of the batch. The batched GEMM is used if it is faster than separate
// launches, and if its bits are the same when all sums are exact. For 128 rows and weights of 7168x4096 on an H200, the
// batched GEMM takes 32.7 µs, and two concurrent GEMMs 35.9 µs.

// mostBatched is the largest number of rows for which a batched GEMM is measured.
const mostBatched = 1024

// batches reports whether the linears in j can be one batched GEMM. Its strides must be positive, because cuBLASLt 13.1
// made illegal accesses with negative ones.
func (j *Joint) batches() bool {
	if !j.Gated || len(j.List) != 2 {
		return false
	}
	g, other := j.List[0], j.List[1]
	size := nvlib.Ptr(g.DType.Size())
	if g.B >= other.B || g.Out >= other.Out || (other.B-g.B)%size != 0 || (other.Out-g.Out)%size != 0 {
		return false
	}
	other.B, other.Out = g.B, g.Out
	return g == other && g.Batch == 1 && g.On == 1 && g.M <= mostBatched && g.Bias == 0 && !g.Relu && !g.Fixed && !g.scaled()
}

// batch returns the linears as a batched GEMM with the given strides, in bytes, between the weights and between the
// results.
func (j *Joint) batch(weight, out int64) Problem {
	g := j.List[0]
	size := g.DType.Size()
	g.Batch, g.BStep, g.OutStep = 2, weight/size, out/size
	return g
}

// fasterBatch returns one launch that computes the linears as a batched GEMM. It returns nil unless this is faster than
// the separate launches in alone. The separate launches run concurrently if small is set, and otherwise one after
// another.
func (h *Host) fasterBatch(j Joint, alone []*Launch, small bool) (all *Launch, err error) {
	if !j.batches() {
		return nil, nil
	}
	// The algorithm is selected for contiguous matrices, so that all layers of a model share the choice.
	_, weight, out := alone[0].Problem.spans()
	dense, err := h.Prepare(j.batch(weight, out))
	if err != nil || dense == nil {
		return nil, err
	}
	defer dense.Free()
	if all, err = h.spread(j, dense); err != nil {
		return nil, err
	}
	faster, key := all != nil, fmt.Sprintf("batch 1; concurrent %v; %s; %s", small, alone[0].key(), dense.key())
	if faster {
		faster, err = h.decide(&j, key, func() (bool, error) { return h.raceBatch(j, alone, dense, small) })
	}
	if err == nil {
		h.chosen[sumOf(key)] = jointChoice(faster)
	}
	if all != nil && (err != nil || !faster) {
		all.Free()
		all = nil
	}
	return all, err
}

// spread returns the launch of a batched GEMM whose strides are the distances between the linears' operands, with the
// algorithm of dense. It returns nil if cuBLASLt does not support these strides.
func (h *Host) spread(j Joint, dense *Launch) (*Launch, error) {
	one, two := &j.List[0], &j.List[1]
	l, ok := j.batch(int64(two.B-one.B), int64(two.Out-one.Out)).CuBLASLt()
	if !ok {
		return nil, nil
	}
	l.tf32 = h.tf32 && l.DType == ir.F32
	st := h.NewStep(dense.Library, dense.Handle, l)
	err := st.Describe()
	if err == nil {
		algo := dense.Product.Algo()
		if st.Need, ok = st.takes(algo); ok {
			st.guess, st.Product = dense.guess, st.NewProduct(algo, l.B, l.A, l.Out)
			return st, nil
		}
	}
	st.Free()
	return nil, notTaken(err)
}

// raceBatch reports whether a batched GEMM of contiguous matrices is faster than the launches in alone, and gives the
// same bits.
func (h *Host) raceBatch(j Joint, alone []*Launch, dense *Launch, small bool) (faster bool, err error) {
	t, err := h.newJointTrial(Joint{List: j.List}, alone)
	if err != nil {
		return false, err
	}
	defer func() { err = t.close(err) }()
	apart := t.runAlone
	if small {
		all, err := h.branchesOf(t.h, alone[1:])
		if all != nil {
			defer func() { err = errors.Join(err, h.dropBranches(t.h)) }()
		}
		if err != nil {
			return false, err
		}
		apart = func(at *jointOperands) ([]func() error, error) { return t.runConcurrent(all, alone, at) }
	}
	return t.faster(apart, func(at *jointOperands) ([]func() error, error) {
		p := dense.NewProduct(dense.Product.Algo(), at.b[0], at.a, at.outs[0])
		t.products = append(t.products, p)
		return []func() error{func() error { return dense.Library.Multiply(p, t.ws, dense.Need, t.h) }}, nil
	})
}

// runConcurrent returns a function that runs the linears concurrently, with the algorithms of list, as branches of a
// graph do.
func (t *jointTrial) runConcurrent(all *branches, list []*Launch, at *jointOperands) ([]func() error, error) {
	var products []*nvlib.Product
	for i, st := range list {
		products = append(products, st.NewProduct(st.Product.Algo(), at.b[i], at.a, at.outs[i]))
	}
	t.products = append(t.products, products...)
	return []func() error{func() error {
		return all.run(t.host.drv, len(products)-1, t.h, t.ws, func(i int, ws nvlib.Ptr, s nvlib.Stream) error {
			return list[i].Library.Multiply(products[i], ws, list[i].Need, s)
		})
	}}, nil
}

// dropBranches frees the additional streams (branches) of a stream, and their workspaces. The context is current.
func (h *Host) dropBranches(s nvlib.Stream) error {
	all := h.branches[s]
	delete(h.branches, s)
	var errs []error
	for _, b := range all.list {
		if b.h != 0 {
			errs = append(errs, h.drv.SyncStream(b.h))
		}
		if b.ws != 0 {
			errs = append(errs, h.heaps[device.Private].Free(b.ws, b.bytes))
		}
	}
	return errors.Join(append(errs, all.end(h.drv))...)
}
