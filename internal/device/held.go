package device

// Held is the size in bytes of the memory that a world has allocated, including memory that is not in use.
type Held struct {
	Device int64 // bytes on the device with the most memory; if ranks share the host's memory, the sum over all ranks
	Host   int64 // bytes of pinned host memory of all ranks
}

// Bytes returns the sum of device and pinned memory.
func (h Held) Bytes() int64 { return h.Device + h.Host }
