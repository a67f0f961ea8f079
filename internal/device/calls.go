package device

// Calls runs collectives of all ranks of a world one by one, on memory and streams of the caller's: those of a
// library in whose process the machine is. Each process calls for its one rank. All prepare the same calls in one
// order, and call in one order; nothing waits on the host. Opened by World.OpenCalls.
type Calls interface {
	// Prepare makes a collective ready. Operands without Mem are loose: each call names their addresses in the
	// device's memory anew, which peers do not reach. A part's Out may be the same loose operand as its In, as
	// inPlace says; tail is what addresses of loose operands leave when they are divided by 16. It may wait for
	// the device, and must not be called while a graph is captured. What other processes must have
	// done before the first call they have done when all have returned.
	Prepare(t Tuning, c *Collective, inPlace bool, tail [2]int64) (Call, error)
	// PrepareNorm is Prepare for the five operands of a Norm, all loose and at multiples of 16. Sum may be Residual,
	// and Out may be In.
	PrepareNorm(n *Norm, sumIsResidual, outIsIn bool) (Call, error)
	// Adopt returns memory of the caller's that is as large on every rank, at these addresses of this process's, by
	// rank. It stays the caller's, and must stay there for as long as calls use it.
	Adopt(at []uintptr, bytes int64) ([]Memory, error)
	// Device is the machine's number of the rank's device, in this process.
	Device() int
	// Copy copies between addresses that the device reaches, in the stream's order.
	Copy(stream, dst, src uintptr, bytes int64) error
	// Err returns why calls can no longer be relied on: the world has ended, or a kernel has timed out. It makes no
	// device call.
	Err() error
	// Close gives everything back once the device has done all that it was given.
	Close() error
}

// Call is a prepared collective.
type Call interface {
	// Do gives a stream the rank's share, on loose operands at these addresses: In and Out, or those of a Norm in
	// its order. Others are ignored.
	Do(stream uintptr, operands ...uintptr) error
	Release()
}
