package footprint

import (
	"bufio"
	"encoding/binary"
)

// fields is a dict in order; tuple a tuple.
type (
	fields []field
	field  struct {
		key   string
		value any
	}
	tuple []any
)

// pickler writes plain data by protocol 2. The writer keeps the first error.
type pickler struct{ w *bufio.Writer }

func (k *pickler) bytes(b ...byte) { _, _ = k.w.Write(b) }

// batch is the most entries that one opcode adds: the viewer spreads them over arguments.
const batch = 500

func (k *pickler) value(v any) {
	switch v := v.(type) {
	case string:
		k.bytes(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(v)))...)
		_, _ = k.w.WriteString(v)
	case int64:
		if v == int64(int32(v)) {
			k.bytes(binary.LittleEndian.AppendUint32([]byte{'J'}, uint32(v))...)
			return
		}
		k.bytes(0x8a, 8)
		k.bytes(binary.LittleEndian.AppendUint64(nil, uint64(v))...)
	case bool:
		if v {
			k.bytes(0x88)
		} else {
			k.bytes(0x89)
		}
	case tuple:
		k.bytes('(')
		for _, x := range v {
			k.value(x)
		}
		k.bytes('t')
	case []any:
		k.bytes(']')
		for len(v) > 0 {
			n := min(len(v), batch)
			k.bytes('(')
			for _, x := range v[:n] {
				k.value(x)
			}
			k.bytes('e')
			v = v[n:]
		}
	case fields:
		k.bytes('}')
		if len(v) > 0 {
			k.bytes('(')
			for _, f := range v {
				k.value(f.key)
				k.value(f.value)
			}
			k.bytes('u')
		}
	}
}
