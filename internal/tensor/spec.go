package tensor

import (
	"fmt"
	"strconv"
	"strings"
)

// SpecKind is the source of an input's elements.
type SpecKind uint8

// The following constants are the kinds of inputs that ParseSpec reads.
const (
	SpecInts        SpecKind = iota // ints:SEED
	SpecRand                        // rand:SEED
	SpecZeros                       // zeros
	SpecArange                      // arange
	SpecSafetensors                 // FILE.safetensors#NAME
	SpecNpy                         // FILE.npy
)

// Spec describes an input. The zero value is the default, ints:0.
type Spec struct {
	Kind SpecKind
	Seed uint64 // seed of SpecInts and SpecRand
	// If Below is not 0, SpecInts and SpecRand draw integers from 0 to Below-1. If Ascending is set too, the first
	// element of each row (the elements along the last dimension) is drawn, and each further one is larger by one. If a
	// row has more elements than Below, the elements at its end are -1.
	Below     int64
	Ascending bool
	File      string // path of the file, for SpecSafetensors and SpecNpy
	Name      string // name of the tensor in the file, for SpecSafetensors; "" means the name of the input
}

const specHelp = "want rand:SEED, ints:SEED, zeros, arange, FILE.safetensors#NAME or FILE.npy"

// ParseSpec reads rand:SEED, ints:SEED, zeros, arange, FILE.safetensors, FILE.safetensors#NAME or
// FILE.npy. SEED is an unsigned 64-bit decimal number. If the name of a file starts like a
// generator, prefix a directory: ./rand:1.npy.
func ParseSpec(s string) (Spec, error) {
	const mark = ".safetensors"
	switch {
	case s == "zeros":
		return Spec{Kind: SpecZeros}, nil
	case s == "arange":
		return Spec{Kind: SpecArange}, nil
	case strings.HasPrefix(s, "rand:"):
		return seeded(SpecRand, s)
	case strings.HasPrefix(s, "ints:"):
		return seeded(SpecInts, s)
	}
	if file, name, ok := strings.Cut(s, mark+"#"); ok {
		if name == "" {
			return Spec{}, fmt.Errorf("input spec %q: no tensor name after #; %s", s, specHelp)
		}
		return fileSpec(SpecSafetensors, s, file+mark, name)
	}
	if strings.HasSuffix(s, mark) {
		return fileSpec(SpecSafetensors, s, s, "")
	}
	if strings.HasSuffix(s, ".npy") {
		return fileSpec(SpecNpy, s, s, "")
	}
	return Spec{}, fmt.Errorf("input spec %q: %s", s, specHelp)
}

func seeded(kind SpecKind, s string) (Spec, error) {
	seed, err := strconv.ParseUint(s[len("rand:"):], 10, 64)
	if err != nil {
		return Spec{}, fmt.Errorf("input spec %q: the seed must be a decimal number from 0 to 2^64-1", s)
	}
	return Spec{Kind: kind, Seed: seed}, nil
}

func fileSpec(kind SpecKind, s, file, name string) (Spec, error) {
	if strings.ContainsRune(file, 0) {
		return Spec{}, fmt.Errorf("input spec %q: a file name holds no zero byte", s)
	}
	return Spec{Kind: kind, File: file, Name: name}, nil
}

// String returns the text that ParseSpec parses as s.
func (s Spec) String() string {
	switch s.Kind {
	case SpecInts:
		return fmt.Sprintf("ints:%d", s.Seed)
	case SpecRand:
		return fmt.Sprintf("rand:%d", s.Seed)
	case SpecZeros:
		return "zeros"
	case SpecArange:
		return "arange"
	case SpecSafetensors:
		if s.Name != "" {
			return s.File + "#" + s.Name
		}
		return s.File
	case SpecNpy:
		return s.File
	}
	return fmt.Sprintf("spec(%d)", s.Kind)
}
