package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// resolve finds the addresses of c's views, and checks the views: each must be in its member's own memory, all must
// have the same element type, and no result may contain an element twice. The caller checks the shapes that the
// operation requires.
func (t *team) resolve(c *device.Collective) (*coll.Collective, error) {
	if len(c.Parts) != len(t.members) {
		return nil, fmt.Errorf("%d parts for %d members", len(c.Parts), len(t.members))
	}
	r := &coll.Collective{Collective: c}
	dt := ir.InvalidDType
	for i, m := range t.members {
		p := coll.Part{Reads: c.Parts[i].Reads, Writes: c.Parts[i].Writes}
		for _, side := range []struct {
			there bool
			v     device.View
			r     *strided.View
		}{{p.Reads, c.Parts[i].In, &p.In}, {p.Writes, c.Parts[i].Out, &p.Out}} {
			if !side.there {
				continue
			}
			var err error
			if *side.r, err = m.dev.resolve(side.v, false); err != nil {
				return nil, fmt.Errorf("member %d: %w", i, err)
			}
			if dt == ir.InvalidDType {
				dt = side.r.DType
			}
			if side.r.DType != dt {
				return nil, fmt.Errorf("member %d: %s among %s", i, side.r.DType, dt)
			}
			side.r.Detach()
		}
		if p.Writes && p.Out.NamesTwice() {
			return nil, fmt.Errorf("member %d: the result contains some element twice", i)
		}
		r.Operands = append(r.Operands, p)
	}
	return r, nil
}

// check resolves c. It returns an error if the algorithm that tune names cannot run c. The returned algorithm is nil
// if tune names NCCL.
func (t *team) check(tune device.Tuning, c *device.Collective) (coll.Algorithm, *coll.Collective, error) {
	if err := t.w.err(); err != nil {
		return nil, nil, err
	}
	if t.closed {
		return nil, nil, errors.New("the team is closed")
	}
	a, err := coll.ByName(tune.Algo, c)
	if err != nil {
		return nil, nil, fmt.Errorf("%s by %s: %w", c.Op, tune.Algo, err)
	}
	r, err := t.resolve(c)
	switch {
	case err != nil:
	case a == nil:
		err = supportsNCCL(t, r)
	default:
		if err = t.apart(); err == nil {
			err = a.Supports(t, tune, r)
		}
		if err == nil && slices.ContainsFunc(coll.RoutedAlgorithms, func(e coll.Entry) bool { return e.Name == tune.Algo }) &&
			slices.ContainsFunc(r.Operands, func(p coll.Part) bool { return t.w.sites[0].inHost(&p.In) }) {
			err = fmt.Errorf("%w: copy engines would copy from host memory to host memory, because the GPUs share memory only there", device.ErrUnsupported)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s by %s: %w", c.Op, tune.Algo, err)
	}
	return a, r, nil
}

// Prepare returns the launches of a collective, one for each member.
func (t *team) Prepare(tune device.Tuning, c *device.Collective) ([]device.Launch, error) {
	if tune.Algo == ncclName && t.w.guard.Enter(nil) {
		defer t.w.guard.Leave() // NCCL's call runs once here, so the co-residency lock is locked, before the issue lock
	}
	defer t.w.guard.Exclusive()()
	a, r, err := t.check(tune, c)
	if err != nil {
		return nil, err
	}
	launches, what := make([]device.Launch, len(t.members)), fmt.Sprintf("%s by %s", c.Op, tune.Algo)
	if r.Empty() {
		return launches, nil
	}
	steps, err := t.steps(a, tune, r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for i, m := range t.members {
		if len(steps[i]) > 0 {
			launches[i] = &launch{dev: m.dev, name: what, steps: steps[i], member: m, meets: meetingOf(steps[i]), id: -1}
		}
	}
	t.together(what, launches)
	return launches, nil
}

// steps returns the steps of each member's launch. If a is nil, NCCL runs the collective.
func (t *team) steps(a coll.Algorithm, tune device.Tuning, c *coll.Collective) ([][]step, error) {
	if a == nil {
		return prepareNCCL(t, c)
	}
	p, err := a.Plan(t, tune, c)
	if err != nil {
		return nil, err
	}
	return t.carryOut(p)
}

// carryOut reserves the memory that a plan requests, and loads the kernels of its launches.
func (t *team) carryOut(p *coll.Plan) ([][]step, error) {
	for _, x := range p.Memory {
		at, err := t.hold(x)
		if err != nil {
			return nil, err
		}
		x.Use(at)
	}
	list, err := p.Launches()
	if err != nil {
		return nil, err
	}
	steps := make([][]step, len(t.members))
	for _, m := range t.own {
		for _, x := range list[m.index] {
			st, err := m.step(x)
			if err != nil {
				return nil, err
			}
			steps[m.index] = append(steps[m.index], st)
		}
	}
	t.describe(list)
	return steps, nil
}

// step turns an action of a plan into a step that the member can run.
func (m *member) step(x coll.Action) (step, error) {
	switch x := x.(type) {
	case coll.Kernel:
		return m.kernel(x.Meeting)
	case coll.Copies:
		return m.push(x)
	}
	c := x.(coll.Copy)
	return &copyStep{c.Dst, c.Src}, nil
}

// PrepareAhead starts to compile the kernels that Prepare will load, or starts to load NCCL.
func (t *team) PrepareAhead(tune device.Tuning, c *device.Collective) {
	if tune.Algo == ncclName {
		go func() { _, _ = t.w.m.sys.NCCL() }() // Prepare waits for the load and returns its error
		return
	}
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	a, r, err := t.check(tune, c)
	if err != nil || r.Empty() {
		return
	}
	if p, err := a.Plan(t, tune, r); err == nil { // Prepare returns the error
		t.compileAhead(p)
	}
}

// compileAhead starts to compile the kernels of a plan. compileAhead reserves no memory and loads no kernel.
func (t *team) compileAhead(p *coll.Plan) {
	lib, ok := t.w.m.opts.Kernels.(gpu.Precompiler)
	if !ok {
		return
	}
	for _, x := range p.Memory { // the memory has no addresses yet, only the alignment of reserved memory
		x.Use(coll.Area{At: make([]nvlib.Ptr, len(t.members)), Bytes: x.Bytes})
	}
	list, err := p.Launches()
	if err != nil {
		return // Prepare returns the error
	}
	for _, m := range t.own {
		for _, x := range list[m.index] {
			if k, ok := x.(coll.Kernel); ok {
				k.Team = m.place()
				lib.MeetingAhead(m.dev.site.target(), k.Meeting)
			}
		}
	}
}

// Members returns the number of members of the team.
func (t *team) Members() int { return len(t.members) }

// SharesGPU reports whether members i and k run on the same GPU.
func (t *team) SharesGPU(i, k int) bool {
	return t.members[i].dev.site.gpu == t.members[k].dev.site.gpu
}

// BlockShared returns the largest number of bytes of shared memory that a thread block can have on every member's
// device. Depending on the architecture it is between 99 and 227 KiB.
func (t *team) BlockShared() int {
	least := math.MaxInt
	for _, m := range t.members {
		least = min(least, m.dev.site.gpu.BlockShared)
	}
	return least
}

// HostParts returns which parts of collectives' data are transferred through host memory.
func (t *team) HostParts() coll.HostParts {
	if p := t.w.m.opts.hostParts; p != nil {
		return *p
	}
	return coll.MeasuredParts()
}

// Keeps128 returns nil if 128 bytes that one warp writes together are known to become visible to other members
// together. This is known for NVLink and for a device's own memory. Over a PCI bus, the last of the bytes may become
// visible before the first.
func (t *team) Keeps128() error {
	if t.w.hosted {
		return fmt.Errorf("%w: the memory that the members share is host memory", device.ErrUnsupported)
	}
	for _, m := range t.members {
		for _, o := range t.members {
			if linkOf(t.w, m.dev.site, o.dev.site) == 'p' {
				return fmt.Errorf("%w: GPUs %d and %d are not connected by NVLink", device.ErrUnsupported, m.dev.site.gpu.Device, o.dev.site.gpu.Device)
			}
		}
	}
	return nil
}
