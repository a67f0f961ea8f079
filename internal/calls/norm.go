package calls

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Norm describes an all_reduce with the operations after it. Sum receives the all_reduce of In plus Residual, and Out
// receives the rms_norm of Sum with Weight. This is done by a single launch, or by an all_reduce and a second launch,
// whichever is faster. In, Residual, Sum and Out have Rows rows of Width elements; Weight has Width elements. Sum may
// be the same memory as Residual, and Out the same as In.
type Norm struct {
	DType       ir.DType
	Rows, Width int64
	Eps         float64
	Stream      uintptr

	In, Residual, Weight, Sum, Out uintptr
}

// normKey identifies norms that share a preparation.
type normKey struct {
	dtype       ir.DType
	rows, width int64
	eps         float64
	alias       [2]bool // Sum is Residual, Out is In
}

// DoNorm enqueues a norm on its stream. An error that wraps ErrUnsupported means that no kernel
// supports the type, the width or the addresses; the caller should then call all_reduce and the
// other operations separately.
func (g *Group) DoNorm(ctx context.Context, n Norm) error {
	size := n.DType.Size()
	for _, at := range []uintptr{n.In, n.Residual, n.Weight, n.Sum, n.Out} {
		if size == 0 || n.Rows < 0 || n.Width < 1 || at == 0 && n.Rows > 0 {
			return fmt.Errorf("%w: %d rows of %d elements of %s, an operand at %#x", ErrInput, n.Rows, n.Width, n.DType,
				at)
		}
		if at%16 != 0 {
			return fmt.Errorf("%w: an operand is at address %#x, which is not a multiple of 16", device.ErrUnsupported, at)
		}
	}
	if n.Rows == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosed
	}
	k := normKey{n.DType, n.Rows, n.Width, n.Eps, [2]bool{n.Sum == n.Residual, n.Out == n.In}}
	p, known := g.norms[k]
	if !known {
		defer g.calls.Keep()()
		if err := g.notCapturing(n.Stream); err != nil {
			return fmt.Errorf("a normalised sum: %w", err)
		}
		var err error
		if p, err = g.prepareNorm(ctx, k); err != nil {
			return err
		}
	} else if err := g.step(p.what); err != nil {
		return err
	}
	if p.declined != nil {
		return p.declined
	}
	in := n.In
	if p.reduced {
		if err := g.do(ctx, Call{Op: ir.OpAllReduce, Red: ir.Sum, DType: n.DType, Count: n.Rows * n.Width,
			Stream: n.Stream, In: n.In, Out: n.Out}); err != nil {
			return err
		}
		in = n.Out
	}
	return p.call.Do(n.Stream, in, n.Residual, n.Weight, n.Sum, n.Out)
}

// preparedNorm is a prepared norm, or the error that is the reason why the norm cannot be prepared.
type preparedNorm struct {
	what     string
	call     device.Call
	reduced  bool // an all_reduce into Out precedes call
	declined error
}

func (g *Group) prepareNorm(ctx context.Context, k normKey) (*preparedNorm, error) {
	p := &preparedNorm{what: fmt.Sprintf("all_reduce, add and rms_norm of %s[%d, %d], eps %g", k.dtype, k.rows, k.width,
		k.eps)}
	if err := g.meet(ctx, p.what); err != nil {
		return nil, err
	}
	rows := device.View{DType: k.dtype, Shape: []int64{k.rows, k.width}, Strides: []int64{k.width, 1}}
	weight := device.View{DType: k.dtype, Shape: []int64{k.width}, Strides: []int64{1}}
	d := &device.Norm{Eps: k.eps, Parts: make([]device.NormPart, g.world.Ranks())}
	for i := range d.Parts {
		d.Parts[i] = device.NormPart{In: rows, Residual: rows, Weight: weight, Sum: rows, Out: rows}
	}
	p.call, p.declined = g.calls.PrepareNorm(d, k.alias[0], k.alias[1])
	if errors.Is(p.declined, device.ErrUnsupported) {
		d.Reduced, p.reduced = true, true
		p.call, p.declined = g.calls.PrepareNorm(d, k.alias[0], true)
	}
	if p.declined != nil {
		p.declined = fmt.Errorf("%s: %w", p.what, p.declined)
	}
	if g.norms == nil {
		g.norms = map[normKey]*preparedNorm{}
	}
	g.norms[k] = p
	return p, g.meet(ctx, fmt.Sprintf("%s is ready: %t, after an all_reduce: %t", p.what, p.declined == nil, p.reduced))
}
