package device

// Calls runs collectives of all ranks of a world one by one, on memory and streams of the caller, which is a library in
// this process. Each process calls for its one rank. All processes prepare the same calls in one order, and call in one
// order; nothing waits on the host. World.OpenCalls opens it.
type Calls interface {
	// Prepare prepares a collective. Operands without Mem are loose: each call passes new addresses in the device's memory
	// for them, which peers cannot access. With inPlace, a part's Out is the same loose operand as its In. tail holds the
	// addresses of loose operands modulo 16. Prepare may wait for the device, and must not be called while a graph is
	// being captured. When Prepare has returned in all processes, they have done everything that the first call needs.
	Prepare(t Tuning, c *Collective, inPlace bool, tail [2]int64) (Call, error)
	// PrepareNorm is Prepare for the five operands of a Norm, which are all loose and aligned to 16 bytes. Sum may be
	// Residual, and Out may be In.
	PrepareNorm(n *Norm, sumIsResidual, outIsIn bool) (Call, error)
	// Adopt returns memory of the caller that has the same size on every rank, at the given addresses of this process, by
	// rank. The caller owns it, and must keep it allocated as long as calls use it.
	Adopt(at []uintptr, bytes int64) ([]Memory, error)
	// Device returns the number, on this machine, of the GPU of this process's rank.
	Device() int
	// Copy enqueues a copy between addresses that the device can access.
	Copy(stream, dst, src uintptr, bytes int64) error
	// Err returns the reason why calls have become unreliable: the world has ended, or a kernel has timed out. It makes no
	// device call.
	Err() error
	// Close frees everything after the device has finished all enqueued work.
	Close() error
}

// Call is a prepared collective.
type Call interface {
	// Do enqueues the rank's part on a stream, with the addresses of the loose operands: In and Out, or those of a Norm in
	// its order. Addresses of other operands are ignored.
	Do(stream uintptr, operands ...uintptr) error
	Release()
}
