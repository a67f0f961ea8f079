package device

import "fmt"

// Held is memory that a world has taken, in bytes, in use or not.
type Held struct {
	Device int64 // of the device that it has the most of; where ranks share the host's memory, of all ranks
	Host   int64 // pinned host memory, that of all ranks
}

// Bytes is both.
func (h Held) Bytes() int64 { return h.Device + h.Host }

// TrialError says that there is no memory to time the algorithms of a product in.
type TrialError struct {
	What  string // the product
	Bytes int64  // that it takes
	Free  int64  // of the device
	Err   error  // ErrOutOfMemory
}

// Error names the product and says what there is.
func (e *TrialError) Error() string {
	return fmt.Sprintf("timing the algorithms of %s takes %d bytes, and %d of the device are free: %v", e.What, e.Bytes, e.Free, e.Err)
}

// Unwrap returns the cause.
func (e *TrialError) Unwrap() error { return e.Err }

// Guesser is a world that tells what it runs by a guess.
type Guesser interface {
	// Guesses names the products that run by the library's first guess for want of
	// memory to time others in, by this world or one before it in the process.
	Guesses() []string
}

// Holder is a world that tells what it holds.
type Holder interface {
	// Held counts what the world takes for as long as it lives: operands, staging,
	// workspaces, buffers of transfers, teams' memory. It does not know what the
	// driver and NCCL take by themselves, for code, graphs and connections.
	Held() Held
}
