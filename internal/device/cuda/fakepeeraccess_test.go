package cuda

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// fakeReach is which device of a fake may use what memory: a copy or a kernel that
// uses what its device was given no access to is an error.
type fakeReach struct {
	apart   func(a, b int32) bool     // the driver gives no access
	refuses func(a, b int32) bool     // gives no access in spite of its word
	mangles func(from, to int32) bool // copies come out wrong
	created map[uintptr]int32         // devices, by handle
	ranges  map[uintptr]*fakeRange    // mapped memory, by address
	current map[int]int32             // by thread: the device whose context is
	streams map[uintptr]int32
	uses    map[string][]fakeTouch  // operands of kernels, by name
	usedBy  map[uintptr][]fakeTouch // by function
}

// fakeRange is mapped memory of a device.
type fakeRange struct {
	bytes  uintptr
	owner  int32
	access map[int32]bool
}

func newFakeReach() fakeReach {
	never := func(a, b int32) bool { return false }
	return fakeReach{apart: never, refuses: never, mangles: never, created: map[uintptr]int32{}, ranges: map[uintptr]*fakeRange{},
		streams: map[uintptr]int32{}, current: map[int]int32{}, uses: map[string][]fakeTouch{}, usedBy: map[uintptr][]fakeTouch{}}
}

// fakeContext is the context of device 0; those of others follow.
const fakeContext = 7

// of returns the device memory that an address is in; nil for the host's.
func (r *fakeReach) of(at uintptr) *fakeRange {
	for base, m := range r.ranges {
		if at >= base && at < base+m.bytes {
			return m
		}
	}
	return nil
}

// mapped is how much memory of a device is, in bytes.
func (r *fakeReach) mapped(owner int32) int64 {
	n := int64(0)
	for _, m := range r.ranges {
		if m.owner == owner {
			n += int64(m.bytes)
		}
	}
	return n
}

// deviceOf is the device of a stream; of the null stream that whose context is current.
func (f *fakeGPU) deviceOf(stream uintptr) int32 {
	if stream == 0 {
		return f.reach.current[thread()]
	}
	return f.reach.streams[stream]
}

// check complains of memory that the device of a stream may not use.
func (f *fakeGPU) check(stream uintptr, at ...uintptr) {
	dev := f.deviceOf(stream)
	for _, a := range at {
		if m := f.reach.of(a); m != nil && !m.access[dev] {
			f.Errorf("device %d uses memory of device %d, to which it has no access", dev, m.owner)
		}
	}
}

// copied is a copy of n bytes.
func (f *fakeGPU) copied(dst, src uintptr, n int) {
	copy(cabi.Bytes(dst, n), cabi.Bytes(src, n))
	if a, b := f.reach.of(src), f.reach.of(dst); a != nil && b != nil && f.reach.mangles(a.owner, b.owner) && n > 0 {
		cabi.Bytes(dst, n)[n/2] ^= 1
	}
}

// grant is cuMemSetAccess: of an address, its length, a list of 12 bytes a device, and
// its length.
func (f *fakeGPU) grant(a []uintptr) uintptr {
	m := f.reach.ranges[a[0]]
	for i := range a[3] {
		dev := cabi.Load[[3]int32](a[2] + 12*i)[1]
		if dev != m.owner && (f.reach.apart(dev, m.owner) || f.reach.refuses(dev, m.owner)) {
			return 801 // not supported
		}
		m.access[dev] = true
	}
	return 0
}

// operands notes which memory a kernel uses.
func (f *fakeGPU) operands(name string, p kernels.Problem) {
	var all []kernels.Operand
	switch p := p.(type) {
	case kernels.Computation:
		all = append(slices.Clone(p.Ins), p.Out)
	case kernels.Skinny:
		all = append(slices.Clone(p.Ins), p.Out)
	case kernels.Transfer:
		all = []kernels.Operand{p.In, p.Out}
	}
	for i, o := range all {
		if o.Addr != 0 && !slices.Contains(o.Shape, 0) {
			last, _ := device.LastElement(o.Shape, o.Strides)
			f.reach.uses[name] = append(f.reach.uses[name], fakeTouch{
				lo: uintptr(o.Addr), hi: uintptr(o.Addr) + uintptr((last+1)*o.DType.Size()), write: i == len(all)-1})
		}
	}
}

// launched checks what a kernel uses.
func (f *fakeGPU) launched(stream uintptr, uses []fakeTouch) {
	for _, u := range uses {
		f.check(stream, u.lo)
		f.inOrder(stream, u)
	}
}

// fakeOrder finds copies and kernels that touch the same bytes, one of them to write, with
// nothing that says which comes first: neither a stream's order nor a wait for an
// event. It has a clock for each stream: how much it knows to be done of each.
type fakeOrder struct {
	clocks, events map[uintptr]map[uintptr]int
	log            []fakeTouch
}

type fakeTouch struct {
	lo, hi, stream uintptr
	tick           int
	write          bool
}

func newFakeOrder() *fakeOrder {
	return &fakeOrder{clocks: map[uintptr]map[uintptr]int{}, events: map[uintptr]map[uintptr]int{}}
}

func (o *fakeOrder) clock(stream uintptr) map[uintptr]int {
	if o.clocks[stream] == nil {
		o.clocks[stream] = map[uintptr]int{}
	}
	return o.clocks[stream]
}

// touch notes that a stream reads or writes bytes, and reports whether that comes in
// an order with all others.
func (o *fakeOrder) touch(stream uintptr, now fakeTouch) bool {
	c := o.clock(stream)
	c[stream]++
	now.stream, now.tick = stream, c[stream]
	ordered := !slices.ContainsFunc(o.log, func(t fakeTouch) bool {
		return t.lo < now.hi && now.lo < t.hi && (t.write || now.write) && c[t.stream] < t.tick
	})
	o.log = append(o.log, now)
	return ordered
}

func (o *fakeOrder) record(event, stream uintptr) { o.events[event] = maps.Clone(o.clock(stream)) }

func (o *fakeOrder) wait(stream, event uintptr) {
	c := o.clock(stream)
	for s, tick := range o.events[event] {
		c[s] = max(c[s], tick)
	}
}

// inOrder complains of what comes in no order with something before.
func (f *fakeGPU) inOrder(stream uintptr, touches ...fakeTouch) {
	for _, t := range touches {
		if f.order != nil && !f.order.touch(stream, t) {
			f.Errorf("%d bytes are used (write: %v) in no order with another use", t.hi-t.lo, t.write)
		}
	}
}
