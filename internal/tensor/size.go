package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// NumElements returns the product of the extents: 1 for an empty shape, 0 if an extent is zero. It
// fails if an extent is negative, or if the product of the non-zero extents overflows. The strides
// of an accepted shape therefore do not overflow either.
func NumElements(shape []int64) (int64, error) {
	n, empty := int64(1), false
	for i, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %s: extent %d is negative: %d", shapeText(shape), i, d)
		}
		if d == 0 {
			empty = true
			continue
		}
		var ok bool
		if n, ok = mulInt64(n, d); !ok {
			return 0, fmt.Errorf("shape %s: the number of elements overflows 64 bits", shapeText(shape))
		}
	}
	if empty {
		return 0, nil
	}
	return n, nil
}

// Bytes returns the size in bytes of a dense tensor of the given type and shape. Bytes fails if NumElements fails, if
// the size overflows, or if the element type is invalid.
func Bytes(dt ir.DType, shape []int64) (int64, error) {
	if !valid(dt) {
		return 0, fmt.Errorf("invalid element type %d", uint8(dt))
	}
	n, err := NumElements(shape)
	if err != nil {
		return 0, err
	}
	b, ok := mulInt64(n, dt.Size())
	if !ok {
		return 0, fmt.Errorf("tensor %s: the number of bytes overflows 64 bits", typeText(dt.String(), shape))
	}
	return b, nil
}

// Strides returns the row-major strides of shape, in elements. NumElements must accept the shape.
func Strides(shape []int64) []int64 {
	s := make([]int64, len(shape))
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		s[i] = step
		step *= shape[i]
	}
	return s
}

// mulInt64 multiplies two non-negative numbers. The second result reports whether the product fits.
func mulInt64(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && lo <= math.MaxInt64
}

func valid(dt ir.DType) bool {
	switch dt {
	case ir.F32, ir.F16, ir.BF16, ir.F64, ir.I32, ir.I64, ir.F8E4M3, ir.F8E5M2:
		return true
	}
	return false
}

// Size formats a number of bytes with a binary unit, for example "1.5 MiB".
func Size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, u := float64(bytes), 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	if u == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}

// ParseSize parses a number of bytes like "1048576", "64K", "262.5 KiB" or "2G". It rounds fractions of a byte up.
func ParseSize(s string) (int64, error) {
	bad := fmt.Errorf("%q is not a number of bytes: write 1048576, 64K, 16M or 2G", s)
	parts := sizeForm.FindStringSubmatch(s)
	if parts == nil {
		return 0, bad
	}
	number, shift := parts[1], 10*strings.Index(" KMGT", strings.ToUpper(parts[2])) // no unit is at 0
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 1 && n <= 1<<62>>shift {
		return n << shift, nil
	}
	x, err := strconv.ParseFloat(number, 64)
	if x = math.Ceil(math.Ldexp(x, shift)); err != nil || shift == 0 || !(x >= 1 && x <= 1<<62) {
		return 0, bad
	}
	return int64(x), nil
}

// A sizeForm is a decimal number, perhaps a space, and perhaps a unit: K, KB or KiB, and so on up to T.
var sizeForm = regexp.MustCompile(`^([0-9]*\.?[0-9]+) ?(?:([KMGTkmgt])[Ii]?)?[Bb]?$`)
