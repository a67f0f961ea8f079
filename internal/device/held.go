package device

// Held is memory that a world has taken, in bytes, in use or not.
type Held struct {
	Device int64 // of the device that it has the most of; where ranks share the host's memory, of all ranks
	Host   int64 // pinned host memory, that of all ranks
}

// Bytes is both.
func (h Held) Bytes() int64 { return h.Device + h.Host }
