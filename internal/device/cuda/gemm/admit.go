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

// admit runs every candidate once. One that does not run after all is out of the
// race, and so is one that adds a bias after it has rounded, which S11 does not
// allow: the first guess adds it before (see addsBiasOnce), and on operands whose
// sums f32 holds exactly, in whatever order, all that do so give the same bits. So
// does hocket's kernel, or it is out.
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

// sampled limits the number of bytes of a result that are compared. If a bias is added too late, a few percent of all
// elements differ.
const sampled = 64 << 10

// result runs a candidate. If wanted is set, it returns the first bytes of the candidate's result.
func (t *trial) result(c Candidate, wanted bool) ([]byte, error) {
	if !wanted {
		return nil, t.try(c)
	}
	drv, pinned := t.host.drv, t.host.heaps[device.Pinned]
	n := min(int64(t.ws-t.out), sampled)
	// So that one which computes nothing does not pass for the one before.
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

// exactOf returns numbers of 8 bits, 1 and a little more: sums of some ten thousand
// products need no more than the 24 bits of f32, and more than a narrow type has.
func exactOf(dt ir.DType) []byte {
	r := rand.New(rand.NewPCG(3, 4))
	return PatternOf(dt, func() float64 {
		v := 1 + 0x1p-7*float64(r.IntN(2))
		return v * float64(2*r.IntN(2)-1)
	})
}
