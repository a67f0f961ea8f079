package hocket

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/calls"
	"hocket.example/hocket/ir"
)

// Collectives runs single collectives among the ranks of a World in which each process drives one rank. The operands
// are in the caller's memory and the work is enqueued on the caller's streams, for example those of PyTorch in the same
// process. No program is planned. A call returns before its collective has run and does not wait on the host. Errors of
// a collective are returned by later calls, and end the World.
//
// All processes must make the same calls in the same order. At the first call of each kind, the processes compare their
// calls, wait for each other and prepare the collective. A stream that is being captured as a graph does not permit
// this, so make the first call before the capture. Later calls are compared without waiting. The caller must order
// calls that use two different streams.
type Collectives struct{ g *calls.Group }

// CollectiveOptions selects algorithms. The zero value selects, for each message size, the algorithm that is known to
// be the fastest.
type CollectiveOptions struct {
	// Algorithm names the algorithm to try first.
	Algorithm string
	// Fixed makes each collective use the same algorithm for all message sizes, so that the bits of an element do not
	// depend on the number of other elements.
	Fixed bool
}

// CollectiveCall describes one collective on dense operands in the memory of the rank's device. Count is the number of
// elements that the rank contributes: the number in its block for all_gather, and the number in the whole operand for
// other collectives. reduce_scatter and all_to_all cut the operand into one block for each rank.
type CollectiveCall struct {
	Op     ir.Op  // the operation: all_reduce, all_gather, reduce_scatter, all_to_all or broadcast
	Red    ir.Red // the reduction of all_reduce and reduce_scatter
	Root   int    // the root of broadcast
	DType  ir.DType
	Count  int64
	Stream uintptr // a CUstream; 0 for the default stream
	// In and Out are device addresses. They may be equal if the operand and the result have the same number of bytes.
	In, Out uintptr
}

// NormCall describes a fused all_reduce and normalisation. The call adds Residual to the all_reduce of In and writes
// the sum to Sum; it then applies rms_norm with Weight to Sum and writes the result to Out. The work is done either by
// one kernel, or by an all_reduce and a second kernel, whichever is faster. In, Residual, Sum and Out have Rows rows of
// Width elements each, and Weight has Width elements. Sum may equal Residual, and Out may equal In. All addresses must
// be multiples of 16 bytes.
type NormCall struct {
	DType       ir.DType
	Rows, Width int64
	Eps         float64
	Stream      uintptr

	In, Residual, Weight, Sum, Out uintptr
}

// Collectives prepares a machine with a World for single collectives; see MachineOptions.World. The CPU machine returns
// ErrUnsupported.
func (m *Machine) Collectives(ctx context.Context, o CollectiveOptions) (*Collectives, error) {
	peers := m.dev.Peers()
	if peers == nil {
		return nil, fmt.Errorf("%w: calls of single collectives need a machine that was opened with a World of several processes",
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

// DoNorm enqueues a fused all_reduce and normalisation on the stream. It returns ErrUnsupported if no kernel supports
// the type, the width or the addresses; in that case call all_reduce and the other operations separately.
func (c *Collectives) DoNorm(ctx context.Context, call NormCall) error {
	return inputError(c.g.DoNorm(ctx, calls.Norm(call)))
}

// Empty allocates memory on the rank's device. Collectives use operands in this memory without copying them. All
// processes must call Empty with the same number of bytes, at the same position in their sequence of calls. Close frees
// the memory.
func (c *Collectives) Empty(ctx context.Context, bytes int64) (uintptr, error) {
	at, err := c.g.Empty(ctx, bytes)
	return at, inputError(err)
}

// Adopt registers memory of the caller, so that collectives can use operands in it without copies. The memory may, for
// example, be memory that another library has shared between the processes. Every rank contributes the same number of
// bytes. at is indexed by rank and holds the addresses at which this process's GPU can access the ranks' memory. All
// processes must call Adopt for the same memory at the same position in their sequence of calls. The caller owns the
// memory and must not free it before Close.
func (c *Collectives) Adopt(ctx context.Context, at []uintptr, bytes int64) error {
	return inputError(c.g.Adopt(ctx, at, bytes))
}

// Device returns the CUDA device number, in this process, of the GPU on which the collectives run.
func (c *Collectives) Device() int { return c.g.Device() }

// Err returns nil, or the reason why the results of calls can no longer be relied on: a process of the World has
// failed, or a kernel that waited for another process has timed out. Err does not query a device. To check all calls
// made so far, synchronise the streams before calling Err.
func (c *Collectives) Err() error { return c.g.Err() }

// Close waits until the device is idle and then frees everything.
func (c *Collectives) Close() error { return c.g.Close() }
