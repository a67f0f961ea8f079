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

// trial runs a GEMM, to time its algorithms, on scratch memory and on a separate stream. The program's operands are not
// used: they may be in use, or may contain zeros, with which GEMMs run faster.
type trial struct {
	host     *Host
	st       *Launch
	h        nvlib.Stream
	at       nvlib.Ptr
	bytes    int64
	a, b     nvlib.Ptr // the bias, too, is read at b
	copies   int64     // number of copies of b; successive runs use successive copies
	step     int64     // distance between copies of b
	out, ws  nvlib.Ptr
	events   []nvlib.Event
	products []*nvlib.Product
	launches []*nvlib.Launch
}

// errRecording reports that algorithms cannot be timed because a graph is being recorded.
var errRecording = errors.New("algorithms cannot be timed while a graph is recorded")

// withoutTrial reports whether err means that a GEMM must be prepared without timing, because there is too little
// memory or because a graph is being recorded. Callers return other errors of a trial.
func withoutTrial(err error) bool {
	return errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, errRecording)
}

// weights returns the number of copies of b in a trial of st. If hocket's kernel is a candidate, there are enough
// copies that no run finds its copy in the cache.
func (st *Launch) weights() int64 {
	_, b, _ := st.Problem.spans()
	if st.own == nil {
		return 1
	}
	return 1 + (st.host.gpu.System.ColdBytes-1)/b
}

// newTrial reserves the memory for a trial of st: a workspace of the given size, and the given number of copies of b.
// The caller has made the context current.
func (h *Host) newTrial(st *Launch, workspace, copies int64) (*trial, error) {
	if h.site.Recording() {
		return nil, errRecording
	}
	a, b, out := st.Problem.spans()
	t := &trial{host: h, st: st, copies: copies, step: b, bytes: a + b*copies + out + workspace}
	if t.bytes > h.gpu.Memory { // overlapping operands may fit into memory, but a trial's operands do not overlap
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

// operands fills the memory of all operands with a pattern.
func (t *trial) operands(pattern []byte) error {
	return FillPattern(t.host.drv, t.host.heaps[device.Pinned], t.at, int64(t.out-t.at), pattern, t.h)
}

// spans returns the number of bytes from the first to the last element of each operand. The span of b is at least the
// size of the bias.
func (g *LtProblem) spans() (a, b, out int64) {
	types := g.types()
	reach := func(dt ir.DType, step int64, dims ...int64) int64 { // dims: extent, stride, …
		last := (g.Batch - 1) * step
		for i := 0; i < len(dims); i += 2 {
			last += (dims[i] - 1) * dims[i+1]
		}
		return gpu.RoundUp((last+1)*dt.Size(), gpu.Alignment)
	}
	bias := gpu.RoundUp(g.N*g.DType.Size(), gpu.Alignment)
	return reach(types[1], g.AStep, g.M, g.Am, g.K, g.Ak), max(bias, reach(types[0], g.BStep, g.N, g.Bn, g.K, g.Bk)), reach(g.DType, g.OutStep, g.M, g.Om, g.N, g.On)
}

// FillPattern fills memory with a repeated pattern, and waits until it is filled. The context is current.
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

// patternLength is the number of values after which operands repeat. It is a prime, so that the pattern does not repeat
// with the rows of usual lengths.
const patternLength = 65521

var noises sync.Map // by dtype

// NoiseOf returns normally distributed numbers. The power that a GEMM needs, and therefore its time, depends on the
// number of bits that change between consecutive operands.
func NoiseOf(dt ir.DType) []byte {
	if b, ok := noises.Load(dt); ok {
		return b.([]byte)
	}
	r := rand.New(rand.NewPCG(1, 2))
	b := PatternOf(dt, r.NormFloat64)
	noises.Store(dt, b)
	return b
}

// PatternOf returns a pattern: patternLength numbers, each returned by a call of next.
func PatternOf(dt ir.DType, next func() float64) []byte {
	vals := make([]float64, patternLength)
	for i := range vals {
		vals[i] = next()
	}
	b := make([]byte, patternLength*dt.Size())
	tensor.FromFloat64(b, vals, dt)
	return b
}

// try runs a candidate once and waits for its end; an error is a failure of the candidate. The run loads the
// candidate's code, before the candidate is timed.
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

// runOf returns a function that runs the given candidate on copy i of b.
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
	g.Relu = false // the trial leaves out the relu, as for all candidates: see withRelu
	list, err := t.host.site.Compile(g.skinnyProblem(t.out, t.a, b, bias))
	if err != nil {
		return nil, err
	}
	t.launches = append(t.launches, list...)
	return func() error { return t.host.drv.LaunchEarly(list[0], t.h) }, nil
}

// round measures the time of each candidate that is still in the race, once, beginning with the candidate at index
// from.
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

// times returns the time in milliseconds of one run of each candidate. For each candidate in turn, it measures chain
// consecutive runs.
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

// enter prepares the runs and the timing events of a candidate.
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

// close frees everything that the trial has allocated, resets the GEMM's bias, and returns empty regions of the heap to
// the driver. It returns the given err joined with errors of freeing.
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
