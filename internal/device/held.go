package device

// Held is the size in bytes of the memory that a world has allocated, including memory that is not in use.
type Held struct {
	Device int64 // of the device with the most memory; if ranks share the host's memory, the sum over all ranks
	Host   int64 // pinned host memory of all ranks
}

// Bytes returns the sum of both.
func (h Held) Bytes() int64 { return h.Device + h.Host }
