// Package exported opens a model that torch.export has saved. It provides the model's program, and the contents of
// those parameters of the program that are not inputs: weights, constants and states.
//
// The contents are read from the archive. Weights may also be read from other files, such as the files that
// save_pretrained writes; such files name each weight after its module. The transformers library renames and packs some
// weights when it loads such files; renames.go lists these changes. Weights of layers that the program stacks are
// stacked while they are read. A process reads only the rows that its own ranks hold.
package exported

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/torchexport"
	"hocket.example/hocket/ir"
)

// ErrMismatch is wrapped by errors about files whose tensors do not fit the model.
var ErrMismatch = errors.New("the weights do not fit the model")

// Model is an exported model, whose archive is open.
type Model struct {
	*modelprogram.Model
	archive *torchexport.Archive
}

// Open opens the archive with the given file name and converts its model to a program. Errors wrap ErrMalformed or
// ErrUnsupported of package torchexport, or ErrUnsupported of package modelprogram.
func Open(name string, o modelprogram.Options) (*Model, error) {
	a, err := torchexport.Open(name)
	if err != nil {
		return nil, err
	}
	m, err := programOf(name, a, o)
	if err == nil {
		err = m.Divides(o.Ranks)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return &Model{m, a}, nil
}

// Of returns a model without an archive. All of its parameters must be inputs or constants.
func Of(m *modelprogram.Model) *Model { return &Model{Model: m} }

// Close closes the archive.
func (m *Model) Close() error {
	if m.archive == nil {
		return nil
	}
	return m.archive.Close()
}

// Sources returns, for each parameter that is neither an input nor a constant, the names of its weights.
func (m *Model) Sources() map[string][]string {
	all := map[string][]string{}
	for _, p := range m.Params {
		if len(p.Weights) > 0 {
			all[p.Name] = slices.Clone(p.Weights)
		}
	}
	return all
}

// Tensors returns the shapes of the archive's tensors by name, and the other names of tensors that several modules
// share.
func (m *Model) Tensors() (shapes map[string][]int64, shared map[string][]string) {
	shapes = map[string][]int64{}
	if m.archive != nil {
		shapes = m.archive.Shapes()
	}
	for name, others := range m.Tied {
		for _, other := range others {
			shapes[other] = shapes[name]
		}
	}
	return shapes, maps.Clone(m.Tied)
}

// Source provides tensors by name.
type Source interface {
	Header(name string) (*tensor.Tensor, error)
	// ReadAt fills the slice to with bytes of a tensor's elements, beginning at the byte offset from. The elements
	// are in row-major order.
	ReadAt(to []byte, name string, from int64) error
}

// Content describes the initial contents of a parameter.
type Content struct {
	Param  modelprogram.Param
	Header tensor.Tensor
	pieces []piece
	// For a quantized parameter, weights lists the weights that it holds, and dims is the number of its dimensions that
	// belong to one weight.
	weights []quantized
	dims    int
}

// piece is a tensor of a source that becomes a part of a parameter, with the position of that part in bytes. The part
// has the bytes of the tensor in the same order.
type piece struct {
	from  Source
	name  string
	at    int64
	size  int64
	scale string // name of the tensor with the scales of an 8-bit tensor; empty for other tensors
}

// Contents lists the initial contents of parameters. It omits inputs, and parameters for whose names the function given
// returns true. The argument files maps names of tensors to the files that contain them; these files override the
// archive. The result used lists the names that were found in files. If the files contain only some of the model's
// weights, the error wraps ErrMismatch, because a mixture of two checkpoints would compute nonsense.
func (m *Model) Contents(files map[string]Source, given func(string) bool) (list []Content, used []string, err error) {
	r := &contentsReader{Model: m, files: files}
	for _, p := range m.Params {
		if p.Input || given(p.Name) {
			continue
		}
		c, err := r.content(p)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, c)
	}
	if len(r.used) > 0 && len(r.missing) > 0 {
		return nil, nil, r.incomplete()
	}
	return list, r.used, nil
}

// contentsReader finds the contents of parameters in files and in the archive.
type contentsReader struct {
	*Model
	files   map[string]Source
	used    []string // names that were found in files
	missing []string // weights that files lack
	have    int      // number of weights in files
}

// content describes the initial contents of p.
func (r *contentsReader) content(p modelprogram.Param) (c Content, err error) {
	dt, ok := ir.ParseDType(string(p.DType))
	if !ok {
		return c, fmt.Errorf("%w: %%%s has element type %s", torchexport.ErrUnsupported, p.Name, p.DType)
	}
	c = Content{Param: p, Header: tensor.Tensor{DType: dt, Shape: p.Shape}}
	at := int64(0)
	var headers []*tensor.Tensor
	for _, w := range p.Weights {
		header, err := r.archive.Header(w)
		if err != nil {
			return c, err
		}
		if header.DType != dt && p.Quantized == nil {
			return c, fmt.Errorf("%w: the tensor %q is %s, but the parameter %%%s has the type %s",
				torchexport.ErrMalformed, w, header, p.Name, dt)
		}
		pieces, err := r.pieces(w, header, p.State)
		if err != nil {
			return c, err
		}
		for _, x := range pieces {
			x.at += at
			c.pieces = append(c.pieces, x)
		}
		headers = append(headers, header)
		at += bytesOf(header)
	}
	n := bytesOf(&c.Header)
	switch {
	case p.Quantized != nil:
		return c, c.setWeights(headers)
	case p.Constant == nil && n != at:
		return c, fmt.Errorf("%w: the parameter %%%s has %d bytes, but its weights have %d", torchexport.ErrMalformed,
			p.Name, n, at)
	}
	return c, nil
}

// pieces returns the tensors of which a weight consists: those in the files or, if they have none, that in the archive.
func (r *contentsReader) pieces(weight string, header *tensor.Tensor, state bool) ([]piece, error) {
	pieces, err := find(r.files, r.names(weight), header)
	if err != nil {
		return nil, err
	}
	for _, x := range pieces {
		r.used = append(r.used, x.sources()...)
	}
	if pieces != nil {
		r.have++
		return pieces, nil
	}
	if !state && !r.Buffers[weight] && !slices.Contains(r.missing, weight) {
		r.missing = append(r.missing, weight)
	}
	return []piece{{from: r.archive, name: weight, size: bytesOf(header)}}, nil
}

// incomplete returns the error that the files have only some of the model's weights.
func (r *contentsReader) incomplete() error {
	unused := slices.Sorted(maps.Keys(r.files))
	unused = slices.DeleteFunc(unused, func(name string) bool { return slices.Contains(r.used, name) })
	others := ""
	if len(unused) > 0 {
		others = "; the model does not use their tensors " + modelprogram.Few(unused)
	}
	return fmt.Errorf("%w: the files have %d of its weights, and lack %s%s: give files with all weights, or "+
		"replace single parameters (--in PARAM=FILE#TENSOR, in Python a dict of tensors, in Go Model.Bind)",
		ErrMismatch, r.have, modelprogram.Few(r.missing), others)
}

// CheckFile returns an error that wraps ErrMismatch if the model uses none of the tensors of a file. The argument
// used is the list of used names that Contents returned.
func (m *Model) CheckFile(file string, tensors, used []string) error {
	if slices.ContainsFunc(tensors, func(name string) bool { return slices.Contains(used, name) }) {
		return nil
	}
	return fmt.Errorf("%w: no tensor of %s has the name of a weight: its tensors are %s; the model's weights are %s",
		ErrMismatch, file, modelprogram.Few(tensors), modelprogram.Few(m.WeightNames()))
}

// names lists the names of a weight. Tied weights have several names.
func (m *Model) names(weight string) []string { return append([]string{weight}, m.Tied[weight]...) }

// Archived reports whether the contents are in the archive, rather than in other files.
func (c *Content) Archived() bool {
	other := func(p piece) bool { _, own := p.from.(*torchexport.Archive); return !own }
	return !slices.ContainsFunc(c.pieces, other) &&
		!slices.ContainsFunc(c.weights, func(q quantized) bool { return other(q.piece) })
}

// Checksums returns a text that identifies the contents without reading them: the checksums that the archive
// records of its files. It returns "" for contents that are not in the archive.
func (c *Content) Checksums() string {
	text := ""
	if q := c.Param.Quantized; q != nil {
		text = fmt.Sprintf(" %s scales=%t", q.Form, q.Scales)
	}
	for _, p := range c.pieces {
		a, ok := p.from.(*torchexport.Archive)
		if !ok {
			return ""
		}
		text += fmt.Sprintf(" %s %08x", p.name, a.Checksum(p.name))
	}
	return text
}

// Read reads the contents. If ranks is not 0, it reads only the rows that the given rank, one of that many ranks,
// holds. All other rows are zeros, which use no memory if the parameter is large.
func (c *Content) Read(rank, ranks int) (*tensor.Tensor, error) {
	t, err := tensor.New(c.Header.DType, c.Header.Shape)
	if err != nil {
		return nil, err
	}
	if k := c.Param.Constant; k != nil {
		for i, x := range k.Elems {
			t.SetFloat64(int64(i), x)
		}
		return t, nil
	}
	if c.Param.Quantized != nil {
		return t, c.readQuantized(t, rank, ranks)
	}
	if c.Param.Perm != nil {
		return t, c.readPermuted(t)
	}
	for _, r := range c.rows(rank, ranks) {
		for _, p := range c.pieces {
			lo, hi := max(r[0], p.at), min(r[1], p.at+p.size)
			if lo >= hi {
				continue
			}
			if err := p.from.ReadAt(t.Data[lo:hi], p.name, lo-p.at); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

// rows lists, in order, the ranges of bytes that a rank holds. If ranks is 0 or the parameter is not split over
// ranks, it returns one range with all bytes.
func (c *Content) rows(rank, ranks int) [][2]int64 {
	shape, d := c.Header.Shape, c.Param.Split
	inner := c.Header.DType.Size()
	if ranks < 2 || d < 0 || shape[d]%int64(ranks) != 0 {
		return [][2]int64{{0, bytesOf(&c.Header)}}
	}
	outer := int64(1)
	for i, n := range shape {
		if i < d {
			outer *= n
		} else if i > d {
			inner *= n
		}
	}
	mine := shape[d] / int64(ranks) * inner
	var list [][2]int64
	for o := range outer {
		lo := o*shape[d]*inner + int64(rank)*mine
		list = append(list, [2]int64{lo, lo + mine})
	}
	return list
}

// readPermuted reads contents whose dimensions are in a different order in the file than in the parameter.
func (c *Content) readPermuted(t *tensor.Tensor) error {
	layer := t.Shape
	if len(c.pieces) > 1 || len(layer) > len(c.Param.Perm) {
		layer = layer[len(layer)-len(c.Param.Perm):]
	}
	from := make([]int64, len(layer)) // the shape in the file
	for i, d := range c.Param.Perm {
		from[d] = layer[i]
	}
	var strides []int64 // by dimension of the parameter
	for _, d := range c.Param.Perm {
		strides = append(strides, tensor.Strides(from)[d])
	}
	for _, p := range c.pieces {
		raw := make([]byte, p.size)
		if err := p.from.ReadAt(raw, p.name, 0); err != nil {
			return err
		}
		tensor.CopyStrided(t.Data[p.at:][:p.size], raw, layer, strides, t.DType.Size(), 0)
	}
	return nil
}

// bytesOf returns the size in bytes of the tensor that a header describes.
func bytesOf(header *tensor.Tensor) int64 {
	n, err := tensor.NumElements(header.Shape)
	if err != nil {
		return 0 // the size overflows, which the reader of the file has reported
	}
	return n * header.DType.Size()
}

// fits checks that a tensor in a file has the element type and shape that the model requires.
func fits(name string, have *tensor.Tensor, dt ir.DType, shape []int64) error {
	if have.DType != dt || !slices.Equal(have.Shape, shape) {
		want := tensor.Tensor{DType: dt, Shape: shape}
		return fmt.Errorf("%w: %q is %s, want %s", ErrMismatch, name, have, &want)
	}
	return nil
}
