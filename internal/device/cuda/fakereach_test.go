package cuda

import (
	"slices"

	"hocket.example/hocket/internal/cabi"
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
	current int32                     // whose context is
	streams map[uintptr]int32
	uses    map[string][]uintptr  // operands of kernels, by name
	usedBy  map[uintptr][]uintptr // by function
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
		streams: map[uintptr]int32{}, uses: map[string][]uintptr{}, usedBy: map[uintptr][]uintptr{}}
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

// check complains of memory that the device of a stream may not use.
func (f *fakeGPU) check(stream uintptr, at ...uintptr) {
	dev := f.reach.current
	if stream != 0 {
		dev = f.reach.streams[stream]
	}
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
	for _, o := range append(slices.Clone(p.Ins), p.Out) {
		if o.Addr != 0 && !slices.Contains(o.Shape, 0) {
			f.reach.uses[name] = append(f.reach.uses[name], uintptr(o.Addr))
		}
	}
}
