package signal

import (
	"encoding/binary"

	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Words describes counters in memory that kernels raise. Each counter has Width words, kernels.WordBytes apart: one to
// which all GPUs add, or one for each GPU. The value of a counter is the sum of its words. Additions of several GPUs to
// one word of host memory are not atomic over a PCI bus.
type Words struct {
	Addr  nvlib.Ptr
	Width int
}

// Bytes returns the size of n counters.
func (w Words) Bytes(n int) int64 { return int64(n * w.Width * kernels.WordBytes) }

// At returns the address of a counter's first word.
func (w Words) At(counter int) nvlib.Ptr { return w.Addr + nvlib.Ptr(w.Bytes(counter)) }

// By returns the address of the word to which a GPU adds.
func (w Words) By(counter, gpu int) nvlib.Ptr {
	return w.At(counter) + nvlib.Ptr(gpu%w.Width*kernels.WordBytes)
}

// Values returns the values of n counters whose words are in b.
func (w Words) Values(b []byte, n int) []int64 {
	values := make([]int64, n)
	for i := range n * w.Width {
		values[i/w.Width] += int64(binary.LittleEndian.Uint64(b[kernels.WordBytes*i:]))
	}
	return values
}
