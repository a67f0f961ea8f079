package device

import (
	"context"
	"errors"
)

// ErrAddress is wrapped by errors about addresses of the caller's.
var ErrAddress = errors.New("wrong address")

// Callers puts a world's work between that of streams of the caller's: those of a library in whose process the
// machine is, or of a program beside it. Opened by World.Callers.
type Callers interface {
	// At returns memory of a rank's device that is the caller's: it stays there, untouched by others, for as long as
	// work may use it. It need not be freed. What is not on the device is ErrAddress.
	At(rank int, address uintptr, bytes int64) (Memory, error)
	// Between is Batch for work that comes behind what the caller's streams, by rank, were given before, and that
	// what these are given later comes behind. Nothing waits on the host. Streams of ranks that are not Local are
	// ignored.
	Between(streams []uintptr, issue func() error) error
	// CaptureInto records what issue gives to streams, as World.Capture does, and puts it where the stream of the
	// world's one Local rank has come to in the graph that it is being captured in. It waits until the world rests.
	// The memory and kernels that are recorded must stay for as long as the graph is launched, which must be in order
	// with all other work of the world. prepare is called first, and may prepare what issue gives.
	CaptureInto(ctx context.Context, streams []uintptr, prepare func(), issue func() error) error
	// Err returns why the world has ended, as far as can be told without asking a device.
	Err() error
}
