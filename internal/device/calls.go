package device

// Calls runs single collectives of all ranks of a world, on memory and streams of the caller. The caller is a library
// in this process. Each process makes the calls of its one rank. All processes prepare the same calls in the same
// order, and make the calls in the same order. No method except Prepare and Close waits on the host. World.OpenCalls
// returns a Calls.
type Calls interface {
	// Keep saves the calling thread's state in the device's driver, and returns a function that restores it. It is for
	// methods other than Copy and Call.Do, which leave this state as it is.
	Keep() (restore func())
	// Prepare prepares a collective. An operand without Mem is loose: each call passes a new address in the device's
	// memory, which peers cannot access. If inPlace is set, the Out of each part is the same loose operand as its In.
	// tail holds the addresses of the loose operands modulo 16. Prepare may wait for the device, and must not be
	// called while a graph is being captured. After Prepare has returned in all processes, the first call needs no
	// further preparation.
	Prepare(t Tuning, c *Collective, inPlace bool, tail [2]int64) (Call, error)
	// PrepareNorm is like Prepare for the five operands of a Norm. All of them are loose and aligned to 16 bytes. The sum
	// must be stored.
	// sumIsResidual reports that Sum is the operand Residual, and outIsIn that Out is the operand In.
	PrepareNorm(n *Norm, sumIsResidual, outIsIn bool) (Call, error)
	// Adopt wraps memory that the caller owns. at[r] is the address of rank r's block in this process; all blocks have
	// the same size. The caller must keep the memory allocated as long as calls use it.
	Adopt(at []uintptr, bytes int64) ([]Memory, error)
	// Device returns this machine's number of the GPU that this process's rank uses.
	Device() int
	// Copy enqueues a copy between addresses that the device can access.
	Copy(stream, dst, src uintptr, bytes int64) error
	// Err returns the reason why the results of calls can no longer be trusted: the world has ended, or a kernel has
	// timed out. It makes no device call.
	Err() error
	// Close waits until the device has finished all enqueued work, and frees all memory of the calls.
	Close() error
}

// Call is a prepared collective.
type Call interface {
	// Do enqueues the rank's part of the collective on a stream. operands holds the addresses of the loose operands: In
	// and Out or, for a Norm, the operands in the order of NormPart's fields. Addresses for operands that are not loose
	// are ignored.
	Do(stream uintptr, operands ...uintptr) error
	Release()
}
