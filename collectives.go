package hocket

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/calls"
	"hocket.example/hocket/ir"
)

// Collectives run single collectives among the ranks of a World, one rank in each process. They work on memory and
// streams of the caller, for example those of PyTorch in the same process. No program is planned. A call returns
// before its collective has run, and nothing waits on the host. Errors of a collective are returned by later calls,
// and end the World.
//
// All processes make the same calls in the same order. At the first call of each kind, the processes compare their
// calls, wait for each other and prepare the collective. That is impossible on a stream that is being captured as a
// graph, so call it once before the capture. Later calls are compared without waiting. The caller orders calls on two
// streams.
type Collectives struct{ g *calls.Group }

// CollectiveOptions choose algorithms. The zero value takes the fastest known algorithm for each size.
type CollectiveOptions struct {
	// Algorithm names the algorithm to try first.
	Algorithm string
	// Fixed runs each collective by one algorithm for all sizes, so that the bits of an element do not depend on the
	// number of other elements.
	Fixed bool
}

// CollectiveCall is a collective of dense operands in memory of the rank's device. Count is the number of elements
// that the rank contributes: its block of an all_gather, and the whole operand of other collectives, which
// reduce_scatter and all_to_all cut into one block for each rank.
type CollectiveCall struct {
	Op     ir.Op  // all_reduce, all_gather, reduce_scatter, all_to_all or broadcast
	Red    ir.Red // of all_reduce and reduce_scatter
	Root   int    // of broadcast
	DType  ir.DType
	Count  int64
	Stream uintptr // a CUstream; 0 for the default stream
	// In and Out are addresses. They may be equal if operand and result have the same size.
	In, Out uintptr
}

// NormCall adds Residual to an all_reduce of In, which gives Sum, and then applies rms_norm with Weight, which gives
// Out. One kernel does all of it, or an all_reduce and a second kernel, whichever is faster. In, Residual, Sum and
// Out have Rows rows of Width elements, and Weight has Width elements. Sum may be Residual, and Out may be In. All
// begin at multiples of 16 bytes.
type NormCall struct {
	DType       ir.DType
	Rows, Width int64
	Eps         float64
	Stream      uintptr

	In, Residual, Weight, Sum, Out uintptr
}

// Collectives opens the collectives of a machine with a World; see MachineOptions. The CPU machine returns
// ErrUnsupported.
func (m *Machine) Collectives(ctx context.Context, o CollectiveOptions) (*Collectives, error) {
	peers := m.dev.Peers()
	if peers == nil {
		return nil, fmt.Errorf("%w: single collectives need a machine with a World of several processes",
			ErrUnsupported)
	}
	g, err := calls.Open(context.WithoutCancel(ctx), m.dev, peers.Processes(), calls.Options(o))
	if err != nil {
		return nil, inputError(err)
	}
	return &Collectives{g}, nil
}

func inputError(err error) error {
	if errors.Is(err, calls.ErrInput) {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	return err
}

// Do enqueues a collective on the stream.
func (c *Collectives) Do(ctx context.Context, call CollectiveCall) error {
	return inputError(c.g.Do(ctx, calls.Call(call)))
}

// DoNorm enqueues a normalised sum on the stream. It returns ErrUnsupported if there is no kernel for the type, width
// or addresses; then call all_reduce and the other operations separately.
func (c *Collectives) DoNorm(ctx context.Context, call NormCall) error {
	return inputError(c.g.DoNorm(ctx, calls.Norm(call)))
}

// Empty allocates memory of the rank's device whose operands collectives need not copy. All processes allocate the
// same size at the same time. Close frees it.
func (c *Collectives) Empty(ctx context.Context, bytes int64) (uintptr, error) {
	at, err := c.g.Empty(ctx, bytes)
	return at, inputError(err)
}

// Adopt lets collectives use memory of the caller without copies, for example memory that another library has shared
// between the processes. Every rank contributes the same number of bytes; the addresses, by rank, are those at which
// this process's GPU reaches them. All processes call Adopt at the same time, for the same memory. The memory belongs
// to the caller and must stay valid until Close.
func (c *Collectives) Adopt(ctx context.Context, at []uintptr, bytes int64) error {
	return inputError(c.g.Adopt(ctx, at, bytes))
}

// Device is CUDA's number, in this process, of the GPU that calls work on.
func (c *Collectives) Device() int { return c.g.Device() }

// Err returns nil, or the reason why results of calls can no longer be relied on: a process of the World has failed,
// or a kernel's wait for one has timed out. It queries no device: to cover all calls made so far, synchronise the
// streams first.
func (c *Collectives) Err() error { return c.g.Err() }

// Close waits for the device and frees everything.
func (c *Collectives) Close() error { return c.g.Close() }
