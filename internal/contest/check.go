package contest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// A result of up to wholeCheck elements is checked completely. In a larger result, only windows of checkWindow
// elements are checked.
const (
	wholeCheck   = 1 << 16
	checkWindow  = 2048
	checkWindows = 16
)

// Check fills the outputs with wrong values and runs the call once. Check returns the number of wrong elements and the
// number of checked elements, summed over all ranks.
func (a *Arena) Check(ctx context.Context, e *Entrant, run func() error) (wrong, looked int64, err error) {
	for m := range a.Members {
		if err := a.spoil(m, e); err != nil {
			return 0, 0, err
		}
	}
	if err := run(); err != nil {
		return 0, 0, err
	}
	var list []*glimpse
	for s := range e.Slots {
		in := a.Instance(e.Call, s, device.Tuning{}, false)
		for m := range a.Members {
			got, err := a.look(&in.Collective, m)
			if err != nil {
				return 0, 0, err
			}
			list = append(list, got...)
		}
	}
	if err := a.World.Sync(ctx); err != nil {
		return 0, 0, err
	}
	wrong, looked = a.compare(list)
	return wrong, looked, nil
}

// spoil fills a member's outputs with NaNs or large integers.
func (a *Arena) spoil(m int, e *Entrant) error {
	block := make([]byte, min(1<<16, a.Out[m].Bytes()))
	for i := range block {
		block[i] = [2]byte{0xff, 0x7f}[i&1]
	}
	used := min(int64(e.Slots)*alignUp(e.Call.Bytes), a.Out[m].Bytes())
	s := a.Members[m].Stream
	n := min(int64(len(block)), used)
	if err := s.Upload(Words(a.Out[m], 0, n), block[:n]); err != nil {
		return err
	}
	for n < used {
		more := min(n, used-n)
		if err := s.Copy(Words(a.Out[m], n, more), Words(a.Out[m], 0, more)); err != nil {
			return err
		}
		n += more
	}
	return nil
}

// glimpse holds a copy of a range of elements in the result of member m. The range begins at element lo.
type glimpse struct {
	c   *device.Collective
	m   int
	lo  int64
	got *tensor.Tensor
}

// glimpseMost is the largest number of elements of a glimpse. Different glimpses are compared concurrently.
const glimpseMost = 8192

// look enqueues copies to the host of those ranges of a member's result that are checked. The copies are complete
// after the next Sync.
func (a *Arena) look(c *device.Collective, m int) ([]*glimpse, error) {
	out := c.Parts[m].Out
	n := out.Elements()
	var parts [][2]int64
	if n <= wholeCheck {
		for lo := int64(0); lo < n; lo += glimpseMost {
			parts = append(parts, [2]int64{lo, min(lo+glimpseMost, n)})
		}
	} else {
		parts = windows(n, int64(len(a.Members)))
	}
	var list []*glimpse
	for _, p := range parts {
		t, err := tensor.New(a.Type, []int64{p[1] - p[0]})
		if err != nil {
			return nil, err
		}
		v := Vector(out.Mem, out.Off+p[0]*a.Type.Size(), a.Type, p[1]-p[0])
		if err := a.Members[m].Stream.Download(t.Data, v); err != nil {
			return nil, err
		}
		list = append(list, &glimpse{c, m, p[0], t})
	}
	return list, nil
}

// compare returns the numbers of wrong elements and of compared elements.
func (a *Arena) compare(list []*glimpse) (wrong, looked int64) {
	var bad atomic.Int64
	var all sync.WaitGroup
	for _, g := range list {
		n := int64(g.got.Len())
		looked += n
		all.Go(func() {
			for i := range n {
				if g.got.Float64(i) != a.want(g.c, g.m, g.lo+i) {
					bad.Add(1)
				}
			}
		})
	}
	all.Wait()
	return bad.Load(), looked
}

// windows returns the ranges to check in a result of n elements: at both ends of the result, on both sides of each
// boundary between shards, and at random positions.
func windows(n, shards int64) [][2]int64 {
	rng := rand.New(rand.NewPCG(uint64(n), 4))
	at := []int64{0, n - checkWindow}
	for s := int64(1); s < shards; s++ {
		at = append(at, s*n/shards-checkWindow/2)
	}
	for range checkWindows {
		at = append(at, rng.Int64N(n-checkWindow+1))
	}
	var list [][2]int64
	for _, lo := range at {
		list = append(list, [2]int64{lo, lo + checkWindow})
	}
	return list
}

// want returns the expected value of element i of member m's result.
func (a *Arena) want(c *device.Collective, m int, i int64) float64 {
	n := int64(len(a.Members))
	// The function in returns element k of the operand of member r.
	in := func(r int, k int64) float64 {
		v := c.Parts[r].In
		return a.value(r, v.Off/a.Type.Size()+k)
	}
	reduced := func(k int64) float64 {
		all := in(0, k)
		for r := 1; r < len(a.Members); r++ {
			if c.Red == ir.Max {
				all = max(all, in(r, k))
			} else {
				all += in(r, k)
			}
		}
		return all
	}
	part := c.Parts[m].Out.Elements()
	switch c.Op {
	case ir.OpAllReduce:
		return reduced(i)
	case ir.OpReduceScatter:
		return reduced(int64(m)*part + i)
	case ir.OpAllGather:
		shard := part / n
		return in(int(i/shard), i%shard)
	case ir.OpAllToAll:
		block := part / n
		return in(int(i/block), int64(m)*block+i%block)
	}
	return in(c.Root, i)
}
