package capi

import (
	"context"
	"fmt"
	"sync"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// collectiveOptions are the options of Collectives.
type collectiveOptions struct {
	Algorithm string `json:"algorithm"`
	Fixed     bool   `json:"fixed"`
}

// collectives is an open calls.Group, and the loans of the memory that it adopted.
type collectives struct {
	*hocket.Collectives
	mu      sync.Mutex
	adopted []*Loan
}

func (c *collectives) close() error {
	err := c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.adopted {
		n.End()
	}
	c.adopted = nil
	return err
}

// Collectives opens the ranks of a machine for collectives on memory and streams of the caller.
func (l *Library) Collectives(ctx context.Context, machineHandle int64, text string) (int64, error) {
	m, err := get[*machine](l, machineHandle)
	if err != nil {
		return 0, err
	}
	var o collectiveOptions
	if err := options(text, &o); err != nil {
		return 0, err
	}
	c, err := m.m.Collectives(ctx, hocket.CollectiveOptions(o))
	if err != nil {
		return 0, err
	}
	return l.add(&collectives{Collectives: c}), nil
}

// Because calls are frequent, they identify ops, reductions and element types by their index in these lists, and not by
// name.
var (
	callOps    = []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpBroadcast}
	callReds   = []ir.Red{ir.Sum, ir.Avg, ir.Max, ir.Min}
	callDTypes = []ir.DType{ir.F32, ir.F64, ir.F16, ir.BF16, ir.I32, ir.I64}
)

func pick[T any](list []T, i int, what string) (x T, err error) {
	if i < 0 || i >= len(list) {
		return x, fmt.Errorf("%w: %s %d", hocket.ErrInput, what, i)
	}
	return list[i], nil
}

// Call is a collective whose op, reduction and element type are given by index.
type Call struct {
	Op, Red, DType, Root int
	Count                int64
	Stream, In, Out      uintptr
}

// Do enqueues a collective on a stream.
func (l *Library) Do(handle int64, c Call) error {
	all, err := get[*collectives](l, handle)
	if err != nil {
		return err
	}
	op, err := pick(callOps, c.Op, "op")
	if err != nil {
		return err
	}
	red, err := pick(callReds, c.Red, "reduction")
	if err != nil {
		return err
	}
	dt, err := pick(callDTypes, c.DType, "element type")
	if err != nil {
		return err
	}
	return all.Do(l.named(context.Background()), hocket.CollectiveCall{Op: op, Red: red, Root: c.Root, DType: dt, Count: c.Count,
		Stream: c.Stream, In: c.In, Out: c.Out})
}

// NormCall is a fused all_reduce and rms_norm (calls.Norm) whose element type is given by index.
type NormCall struct {
	DType                                  int
	Rows, Width                            int64
	Eps                                    float64
	Stream, In, Residual, Weight, Sum, Out uintptr
}

// DoNorm enqueues a fused all_reduce and rms_norm on a stream.
func (l *Library) DoNorm(handle int64, c NormCall) error {
	all, err := get[*collectives](l, handle)
	if err != nil {
		return err
	}
	dt, err := pick(callDTypes, c.DType, "element type")
	if err != nil {
		return err
	}
	return all.DoNorm(context.Background(),
		hocket.NormCall{DType: dt, Rows: c.Rows, Width: c.Width, Eps: c.Eps, Stream: c.Stream,
			In: c.In, Residual: c.Residual, Weight: c.Weight, Sum: c.Sum, Out: c.Out})
}

// Empty allocates memory for operands on all ranks.
func (l *Library) Empty(handle, bytes int64) (uintptr, error) {
	all, err := get[*collectives](l, handle)
	if err != nil {
		return 0, err
	}
	return all.Empty(context.Background(), bytes)
}

// Adopt registers memory of the caller, with one address for each rank, for use by collectives
// without copies, until they are closed.
func (l *Library) Adopt(handle int64, lent *Loan, at []uintptr, bytes int64) error {
	all, err := get[*collectives](l, handle)
	if err != nil {
		return err
	}
	err = all.Adopt(context.Background(), at, bytes)
	if err == nil {
		all.mu.Lock()
		defer all.mu.Unlock()
		lent.share()
		all.adopted = append(all.adopted, lent)
	}
	return err
}

// Device returns the number of the GPU that the collectives run on.
func (l *Library) Device(handle int64) (int, error) {
	all, err := get[*collectives](l, handle)
	if err != nil {
		return 0, err
	}
	return all.Device(), nil
}

// Check returns an error if the results of collectives can no longer be relied on.
func (l *Library) Check(handle int64) error {
	all, err := get[*collectives](l, handle)
	if err != nil {
		return err
	}
	return all.Err()
}
