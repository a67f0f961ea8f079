// Package torchexport reads the archives that torch.export.save writes (.pt2) into a graph of package graph.
//
// An archive is a zip file. The archive's files models/*.json contain the program. The archive's folders data/weights
// and data/constants contain an index in JSON and the raw bytes of tensors. Nothing is unpickled. The function Open
// reads the indexes and the program, the method Graph converts the program to a graph, and the method Tensor reads a
// weight. The conversion uses tables of ATen operators, which are in arithmetic.go, shapes.go, indexing.go and
// layers.go; operators.go joins them. Two files of torch define the format of archives:
// docs/source/export/pt2_archive.md and torch/_export/serde/schema.yaml.
//
// Archives are untrusted. Errors in an archive wrap ErrMalformed. If an archive uses a feature that hocket lacks,
// the error wraps ErrUnsupported, and names the operator, the module and the line of the model that use it.
package torchexport

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// ErrMalformed is wrapped by errors about archives with contents that torch.export does not write.
var ErrMalformed = errors.New("malformed archive")

// ErrUnsupported is wrapped by errors about exported programs that hocket cannot convert.
var ErrUnsupported = errors.New("not supported")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnsupported, fmt.Errorf(format, args...))
}

// These constants limit the data that are read into memory. The program of a model with a hundred layers has 20 MiB and
// 500,000 separators.
const (
	maxJSON       = 64 << 20 // bytes of a JSON file
	maxSeparators = 4 << 20  // braces, brackets and commas of a JSON file; decoded data grow with their number
	maxEntries    = 1 << 20  // entries of the zip file
	maxConstants  = 64 << 20 // bytes of all constants
)

// Archive is an open archive.
type Archive struct {
	path    string
	file    io.Closer
	from    io.ReaderAt
	size    int64
	entries map[string]*zip.File // files of the zip, by path relative to the folder of the archive
	program *program
	tensors map[string]*stored // tensors by name in the module tree

	// mu guards sums. It is not locked while the checksum of an entry is computed, so that entries are read
	// concurrently.
	mu   sync.Mutex
	sums map[*zip.File]*entrySum
}

// stored describes where a tensor is stored in the archive.
type stored struct {
	file    string // path of the file, relative to the folder of the archive
	dtype   graph.DType
	shape   []int64
	strides []int64
	offset  int64 // offset of the tensor in the file, in elements
}

// IsArchive reports whether a file that begins with the given bytes is a zip file.
func IsArchive(head []byte) bool { return bytes.HasPrefix(head, []byte("PK\x03\x04")) }

// Open opens an archive and reads its program. If the file itself cannot be read, the error wraps neither
// ErrMalformed nor ErrUnsupported.
func Open(name string) (*Archive, error) {
	f, size, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	a, err := Read(name, f, size)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	a.file = f
	return a, nil
}

// Read opens an archive of size bytes. The archive reads from the given reader until the archive is closed.
func Read(name string, from io.ReaderAt, size int64) (*Archive, error) {
	a := &Archive{path: name, from: from, size: size, entries: map[string]*zip.File{}, tensors: map[string]*stored{},
		sums: map[*zip.File]*entrySum{}}
	if err := a.read(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return a, nil
}

// Close closes the file.
func (a *Archive) Close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}

func (a *Archive) read() error {
	z, err := zip.NewReader(a.from, a.size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		var call *os.PathError
		if errors.As(err, &call) {
			return err
		}
		if errors.Is(err, zip.ErrFormat) {
			return malformed("it is truncated: the index at the end of the zip is missing")
		}
		return malformed("%w", err)
	}
	if len(z.File) > maxEntries {
		return malformed("it has %d entries", len(z.File))
	}
	var model string
	for _, f := range z.File {
		_, below, ok := strings.Cut(f.Name, "/")
		if !ok || strings.HasSuffix(f.Name, "/") {
			continue
		}
		if path.Clean(f.Name) != f.Name || strings.HasPrefix(f.Name, "../") {
			return malformed("the path of entry %q leads out of the archive", clip(f.Name))
		}
		if a.entries[below] != nil {
			return malformed("the archive contains entry %q twice", clip(f.Name))
		}
		a.entries[below] = f
		if dir, base := path.Split(below); dir == "models/" && path.Ext(base) == ".json" {
			if model != "" {
				return unsupported("the archive has several models, %s and %s; save one model to one file", model,
					below)
			}
			model = below
		}
	}
	if model == "" {
		return a.noModel()
	}
	if order, err := a.small("byteorder"); err != nil || order != "" && order != "little" {
		return errors.Join(err, unsupported("its byte order is %q", clip(order)))
	}
	a.program = &program{}
	if err := a.json(model, a.program); err != nil {
		return err
	}
	if v := a.program.SchemaVersion.Major; v != schemaMajor {
		return unsupported("%s has schema version %d.%d, and hocket reads %d: export it with torch 2.9 to 2.11",
			model, v, a.program.SchemaVersion.Minor, schemaMajor)
	}
	return a.indexes()
}

// noModel returns an error about an archive without a program.
func (a *Archive) noModel() error {
	switch {
	case a.entries["constants.pkl"] != nil:
		return unsupported("this is a TorchScript archive of torch.jit.save; save the module by torch.export.save")
	case a.entries["data.pkl"] != nil:
		return unsupported("this is a checkpoint of torch.save, which is a pickle; save weights as safetensors, " +
			"and the program by torch.export.save")
	}
	return malformed("it has no models/*.json: torch.export.save of torch 2.9 or later writes one")
}

// schemaMajor is the supported major version of the schema.
const schemaMajor = 8

// clip shortens text from the archive for error messages.
func clip(s string) string {
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return ir.Printable(s)
}

// small returns the contents of a small file without surrounding blanks, or "" if the file does not exist.
func (a *Archive) small(name string) (string, error) {
	f := a.entries[name]
	if f == nil {
		return "", nil
	}
	text, err := a.contents(f, 64)
	return strings.TrimSpace(string(text)), err
}

// contents reads an entry, whose size must not exceed the argument most.
func (a *Archive) contents(f *zip.File, most int64) ([]byte, error) {
	if f.UncompressedSize64 > uint64(most) {
		return nil, malformed("%s has %d bytes, of at most %d", clip(f.Name), f.UncompressedSize64, most)
	}
	if f.Method == zip.Store && f.UncompressedSize64 > uint64(a.size) {
		return nil, malformed("%s has %d bytes according to the zip's index, which is more than the archive has",
			clip(f.Name), f.UncompressedSize64)
	}
	r, err := f.Open()
	if err != nil {
		return nil, malformed("%s: %w", clip(f.Name), err)
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, most+1)) // the buffer grows with the data that exist, not with the size that the zip file states
	if err != nil {
		return nil, malformed("%s: %w", clip(f.Name), err)
	}
	if int64(len(text)) > most {
		return nil, malformed("%s has more than %d bytes", clip(f.Name), most)
	}
	return text, nil
}

// json decodes a JSON entry into the given value.
func (a *Archive) json(name string, into any) error {
	text, err := a.contents(a.entries[name], maxJSON)
	if err != nil {
		return err
	}
	n := 0
	for _, c := range text {
		if c == '{' || c == '[' || c == ',' {
			n++
		}
	}
	if n > maxSeparators {
		return malformed("%s has %d values, of at most %d", name, n, maxSeparators)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return malformed("%s: %w", name, err)
	}
	return nil
}

// tensorConfig is an index of tensors.
type tensorConfig struct {
	Config map[string]struct {
		PathName   string      `json:"path_name"`
		UsePickle  bool        `json:"use_pickle"`
		TensorMeta *tensorMeta `json:"tensor_meta"`
	} `json:"config"`
}

// indexes reads the JSON files that list the weights and constants of the archive.
func (a *Archive) indexes() error {
	for name := range a.entries {
		dir, base := path.Split(name)
		if (dir != "data/weights/" && dir != "data/constants/") || !strings.HasSuffix(base, "_config.json") {
			continue
		}
		var c tensorConfig
		if err := a.json(name, &c); err != nil {
			return err
		}
		for fqn, e := range c.Config {
			if a.tensors[fqn] != nil {
				return malformed("tensor %q is in two indexes", clip(fqn))
			}
			s := &stored{file: dir + e.PathName}
			switch {
			case e.UsePickle:
				return unsupported("tensor %q is a pickle, which hocket does not open", clip(fqn))
			case e.TensorMeta == nil || strings.Contains(e.PathName, "/") || strings.Contains(e.PathName, `\`):
				return malformed("the index of %[2]s names no file for tensor %[1]q", clip(fqn), dir)
			case a.entries[s.file] == nil:
				return malformed("the file of tensor %q, %s, is not in the archive", clip(fqn), clip(s.file))
			}
			var err error
			if err = e.TensorMeta.into(s); err != nil {
				return fmt.Errorf("tensor %q: %w", clip(fqn), err)
			}
			a.tensors[fqn] = s
		}
	}
	return nil
}

// check checks that a stored tensor lies within its file.
func (a *Archive) check(name string, s *stored) error {
	f := a.entries[s.file]
	last, n := s.offset, int64(1)
	for i, d := range s.shape {
		n *= d
		if d > 0 {
			last += (d - 1) * s.strides[i] // the sum cannot overflow, since each factor is at most maxExtent
		}
		if last > a.size {
			last = a.size // exceeds the size of any file in the archive
		}
	}
	bytes := s.dtype.Size()
	if n > 0 && (last < 0 || uint64(last+1)*uint64(bytes) > f.UncompressedSize64) {
		return malformed("tensor %q, %s%v, does not lie within %s of %d bytes", clip(name), s.dtype, s.shape,
			clip(s.file), f.UncompressedSize64)
	}
	if f.Method != zip.Store {
		return unsupported("tensor %q is compressed", clip(name))
	}
	if f.CompressedSize64 != f.UncompressedSize64 || f.CompressedSize64 > uint64(a.size) {
		return malformed("%s has another size than its tensor", clip(s.file))
	}
	return nil
}

// Header returns the type of a tensor, by its name in the module tree.
func (a *Archive) Header(name string) (*tensor.Tensor, error) {
	s := a.tensors[name]
	if s == nil {
		return nil, malformed("it has no tensor %q", clip(name))
	}
	k, ok := ir.ParseDType(string(s.dtype))
	if !ok {
		return nil, unsupported("tensor %q is %s", clip(name), s.dtype)
	}
	return &tensor.Tensor{DType: k, Shape: s.shape}, nil
}

// Shapes returns the shapes of the tensors in the archive, by name.
func (a *Archive) Shapes() map[string][]int64 {
	shapes := map[string][]int64{}
	for name, s := range a.tensors {
		shapes[name] = slices.Clone(s.shape)
	}
	return shapes
}

// Checksum returns the checksum of the file that contains a tensor. The archive records the checksum, so Checksum
// does not read the file.
func (a *Archive) Checksum(name string) uint32 {
	if s := a.tensors[name]; s != nil && a.entries[s.file] != nil {
		return a.entries[s.file].CRC32
	}
	return 0
}

// ReadAt fills the slice to with bytes of a tensor's elements, beginning at the byte offset from. The elements are in
// row-major order. ReadAt returns an error unless the tensor's whole file has the checksum that the archive records.
func (a *Archive) ReadAt(to []byte, name string, from int64) error {
	s := a.tensors[name]
	if s == nil {
		return malformed("it has no tensor %q", clip(name))
	}
	if err := a.raw(to, from, name, s); err != nil {
		return fmt.Errorf("%s: %w", a.path, err)
	}
	return nil
}

// Tensor reads a tensor.
func (a *Archive) Tensor(name string) (*tensor.Tensor, error) {
	t, err := a.Header(name)
	if err != nil {
		return nil, err
	}
	if t, err = tensor.New(t.DType, t.Shape); err != nil {
		return nil, err
	}
	return t, a.ReadAt(t.Data, name, 0)
}

// raw fills the slice to with bytes of a tensor's elements in row-major order, beginning at the byte offset start.
func (a *Archive) raw(to []byte, start int64, name string, s *stored) error {
	if err := a.check(name, s); err != nil {
		return err
	}
	f := a.entries[s.file]
	at, err := f.DataOffset()
	if err != nil {
		return malformed("%s: %w", clip(s.file), err)
	}
	from := io.NewSectionReader(a.from, at, int64(f.UncompressedSize64))
	size := s.dtype.Size()
	n := graph.Product(s.shape)
	if start < 0 || start%size != 0 || int64(len(to))%size != 0 || start > n*size-int64(len(to)) {
		return fmt.Errorf("tensor %q has %d bytes, not %d after %d", clip(name), n*size, len(to), start)
	}
	if len(to) == 0 {
		return nil
	}
	dense := isDense(s.shape, s.strides)
	read := func(to []byte, at int64) error {
		if _, err := from.ReadAt(to, at); err != nil {
			return malformed("%s is cut short: %w", clip(s.file), err)
		}
		return nil
	}
	if dense && uint64(len(to)) == f.UncompressedSize64 {
		if err := read(to, 0); err != nil {
			return err
		}
		return a.verify(name, f, bytes.NewReader(to))
	}
	if err := a.verify(name, f, from); err != nil {
		return err
	}
	if dense {
		return read(to, s.offset*size+start)
	}
	all := make([]byte, f.UncompressedSize64)
	if err := read(all, 0); err != nil {
		return err
	}
	tensor.CopyStrided(to, all[s.offset*size:], s.shape, s.strides, size, start/size)
	return nil
}

// entrySum records whether the contents of an entry have the checksum that the archive records.
type entrySum struct {
	mu    sync.Mutex
	right bool
}

// verify compares the contents of a tensor's file with the checksum that the archive records. Each file is compared
// only once.
func (a *Archive) verify(tensor string, f *zip.File, contents io.Reader) error {
	a.mu.Lock()
	s := a.sums[f]
	if s == nil {
		s = &entrySum{}
		a.sums[f] = s
	}
	a.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.right {
		return nil
	}
	sum := crc32.NewIEEE()
	if _, err := io.CopyBuffer(sum, contents, make([]byte, 1<<20)); err != nil {
		return malformed("%s cannot be read: %w", clip(f.Name), err)
	}
	if sum.Sum32() != f.CRC32 {
		return malformed("tensor %q is corrupt: the CRC-32 of %s is %08x, and the archive records %08x; copy or export "+
			"the archive again", clip(tensor), clip(f.Name), sum.Sum32(), f.CRC32)
	}
	s.right = true
	return nil
}

// constant reads a tensor as a constant of a graph.
func (a *Archive) constant(name string, s *stored) (*graph.Tensor, error) {
	t := graph.NewTensor(s.dtype, s.shape)
	raw := make([]byte, int64(len(t.Elems))*s.dtype.Size())
	if err := a.raw(raw, 0, name, s); err != nil {
		return nil, err
	}
	if s.dtype == graph.Bool {
		for i, b := range raw {
			if b != 0 {
				t.Elems[i] = 1
			}
		}
		return t, nil
	}
	k, _ := ir.ParseDType(string(s.dtype))
	tensor.ToFloat64(t.Elems, raw, k)
	return t, nil
}
