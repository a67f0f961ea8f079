package cabi

import (
	"strings"
	"sync/atomic"
	"unsafe"
)

// Block is zeroed Go memory that keeps its address until Free. It is used for structures that contain pointers, and
// for memory that C reads repeatedly. It is aligned to 16 bytes. It is allocated on the heap, and Go does not move
// objects of the heap. A caller that passes an address in the Block to C must keep the Block reachable.
type Block struct {
	words []uint64
	skip  int // number of words before the first aligned word
	size  int
}

// NewBlock returns a block of size bytes.
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

// Free releases the memory. The block's addresses must not be used afterwards.
func (b *Block) Free() { b.words, b.size = nil, 0 }

// pointer converts an address that C has returned to a pointer. It converts through memory because go vet reports a
// direct conversion, which is indeed a mistake in all other packages. The function must not be inlined, because Go
// 1.26's compiler fails on the inlined code.
//
//go:noinline
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// Bytes returns n bytes at an address outside the Go heap, or in a Block: memory that a C library has allocated, for
// example. The bytes are valid until the owner frees them.
func Bytes(addr uintptr, n int) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(pointer(addr)), n)
}

// Load reads a value at an address. See Bytes for the permitted addresses.
func Load[T any](addr uintptr) T { return *(*T)(pointer(addr)) }

// StoreAtomic stores a word that other threads may store or load at the same time.
func StoreAtomic(addr uintptr, v uint64) { atomic.StoreUint64((*uint64)(pointer(addr)), v) }

// LoadAtomic loads a word that other threads may store at the same time.
func LoadAtomic(addr uintptr) uint64 { return atomic.LoadUint64((*uint64)(pointer(addr))) }

// Store writes a value to an address. See Bytes for the permitted addresses.
func Store[T any](addr uintptr, v T) { *(*T)(pointer(addr)) = v }

// GoString returns a copy of the C string at addr, or "" if addr is a null pointer.
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

// CString returns s followed by a zero byte. If s contains a zero byte, it is cut there. Pass the address of the first
// element to C.
func CString(s string) []byte {
	s, _, _ = strings.Cut(s, "\x00")
	return append([]byte(s), 0)
}

// CStrings is an array of C strings (char**), with a null pointer at its end.
type CStrings struct{ block *Block }

// NewCStrings builds an array from the strings in list.
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

// Addr returns the address of the array.
func (c *CStrings) Addr() uintptr { return c.block.Addr(0) }

// Free releases the array.
func (c *CStrings) Free() { c.block.Free() }
