package tensor

import (
	"fmt"
	"math/bits"

	"hocket.example/hocket/ir"
)

// Seeded inputs depend only on the seed, the name of the tensor, and the row-major index of the element in the whole
// tensor. Seeded inputs are the same in every version of this package, and with every sharding: each rank gets a slice
// of the same tensor.
//
//	mix(z)     = z ^= z>>30; z *= 0xbf58476d1ce4e5b9; z ^= z>>27; z *= 0x94d049bb133111eb; z ^ z>>31
//	key        = mix(mix(seed + g) ^ FNV-1a-64(name)),  g = 0x9e3779b97f4a7c15
//	word(i)    = mix(key + (i+1)*g)
//
// so word(0), word(1), … is the splitmix64 sequence that starts from key. Then
//
//	ints       = floor(3 * word / 2^64) - 1
//	rand       = (word >> (63-b)) / 2^b - 1 for a float whose significand has b bits
//	             (f32 24, f16 11, bf16 8, f64 53, f8e4m3 4, f8e5m2 3): exact, never 1, and the same
//	             number at lower resolution in a narrower type
//	rand       = (word >> 60) - 8 for integers
//	ints, rand = floor(n * word / 2^64) for integers below n
//	ints, rand = floor((n - r + 1) * word(i) / 2^64) + j for ascending integers below n: element j of row i, which has
//	             r elements (n at most; further ones are -1)
//	arange     = the index, rounded into the element type

// Fill sets the elements of t according to spec. t is the whole tensor, not a shard, and name is
// its name. A tensor from a file must have t's element type and shape.
func Fill(t *Tensor, name string, spec Spec) error {
	if err := t.Check(); err != nil {
		return err
	}
	if spec.Below > 0 && (spec.Kind == SpecInts || spec.Kind == SpecRand) {
		if s := newStream(spec.Seed, name); spec.Ascending {
			fillAscending(t, s, spec.Below)
		} else {
			fillBelow(t, s, uint64(spec.Below))
		}
		return nil
	}
	switch spec.Kind {
	case SpecInts:
		fillInts(t, newStream(spec.Seed, name))
	case SpecRand:
		fillRand(t, newStream(spec.Seed, name))
	case SpecZeros:
		clear(t.Data)
	case SpecArange:
		each(t, func(i int64) { t.SetInt64(i, i) })
	case SpecSafetensors, SpecNpy:
		if err := fillFromFile(t, name, spec); err != nil {
			return fmt.Errorf("input %s: %w", name, err)
		}
	default:
		return fmt.Errorf("input %s: invalid input %s", name, spec)
	}
	return nil
}

// fillFromFile compares element types and shapes before it reads data.
func fillFromFile(t *Tensor, name string, spec Spec) error {
	if spec.Kind == SpecNpy {
		return readNpyInto(t, spec.File)
	}
	f, err := OpenSafetensors(spec.File)
	if err != nil {
		return err
	}
	defer f.Close()
	if spec.Name != "" {
		name = spec.Name
	}
	return f.ReadInto(t, name)
}

// each calls set for every element. If there are many elements, it uses several goroutines. The effect of set must
// depend only on the index.
func each(t *Tensor, set func(i int64)) {
	Share(int64(len(t.Data)), t.Len(), func(lo, hi int64) {
		for i := lo; i < hi; i++ {
			set(i)
		}
	})
}

func fillInts(t *Tensor, s stream) {
	each(t, func(i int64) {
		third, _ := bits.Mul64(s.word(i), 3)
		t.SetInt64(i, int64(third)-1)
	})
}

func fillBelow(t *Tensor, s stream, n uint64) {
	each(t, func(i int64) {
		v, _ := bits.Mul64(s.word(i), n)
		t.SetInt64(i, int64(v))
	})
}

func fillAscending(t *Tensor, s stream, below int64) {
	row := int64(1)
	if n := len(t.Shape); n > 0 {
		row = t.Shape[n-1]
	}
	each(t, func(i int64) {
		first, _ := bits.Mul64(s.word(i/row), uint64(max(below-row, 0)+1))
		v := int64(first) + i%row
		if v >= below {
			v = -1
		}
		t.SetInt64(i, v)
	})
}

func fillRand(t *Tensor, s stream) {
	if t.DType.IsInt() {
		each(t, func(i int64) { t.SetInt64(i, int64(s.word(i)>>60)-8) })
		return
	}
	b := significand(t.DType)
	unit := int64(1) << b
	each(t, func(i int64) { t.SetFloat64(i, float64(int64(s.word(i)>>(63-b))-unit)/float64(unit)) })
}

// significand returns the number of bits of a float type's significand, including the hidden bit. The numbers are
// written out here because generated inputs must never change.
func significand(dt ir.DType) uint {
	switch dt {
	case ir.F16:
		return 11
	case ir.BF16:
		return 8
	case ir.F8E4M3:
		return 4
	case ir.F8E5M2:
		return 3
	case ir.F64:
		return 53
	}
	return 24
}

// stream is the sequence of random words of one tensor. Its value is the key.
type stream uint64

const golden = 0x9e3779b97f4a7c15

func newStream(seed uint64, name string) stream {
	return stream(mix(mix(seed+golden) ^ fnv1a(name)))
}

func (s stream) word(i int64) uint64 { return mix(uint64(s) + (uint64(i)+1)*golden) }

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func fnv1a(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}
