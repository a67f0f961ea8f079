package tensor

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// WriteNpy writes t as an npy file in C order: version 1.0, or 2.0 if the header is too long for that. It refuses bf16
// tensors, because the npy format has no code for bf16.
func WriteNpy(w io.Writer, t *Tensor) error {
	if err := t.Check(); err != nil {
		return err
	}
	descr := npyDescr(t.DType)
	if descr == "" {
		return fmt.Errorf("npy has no dtype for %s; save it as .safetensors, or cast it to f32 first", t)
	}
	header, err := writeNpyHeader(descr, t.Shape)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	_, err = w.Write(t.Data)
	return err
}

// WriteNpyFile writes an npy file completely or not at all.
func WriteNpyFile(path string, t *Tensor) error {
	return files.Write(path, func(w io.Writer) error { return WriteNpy(w, t) })
}

func npyDescr(dt ir.DType) string {
	for descr, d := range npyDTypes {
		if d == dt {
			return descr
		}
	}
	return ""
}

// writeNpyHeader returns all bytes before the data. The data starts at a multiple of 64 bytes, as the format requires.
func writeNpyHeader(descr string, shape []int64) ([]byte, error) {
	var dict strings.Builder
	fmt.Fprintf(&dict, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr)
	for i, d := range shape {
		if i > 0 {
			dict.WriteByte(' ')
		}
		fmt.Fprintf(&dict, "%d,", d)
	}
	tuple := dict.String()
	if len(shape) > 1 {
		tuple = strings.TrimSuffix(tuple, ",") // numpy's spelling: (3,) but (3, 4)
	}
	text := tuple + "), }"
	pre := []byte(npyMagic + "\x01\x00\x00\x00")
	pad := func() int { return 63 - (len(pre)+len(text))%64 }
	if n := len(text) + pad() + 1; n > 1<<16-1 {
		pre = []byte(npyMagic + "\x02\x00\x00\x00\x00\x00")
	}
	text += strings.Repeat(" ", pad()) + "\n"
	if len(text) > maxNpyHeader {
		return nil, fmt.Errorf("the npy header needs %d bytes; the limit is %d", len(text), maxNpyHeader)
	}
	if len(pre) == 10 {
		binary.LittleEndian.PutUint16(pre[8:], uint16(len(text)))
	} else {
		binary.LittleEndian.PutUint32(pre[8:], uint32(len(text)))
	}
	return append(pre, text...), nil
}
