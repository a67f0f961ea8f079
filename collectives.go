package hocket

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/calls"
	"hocket.example/hocket/ir"
)

// Collectives are the ranks of a World, one in each process, open for collectives that are called one by one on
// memory and streams of the caller's: those of a library such as PyTorch, in whose process hocket is. No program is
// planned. A call returns before it has run, and nothing waits on the host; errors of a call's run come out of later
// calls, and end the World.
//
// All processes call alike, in one order. When a call is the first of its kind they compare what they call, wait for
// each other and make it ready, which a stream that is being captured as a graph cannot have: call it once before.
// Later they compare without waiting. Calls on two streams are ordered by whoever owns these.
type Collectives struct{ g *calls.Group }

// CollectiveOptions choose algorithms; the zero value takes the fastest known for each size.
type CollectiveOptions struct {
	// Algorithm names the one to try first.
	Algorithm string
	// Fixed runs a collective by one algorithm, whatever its size: the bits of an element do not depend on how many
	// there are beside it.
	Fixed bool
}

// CollectiveCall is a collective of dense operands in memory of the rank's device. Count is how many elements the
// rank gives: of an all_gather its block, of others the whole operand, which reduce_scatter and all_to_all cut into a
// block for each rank.
type CollectiveCall struct {
	Op     ir.Op  // all_reduce, all_gather, reduce_scatter, all_to_all or broadcast
	Red    ir.Red // of all_reduce and reduce_scatter
	Root   int    // of broadcast
	DType  ir.DType
	Count  int64
	Stream uintptr // a CUstream; 0 for the default stream
	// In and Out are addresses. They may be one where operand and result are of one size.
	In, Out uintptr
}

// NormCall is an all_reduce of In, the sum with Residual, which goes to Sum, and the rms_norm of that with Weight,
// which goes to Out: one kernel, or an all_reduce and one, whichever is faster. In, Residual, Sum and Out have Rows
// rows of Width elements, Weight has Width. Sum may be Residual, and Out may be In. All begin at multiples of 16 bytes.
type NormCall struct {
	DType       ir.DType
	Rows, Width int64
	Eps         float64
	Stream      uintptr

	In, Residual, Weight, Sum, Out uintptr
}

// Collectives opens them, on a machine with a World; see MachineOptions. What the CPU machine has none of is
// ErrUnsupported.
func (m *Machine) Collectives(ctx context.Context, o CollectiveOptions) (*Collectives, error) {
	peers := m.dev.Peers()
	if peers == nil {
		return nil, fmt.Errorf("%w: collectives by calls want a machine with a World of several processes",
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

// Do gives the stream a collective.
func (c *Collectives) Do(ctx context.Context, call CollectiveCall) error {
	return inputError(c.g.Do(ctx, calls.Call(call)))
}

// DoNorm gives the stream a normalised sum. ErrUnsupported says that there is no such kernel for its type, width or
// addresses: then call all_reduce, and what follows it.
func (c *Collectives) DoNorm(ctx context.Context, call NormCall) error {
	return inputError(c.g.DoNorm(ctx, calls.Norm(call)))
}

// Empty takes memory of the rank's device that collectives need not copy operands from or to: all processes take as
// much at the same time. Close gives it back.
func (c *Collectives) Empty(ctx context.Context, bytes int64) (uintptr, error) {
	at, err := c.g.Empty(ctx, bytes)
	return at, inputError(err)
}

// Adopt has collectives use memory of the caller's without copies, such as what another library has shared between
// the processes: as many bytes on every rank, at these addresses, by rank, at which this process's GPU reaches them.
// All processes do so at the same time, each for the same memory. It stays the caller's, and must stay there until
// Close.
func (c *Collectives) Adopt(ctx context.Context, at []uintptr, bytes int64) error {
	return inputError(c.g.Adopt(ctx, at, bytes))
}

// Device is CUDA's number of the GPU that calls work on, in this process.
func (c *Collectives) Device() int { return c.g.Device() }

// Err returns why calls can no longer be relied on, nil while they can: a process of the World has failed, or a
// kernel has waited for one in vain. It asks no device: synchronise streams before, to learn of all that they ran.
func (c *Collectives) Err() error { return c.g.Err() }

// Close waits for the device and gives everything back.
func (c *Collectives) Close() error { return c.g.Close() }
