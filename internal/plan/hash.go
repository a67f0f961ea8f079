package plan

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"

	"hocket.example/hocket/ir"
)

// Hash returns a digest of all parts of the plan that affect execution. The digest is equal in all processes that plan
// the same execution, and it differs if any rank would execute anything else. The names of inputs and outputs are part
// of the digest. Other names, source positions, lifetimes and memory statistics are not part of the digest, because
// they do not affect execution.
func (p *Plan) Hash() [32]byte {
	sum := sha256.New()
	e := &encoder{w: bufio.NewWriterSize(sum, 1<<16)}
	e.text("hocket plan 3")
	e.plan(p)
	e.w.Flush() // writing to a hash never fails
	return [32]byte(sum.Sum(nil))
}

// HashString returns Hash in hexadecimal.
func (p *Plan) HashString() string {
	h := p.Hash()
	return hex.EncodeToString(h[:])
}

// Title returns the name of the function and the values of dims for which the plan was made.
func (p *Plan) Title() string {
	text := p.Func
	for _, d := range p.Dims {
		text += fmt.Sprintf(" %s=%d", d.Name, d.Value)
	}
	return text
}

// encoder writes a plan in a canonical form: numbers are varints, and each list is preceded by its length.
// Therefore no two plans have the same encoding.
type encoder struct {
	w   *bufio.Writer
	buf [binary.MaxVarintLen64]byte
}

func (e *encoder) int(v int64) { e.w.Write(e.buf[:binary.PutVarint(e.buf[:], v)]) }

func (e *encoder) ints(vs []int64) {
	e.int(int64(len(vs)))
	for _, v := range vs {
		e.int(v)
	}
}

func (e *encoder) ints32(vs []int32) {
	e.int(int64(len(vs)))
	for _, v := range vs {
		e.int(int64(v))
	}
}

func (e *encoder) bools(vs ...bool) {
	for _, v := range vs {
		if v {
			e.int(1)
		} else {
			e.int(0)
		}
	}
}

func (e *encoder) text(s string) {
	e.int(int64(len(s)))
	io.WriteString(e.w, s)
}

// each writes the length of a list and then its elements.
func each[T any](e *encoder, list []T, f func(*T)) {
	e.int(int64(len(list)))
	for i := range list {
		f(&list[i])
	}
}

func (e *encoder) plan(p *Plan) {
	e.int(int64(p.Ranks))
	each(e, p.Dims, func(d *Dim) { e.text(d.Name); e.int(d.Value) })
	each(e, p.Streams, func(s *Stream) { e.int(int64(s.Rank)); e.bools(s.High, s.Low) })
	e.ints32(p.Main)
	e.int(int64(p.Events))
	each(e, p.Counters, func(c *Counter) { e.int(int64(c.Len)); e.ints(c.PerRun) })
	each(e, p.Channels, func(c *Channel) { e.ints32(c.Team); e.ints32(c.Streams) })
	each(e, p.Colls, e.coll)
	each(e, p.Pairs, func(x *Pair) { e.ref(&x.Src); e.ref(&x.Dst) })
	each(e, p.Buffers, e.buffer)
	e.int(p.ArenaBytes)
	e.int(p.HostBytes)
	each(e, p.Kernels, func(k *Kernel) { e.text(k.File); e.text(k.Name); e.text(string(k.Code)) })
	each(e, p.Launches, e.launch)
	each(e, p.Inputs, e.io)
	each(e, p.Outputs, e.io)
	each(e, p.Cmds, e.cmd)
}

func (e *encoder) coll(c *Coll) {
	for _, v := range []int32{int32(c.Op), c.Channel, c.Seq, int32(c.Red), c.Root, c.Axis, c.Split, c.CTAs} {
		e.int(int64(v))
	}
	e.bools(c.AnyOrd)
	e.text(c.Algo)
	each(e, c.Parts, func(p *CollPart) {
		e.ref(&p.In)
		e.ref(&p.Out)
		e.int(int64(p.To))
		e.int(int64(p.From))
		e.ints(p.Rows)
		each(e, p.Counts, e.ref)
	})
}

func (e *encoder) ref(r *Ref) {
	e.int(int64(r.Buf))
	if !r.Present() {
		return
	}
	e.int(int64(r.Rank))
	e.int(int64(r.DType))
	e.int(r.Off)
	e.ints(r.Shape)
	e.ints(r.Strides)
}

func (e *encoder) buffer(b *Buffer) {
	e.int(int64(b.Space))
	e.int(int64(b.Role))
	e.bools(b.Symmetric)
	e.int(b.Offset)
	e.int(b.Bytes)
}

func (e *encoder) io(x *IO) {
	e.text(x.Name)
	e.int(int64(x.DType))
	e.ints(x.Shape)
	each(e, x.Parts, func(p *IOPart) { e.ref(&p.Ref); e.ints(p.Lo) })
	e.bools(x.Inout)
}

func (e *encoder) cmd(c *Cmd) {
	for _, v := range []int32{
		int32(c.Kind), c.Rank, c.Stream, int32(c.Op), c.Event, c.Counter, c.Elem, c.Peer, c.Coll, c.Part, c.IO, c.CTAs,
	} {
		e.int(int64(v))
	}
	each(e, c.Ins, e.ref)
	each(e, c.Outs, e.ref)
	e.attr(&c.Attr)
	e.int(int64(c.Launch))
	e.int(c.Value)
	e.bools(c.Late, c.SM)
	each(e, c.Group, func(x *P2P) { e.int(int64(x.Pair)); e.bools(x.Send) })
}

func (e *encoder) launch(l *Launch) {
	e.int(int64(l.Kernel))
	e.ints(l.Grid[:])
	e.ints(l.Block[:])
	e.int(l.Shared)
	each(e, l.Params, func(p *LaunchParam) {
		e.ints([]int64{int64(p.In), int64(p.Out), int64(p.DType), int64(p.Bits)})
	})
}

func (e *encoder) attr(a *ir.Attrs) {
	each(e, a.Numbers, func(n *ir.Number) {
		e.ints([]int64{int64(math.Float64bits(n.Float)), n.Int})
		e.bools(n.Whole)
	})
	each(e, a.Axes, func(x *int) { e.int(int64(*x)) })
	e.bools(a.TA, a.TB, a.Causal, a.FastAccum)
	e.ints([]int64{int64(a.SMs), a.First, a.Rows})
}
