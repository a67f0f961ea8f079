package device

import (
	"context"
	"errors"
)

// ErrAddress is wrapped by errors about addresses passed by the caller.
var ErrAddress = errors.New("wrong address")

// Callers runs a world's work in order with work on streams of the caller, which belong to a library in this process or
// to a program that uses the machine. World.Callers opens it.
type Callers interface {
	// At returns caller's memory at an address of a rank's device. The caller must keep it allocated, and not use it for
	// anything else, as long as work may use it. It need not be freed. At returns ErrAddress if the memory is not on the
	// device.
	At(rank int, address uintptr, bytes int64) (Memory, error)
	// Between is Batch for work that runs after all earlier work on the caller's streams, which are given by rank, and
	// before all later work on them. Nothing waits on the host. Streams of ranks that are not Local are ignored.
	Between(streams []uintptr, issue func() error) error
	// CaptureInto records the work that issue enqueues, as World.Capture does, and adds it to the graph into which the
	// stream of the world's only Local rank is being captured, at the stream's current position. It waits until the world
	// is idle. The memory and kernels that are recorded must remain valid as long as the graph is launched, and launches
	// must be in order with all other work of the world. prepare is called first, and may prepare the work for issue.
	CaptureInto(ctx context.Context, streams []uintptr, prepare func(), issue func() error) error
	// Err returns the reason why the world has ended; nil if it has not, as far as is known without
	// a call to a device.
	Err() error
}
