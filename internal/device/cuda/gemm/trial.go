package gemm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// trial runs a product on scratch memory and on its own stream. It does not use the program's operands, because these
// may be in use, or may hold zeros, with which products run faster.
type trial struct {
	host     *Host
	st       *Launch
	h        nvlib.Stream
	at       nvlib.Ptr
	bytes    int64
	a, b     nvlib.Ptr // b serves as the bias too
	copies   int64     // of b, which runs take in turns
	step     int64     // from one to the next
	out, ws  nvlib.Ptr
	events   []nvlib.Event
	products []*nvlib.Product
	launches []*nvlib.Launch
}

// errRecording says that a graph is being recorded, with which a trial would be.
var errRecording = errors.New("algorithms cannot be timed while a graph is recorded")

// withoutTrial reports whether a product does without a trial: there is no memory for
// it, or it is not the time. What else keeps one from being made is an error.
func withoutTrial(err error) bool {
	return errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, errRecording)
}

// weights is how many copies of b a trial of st takes, so that it finds none in the cache where that
// decides.
func (st *Launch) weights() int64 {
	_, b, _ := st.Problem.spans()
	if st.own == nil {
		return 1
	}
	return 1 + (coldBytes-1)/b
}

// newTrial reserves what a trial of st by algorithms with so large a workspace needs, on so many
// copies of b. The context is current.
func (h *Host) newTrial(st *Launch, workspace, copies int64) (*trial, error) {
	if h.site.Recording() {
		return nil, errRecording
	}
	a, b, out := st.Problem.spans()
	t := &trial{host: h, st: st, copies: copies, step: b, bytes: a + b*copies + out + workspace}
	if t.bytes > h.gpu.Memory { // where operands share bytes
		return nil, fmt.Errorf("%w: a trial needs %d bytes, but GPU %d has %d", device.ErrOutOfMemory, t.bytes, h.gpu.Device, h.gpu.Memory)
	}
	var err error
	if t.at, err = h.heaps[device.Private].Alloc(t.bytes); err != nil {
		return nil, err
	}
	t.a, t.b = t.at, t.at+nvlib.Ptr(a)
	t.out = t.b + nvlib.Ptr(b*copies)
	t.ws = t.out + nvlib.Ptr(out)
	t.h, err = h.drv.NewStream(0)
	if err == nil {
		err = t.operands(NoiseOf(st.Problem.types()[0]))
	}
	if err == nil {
		err = st.setBias(t.b)
	}
	if err != nil {
		return nil, t.close(err)
	}
	return t, nil
}

// operands fills them with a pattern.
func (t *trial) operands(pattern []byte) error {
	return FillPattern(t.host.drv, t.host.heaps[device.Pinned], t.at, int64(t.out-t.at), pattern, t.h)
}

// spans returns the bytes from the first to the last element of each operand, of
// b no less than of the bias, and of the result.
func (g *LtProblem) spans() (a, b, out int64) {
	types := g.types()
	reach := func(dt ir.DType, step int64, dims ...int64) int64 { // extent, stride, …
		last := (g.Batch - 1) * step
		for i := 0; i < len(dims); i += 2 {
			last += (dims[i] - 1) * dims[i+1]
		}
		return gpu.RoundUp((last+1)*dt.Size(), gpu.Alignment)
	}
	bias := gpu.RoundUp(g.N*g.DType.Size(), gpu.Alignment)
	return reach(types[1], g.AStep, g.M, g.Am, g.K, g.Ak), max(bias, reach(types[0], g.BStep, g.N, g.Bn, g.K, g.Bk)), reach(g.DType, g.OutStep, g.M, g.Om, g.N, g.On)
}

// FillPattern has memory repeat a pattern, and waits for it. The context is current.
func FillPattern(drv *nvlib.Driver, pinned *gpu.Heap, at nvlib.Ptr, bytes int64, pattern []byte, h nvlib.Stream) error {
	n := min(int64(len(pattern)), bytes)
	buf, err := pinned.Alloc(n)
	if err != nil {
		return err
	}
	copy(cabi.Bytes(uintptr(buf), int(n)), pattern)
	var args [4]uintptr
	err = drv.Copy(at, buf, n, h, &args)
	for done := n; err == nil && done < bytes; done *= 2 {
		err = drv.Copy(at+nvlib.Ptr(done), at, min(done, bytes-done), h, &args)
	}
	return errors.Join(err, drv.SyncStream(h), pinned.Free(buf, n))
}

// patternLength is how many numbers operands repeat: so many, and a prime, that
// rows of usual lengths differ.
const patternLength = 65521

var noises sync.Map // by dtype

// NoiseOf returns normal numbers: how operands differ from bit to bit is what
// products cost in power, and so in time.
func NoiseOf(dt ir.DType) []byte {
	if b, ok := noises.Load(dt); ok {
		return b.([]byte)
	}
	r := rand.New(rand.NewPCG(1, 2))
	b := PatternOf(dt, r.NormFloat64)
	noises.Store(dt, b)
	return b
}

// PatternOf returns so many numbers in a row that operands repeat.
func PatternOf(dt ir.DType, next func() float64) []byte {
	vals := make([]float64, patternLength)
	for i := range vals {
		vals[i] = next()
	}
	b := make([]byte, patternLength*dt.Size())
	tensor.FromFloat64(b, vals, dt)
	return b
}

// try runs a candidate once and waits for its end, so that its code is loaded before it is timed.
func (t *trial) try(c Candidate) error {
	run, err := t.runOf(&c, 0)
	if err == nil {
		err = run()
	}
	if err != nil {
		return err
	}
	return t.host.drv.SyncStream(t.h)
}

// runOf returns what runs a candidate on a copy of b.
func (t *trial) runOf(c *Candidate, i int64) (func() error, error) {
	b := t.b + nvlib.Ptr(i*t.step)
	if !c.own {
		p := t.st.NewProduct(c.Algo, b, t.a, t.out)
		t.products = append(t.products, p)
		return func() error { return t.st.Library.Multiply(p, t.ws, c.Need, t.h) }, nil
	}
	bias := nvlib.Ptr(0)
	if t.st.Problem.Bias != 0 {
		bias = t.b
	}
	g := t.st.Problem.Problem
	g.Relu = false // as the others, which are told of it later
	list, err := t.host.site.Compile(g.skinnyProblem(t.out, t.a, b, bias))
	if err != nil {
		return nil, err
	}
	t.launches = append(t.launches, list...)
	return func() error { return t.host.drv.Launch(list[0], t.h) }, nil
}

// round times each candidate that is in the race, beginning with the from-th.
func (t *trial) round(cands []Candidate, from, chain int) error {
	var racing []*Candidate
	for i := range cands {
		if c := &cands[(from+i)%len(cands)]; !c.out {
			racing = append(racing, c)
		}
	}
	took, err := t.times(racing, chain)
	for i, ms := range took {
		if c := racing[i]; c.ms == 0 || ms < c.ms {
			c.ms = ms
		}
	}
	return err
}

// times returns the milliseconds that each candidate takes, of chain runs in a
// row, one candidate after the other.
func (t *trial) times(cands []*Candidate, chain int) ([]float32, error) {
	drv := t.host.drv
	for _, c := range cands {
		if c.runs == nil {
			if err := t.enter(c); err != nil {
				return nil, err
			}
		}
		err := drv.Record(c.events[0], t.h)
		for k := 0; k < chain && err == nil; k++ {
			err = c.runs[k%len(c.runs)]()
		}
		if err = errors.Join(err, drv.Record(c.events[1], t.h)); err != nil {
			return nil, err
		}
	}
	if err := drv.SyncStream(t.h); err != nil {
		return nil, err
	}
	took := make([]float32, len(cands))
	for i, c := range cands {
		ms, err := drv.Elapsed(c.events[0], c.events[1])
		if err != nil {
			return nil, fmt.Errorf("timing a GEMM: %w", err)
		}
		took[i] = ms / float32(chain)
	}
	return took, nil
}

// enter gives a candidate what it is timed with.
func (t *trial) enter(c *Candidate) error {
	for i := range t.copies {
		run, err := t.runOf(c, i)
		if err != nil {
			return err
		}
		c.runs = append(c.runs, run)
	}
	for i := range c.events {
		e, err := t.host.site.NewClock()
		if err != nil {
			return err
		}
		c.events[i] = e
		t.events = append(t.events, e)
	}
	return nil
}

// close gives everything back and returns err, or else what went wrong in doing
// so. The product is as it was before, and no memory stays that only trials want.
func (t *trial) close(err error) error {
	drv := t.host.drv
	errs := []error{err}
	if t.h != 0 {
		errs = append(errs, drv.SyncStream(t.h), drv.DestroyStream(t.h))
	}
	for _, p := range t.products {
		p.Free()
	}
	for _, l := range t.launches {
		l.Free()
	}
	t.host.site.FreeClocks(t.events)
	errs = append(errs, t.st.setBias(t.st.Problem.Bias), t.host.heaps[device.Private].Free(t.at, t.bytes), t.host.heaps[device.Private].Trim())
	return errors.Join(errs...)
}
