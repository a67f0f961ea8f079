package tensor

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
)

// SHA256 returns a hash of named tensors in hexadecimal. The hash covers, for each tensor in bytewise order of the
// names, a line of text and the tensor's bytes. The line is "NAME DTYPE EXTENT EXTENT…" with single spaces and a final
// newline; the bytes are row-major and little-endian. docs/language.md documents this.
func SHA256(tensors []Named) string {
	h := sha256.New()
	byName := func(a, b Named) int { return cmp.Compare(a.Name, b.Name) }
	for _, t := range slices.SortedFunc(slices.Values(tensors), byName) {
		fmt.Fprintf(h, "%s %s", t.Name, t.Tensor.DType)
		for _, n := range t.Tensor.Shape {
			fmt.Fprintf(h, " %d", n)
		}
		_, _ = io.WriteString(h, "\n")
		_, _ = h.Write(t.Tensor.Data)
	}
	return hex.EncodeToString(h.Sum(nil))
}
