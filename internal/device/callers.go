package device

import (
	"context"
	"errors"
)

// ErrAddress is wrapped by errors about addresses passed by the caller.
var ErrAddress = errors.New("wrong address")

// Callers orders a world's work with work on streams of the caller. The caller is another library in this process, or a
// program that uses the machine. World.Callers returns a Callers.
type Callers interface {
	// At returns a Memory for memory of the caller at an address of a rank's device. The caller must keep the memory
	// allocated, and must not use it for anything else, while work of the world may use it. The Memory need not be
	// freed. At returns ErrAddress if the address is not on the device.
	At(rank int, address uintptr, bytes int64) (Memory, error)
	// Between issues a batch of work, like World.Batch. The work runs after all earlier work on the caller's streams
	// and before all later work on them. streams holds one stream for each rank; streams of ranks that are not Local
	// are ignored. Between does not wait on the host.
	Between(streams []uintptr, issue func() error) error
	// CaptureInto records the work that issue enqueues, as World.Capture does. It adds the work to the graph into
	// which the caller captures the stream of the world's only Local rank, at the stream's current position.
	// CaptureInto waits until the world is idle. The recorded memory and kernels must remain valid as long as the
	// graph is launched, and launches must be ordered with all other work of the world. CaptureInto calls prepare
	// before issue; prepare may prepare the work that issue enqueues.
	CaptureInto(ctx context.Context, streams []uintptr, prepare func(), issue func() error) error
	// Err returns the reason why the world has ended, or nil if it has not ended. It makes no device call, so a very
	// recent failure may be missing.
	Err() error
}
