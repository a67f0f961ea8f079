// Package pickle decodes Python's pickles, protocols 2 to 5, into plain data. It executes
// nothing: what a pickle would import or call becomes an Object that says so.
package pickle

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// Limits bound what Decode accepts. A zero field has its default.
type Limits struct {
	Bytes  int64 // of the pickle; 256 MiB
	Values int   // that it makes; 8 million, of some 100 bytes each
}

// Values are nil, bool, int64, *big.Int where int64 is too small, float64, string,
// []byte, Tuple, *List, *Dict, *Set and *Object. Lists, dicts, sets and objects may be
// shared, and may contain themselves.
type (
	// Tuple is a tuple.
	Tuple []any
	// List is a list.
	List struct{ Items []any }
	// Set is a set or a frozenset, in the order of the pickle, repetitions included.
	Set struct{ Items []any }
	// Dict is a dict in the order of the pickle. A key may be there several times, the
	// last of which counts.
	Dict struct{ Keys, Values []any }
	// Object is what an import would find, or what calling it would return.
	Object struct {
		Module, Name string
		Called       bool
		Args         Tuple // of the call
		State        any   // what __setstate__ would get
		Items        List  // what would be appended to it, or added
		Entries      Dict  // what would be set in it by key
	}
)

// Get returns the value of a key; nil where there is none.
func (d *Dict) Get(key string) any {
	for i := len(d.Keys) - 1; i >= 0; i-- {
		if d.Keys[i] == any(key) {
			return d.Values[i]
		}
	}
	return nil
}

// ErrLimit is wrapped by errors about pickles beyond the limits.
var ErrLimit = errors.New("beyond the limit")

// Decode reads one pickle.
func Decode(r io.Reader, l Limits) (any, error) {
	if l.Bytes <= 0 {
		l.Bytes = 256 << 20
	}
	if l.Values <= 0 {
		l.Values = 8 << 20
	}
	d := &decoder{r: bufio.NewReader(r), limits: l, memo: map[uint64]any{}}
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

// decoder is a machine with a stack of values and a memo.
type decoder struct {
	r      *bufio.Reader
	limits Limits
	offset int64
	values int // made so far
	begun  bool
	stack  []any
	marks  []int // heights of the stack
	memo   map[uint64]any
}

func (d *decoder) result() (any, error) {
	v, err := d.pop()
	if err == nil && (len(d.stack) > 0 || len(d.marks) > 0) {
		err = errors.New("values are left when it stops")
	}
	if err != nil {
		return nil, fmt.Errorf("pickle: offset %d: %w", d.offset, err)
	}
	return v, nil
}

func (d *decoder) count(n int) error {
	if d.values += n; d.values > d.limits.Values {
		return fmt.Errorf("more than %d values: %w", d.limits.Values, ErrLimit)
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

// bytes reads n bytes. It allocates as they come, since n may be a lie.
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

// uint reads a little-endian number of so many bytes.
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

// sized reads a string of bytes after its length, a number of so many bytes.
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

func (d *decoder) push(v any) error {
	d.stack = append(d.stack, v)
	return d.count(1)
}

var errStack = errors.New("it takes a value that is not there")

// floor is the height of the stack below which the last mark forbids to take values.
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

func (d *decoder) popN(n int) ([]any, error) {
	if len(d.stack)-n < d.floor() {
		return nil, errStack
	}
	at := len(d.stack) - n
	out := append([]any(nil), d.stack[at:]...)
	d.stack = d.stack[:at]
	return out, nil
}

func (d *decoder) popMark() ([]any, error) {
	if len(d.marks) == 0 {
		return nil, errors.New("it takes values to a mark that is not there")
	}
	at := d.floor()
	out := append([]any(nil), d.stack[at:]...)
	d.stack = d.stack[:at]
	d.marks = d.marks[:len(d.marks)-1]
	return out, nil
}

func text(b []byte) (any, error) {
	if !utf8.Valid(b) {
		return strings.ToValidUTF8(string(b), "\uFFFD"), nil // Python's lone surrogates
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
