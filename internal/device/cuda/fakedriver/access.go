package fakedriver

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// Access records which memory each device of a fake driver may access. A copy or kernel that uses memory to which its
// device was not given access fails the test.
type Access struct {
	Apart   func(a, b int32) bool     // reports pairs between which the driver reports no peer access
	Refuses func(a, b int32) bool     // reports pairs between which the driver reports peer access, but refuses to grant it
	Mangles func(from, to int32) bool // reports pairs between which copies deliver wrong data
	created map[uintptr]int32         // by handle of device memory: the device that owns it
	ranges  map[uintptr]*Mapping      // mapped memory, by address
	current map[int]int32             // by thread: the device of the current context
	streams map[uintptr]int32
	uses    map[string][]use  // operands of kernels, by name
	usedBy  map[uintptr][]use // by function: operands of kernels
}

// Mapping is a mapped range of a device's memory.
type Mapping struct {
	Bytes  uintptr
	Owner  int32
	Access map[int32]bool
}

func newAccess() Access {
	never := func(a, b int32) bool { return false }
	return Access{Apart: never, Refuses: never, Mangles: never, created: map[uintptr]int32{},
		ranges:  map[uintptr]*Mapping{},
		streams: map[uintptr]int32{}, current: map[int]int32{}, uses: map[string][]use{}, usedBy: map[uintptr][]use{}}
}

// firstContext is the handle of device 0's context. The contexts of the other devices have consecutive handles.
const firstContext = 7

// Of returns the mapping that contains an address; nil for host memory.
func (r *Access) Of(at uintptr) *Mapping {
	for base, m := range r.ranges {
		if at >= base && at < base+m.Bytes {
			return m
		}
	}
	return nil
}

// Mapped returns the number of bytes of a device's memory that are mapped.
func (r *Access) Mapped(owner int32) int64 {
	n := int64(0)
	for _, m := range r.ranges {
		if m.Owner == owner {
			n += int64(m.Bytes)
		}
	}
	return n
}

// deviceOf returns the device of a stream. The null stream is on the device of the current context.
func (f *GPU) deviceOf(stream uintptr) int32 {
	if stream == 0 {
		return f.Reach.current[thread()]
	}
	return f.Reach.streams[stream]
}

// check fails the test if the stream's device may not access the memory.
func (f *GPU) check(stream uintptr, at ...uintptr) {
	dev := f.deviceOf(stream)
	for _, a := range at {
		if m := f.Reach.Of(a); m != nil && !m.Access[dev] {
			f.Errorf("device %d uses memory of device %d, to which it has no access", dev, m.Owner)
		}
	}
}

// copied checks that a copy of n bytes has access to both its operands.
func (f *GPU) copied(dst, src uintptr, n int) {
	copy(cabi.Bytes(dst, n), cabi.Bytes(src, n))
	if a, b := f.Reach.Of(src), f.Reach.Of(dst); a != nil && b != nil && f.Reach.Mangles(a.Owner, b.Owner) && n > 0 {
		cabi.Bytes(dst, n)[n/2] ^= 1
	}
}

// grant implements cuMemSetAccess. The arguments a are an address, a length, a list with 12 bytes per device, and the
// number of devices.
func (f *GPU) grant(a []uintptr) uintptr {
	m := f.Reach.ranges[a[0]]
	for i := range a[3] {
		dev := cabi.Load[[3]int32](a[2] + 12*i)[1]
		if dev != m.Owner && (f.Reach.Apart(dev, m.Owner) || f.Reach.Refuses(dev, m.Owner)) {
			return 801 // not supported
		}
		m.Access[dev] = true
	}
	return 0
}

// operands records which memory the kernel of that name reads and writes.
func (f *GPU) operands(name string, p kernels.Problem) {
	var all []kernels.Operand
	written := -1 // index of an operand that the kernel also writes; -1 for none
	results := 1  // number of results, which are the last elements of all
	switch p := p.(type) {
	case kernels.Computation:
		all, results = append(slices.Concat(p.Ins, p.Stored), p.Out), 1+len(p.Stored)
		if op, ok := p.Op.(device.Quantize); ok && op.Max != 0 {
			written = 1
		}
	case kernels.Skinny:
		all = append(slices.Clone(p.Ins), p.Out)
	case kernels.Transfer:
		all = []kernels.Operand{p.In, p.Out}
	}
	for i, o := range all {
		if o.Addr != 0 && !slices.Contains(o.Shape, 0) {
			last, _ := device.LastElement(o.Shape, o.Strides)
			f.Reach.uses[name] = append(f.Reach.uses[name], use{
				lo: uintptr(o.Addr), hi: uintptr(o.Addr) + uintptr((last+1)*o.DType.Size()), write: i >= len(all)-results || i == written})
		}
	}
}

// launched checks access to the memory that a kernel uses.
func (f *GPU) launched(stream uintptr, uses []use) {
	for _, u := range uses {
		f.check(stream, u.lo)
		f.inOrder(stream, u)
	}
}

// Order finds races between copies and kernels: two that access the same bytes, at least one of them writing, without
// an order between them by a stream or an event. Order keeps a vector clock per stream, which holds the latest
// operation of each other stream that is known to be complete.
type Order struct {
	clocks, events map[uintptr]map[uintptr]int
	log            []use
}

type use struct {
	lo, hi, stream uintptr
	tick           int
	write          bool
}

func NewOrder() *Order {
	return &Order{clocks: map[uintptr]map[uintptr]int{}, events: map[uintptr]map[uintptr]int{}}
}

func (o *Order) clock(stream uintptr) map[uintptr]int {
	if o.clocks[stream] == nil {
		o.clocks[stream] = map[uintptr]int{}
	}
	return o.clocks[stream]
}

// touch records that a stream reads or writes bytes, and reports whether this is ordered with respect to all earlier
// accesses.
func (o *Order) touch(stream uintptr, now use) bool {
	c := o.clock(stream)
	c[stream]++
	now.stream, now.tick = stream, c[stream]
	ordered := !slices.ContainsFunc(o.log, func(t use) bool {
		return t.lo < now.hi && now.lo < t.hi && (t.write || now.write) && c[t.stream] < t.tick
	})
	o.log = append(o.log, now)
	return ordered
}

func (o *Order) record(event, stream uintptr) { o.events[event] = maps.Clone(o.clock(stream)) }

func (o *Order) wait(stream, event uintptr) {
	c := o.clock(stream)
	for s, tick := range o.events[event] {
		c[s] = max(c[s], tick)
	}
}

// inOrder fails the test if the access u is not ordered with respect to an earlier one.
func (f *GPU) inOrder(stream uintptr, touches ...use) {
	for _, t := range touches {
		if f.Order != nil && !f.Order.touch(stream, t) {
			f.Errorf("%d bytes are used (write: %v) in no order with another use", t.hi-t.lo, t.write)
		}
	}
}
