package fakedriver

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// Access is which device of a fake may use what memory: a copy or a kernel that
// uses what its device was given no access to is an error.
type Access struct {
	Apart   func(a, b int32) bool     // the driver gives no access
	Refuses func(a, b int32) bool     // gives no access in spite of its word
	Mangles func(from, to int32) bool // copies come out wrong
	created map[uintptr]int32         // devices, by handle
	ranges  map[uintptr]*Mapping      // mapped memory, by address
	current map[int]int32             // by thread: the device whose context is
	streams map[uintptr]int32
	uses    map[string][]use  // operands of kernels, by name
	usedBy  map[uintptr][]use // by function
}

// Mapping is mapped memory of a device.
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

// firstContext is the context of device 0; those of others follow.
const firstContext = 7

// Of returns the device memory that an address is in; nil for the host's.
func (r *Access) Of(at uintptr) *Mapping {
	for base, m := range r.ranges {
		if at >= base && at < base+m.Bytes {
			return m
		}
	}
	return nil
}

// Mapped is how much memory of a device is, in bytes.
func (r *Access) Mapped(owner int32) int64 {
	n := int64(0)
	for _, m := range r.ranges {
		if m.Owner == owner {
			n += int64(m.Bytes)
		}
	}
	return n
}

// deviceOf is the device of a stream; of the null stream that whose context is current.
func (f *GPU) deviceOf(stream uintptr) int32 {
	if stream == 0 {
		return f.Reach.current[thread()]
	}
	return f.Reach.streams[stream]
}

// check complains of memory that the device of a stream may not use.
func (f *GPU) check(stream uintptr, at ...uintptr) {
	dev := f.deviceOf(stream)
	for _, a := range at {
		if m := f.Reach.Of(a); m != nil && !m.Access[dev] {
			f.Errorf("device %d uses memory of device %d, to which it has no access", dev, m.Owner)
		}
	}
}

// copied is a copy of n bytes.
func (f *GPU) copied(dst, src uintptr, n int) {
	copy(cabi.Bytes(dst, n), cabi.Bytes(src, n))
	if a, b := f.Reach.Of(src), f.Reach.Of(dst); a != nil && b != nil && f.Reach.Mangles(a.Owner, b.Owner) && n > 0 {
		cabi.Bytes(dst, n)[n/2] ^= 1
	}
}

// grant is cuMemSetAccess: of an address, its length, a list of 12 bytes a device, and
// its length.
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

// operands notes which memory a kernel uses.
func (f *GPU) operands(name string, p kernels.Problem) {
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
			f.Reach.uses[name] = append(f.Reach.uses[name], use{
				lo: uintptr(o.Addr), hi: uintptr(o.Addr) + uintptr((last+1)*o.DType.Size()), write: i == len(all)-1})
		}
	}
}

// launched checks what a kernel uses.
func (f *GPU) launched(stream uintptr, uses []use) {
	for _, u := range uses {
		f.check(stream, u.lo)
		f.inOrder(stream, u)
	}
}

// Order finds copies and kernels that touch the same bytes, one of them to write, with
// nothing that says which comes first: neither a stream's order nor a wait for an
// event. It has a clock for each stream: how much it knows to be done of each.
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

// touch notes that a stream reads or writes bytes, and reports whether that comes in
// an order with all others.
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

// inOrder complains of what comes in no order with something before.
func (f *GPU) inOrder(stream uintptr, touches ...use) {
	for _, t := range touches {
		if f.Order != nil && !f.Order.touch(stream, t) {
			f.Errorf("%d bytes are used (write: %v) in no order with another use", t.hi-t.lo, t.write)
		}
	}
}
