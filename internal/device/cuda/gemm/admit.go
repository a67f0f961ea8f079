package gemm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// admit runs every candidate once, and drops candidates that fail. It also drops candidates that add the bias to a sum
// that is already rounded, because sums may be rounded only once (S11). The first candidate adds the bias before
// rounding (see addsBiasOnce). The operands are chosen so that f32 holds all sums exactly, in any order. So all
// candidates that add the bias before rounding compute the same bits as the first. Hocket's own kernel is also dropped
// if its result has other bits.
func (t *trial) admit(cands []Candidate) error {
	own := func(c Candidate) bool { return c.own }
	compared := t.st.Problem.Bias != 0 && t.st.Problem.DType.Size() < 4 || slices.ContainsFunc(cands, own)
	if compared {
		if err := t.operands(exactOf(t.st.Problem.DType)); err != nil {
			return err
		}
	}
	var want []byte
	for i := range cands {
		c := &cands[i]
		got, err := t.result(*c, compared)
		switch {
		case err != nil && (i == 0 || notTaken(err) != nil):
			return err
		case i == 0:
			want = got
		default:
			c.out = err != nil || !bytes.Equal(got, want)
		}
	}
	if compared {
		return t.operands(NoiseOf(t.st.Problem.DType))
	}
	return nil
}

// sampled is the largest number of bytes of a result that are compared with another result. This suffices: a candidate
// that adds the bias too late changes a few percent of all elements.
const sampled = 64 << 10

// result runs a candidate. If wanted is set, it returns the first bytes of the candidate's result.
func (t *trial) result(c Candidate, wanted bool) ([]byte, error) {
	if !wanted {
		return nil, t.try(c)
	}
	drv, pinned := t.host.drv, t.host.heaps[device.Pinned]
	n := min(int64(t.ws-t.out), sampled)
	// The result is overwritten first, so that a candidate that computes nothing does not pass with the result of the
	// previous one.
	if err := drv.Fill32(t.out, ^uint32(0), n/4, t.h); err != nil {
		return nil, err
	}
	if err := t.try(c); err != nil {
		return nil, err
	}
	buf, err := pinned.Alloc(n)
	if err != nil {
		return nil, err
	}
	var args [4]uintptr
	err = errors.Join(drv.Copy(buf, t.out, n, t.h, &args), drv.SyncStream(t.h))
	return bytes.Clone(cabi.Bytes(uintptr(buf), int(n))), errors.Join(err, pinned.Free(buf, n))
}

// exactOf returns operands of which f32 holds sums of products exactly: numbers with few significant bits, ±1 and ±(1 +
// 2⁻⁷). A sum of some ten thousand products of these numbers fits into the 24 bits of f32, but not into the bits of a
// narrow type.
func exactOf(dt ir.DType) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	return PatternOf(dt, func() float64 {
		v := 1 + 0x1p-7*float64(r.IntN(2))
		return v * float64(2*r.IntN(2)-1)
	})
}
