package signal

import (
	"encoding/binary"

	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Words describes where counters that kernels raise are in memory. Each counter has Width words, at distances of
// kernels.WordBytes: one word to which all GPUs add, or a separate one for each GPU. The value of a counter is the sum
// of its words. Separate words are needed in host memory, because additions of several GPUs to one word are not atomic
// over a PCI bus.
type Words struct {
	Addr  nvlib.Ptr
	Width int
}

// Bytes returns the size of n counters.
func (w Words) Bytes(n int) int64 { return int64(n * w.Width * kernels.WordBytes) }

// At returns the address of a counter's first word.
func (w Words) At(counter int) nvlib.Ptr { return w.Addr + nvlib.Ptr(w.Bytes(counter)) }

// By returns the address of the word of a counter to which a given GPU adds.
func (w Words) By(counter, gpu int) nvlib.Ptr {
	return w.At(counter) + nvlib.Ptr(gpu%w.Width*kernels.WordBytes)
}

// Values returns the values of n counters whose words are in the bytes b.
func (w Words) Values(b []byte, n int) []int64 {
	values := make([]int64, n)
	for i := range n * w.Width {
		values[i/w.Width] += int64(binary.LittleEndian.Uint64(b[kernels.WordBytes*i:]))
	}
	return values
}
