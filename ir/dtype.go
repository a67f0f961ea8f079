package ir

import "fmt"

// DType is an element type.
type DType uint8

// The element types of the language.
const (
	InvalidDType DType = iota
	F32
	F16
	BF16
	F64
	I32
	I64
	F8E4M3 // no infinities; up to 448
	F8E5M2 // up to 57344
	numDTypes
)

type dtypeRow struct {
	name string
	size int
	// intBits is the value of IntBits.
	intBits int
}

var dtypes = [numDTypes]dtypeRow{
	F32:    {"f32", 4, 24},
	F16:    {"f16", 2, 11},
	BF16:   {"bf16", 2, 8},
	F64:    {"f64", 8, 53},
	I32:    {"i32", 4, 31},
	I64:    {"i64", 8, 63},
	F8E4M3: {"f8e4m3", 1, 4},
	F8E5M2: {"f8e5m2", 1, 3},
}

// DTypes lists every element type, in the order of the constants.
func DTypes() []DType { return append(ArithmeticTypes(), F8E4M3, F8E5M2) }

// ArithmeticTypes lists the types that all operations support. The arithmetic types are the types in DTypes without the
// 8-bit types, which can only be moved, converted, and contracted together with scales.
func ArithmeticTypes() []DType { return []DType{F32, F16, BF16, F64, I32, I64} }

// Valid reports whether d is an element type.
func (d DType) Valid() bool { return d > InvalidDType && d < numDTypes }

// String returns the name used in programs: "bf16".
func (d DType) String() string {
	if d == InvalidDType || d >= numDTypes {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Size returns the bytes of one element.
func (d DType) Size() int64 { return int64(d.row().size) }

// IntBits returns the number n such that every integer of magnitude at most 1<<n is represented exactly. For bf16,
// IntBits is 8, so not all integers above 256 are exact.
func (d DType) IntBits() int { return d.row().intBits }

// row returns the table row of d, or the row of the invalid type if d is not an element type.
func (d DType) row() dtypeRow {
	if d >= numDTypes {
		d = InvalidDType
	}
	return dtypes[d]
}

// IsFloat8 reports whether d is a floating-point type of 8 bits.
func (d DType) IsFloat8() bool { return d == F8E4M3 || d == F8E5M2 }

// IsInt reports whether d is an integer type.
func (d DType) IsInt() bool { return d == I32 || d == I64 }

// ParseDType returns the element type called name.
func ParseDType(name string) (DType, bool) {
	for d := F32; d < numDTypes; d++ {
		if dtypes[d].name == name {
			return d, true
		}
	}
	return InvalidDType, false
}

// Accum returns the type in which contractions and reductions of type d accumulate (LANGUAGE S11): f64 for f64, i64 for
// integers, and f32 otherwise.
func (d DType) Accum() DType {
	switch d {
	case F64:
		return F64
	case I32, I64:
		return I64
	}
	return F32
}
