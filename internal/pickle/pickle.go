// Package pickle decodes Python pickles, protocols 2 to 5, into plain data. It executes nothing: an
// import or a call in a pickle becomes an Object that names it.
package pickle

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"hocket.example/hocket/internal/names"
)

// Limits bound what Decode accepts. A zero field means its default.
type Limits struct {
	Bytes  int64 // largest size of the pickle in bytes; default 256 MiB
	Memory int64 // largest size of its values in memory in bytes; default 512 MiB
}

// Values are nil, bool, int64, *big.Int if int64 is too small, float64, string, []byte, *Tuple, *List, *Dict, *Set and
// *Object. Values of the last five types may occur several times, and may contain themselves, to any depth. Do not
// print or traverse a value without a bound.
type (
	// Tuple is a tuple.
	Tuple struct{ Items []any }
	// List is a list.
	List struct{ Items []any }
	// Set is a set or a frozenset, in the order of the pickle, with duplicates.
	Set struct{ Items []any }
	// Dict is a dict in the order of the pickle. If a key occurs several times, its last value is
	// valid.
	Dict struct {
		Keys, Values []any

		index map[string]int // in long dicts: maps a string key to its index
		of    int            // number of keys in the index
	}
	// Object is the result of an import, or of a call of an imported function or class.
	Object struct {
		Module, Name string
		Called       bool
		Args         *Tuple // arguments of the call; nil if it was not called
		State        any    // argument of __setstate__
		Items        List   // items that Python would append or add to the object
		Entries      Dict   // entries that Python would set in the object by key
	}
)

// Get returns the value of a key, or nil if it is missing. It must not be called concurrently.
func (d *Dict) Get(key string) any {
	const short = 32
	if len(d.Keys) > short {
		if d.of != len(d.Keys) {
			d.index, d.of = map[string]int{}, len(d.Keys)
			for i, k := range d.Keys {
				if text, ok := k.(string); ok {
					d.index[text] = i
				}
			}
		}
		if i, ok := d.index[key]; ok {
			return d.Values[i]
		}
		return nil
	}
	for i := len(d.Keys) - 1; i >= 0; i-- {
		if d.Keys[i] == any(key) {
			return d.Values[i]
		}
	}
	return nil
}

// Brief describes a value in a few words, for messages.
func Brief(v any) string {
	const most = 64
	switch v := v.(type) {
	case nil:
		return "None"
	case bool, int64, float64:
		return fmt.Sprint(v)
	case string:
		if len(v) > most {
			return fmt.Sprintf("%q…", v[:most])
		}
		return strconv.Quote(v)
	case *big.Int:
		return fmt.Sprintf("an integer of %d bits", v.BitLen())
	case []byte:
		return fmt.Sprintf("%d bytes", len(v))
	case *Tuple:
		return fmt.Sprintf("a tuple of %d", len(v.Items))
	case *List:
		return fmt.Sprintf("a list of %d", len(v.Items))
	case *Set:
		return fmt.Sprintf("a set of %d", len(v.Items))
	case *Dict:
		return fmt.Sprintf("a dict of %d", len(v.Keys))
	case *Object:
		return names.Quoted(fmt.Sprintf("an object of %s.%s", v.Module[:min(len(v.Module), most)],
			v.Name[:min(len(v.Name), most)]))
	}
	return fmt.Sprintf("%T", v)
}

// ErrLimit is wrapped by errors about pickles that exceed the limits.
var ErrLimit = errors.New("beyond the limit")

// Decode reads one pickle.
func Decode(r io.Reader, l Limits) (any, error) {
	if l.Bytes <= 0 {
		l.Bytes = 256 << 20
	}
	if l.Memory <= 0 {
		l.Memory = 512 << 20
	}
	d := &decoder{r: bufio.NewReaderSize(r, 1<<16), limits: l, sparse: map[uint64]any{}}
	at := int64(0)
	for {
		at = d.offset
		op, err := d.byte()
		if err == nil && op == opStop {
			return d.result()
		}
		if err == nil {
			err = d.step(op)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("pickle: offset %d: %w", at, err)
		}
	}
}

// decoder is a stack machine with a memo.
type decoder struct {
	r      *bufio.Reader
	limits Limits
	offset int64
	taken  int64 // size in memory of the values so far, in bytes
	begun  bool
	stack  []any
	marks  []int // for each mark, the height of the stack when the mark was pushed

	memo   []kept         // memo entries with consecutive keys
	sparse map[uint64]any // memo entries with other keys
	kept   int            // number of entries in memo and sparse

	tuples  slab[Tuple]
	lists   slab[List]
	sets    slab[Set]
	dicts   slab[Dict]
	objects slab[Object]
	items   slab[any]
}

// kept is an entry of the memo.
type kept struct {
	v   any
	set bool
}

// These constants are sizes of values in bytes. A value occupies another 16 bytes in its container and 16 on the stack.
const (
	sizeHeld   = 32
	sizeItem   = 16
	sizeNumber = 8
	sizeMark   = 8
	sizeKept   = 64
	sizeSparse = 96
	sizeList   = 24 // size of a list, a tuple or a set
	sizeDict   = 64
	sizeObject = 192
)

// slab allocates values in blocks. This saves time in the allocator and in the garbage collector, for any nesting of
// values.
type slab[T any] struct {
	free []T
	size int // size of the last block
}

// take returns n zero values; nil if n is 0.
func (s *slab[T]) take(n int) []T {
	const least, most = 16, 4096
	switch {
	case n == 0:
		return nil
	case n >= most:
		return make([]T, n)
	case n > len(s.free):
		s.size = min(max(2*s.size, least, n), most)
		s.free = make([]T, s.size)
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

func (s *slab[T]) new() *T { return &s.take(1)[0] }

func (d *decoder) result() (any, error) {
	v, err := d.pop()
	if err == nil && (len(d.stack) > 0 || len(d.marks) > 0) {
		err = errors.New("values are left on the stack when it stops")
	}
	if err != nil {
		return nil, fmt.Errorf("pickle: offset %d: %w", d.offset, err)
	}
	return v, nil
}

// count adds n to the memory used by values, and returns an error if it exceeds the limit.
func (d *decoder) count(n int64) error {
	if d.taken += n; d.taken > d.limits.Memory {
		return fmt.Errorf("its values take more than %d bytes of memory: %w", d.limits.Memory, ErrLimit)
	}
	return nil
}

func (d *decoder) byte() (byte, error) {
	if d.offset >= d.limits.Bytes {
		return 0, fmt.Errorf("more than %d bytes: %w", d.limits.Bytes, ErrLimit)
	}
	b, err := d.r.ReadByte()
	if err == nil {
		d.offset++
	}
	return b, err
}

// bytes reads n bytes. It allocates memory while it reads, because the input may be shorter than n bytes.
func (d *decoder) bytes(n uint64) ([]byte, error) {
	if n > uint64(d.limits.Bytes-d.offset) {
		return nil, fmt.Errorf("a value of %d bytes is longer than the rest of a pickle may be: %w", n, ErrLimit)
	}
	const atOnce = 1 << 20
	out := make([]byte, 0, min(n, atOnce))
	for uint64(len(out)) < n {
		have := len(out)
		out = append(out, make([]byte, min(n-uint64(have), atOnce))...)
		read, err := io.ReadFull(d.r, out[have:])
		d.offset += int64(read)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// uint reads a little-endian number of size bytes.
func (d *decoder) uint(size int) (uint64, error) {
	var b [8]byte
	for i := range size {
		var err error
		if b[i], err = d.byte(); err != nil {
			return 0, err
		}
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// sized reads a length, which is a number of size bytes, and then that many bytes.
func (d *decoder) sized(size int) ([]byte, error) {
	n, err := d.uint(size)
	if err != nil {
		return nil, err
	}
	return d.bytes(n)
}

func (d *decoder) line() (string, error) {
	var b strings.Builder
	for {
		c, err := d.byte()
		if err != nil || c == '\n' {
			return b.String(), err
		}
		b.WriteByte(c)
	}
}

// maxStack is the largest height of the stack. Python writes lists and dicts in batches of 1000
// values, and its recursion limit bounds their nesting.
const maxStack = 1 << 20

// push pushes a value that occupies the given number of bytes.
func (d *decoder) push(v any, bytes int64) error {
	if len(d.stack) == maxStack {
		return fmt.Errorf("more than %d values on the stack: %w", maxStack, ErrLimit)
	}
	d.stack = append(d.stack, v)
	return d.count(sizeHeld + bytes)
}

var errStack = errors.New("it pops more values than the stack has")

// floor is the height of the stack at the last mark. Values below it must not be popped.
func (d *decoder) floor() int {
	if len(d.marks) == 0 {
		return 0
	}
	return d.marks[len(d.marks)-1]
}

func (d *decoder) top() (any, error) {
	if len(d.stack) <= d.floor() {
		return nil, errStack
	}
	return d.stack[len(d.stack)-1], nil
}

func (d *decoder) pop() (any, error) {
	v, err := d.top()
	if err == nil {
		d.stack = d.stack[:len(d.stack)-1]
	}
	return v, err
}

// popN pops n values. The returned slice is valid until the next push.
func (d *decoder) popN(n int) ([]any, error) {
	if len(d.stack)-n < d.floor() {
		return nil, errStack
	}
	at := len(d.stack) - n
	out := d.stack[at:]
	d.stack = d.stack[:at]
	return out, nil
}

// popMark pops the values above the last mark; see popN.
func (d *decoder) popMark() ([]any, error) {
	if len(d.marks) == 0 {
		return nil, errors.New("it pops values up to a mark, but the stack has no mark")
	}
	at := d.floor()
	out := d.stack[at:]
	d.stack = d.stack[:at]
	d.marks = d.marks[:len(d.marks)-1]
	return out, nil
}

func text(b []byte) (any, error) {
	if !utf8.Valid(b) {
		return strings.ToValidUTF8(string(b), "\uFFFD"), nil // Python strings may contain lone surrogates
	}
	return string(b), nil
}

// integer decodes a little-endian number in two's complement.
func integer(b []byte) any {
	if len(b) <= 8 {
		var v uint64
		for i, c := range b {
			v |= uint64(c) << (8 * i)
		}
		if n := len(b); n > 0 && n < 8 && b[n-1] >= 0x80 {
			v |= math.MaxUint64 << (8 * n)
		}
		return int64(v)
	}
	rev := make([]byte, len(b))
	for i, c := range b {
		rev[len(b)-1-i] = c
	}
	v := new(big.Int).SetBytes(rev)
	if rev[0] >= 0x80 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	if v.IsInt64() {
		return v.Int64()
	}
	return v
}
