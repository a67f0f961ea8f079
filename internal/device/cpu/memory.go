package cpu

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"hocket.example/hocket/internal/device"
	procs "hocket.example/hocket/internal/world"
)

// alignment is the alignment of every allocation, in bytes.
const alignment = 256

// poison is the pattern of memory that was never written. An element at an even offset is then a NaN in f16, bf16,
// f32 and f64, and a large number in i32 and i64.
var poison = [2]byte{0xff, 0x7f}

// memory is a block of one device's memory.
type memory struct {
	dev   *dev
	kind  device.MemKind
	bytes int64
	data  []byte // bytes of the memory; nil if it belongs to a device of another process and is not shared
	freed atomic.Bool
	from  *memory        // the memory of another world from which this memory was borrowed; nil if it was not borrowed
	seg   *procs.Segment // segment that contains data; nil for memory of this process only
}

func newMemory(d *dev, bytes int64, kind device.MemKind) *memory {
	m := &memory{dev: d, kind: kind, bytes: bytes, data: alignedBytes(bytes)}
	if d.w.scheduled() {
		m.Poison(0, bytes)
	}
	return m
}

func alignedBytes(n int64) []byte {
	raw := make([]byte, n+alignment)
	skip := -uintptr(unsafe.Pointer(&raw[0])) & (alignment - 1)
	return raw[skip : int64(skip)+n : int64(skip)+n]
}

func (m *memory) Bytes() int64 { return m.bytes }

// Address implements device.Memory.
func (m *memory) Address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(m.data))) }

// Host implements device.Memory.
func (m *memory) Host() []byte { return m.data }

func (m *memory) Free() error {
	w := m.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == errClosed {
		return w.err()
	}
	if m.freed.Swap(true) {
		return m.dev.errorf("memory of %d bytes was freed twice", m.bytes)
	}
	if m.from != nil {
		return nil
	}
	delete(m.dev.mems, m)
	m.unmap()
	if m.dev.foreign {
		return nil
	}
	m.dev.used -= m.Bytes()
	m.dev.w.m.held.Add(-m.Bytes())
	if w.scheduled() {
		m.Poison(0, m.Bytes())
	}
	return nil
}

// Borrow implements device.Device.
func (d *dev) Borrow(lent device.Memory) (device.Memory, error) {
	if err := d.w.check(); err != nil {
		return nil, err
	}
	m, ok := lent.(*memory)
	if !ok || m == nil || m.dev.w.m != d.w.m || m.dev.rank != d.rank || m.kind == device.Pinned {
		return nil, d.errorf("cannot borrow memory of another device: %w", device.ErrUnsupported)
	}
	if m.freed.Load() {
		return nil, d.errorf("cannot borrow memory that was freed")
	}
	return &memory{dev: d, kind: device.Private, bytes: m.bytes, data: m.data, from: m}, nil
}

var (
	_ device.Device = (*dev)(nil)
	_ device.Memory = (*memory)(nil)
)

// Poison fills the bytes [off, off+n) with the pattern of unwritten memory. It ignores bytes outside the memory.
func (m *memory) Poison(off, n int64) {
	lo := min(max(off, 0), m.Bytes())
	hi := lo
	if n > 0 {
		hi = lo + min(n, m.Bytes()-lo)
	}
	b := m.data[lo:hi]
	for i := range min(2, len(b)) {
		b[i] = poison[(lo+int64(i))&1]
	}
	for done := 2; done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// resolve checks a view and returns a ref to its elements. The view may be of a peer's memory only if peers is set
// and the memory is shared.
func (d *dev) resolve(v device.View, peers bool) (ref, error) {
	m, ok := v.Mem.(*memory)
	if !ok || m == nil || m.dev.w != d.w {
		return ref{}, fmt.Errorf("the view is of memory that does not belong to this world")
	}
	if m.freed.Load() || m.from != nil && m.from.freed.Load() {
		return ref{}, fmt.Errorf("the view is of memory that was freed")
	}
	if err := device.MayUse(d.rank, m.dev.rank, m.kind, peers); err != nil {
		return ref{}, err
	}
	if err := m.dev.reach(d); err != nil {
		return ref{}, err
	}
	return m.view(v)
}

// view checks that v is inside m, and returns a ref to its elements.
func (m *memory) view(v device.View) (ref, error) {
	n, err := v.Within(m.Bytes())
	if err != nil {
		return ref{}, err
	}
	r := ref{mem: m, off: v.Off, dt: v.DType, n: n, dims: []dim{{0, 1}}, shape: v.Shape, strides: v.Strides}
	if n > 0 {
		r.dims = collapse(v.Shape, v.Strides)
	}
	return r, nil
}

// as returns bytes as a slice of elements. b must be aligned for the elements, and its length must be a multiple of
// their size.
func as[T any](b []byte) []T {
	var e T
	n := len(b) / int(unsafe.Sizeof(e))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

func alignedFor(b []byte, size int64) bool {
	return len(b) == 0 || uintptr(unsafe.Pointer(&b[0]))%uintptr(size) == 0
}
