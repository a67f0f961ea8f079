package tensor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// Named is a tensor with its name in a file.
type Named struct {
	Name   string
	Tensor *Tensor
}

// WriteSafetensors writes a safetensors file. The output is deterministic. Tensors with wider elements come first, so
// that every tensor is aligned to its element size; otherwise the caller's order is kept. The entries of metadata,
// which may be nil, are sorted by key. Names must be UTF-8, distinct, and not __metadata__.
func WriteSafetensors(w io.Writer, tensors []Named, metadata map[string]string) error {
	if err := checkNamed(tensors); err != nil {
		return err
	}
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b Named) int {
		return int(b.Tensor.DType.Size() - a.Tensor.DType.Size())
	})
	header, err := writeSafetensorsHeader(tensors, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := w.Write(t.Tensor.Data); err != nil {
			return err
		}
	}
	return nil
}

// WriteSafetensorsFile writes a safetensors file completely or not at all.
func WriteSafetensorsFile(path string, tensors []Named, metadata map[string]string) error {
	return files.Write(path, func(w io.Writer) error { return WriteSafetensors(w, tensors, metadata) })
}

func checkNamed(tensors []Named) error {
	seen := map[string]bool{}
	for _, t := range tensors {
		switch {
		case !utf8.ValidString(t.Name):
			return fmt.Errorf("tensor name %s is not UTF-8", quote(t.Name))
		case t.Name == metadataKey:
			return fmt.Errorf("a tensor cannot be called %s: safetensors keeps that name", metadataKey)
		case seen[t.Name]:
			return fmt.Errorf("two tensors are called %s", quote(t.Name))
		}
		seen[t.Name] = true
		if err := t.Tensor.Check(); err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
	}
	return nil
}

// writeSafetensorsHeader returns the header with its length prefix, padded with spaces so that the data starts at a
// multiple of 8 bytes.
func writeSafetensorsHeader(tensors []Named, metadata map[string]string) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 8))
	b.WriteByte('{')
	if metadata != nil {
		if err := writeMetadata(b, metadata); err != nil {
			return nil, err
		}
	}
	var at int64
	for i, t := range tensors {
		if i > 0 || metadata != nil {
			b.WriteByte(',')
		}
		end := at + int64(len(t.Tensor.Data))
		writeString(b, t.Name)
		fmt.Fprintf(b, `:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, safetensorsName(t.Tensor.DType), jsonShape(t.Tensor.Shape), at, end)
		at = end
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	n := b.Len() - 8
	if n > maxSafetensorsHeader {
		return nil, fmt.Errorf("the safetensors header needs %d bytes; the limit is %d", n, maxSafetensorsHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(n))
	return b.Bytes(), nil
}

func writeMetadata(b *bytes.Buffer, metadata map[string]string) error {
	for k, v := range metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("metadata %s: %s is not UTF-8", quote(k), quote(v))
		}
	}
	writeString(b, metadataKey)
	b.WriteByte(':')
	encodeJSON(b, metadata) // the encoder sorts the keys
	return nil
}

func writeString(b *bytes.Buffer, s string) { encodeJSON(b, s) }

// encodeJSON encodes a string or a map of strings, which cannot fail, without the newline that json.Encoder adds.
func encodeJSON(b *bytes.Buffer, v any) {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	b.Truncate(b.Len() - 1)
}

func jsonShape(shape []int64) string { return strings.ReplaceAll(fmt.Sprint(shape), " ", ",") }

func safetensorsName(dt ir.DType) string {
	for name, d := range safetensorsDTypes {
		if d == dt {
			return name
		}
	}
	return ""
}
