package tensor

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// maxSafetensorsHeader is the largest size of a header in bytes. The format's reference implementation has the same
// limit.
const maxSafetensorsHeader = 100_000_000

// safetensorsDTypes maps the format's names of the element types that the package supports. A file may contain tensors
// of other types; reading such a tensor is an error.
var safetensorsDTypes = map[string]ir.DType{
	"F32": ir.F32, "F16": ir.F16, "BF16": ir.BF16, "F64": ir.F64, "I32": ir.I32, "I64": ir.I64,
	"F8_E4M3": ir.F8E4M3, "F8_E5M2": ir.F8E5M2,
}

// Safetensors is an open safetensors file. The header is in memory; tensors are read on request, also concurrently.
type Safetensors struct {
	label   string // prefix of error messages: the path and ": ", or empty
	r       io.ReaderAt
	mapped  []byte // contents of the file, if it is mapped into memory
	close   func() error
	base    int64 // offset of the data in the file
	entries map[string]safetensorsEntry
	names   []string
	meta    map[string]string
}

// safetensorsEntry is the header's description of one tensor. begin and end are offsets in the
// data.
type safetensorsEntry struct {
	dtype      string
	shape      []int64
	begin, end int64
}

// OpenSafetensors opens a safetensors file and checks its header. Errors name
// the file.
func OpenSafetensors(path string) (*Safetensors, error) {
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	s, err := ReadSafetensors(f, size)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.label, s.close = path+": ", f.Close
	return s, nil
}

// MapSafetensors is like OpenSafetensors, but maps the file into memory, so that View reads data
// only when it is used.
func MapSafetensors(path string) (*Safetensors, error) {
	m, err := files.Map(path)
	if err != nil {
		return nil, err
	}
	s, err := ReadSafetensors(bytes.NewReader(m.Bytes), int64(len(m.Bytes)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), m.Close())
	}
	s.label, s.mapped, s.close = path+": ", m.Bytes, m.Close
	return s, nil
}

// ReadSafetensors checks the header of a safetensors file of size bytes. The reader r must stay readable as long as
// tensors are read. The tensors must cover the data without gaps or overlaps, as the format requires.
func ReadSafetensors(r io.ReaderAt, size int64) (*Safetensors, error) {
	header, err := safetensorsHeader(r, size)
	if err != nil {
		return nil, fmt.Errorf("not a safetensors file: %w", cmp.Or(ofTorch(r, size), err))
	}
	s, err := parseSafetensors(header)
	if err != nil {
		return nil, fmt.Errorf("safetensors header: %w", err)
	}
	s.r, s.base = r, 8+int64(len(header))
	if err := s.layOut(size - s.base); err != nil {
		return nil, fmt.Errorf("safetensors header: %w", err)
	}
	return s, nil
}

// ofTorch returns an error with a remedy if a file begins like the files of torch.save: with a zip archive or, in old
// versions, with a pickle. Otherwise it returns nil.
func ofTorch(r io.ReaderAt, size int64) error {
	start := make([]byte, 4)
	if size < 4 || readAt(r, start, 0) != nil || string(start) != "PK\x03\x04" && !bytes.HasPrefix(start, []byte{0x80, 2}) {
		return nil
	}
	return errors.New("it begins as a file of torch.save; convert it in Python: safetensors.torch.save_file(" +
		"torch.load(FILE), \"model.safetensors\")")
}

func safetensorsHeader(r io.ReaderAt, size int64) ([]byte, error) {
	var length [8]byte
	if size < int64(len(length)) {
		return nil, fmt.Errorf("the file has %d bytes, want at least 8 for the header's length", size)
	}
	if err := readAt(r, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxSafetensorsHeader {
		return nil, fmt.Errorf("it claims a header of %d bytes; the limit is %d", n, maxSafetensorsHeader)
	}
	if n > uint64(size-8) {
		return nil, fmt.Errorf("it claims a header of %d bytes, but only %d follow", n, size-8)
	}
	header := make([]byte, n)
	return header, readAt(r, header, 8)
}

// layOut sorts the names by offset. It checks that the tensors' sizes match their types and shapes, and that the
// tensors together cover exactly size bytes of data.
func (s *Safetensors) layOut(size int64) error {
	s.names = slices.SortedFunc(maps.Keys(s.entries), func(a, b string) int {
		x, y := s.entries[a], s.entries[b]
		return cmp.Or(cmp.Compare(x.begin, y.begin), cmp.Compare(x.end, y.end), cmp.Compare(a, b))
	})
	var at int64
	for _, name := range s.names {
		e := s.entries[name]
		if err := e.check(); err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		if e.begin != at {
			return fmt.Errorf("tensor %s: its data starts at offset %d, want %d, where the data before it ends",
				quote(name), e.begin, at)
		}
		at = e.end
	}
	if at != size {
		return fmt.Errorf("its tensors have %d bytes of data, but the file has %d after the header", at, size)
	}
	return nil
}

// check compares the offsets with the shape if the element type is supported.
func (e safetensorsEntry) check() error {
	if e.begin > e.end {
		return fmt.Errorf("its data_offsets [%d, %d] run backwards", e.begin, e.end)
	}
	dt, ok := safetensorsDTypes[e.dtype]
	if !ok {
		return nil
	}
	want, err := Bytes(dt, e.shape)
	if err != nil {
		return err
	}
	if e.end-e.begin != want {
		return fmt.Errorf("its data_offsets hold %d bytes, want %d for %s", e.end-e.begin, want,
			typeText(e.dtype, e.shape))
	}
	return nil
}

// Names returns the names of the tensors in the order of their data.
func (s *Safetensors) Names() []string { return slices.Clone(s.names) }

// Metadata returns the file's __metadata__, or nil if there is none.
func (s *Safetensors) Metadata() map[string]string { return maps.Clone(s.meta) }

// Info returns a tensor's element type, in the file's spelling ("BF16"), and its shape.
func (s *Safetensors) Info(name string) (dtype string, shape []int64, ok bool) {
	e, ok := s.entries[name]
	return e.dtype, slices.Clone(e.shape), ok
}

// Header returns the tensor called name without its elements. Errors name the file and the
// tensor.
func (s *Safetensors) Header(name string) (*Tensor, error) {
	e, dt, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	return &Tensor{DType: dt, Shape: slices.Clone(e.shape)}, nil
}

// Read returns the tensor called name. Errors name the file and the tensor.
func (s *Safetensors) Read(name string) (*Tensor, error) {
	e, dt, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	t, err := New(dt, e.shape)
	if err != nil {
		return nil, fmt.Errorf("%stensor %s: %w", s.label, quote(name), err)
	}
	if err := s.readData(t.Data, name, e); err != nil {
		return nil, err
	}
	return t, nil
}

// View returns the tensor called name of a mapped file, without a copy if its elements are aligned in the file. The
// caller must not write to the elements, nor use them after s is closed.
func (s *Safetensors) View(name string) (*Tensor, error) {
	e, dt, err := s.lookup(name)
	if err != nil {
		return nil, err
	}
	if at := s.base + e.begin; s.mapped != nil && at%dt.Size() == 0 {
		data := s.mapped[at : s.base+e.end : s.base+e.end]
		return &Tensor{DType: dt, Shape: slices.Clone(e.shape), Data: data}, nil
	}
	return s.Read(name)
}

// DType returns the element type for the format's name of a type, such as "BF16".
func DType(spelt string) (ir.DType, bool) { dt, ok := safetensorsDTypes[spelt]; return dt, ok }

// ReadInto reads the tensor called name into t, whose element type and shape it
// must have.
func (s *Safetensors) ReadInto(t *Tensor, name string) error {
	e, dt, err := s.lookup(name)
	if err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return err
	}
	if dt != t.DType || !slices.Equal(e.shape, t.Shape) {
		return fmt.Errorf("%stensor %s is %s, want %s", s.label, quote(name), typeText(dt.String(), e.shape), t)
	}
	return s.readData(t.Data, name, e)
}

// ReadAt fills the slice to with bytes of the tensor called name, beginning at offset from.
func (s *Safetensors) ReadAt(to []byte, name string, from int64) error {
	e, _, err := s.lookup(name)
	if err != nil {
		return err
	}
	if from < 0 || from > e.end-e.begin-int64(len(to)) {
		return fmt.Errorf("%stensor %s has no bytes %d to %d", s.label, quote(name), from, from+int64(len(to)))
	}
	e.begin += from
	return s.readData(to, name, e)
}

// Close closes the file that OpenSafetensors opened.
func (s *Safetensors) Close() error {
	if s.close == nil {
		return nil
	}
	return s.close()
}

func (s *Safetensors) lookup(name string) (safetensorsEntry, ir.DType, error) {
	e, ok := s.entries[name]
	if !ok {
		return e, 0, fmt.Errorf("%sno tensor %s; %s", s.label, quote(name), s.listNames())
	}
	dt, ok := safetensorsDTypes[e.dtype]
	if !ok {
		return e, 0, fmt.Errorf("%stensor %s has dtype %s, want F32, F16, BF16, F64, I32, I64, F8_E4M3 or F8_E5M2", s.label, quote(name),
			quote(e.dtype))
	}
	return e, dt, nil
}

func (s *Safetensors) listNames() string {
	const most = 8
	var b strings.Builder
	for i, name := range s.names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(s.names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quote(name))
	}
	if b.Len() == 0 {
		return "the file holds none"
	}
	return "the file holds " + b.String()
}

func (s *Safetensors) readData(p []byte, name string, e safetensorsEntry) error {
	if err := readAt(s.r, p, s.base+e.begin); err != nil {
		return fmt.Errorf("%stensor %s: %w", s.label, quote(name), err)
	}
	return nil
}
