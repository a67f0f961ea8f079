package gemm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// One launch of hocket's kernel for few rows can compute several linears of one operand x. Such a launch is used if it
// is faster than separate launches with the selected algorithms, and if its bits are the same when all sums are exact.

// Joint describes several linears of one operand x. The problems in List differ only in B, Out and N. If Gated is set,
// List contains two linears. The results of these two are not stored; Out receives silu of the first multiplied by the
// second.
type Joint struct {
	List  []Problem
	Gated bool
	Out   nvlib.Ptr // the result's address if Gated is set; its row stride is that of List[0]
}

// PrepareJoint returns one launch for all linears. It returns nil if one launch is not faster than separate launches,
// or not supported. The context is current.
func (h *Host) PrepareJoint(j Joint) (own *nvlib.Launch, err error) {
	if !h.skinny || !j.fits() {
		return nil, nil
	}
	list, err := h.site.CompileAside(j.problem(nil))
	switch {
	case errors.Is(err, device.ErrUnsupported):
		return nil, nil
	case err != nil:
		return nil, err
	}
	own = list[0]
	defer func() {
		if err != nil {
			own.Free()
			own = nil
		}
	}()
	var alone []*Launch
	defer func() {
		for _, st := range alone {
			st.Free()
		}
	}()
	key := fmt.Sprintf("joint 3; gated %v", j.Gated)
	for _, g := range j.List {
		st, err := h.Prepare(g)
		if err != nil {
			return own, err
		}
		if st == nil {
			own.Free()
			return nil, nil
		}
		alone = append(alone, st)
		key += "; " + st.key()
	}
	faster, err := h.decide(&j, key, func() (bool, error) { return h.raceJoint(j, alone) })
	if err == nil {
		h.chosen[sumOf(key)] = jointChoice(faster)
		h.noteApart(&j, faster)
	}
	if err == nil && !faster {
		own.Free()
		return nil, nil
	}
	return own, err
}

// member identifies one linear of a Joint by the addresses of its operands.
type member struct{ a, b, out nvlib.Ptr }

func (j *Joint) members() (list []member) {
	for _, g := range j.List {
		list = append(list, member{g.A, g.B, g.Out})
	}
	return list
}

// noteApart records that the linears of j run as separate launches, if there are several processes. Such linears must
// not be part of another Joint later. The reason is another process that runs all of them as one launch: it never tries
// a smaller Joint, so the processes could not agree on one.
func (h *Host) noteApart(j *Joint, joint bool) {
	if joint || len(h.again) == 0 {
		return
	}
	for _, m := range j.members() {
		h.apart[m] = true
	}
}

// fits reports whether the kernel for few rows supports all linears, and whether their weights are large enough.
func (j *Joint) fits() bool {
	bytes := int64(0)
	for i := range j.List {
		g := &j.List[i]
		bytes += g.N * g.K * g.DType.Size()
		few := *g
		few.N = max(g.N, skinnyLeast/(g.K*g.DType.Size())+1) // skinny's least size of a weight applies to all together
		if !few.skinny() || g.Bias != 0 || g.Relu || g.M != j.List[0].M || g.K != j.List[0].K || g.A != j.List[0].A ||
			g.Am != j.List[0].Am {
			return false
		}
	}
	return len(j.List) > 1 && len(j.List) <= kernels.MostSkinnyParts &&
		(!j.Gated || len(j.List) == 2 && j.List[0].N == j.List[1].N) &&
		bytes >= skinnyLeast
}

// jointOperands holds addresses of scratch memory for the operands of a Joint.
type jointOperands struct {
	a, out  nvlib.Ptr // address of the result if Gated is set
	b, outs []nvlib.Ptr
}

// problem returns j in the form in which hocket's kernel for few rows is compiled. The operands are those in at, or j's
// own operands if at is nil.
func (j *Joint) problem(at *jointOperands) kernels.Skinny {
	if at == nil {
		at = &jointOperands{a: j.List[0].A, out: j.Out}
		for _, g := range j.List {
			at.b, at.outs = append(at.b, g.B), append(at.outs, g.Out)
		}
	}
	constant := true
	parts := make([]kernels.Skinny, len(j.List))
	for i := range j.List {
		constant = constant && j.List[i].Constant
		parts[i] = j.List[i].skinnyProblem(at.outs[i], at.a, at.b[i], 0)
	}
	p := parts[0]
	p.Constant = constant
	if j.Gated {
		p.Epilogue, p.Up, p.Out.Addr = kernels.SiluMulEpilogue, &parts[1].Ins[1], at.out
		return p
	}
	for _, more := range parts[1:] {
		p.More = append(p.More, kernels.SkinnyPart{Weight: more.Ins[1], Out: more.Out})
	}
	return p
}

// gate returns the computation that makes the gated result from the results of both linears.
func (j *Joint) gate(at *jointOperands) kernels.Computation {
	out := j.problem(at).Out
	one, two := out, out
	one.Addr, two.Addr = at.outs[0], at.outs[1]
	return kernels.Computation{Op: device.SiluMul(out.DType), Ins: []kernels.Operand{one, two}, Out: out}
}

// decide reports whether one launch for j is used instead of separate launches. If the processes have agreed on a
// choice, decide returns it. Otherwise it returns the stored choice or, if none is stored, that of race, which
// measures. If race cannot measure, decide returns false, for separate launches.
func (h *Host) decide(j *Joint, key string, race func() (bool, error)) (bool, error) {
	all := h.picks
	if w := h.drv.Watch(); !w.Hold(&all.mu) {
		return false, errors.New("canceled: a call of the driver did not return")
	}
	defer h.drv.Watch().Release(&all.mu)
	if agreed := h.agreed[sumOf(key)]; agreed != nil {
		return !Apart(agreed), nil
	}
	if slices.ContainsFunc(j.members(), func(m member) bool { return h.apart[m] }) {
		return false, nil
	}
	if faster, known := all.joint[key]; known {
		return faster, nil
	}
	note, kept := h.cache.LoadNote(key)
	faster := kept && len(note) == 1 && note[0] == 1
	if !kept || len(note) != 1 {
		var err error
		faster, err = race()
		if err != nil && !withoutTrial(err) {
			return false, err
		}
		note = []byte{0}
		if faster {
			note[0] = 1
		}
		if err == nil {
			h.cache.StoreNote(key, note)
		}
	}
	if all.joint == nil {
		all.joint = map[string]bool{}
	}
	all.joint[key] = faster
	return faster, nil
}

// jointTrial measures a Joint, and its linears separately, on scratch memory. Runs cycle through several copies of the
// weights.
type jointTrial struct {
	*trial
	j     Joint
	alone []*Launch
	at    []jointOperands
}

// raceJoint measures and reports whether hocket's kernel for few rows is faster than the separate launches in alone.
func (h *Host) raceJoint(j Joint, alone []*Launch) (faster bool, err error) {
	t, err := h.newJointTrial(j, alone)
	if err != nil {
		return false, err
	}
	defer func() { err = t.close(err) }()
	return t.faster(t.runAlone, t.runJoint)
}

// variant is a function that returns the steps of one way to compute all linears, on the operands at the given
// addresses.
type variant func(at *jointOperands) ([]func() error, error)

// faster reports whether the variant one is faster than the variant others, and has the same bits. It first compares
// the bits of results, with operands for which all sums are exact, and then the times.
func (t *jointTrial) faster(others, one variant) (bool, error) {
	apart, err := t.candidate(others)
	if err != nil {
		return false, err
	}
	joint, err := t.candidate(one)
	if err != nil {
		return false, err
	}
	if same, err := t.sameBits(apart, joint); err != nil || !same {
		return false, err
	}
	if err := t.operands(NoiseOf(t.j.List[0].DType)); err != nil {
		return false, err
	}
	ms, err := t.times([]*Candidate{apart, joint}, 1)
	if err != nil {
		return false, err
	}
	once := max(ms[0], 1e-3)
	chain := min(max(int(chainMs/once), 1), 20)
	ratio, err := t.duel(apart, joint, max(1, min(TrialRounds, int(TrialMs/2/once/float32(chain)))), chain)
	return ratio <= worthwhile, err
}

func (h *Host) newJointTrial(j Joint, alone []*Launch) (*jointTrial, error) {
	if h.site.Recording() {
		return nil, errRecording
	}
	var weights, outs []int64
	var a, step, results int64
	for _, st := range alone {
		x, b, out := st.Problem.spans()
		a, step, results = max(a, x), step+b, results+out
		weights, outs = append(weights, b), append(outs, out)
	}
	copies := 1 + (h.gpu.System.ColdBytes-1)/step
	t := &jointTrial{j: j, alone: alone, trial: &trial{host: h, st: alone[0], copies: copies, step: step,
		bytes: a + step*copies + results + outs[0] + WorkspaceBytes}}
	if t.bytes > h.gpu.Memory {
		return nil, fmt.Errorf("%w: a trial needs %d bytes, but GPU %d has %d", device.ErrOutOfMemory, t.bytes,
			h.gpu.Device, h.gpu.Memory)
	}
	var err error
	if t.trial.at, err = h.heaps[device.Private].Alloc(t.bytes); err != nil {
		return nil, err
	}
	t.a, t.b = t.trial.at, t.trial.at+nvlib.Ptr(a)
	t.out = t.b + nvlib.Ptr(step*copies)
	t.ws = t.out + nvlib.Ptr(results+outs[0])
	for i := range copies {
		o := jointOperands{a: t.a, out: t.out + nvlib.Ptr(results)}
		b, out := t.b+nvlib.Ptr(i*step), t.out
		for k := range weights {
			o.b, o.outs = append(o.b, b), append(o.outs, out)
			b, out = b+nvlib.Ptr(weights[k]), out+nvlib.Ptr(outs[k])
		}
		t.at = append(t.at, o)
	}
	if t.h, err = h.drv.NewStream(0); err == nil {
		err = t.operands(exactOf(j.List[0].DType))
	}
	if err != nil {
		return nil, t.close(err)
	}
	return t, nil
}

// candidate prepares one variant for timing.
func (t *jointTrial) candidate(of variant) (*Candidate, error) {
	c := &Candidate{}
	for i := range t.at {
		steps, err := of(&t.at[i])
		if err != nil {
			return nil, err
		}
		c.runs = append(c.runs, func() error {
			for _, run := range steps {
				if err := run(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range c.events {
		e, err := t.host.site.NewClock()
		if err != nil {
			return nil, err
		}
		c.events[i] = e
		t.events = append(t.events, e)
	}
	return c, nil
}

// compiled compiles a kernel and returns a function that launches it.
func (t *jointTrial) compiled(p kernels.Problem) (func() error, error) {
	list, err := t.host.site.Compile(p)
	if err != nil {
		return nil, err
	}
	t.launches = append(t.launches, list...)
	return func() error { return t.host.drv.LaunchEarly(list[0], t.h) }, nil
}

func (t *jointTrial) runJoint(at *jointOperands) ([]func() error, error) {
	run, err := t.compiled(t.j.problem(at))
	return []func() error{run}, err
}

func (t *jointTrial) runAlone(at *jointOperands) (steps []func() error, err error) {
	for i, st := range t.alone {
		if st.Product == nil { // hocket's kernel was picked for this linear
			run, err := t.compiled(st.Problem.skinnyProblem(at.outs[i], at.a, at.b[i], 0))
			if err != nil {
				return nil, err
			}
			steps = append(steps, run)
			continue
		}
		p := st.NewProduct(st.Product.Algo(), at.b[i], at.a, at.outs[i])
		t.products = append(t.products, p)
		steps = append(steps, func() error { return st.Library.Multiply(p, t.ws, st.Need, t.h) })
	}
	if t.j.Gated {
		run, err := t.compiled(t.j.gate(at))
		if err != nil {
			return nil, err
		}
		steps = append(steps, run)
	}
	return steps, nil
}

// sameBits runs both candidates once and reports whether the bits of their results are the same.
func (t *jointTrial) sameBits(a, b *Candidate) (bool, error) {
	var got [2][]byte
	for i, c := range []*Candidate{a, b} {
		var err error
		if got[i], err = t.results(c); err != nil {
			return false, err
		}
	}
	return bytes.Equal(got[0], got[1]), nil
}

// results returns the first bytes of each result of a variant. The memory of the results is overwritten before the run.
func (t *jointTrial) results(c *Candidate) ([]byte, error) {
	drv, pinned := t.host.drv, t.host.heaps[device.Pinned]
	if err := drv.Fill32(t.out, ^uint32(0), int64(t.ws-t.out)/4, t.h); err != nil {
		return nil, err
	}
	if err := c.runs[0](); err != nil {
		return nil, err
	}
	at := &t.at[0]
	outs := at.outs
	if t.j.Gated {
		outs = []nvlib.Ptr{at.out}
	}
	var all []byte
	for i, out := range outs {
		_, _, span := t.alone[i].Problem.spans()
		n := min(span, sampled)
		buf, err := pinned.Alloc(n)
		if err != nil {
			return nil, err
		}
		var args [4]uintptr
		err = errors.Join(drv.Copy(buf, out, n, t.h, &args), drv.SyncStream(t.h))
		all = append(all, cabi.Bytes(uintptr(buf), int(n))...)
		if err = errors.Join(err, pinned.Free(buf, n)); err != nil {
			return nil, err
		}
	}
	return all, nil
}
