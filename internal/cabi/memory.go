package cabi

import (
	"strings"
	"sync/atomic"
	"unsafe"
)

// Block is zeroed Go memory that stays where it is until Free, for structures
// that hold pointers and for what C reads again and again. It is aligned to 16
// bytes. It is on the heap, whose objects Go does not move; whoever passes an
// address of it to C must keep the Block itself reachable.
type Block struct {
	words []uint64
	skip  int // words before the first aligned one
	size  int
}

// NewBlock makes a block of size bytes.
func NewBlock(size int) *Block {
	b := &Block{words: make([]uint64, (size+7)/8+2), size: size}
	if uintptr(unsafe.Pointer(&b.words[0]))&15 != 0 {
		b.skip = 1
	}
	return b
}

// Addr returns the address of byte off.
func (b *Block) Addr(off int) uintptr {
	return uintptr(unsafe.Pointer(&b.words[b.skip])) + uintptr(off)
}

// Bytes returns the block's memory.
func (b *Block) Bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&b.words[b.skip])), b.size)
}

// Free lets the memory go; nothing may use its addresses any more.
func (b *Block) Free() { b.words, b.size = nil, 0 }

// pointer turns an address that C gave into a pointer. It goes through memory
// because vet takes a conversion for a mistake: in all other packages it is.
// Go 1.26's compiler breaks down over it where it is inlined.
//
//go:noinline
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// Bytes returns n bytes at an address that is not the Go heap's: memory that a
// C library allocated, or a Block's. They are gone when the owner frees them.
func Bytes(addr uintptr, n int) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(addr)), n)
}

// Load reads a value at an address, as Bytes.
func Load[T any](addr uintptr) T { return *(*T)(pointer(addr)) }

// StoreAtomic stores a word that others store or load at the same time.
func StoreAtomic(addr uintptr, v uint64) { atomic.StoreUint64((*uint64)(pointer(addr)), v) }

// LoadAtomic loads a word that others store at the same time.
func LoadAtomic(addr uintptr) uint64 { return atomic.LoadUint64((*uint64)(pointer(addr))) }

// Store writes a value to an address, as Bytes.
func Store[T any](addr uintptr, v T) { *(*T)(pointer(addr)) = v }

// GoString copies the C string at addr; "" for a null pointer.
func GoString(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	n := 0
	for Load[byte](addr+uintptr(n)) != 0 {
		n++
	}
	return string(Bytes(addr, n))
}

// CString returns s with the byte 0 behind it; what follows a byte 0 within s
// is cut off. Pass its first element's address.
func CString(s string) []byte {
	s, _, _ = strings.Cut(s, "\x00")
	return append([]byte(s), 0)
}

// CStrings is an array of C strings (char**), with a null pointer at its end.
type CStrings struct{ block *Block }

// NewCStrings builds the array.
func NewCStrings(list []string) *CStrings {
	size := 8 * (len(list) + 1)
	for _, s := range list {
		size += len(s) + 1
	}
	b := NewBlock(size)
	at := 8 * (len(list) + 1)
	for i, s := range list {
		Store(b.Addr(8*i), b.Addr(at))
		at += copy(b.Bytes()[at:], CString(s))
	}
	return &CStrings{b}
}

// Addr returns the array's address.
func (c *CStrings) Addr() uintptr { return c.block.Addr(0) }

// Free lets the array go.
func (c *CStrings) Free() { c.block.Free() }
