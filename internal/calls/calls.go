// Package calls runs single collectives on the caller's memory and streams, interleaved with other
// work on these streams. It serves libraries such as PyTorch that share a process with hocket.
// Begin with Open and Group.Do.
//
// A call is prepared at its first use. Its algorithm comes from the table of tuned algorithms, as for collectives in
// programs. All processes of a world prepare the same calls in the same order, and compare the calls that they prepare.
// Later calls are compared too, but without waiting for each other.
package calls

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// ErrInput is wrapped by errors about arguments.
var ErrInput = errors.New("wrong arguments")

// ErrCapturing is returned for a call that is not yet prepared, on a stream that is being captured into a graph. A
// call cannot be prepared during a capture.
var ErrCapturing = errors.New("a call with these arguments must be prepared, which is impossible while a graph is captured: make the call once before the capture")

var errClosed = errors.New("the group is closed")

// Group is a set of ranks, of an open world, that run collectives together. Several goroutines may call its methods,
// but all processes must make the same calls in the same order.
type Group struct {
	world    device.World
	calls    device.Calls
	peers    *world.World // nil if there are no other processes
	dispatch *comm.Dispatch
	rank     int // of this process
	// isCapturing is the machine's Capturing method.
	isCapturing func(stream uintptr) (bool, error)

	mu      sync.Mutex
	made    map[key]*prepared
	norms   map[normKey]*preparedNorm
	areas   []area // from Empty and Adopt
	staging [2]area
	count   int    // number of comparisons that meetAt has made; equal in all processes
	place   string // the caller's source position, from the most recent context that contains one
	closed  bool
}

// Options choose algorithms. The zero value selects the fastest known one.
type Options struct {
	Algorithm string // tried first
	Fixed     bool   // the same algorithm for all sizes, so that results have the same bits
}

// Open opens ranks of a machine for calls.
func Open(ctx context.Context, m device.Machine, ranks int, o Options) (*Group, error) {
	w, err := m.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	g := &Group{world: w, peers: m.Peers(), made: map[key]*prepared{}, isCapturing: m.Capturing}
	if g.calls, err = w.OpenCalls(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	for g.rank = 0; !w.Local(g.rank); g.rank++ {
	}
	table := comm.Find(m.Name(), w).Table
	g.dispatch = comm.NewDispatch(w, m.Caps(), table, comm.Policy{Algorithm: o.Algorithm, Fixed: o.Fixed})
	if o.Algorithm != "" {
		if err := g.dispatch.Check(o.Algorithm); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrInput, err), g.Close())
		}
	}
	if err := g.meetOpened(ctx, o, table); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// meetOpened returns an error unless all processes use the same options and the same table of algorithms.
func (g *Group) meetOpened(ctx context.Context, o Options, t *comm.Table) error {
	return g.meet(ctx, fmt.Sprintf("calls of %d ranks, algorithm %q, fixed %v, table %q", g.world.Ranks(), o.Algorithm,
		o.Fixed, t.Hash()))
}

// Call is a collective of dense operands. Count is the number of elements that the rank
// contributes: its block for an all_gather, otherwise the whole operand, which reduce_scatter and
// all_to_all split into a block for each rank.
type Call struct {
	Op     ir.Op  // the operation: all_reduce, all_gather, reduce_scatter, all_to_all or broadcast
	Red    ir.Red // the reduction of all_reduce and reduce_scatter
	Root   int    // broadcast
	DType  ir.DType
	Count  int64
	Stream uintptr // handle of a CUDA stream; 0 for the default stream
	// In and Out are addresses in the memory of the rank's device. They may be equal if both operands have the same
	// size. In of an all_gather may be the rank's block of Out, and Out of a reduce_scatter the rank's block of In.
	In, Out uintptr
}

// own reports whether one operand is the given rank's block of the other operand.
func (c *Call) own(rank, ranks int) bool {
	if c.Count == 0 || ranks == 1 {
		return false
	}
	in, out := c.sizes(int64(ranks))
	block := uintptr(int64(rank) * min(in, out) * c.DType.Size())
	switch c.Op {
	case ir.OpAllGather:
		return c.In == c.Out+block
	case ir.OpReduceScatter:
		return c.Out == c.In+block
	}
	return false
}

// sizes returns the number of elements of In and of Out.
func (c *Call) sizes(ranks int64) (in, out int64) {
	switch c.Op {
	case ir.OpAllGather:
		return c.Count, c.Count * ranks
	case ir.OpReduceScatter:
		return c.Count, c.Count / ranks
	}
	return c.Count, c.Count
}

// check returns an error if a call is invalid.
func (g *Group) check(c *Call) error {
	n := int64(g.world.Ranks())
	switch c.Op {
	case ir.OpAllReduce, ir.OpReduceScatter:
		if c.Red < ir.Sum || c.Red > ir.Avg {
			return fmt.Errorf("%w: %s by reduction %d", ErrInput, c.Op, c.Red)
		}
	case ir.OpAllGather, ir.OpAllToAll:
	case ir.OpBroadcast:
		if c.Root < 0 || c.Root >= int(n) {
			return fmt.Errorf("%w: root %d is not one of the %d ranks", ErrInput, c.Root, n)
		}
	default:
		return fmt.Errorf("%w: %s is not supported by single calls; the collectives are all_reduce, all_gather, reduce_scatter, all_to_all and broadcast", device.ErrUnsupported, c.Op)
	}
	size := c.DType.Size()
	switch {
	case c.Count < 0 || size == 0:
		return fmt.Errorf("%w: %d elements of type %s are not supported", ErrInput, c.Count, c.DType)
	case (c.Op == ir.OpReduceScatter || c.Op == ir.OpAllToAll) && c.Count%n != 0:
		return fmt.Errorf("%w: %d elements are not divisible by %d ranks", ErrInput, c.Count, n)
	case c.Count > 0 && (c.In == 0 || c.Out == 0 || int64(c.In)%size != 0 || int64(c.Out)%size != 0):
		return fmt.Errorf("%w: the operands' addresses, %#x and %#x, must not be 0 and must be multiples of the element size, %d bytes", ErrInput, c.In, c.Out, size)
	}
	in, out := c.sizes(n)
	if overlap(c.In, in*size, c.Out, out*size) && (c.In != c.Out || in != out) && !c.own(g.rank, int(n)) {
		return fmt.Errorf("%w: the result overlaps the operand", ErrInput)
	}
	return nil
}

func overlap(a uintptr, n int64, b uintptr, m int64) bool {
	return n > 0 && m > 0 && int64(a) < int64(b)+m && int64(b) < int64(a)+n
}

// key identifies calls that share a preparation.
type key struct {
	op      ir.Op
	red     ir.Red
	root    int
	dtype   ir.DType
	count   int64
	inPlace bool
	own     bool // result of Call.own; if true, the place of the smaller operand is set to that of the larger operand
	in, out place
}

// place is the position of an operand: an offset in an area, or, for an operand in no area ("loose"), its address
// modulo 16.
type place struct {
	area int // number of the area; 0 for a loose operand
	off  int64
}

// prepared is a prepared call.
type prepared struct {
	what string
	by   device.Tuning // the algorithm and launch parameters of the call
	call device.Call
	// in and out are staging areas for operands that the collective cannot access directly. This rank copies inLen
	// bytes to in, and outLen bytes from out.
	in, out             area
	inLen, outLen       int64
	inStaged, outStaged bool
	copiesIn, copiesOut bool
}

// Do enqueues a collective on a stream and returns before it has run. Errors of earlier collectives
// are returned by later calls.
func (g *Group) Do(ctx context.Context, c Call) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do(ctx, c)
}

func (g *Group) do(ctx context.Context, c Call) error {
	if _, place := world.CallOf(ctx); place != "" {
		g.place = place
	}
	if err := g.check(&c); err != nil {
		return err
	}
	if g.closed {
		return errClosed
	}
	k := key{c.Op, c.Red, c.Root, c.DType, c.Count, c.In == c.Out, c.own(g.rank, g.world.Ranks()), g.placeOf(c.In),
		g.placeOf(c.Out)}
	if k.own { // the key must not depend on the rank
		if k.inPlace = false; c.Op == ir.OpAllGather {
			k.in = k.out
		} else {
			k.out = k.in
		}
	}
	p := g.made[k]
	if p == nil {
		defer g.calls.Keep()()
		if err := g.notCapturing(c.Stream); err != nil {
			return fmt.Errorf("%s: %w", g.describe(&c, k), err)
		}
		var err error
		if p, err = g.prepare(ctx, &c, k); err != nil {
			return err
		}
		g.made[k] = p
	} else if err := g.step(p.what); err != nil {
		return err
	}
	return p.do(g, &c)
}

func (g *Group) usable() error {
	if g.closed {
		return errClosed
	}
	return g.calls.Err()
}

// Device returns the machine's number of the device that calls run on.
func (g *Group) Device() int { return g.calls.Device() }

// Err returns an error if the results of calls can no longer be trusted.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.usable()
}

func (g *Group) notCapturing(stream uintptr) error {
	capturing, err := g.isCapturing(stream)
	if err == nil && capturing {
		err = ErrCapturing
	}
	return err
}

// step reports this process's next call to the other processes.
func (g *Group) step(what string) error {
	if g.peers == nil {
		return nil
	}
	g.peers.Calls(what, g.place)
	return g.peers.Step(what)
}

// meet waits until all processes make their next call, and returns an error unless the calls are the same.
func (g *Group) meet(ctx context.Context, what string) error { return g.meetAt(ctx, what, "") }

// meetAt is like meet, for a call at the given position in the caller's source.
func (g *Group) meetAt(ctx context.Context, what, place string) error {
	if g.peers == nil {
		return nil
	}
	g.peers.Calls(what, place)
	g.count++
	name := fmt.Sprintf("prepared call %d", g.count)
	err := g.peers.Same(ctx, name, what)
	if err != nil {
		g.peers.Abort(err)
	}
	return err
}

func (p *prepared) do(g *Group, c *Call) error {
	if c.Count == 0 {
		return nil
	}
	in, out := c.In, c.Out
	if p.copiesIn {
		if err := g.calls.Copy(c.Stream, p.in.addr, in, p.inLen); err != nil {
			return err
		}
		in = p.in.addr
	}
	if p.copiesOut {
		out = p.out.addr
	}
	if err := p.call.Do(c.Stream, in, out); err != nil {
		return err
	}
	if p.copiesOut {
		return g.calls.Copy(c.Stream, c.Out, p.out.addr, p.outLen)
	}
	return nil
}

// placeOf returns the place of the operand at an address.
func (g *Group) placeOf(at uintptr) place {
	for i := range g.areas {
		if a := &g.areas[i]; a.addr != 0 && at >= a.addr && at < a.addr+uintptr(a.bytes) {
			return place{i + 1, int64(at - a.addr)}
		}
	}
	return place{0, int64(at % 16)}
}

func (g *Group) describe(c *Call, k key) string {
	what := fmt.Sprintf("%s of %s[%d]", c.Op, c.DType, c.Count)
	switch c.Op {
	case ir.OpAllReduce, ir.OpReduceScatter:
		what += " " + c.Red.String()
	case ir.OpBroadcast:
		what += fmt.Sprintf(" from %d", c.Root)
	}
	for i, p := range []place{k.in, k.out} {
		if p.area > 0 {
			what += fmt.Sprintf(", %s in area %d at %d", []string{"operand", "result"}[i], p.area, p.off)
		}
	}
	if k.own {
		what += ", in place"
	}
	return what
}

// prepare prepares a call, in all processes.
func (g *Group) prepare(ctx context.Context, c *Call, k key) (*prepared, error) {
	what := g.describe(c, k)
	if err := g.meetAt(ctx, what, g.place); err != nil { // must precede the allocation of memory, in which processes wait for each other
		return nil, err
	}
	if c.Count == 0 { // there is nothing to prepare, but the counts of all processes have been compared
		return &prepared{what: what}, nil
	}
	p, err := g.choose(c, k)
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
		if g.peers != nil {
			g.peers.Abort(err) // other processes may already have prepared the call
		}
		return nil, err
	}
	p.what = what
	// Compare the algorithm too: kernels of different algorithms would wait for each other forever.
	return p, g.meetAt(ctx, fmt.Sprintf("%s by %+v, staged %t %t", what, p.by, p.inStaged, p.outStaged), g.place)
}

// choose tries algorithms in the order of preference. It tries each on the operands themselves, and then on copies in
// memory that peers can access. All processes choose the same algorithm.
func (g *Group) choose(c *Call, k key) (*prepared, error) {
	var declined []error
	for _, staged := range []bool{false, true} {
		p := &prepared{}
		if staged {
			if err := g.stage(c, k, p); err != nil {
				return nil, err
			}
		}
		if k.own && k.in.area == 0 && !staged {
			continue // the device supports operands outside of areas only if the operands do not overlap
		}
		coll := g.collective(c, k, p)
		for _, t := range g.dispatch.Launches(&comm.Instance{Collective: *coll}) {
			call, err := g.calls.Prepare(t, coll, k.inPlace && !staged, [2]int64{tailOf(k.in), tailOf(k.out)})
			if err == nil {
				p.call, p.by = call, t
				return p, nil
			}
			if !errors.Is(err, device.ErrUnsupported) {
				return nil, err
			}
			declined = append(declined, err)
		}
	}
	return nil, errors.Join(append([]error{errors.New("no algorithm supports the call")}, declined...)...)
}

func tailOf(p place) int64 {
	if p.area > 0 {
		return 0
	}
	return p.off
}

// stage assigns staging memory to operands that peers cannot access.
func (g *Group) stage(c *Call, k key, p *prepared) error {
	in, out := c.sizes(int64(g.world.Ranks()))
	p.inLen, p.outLen = in*c.DType.Size(), out*c.DType.Size()
	var err error
	if p.inStaged = k.in.area == 0; p.inStaged {
		if p.in, err = g.stagingOf(0, p.inLen); err != nil {
			return err
		}
	}
	if p.outStaged = k.out.area == 0; p.outStaged {
		p.out, err = g.stagingOf(1, p.outLen)
	}
	root := c.Op == ir.OpBroadcast && g.rank == c.Root
	p.copiesIn, p.copiesOut = p.inStaged && (c.Op != ir.OpBroadcast || root), p.outStaged && !root
	return err
}

// stagingOf returns staging memory of at least the given number of bytes.
func (g *Group) stagingOf(i int, bytes int64) (area, error) {
	if s := &g.staging[i]; s.bytes < bytes {
		a, err := g.take(max(bytes, 2*s.bytes))
		if err != nil {
			return area{}, err
		}
		*s = a // prepared calls use the previous memory, so it is freed only when the world is closed
	}
	return g.staging[i], nil
}

// collective describes a call to the device: the memory of its operands, or that they are loose.
func (g *Group) collective(c *Call, k key, p *prepared) *device.Collective {
	n := g.world.Ranks()
	in, out := c.sizes(int64(n))
	coll := &device.Collective{Op: c.Op, Red: c.Red, Root: c.Root, Together: true, Parts: make([]device.Part, n)}
	view := func(r int, count int64, at place, staged area, copied bool) device.View {
		v := device.View{DType: c.DType, Shape: []int64{count}, Strides: []int64{1}}
		switch {
		case copied:
			v.Mem = staged.mems[r]
		case at.area > 0:
			v.Mem, v.Off = g.areas[at.area-1].mems[r], at.off
		}
		return v
	}
	for r := range coll.Parts {
		part := &coll.Parts[r]
		part.Reads = c.Op != ir.OpBroadcast || r == c.Root
		part.Writes = c.Op != ir.OpBroadcast || r != c.Root
		if part.Reads {
			part.In = view(r, in, k.in, p.in, p.inStaged)
			if k.own && c.Op == ir.OpAllGather && !p.inStaged {
				part.In.Off += int64(r) * in * c.DType.Size()
			}
		}
		if part.Writes {
			part.Out = view(r, out, k.out, p.out, p.outStaged)
			if k.own && c.Op == ir.OpReduceScatter && !p.outStaged {
				part.Out.Off += int64(r) * out * c.DType.Size()
			}
		}
	}
	return coll
}

// area is memory of the same size on all ranks, which peers can access.
type area struct {
	mems  []device.Memory // by rank
	addr  uintptr         // address in this process
	bytes int64
}

// take allocates memory of the same size on all ranks. All processes make this call at the same position in their
// sequence of calls.
func (g *Group) take(bytes int64) (area, error) {
	a := area{bytes: bytes}
	for r := range g.world.Ranks() {
		m, err := g.world.Device(r).Alloc(bytes, device.Shared)
		if err != nil {
			for _, m := range a.mems {
				err = errors.Join(err, m.Free())
			}
			return area{}, err
		}
		a.mems = append(a.mems, m)
	}
	a.addr = a.mems[g.rank].Address()
	return a, nil
}

// takeEmpty allocates memory for the caller. Where shared memory is slow host memory, the caller gets memory of its
// device instead, which is not an area: collectives treat it like all other memory of the caller.
func (g *Group) takeEmpty(bytes int64) (area, error) {
	if !g.world.HostShared() {
		return g.take(bytes)
	}
	m, err := g.world.Device(g.rank).Alloc(bytes, device.Private)
	if err != nil {
		return area{}, err
	}
	return area{addr: m.Address()}, nil
}

// Empty allocates memory that collectives use without copies. All processes must allocate the same size at the same
// position in their sequence of calls. The memory is freed by Free, or when the group is closed.
func (g *Group) Empty(ctx context.Context, bytes int64) (uintptr, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("%w: %d bytes", ErrInput, bytes)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(); err != nil {
		return 0, err
	}
	if err := g.meet(ctx, fmt.Sprintf("memory of %d bytes", bytes)); err != nil {
		return 0, err
	}
	a, err := g.takeEmpty(bytes)
	if err != nil {
		if g.peers != nil && !errors.Is(err, device.ErrOutOfMemory) {
			g.peers.Abort(err)
		}
		return 0, err
	}
	g.areas = append(g.areas, a)
	return a.addr, nil
}

// Adopt registers memory that the caller owns, so that calls use it without copies. at[r] is the address of rank r's
// memory in this process; all have the same size. All processes must call Adopt for the same memory, at the same
// position in their sequence of calls. The caller still frees the memory.
func (g *Group) Adopt(ctx context.Context, at []uintptr, bytes int64) error {
	if bytes <= 0 {
		return fmt.Errorf("%w: %d bytes", ErrInput, bytes)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usable(); err != nil {
		return err
	}
	mems, err := g.calls.Adopt(at, bytes)
	if errors.Is(err, device.ErrAddress) {
		err = fmt.Errorf("%w: %w", ErrInput, err)
	}
	// If one process cannot adopt the memory, no process adopts it.
	if merr := g.meet(ctx, fmt.Sprintf("memory of the caller's, %d bytes, fit: %t", bytes, err == nil)); err != nil ||
		merr != nil {
		return errors.Join(err, merr)
	}
	if p := g.placeOf(at[g.rank]); p.area > 0 { // the memory is already registered
		g.areas[p.area-1] = area{}
	}
	g.areas = append(g.areas, area{mems: mems, addr: at[g.rank], bytes: bytes})
	return nil
}

// Close frees everything, after the device has finished all calls.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	for _, p := range g.made {
		if p.call != nil { // a call with elements
			p.call.Release()
		}
	}
	for _, p := range g.norms {
		if p.call != nil {
			p.call.Release()
		}
	}
	var errs []error
	if g.calls != nil {
		errs = append(errs, g.calls.Close())
	}
	return errors.Join(append(errs, g.world.Close())...)
}
