// Package checkpoint opens checkpoints of weights: a safetensors file, or several files with an index. It builds a
// model's weights from the tensors of a checkpoint according to rules.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/jsontext"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// indexName is the name of a sharded checkpoint's index file, in the directory of its files.
const indexName = "model.safetensors.index.json"

// maxIndex is the largest accepted size of an index: a few hundred bytes for each of a million
// tensors.
const maxIndex = 256 << 20

// Checkpoint is an open checkpoint: its headers are in memory, and its tensors are mapped into
// memory.
type Checkpoint struct {
	path  string
	files []*tensor.Safetensors
	in    map[string]*tensor.Safetensors // by tensor: the file that contains the tensor
}

// Open opens a safetensors file, an index, or a directory. If the directory contains an index, the
// checkpoint consists of the tensors that the index lists; otherwise of the tensors of all
// safetensors files in it.
func Open(path string) (*Checkpoint, error) {
	c := &Checkpoint{path: path, in: map[string]*tensor.Safetensors{}}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Path returns the path that was passed to Open.
func (c *Checkpoint) Path() string { return c.path }

func (c *Checkpoint) open() error {
	info, err := os.Stat(c.path)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", c.path, errors.Unwrap(err)) // the error without the name of the system call
	case !info.IsDir() && filepath.Ext(c.path) == ".json":
		return c.openIndex(c.path)
	case !info.IsDir():
		return c.openAll([]string{c.path})
	}
	index := filepath.Join(c.path, indexName)
	if _, err := os.Stat(index); !errors.Is(err, os.ErrNotExist) {
		return c.openIndex(index)
	}
	entries, err := os.ReadDir(c.path)
	if err != nil {
		return err
	}
	var paths []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".safetensors" {
			paths = append(paths, filepath.Join(c.path, e.Name()))
		}
	}
	if len(paths) == 0 {
		return fmt.Errorf("%s is not a checkpoint: it contains neither %s nor a file *.safetensors", c.path, indexName)
	}
	return c.openAll(paths)
}

// openAll adds all tensors of the files.
func (c *Checkpoint) openAll(paths []string) error {
	for _, path := range paths {
		f, err := c.openFile(path)
		if err != nil {
			return err
		}
		for _, name := range f.Names() {
			if c.in[name] != nil {
				return fmt.Errorf("%s: tensor %q is also in another file of the directory", path, name)
			}
			c.in[name] = f
		}
	}
	return nil
}

func (c *Checkpoint) openFile(path string) (*tensor.Safetensors, error) {
	f, err := tensor.MapSafetensors(path)
	if err == nil {
		c.files = append(c.files, f)
	}
	return f, err
}

// openIndex adds the tensors that an index lists.
func (c *Checkpoint) openIndex(path string) error {
	text, err := files.Read(path, maxIndex)
	if err != nil {
		return err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return fmt.Errorf("%s: %w", path, jsontext.Locate(text, err))
	}
	if len(index.WeightMap) == 0 {
		return fmt.Errorf("%s is not an index of a checkpoint: it has no weight_map", path)
	}
	byName := map[string]*tensor.Safetensors{}
	for _, name := range slices.Sorted(maps.Keys(index.WeightMap)) {
		file := index.WeightMap[name]
		if filepath.Base(file) != file || !filepath.IsLocal(file) {
			return fmt.Errorf("%s: the index lists tensor %q in %q, which is not a file in the same directory", path, name, file)
		}
		f := byName[file]
		if f == nil {
			if f, err = c.openFile(filepath.Join(filepath.Dir(path), file)); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			byName[file] = f
		}
		if _, _, ok := f.Info(name); !ok {
			return fmt.Errorf("%s: the index lists tensor %q in %s, but this file does not contain it", path, name, file)
		}
		c.in[name] = f
	}
	return nil
}

// Names returns the tensors' names, sorted.
func (c *Checkpoint) Names() []string { return slices.Sorted(maps.Keys(c.in)) }

// Header returns the type and shape of a tensor, without its elements.
func (c *Checkpoint) Header(name string) (*tensor.Tensor, error) {
	f := c.in[name]
	if f == nil {
		return nil, fmt.Errorf("%s has no tensor %q%s", c.path, name, c.like(name))
	}
	spelt, shape, _ := f.Info(name)
	dt, ok := tensor.DType(spelt)
	if !ok {
		return nil, fmt.Errorf("%s: tensor %q has dtype %s, which hocket does not support", c.path, name, spelt)
	}
	return &tensor.Tensor{DType: dt, Shape: shape}, nil
}

// like returns a hint for a missing name: a name with the same ending, or some existing names.
func (c *Checkpoint) like(name string) string {
	const most = 20
	names := c.Names()
	for _, end, more := strings.Cut(name, "."); more; _, end, more = strings.Cut(end, ".") {
		i := slices.IndexFunc(names, func(have string) bool { return strings.HasSuffix(have, "."+end) })
		if i >= 0 {
			return fmt.Sprintf("; it has %q", names[i])
		}
	}
	switch n := len(names); {
	case n == 0:
		return "; it has none"
	case n > most:
		return fmt.Sprintf("; it has %s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return "; it has " + strings.Join(names, ", ")
}

// View returns a tensor. It does not copy the tensor if the elements are aligned in the file. The caller must not write
// to its elements, nor use them after the checkpoint is closed.
func (c *Checkpoint) View(name string) (*tensor.Tensor, error) {
	if _, err := c.Header(name); err != nil {
		return nil, err
	}
	return c.in[name].View(name)
}

// Read reads a tensor into memory.
func (c *Checkpoint) Read(name string) (*tensor.Tensor, error) {
	if _, err := c.Header(name); err != nil {
		return nil, err
	}
	return c.in[name].Read(name)
}

// ReadAt reads a part of a tensor's bytes into the slice to, beginning at the byte offset from.
func (c *Checkpoint) ReadAt(to []byte, name string, from int64) error {
	if _, err := c.Header(name); err != nil {
		return err
	}
	return c.in[name].ReadAt(to, name, from)
}

// Close unmaps the files. Names and types of the tensors can still be read.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.files = nil
	return errors.Join(errs...)
}

// Rule describes how a weight is built from tensors.
type Rule struct {
	From      []string
	Transpose bool
	Axis      int
	Lo, Hi    int64
	Cast      bool
}

// Weight is a rule applied to a checkpoint. Only the headers of its tensors have been read.
type Weight struct {
	tensor.Tensor          // type and shape of the weight, without elements
	Names         []string // names of the tensors from which the weight is built

	from   *Checkpoint
	rule   Rule
	layers [][]string // for each layer, names of the tensors that are concatenated; one layer if the weight is not stacked
	stack  bool
	to     ir.DType
	have   ir.DType
	scaled bool // whether 8-bit tensors are multiplied by their scales
}

// Plan finds the tensors from which a weight of type dt is built according to r. The error lists all missing tensors.
func (c *Checkpoint) Plan(r Rule, dt ir.DType) (*Weight, error) {
	w := &Weight{from: c, rule: r, to: dt}
	if err := w.expand(); err != nil {
		return nil, err
	}
	for i, parts := range w.layers {
		layer, err := w.layer(parts)
		switch {
		case err != nil:
			return nil, err
		case i == 0:
			w.Tensor, w.have = *layer, layer.DType
		case layer.DType != w.have || !slices.Equal(layer.Shape, w.Shape):
			return nil, fmt.Errorf("layers differ: %q is %s, but %q is %s", w.layers[0][0], &w.Tensor, parts[0], layer)
		}
	}
	if w.stack {
		w.Shape = append([]int64{int64(len(w.layers))}, w.Shape...)
	}
	if w.have != dt && !r.Cast {
		return nil, fmt.Errorf("%q is %s, but the parameter is %s: its rule must cast it", w.Names[0], w.have, dt)
	}
	w.DType = dt
	_, err := tensor.Bytes(dt, w.Shape)
	return w, err
}

// expand replaces "*" in names by the numbers of the layers.
func (w *Weight) expand() error {
	if len(w.rule.From) == 0 {
		return errors.New("the rule names no tensor")
	}
	layers := 1
	for i, from := range w.rule.From {
		before, after, stacked := strings.Cut(from, "*")
		if strings.Contains(after, "*") {
			return fmt.Errorf("%q has more than one *", from)
		}
		if i > 0 && stacked != w.stack {
			return fmt.Errorf("either all of %q have a * or none has", w.rule.From)
		}
		w.stack = stacked
		if stacked {
			layers = max(layers, w.from.layers(before))
		}
	}
	const most = 6 // largest number of errors that Plan reports
	missing, more := []error{}, 0
	for l := range layers {
		var parts []string
		for _, from := range w.rule.From {
			name := strings.Replace(from, "*", fmt.Sprint(l), 1)
			switch {
			case w.from.in[name] != nil:
			case len(missing) < most:
				_, err := w.from.Header(name)
				missing = append(missing, err)
			default:
				more++
			}
			parts = append(parts, name)
			w.Names = append(w.Names, name)
		}
		w.layers = append(w.layers, parts)
	}
	if more > 0 {
		missing = append(missing, fmt.Errorf("and %d more", more))
	}
	return errors.Join(missing...)
}

// layers returns one more than the largest layer number, of at most four digits, that follows
// prefix in a name.
func (c *Checkpoint) layers(prefix string) int {
	n := 0
	for name := range c.in {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		if len(digits) > 4 || digits == "" {
			continue
		}
		v := 0
		for _, d := range digits {
			v = 10*v + int(d-'0')
		}
		n = max(n, v+1)
	}
	return n
}

// layer returns the type of one layer's part of the weight.
func (w *Weight) layer(parts []string) (*tensor.Tensor, error) {
	var out *tensor.Tensor
	for _, name := range parts {
		t, err := w.from.Header(name)
		if err != nil {
			return nil, err
		}
		if scale := w.from.scale(name, t, w.to); scale != "" {
			if w.to.IsInt() {
				return nil, fmt.Errorf("%q is %s with the scales %q, but the parameter is %s: scaled values need a floating-point parameter",
					name, t, scale, w.to)
			}
			t.DType, w.scaled = w.to, true
			w.Names = append(w.Names, scale)
		}
		if err := w.shape(name, t); err != nil {
			return nil, err
		}
		if out == nil {
			out = t
			continue
		}
		a, b := slices.Clone(out.Shape), slices.Clone(t.Shape)
		if len(a) == len(b) && w.rule.Axis < len(a) {
			a[w.rule.Axis], b[w.rule.Axis] = 0, 0
		}
		if t.DType != out.DType || !slices.Equal(a, b) {
			return nil, fmt.Errorf("%q is %s and %q is %s, which cannot be concatenated along dimension %d",
				parts[0], out, name, t, w.rule.Axis)
		}
		out.Shape[w.rule.Axis] += t.Shape[w.rule.Axis]
	}
	return out, nil
}

// shape applies the rule's transposition and selection of rows to the type of a tensor.
func (w *Weight) shape(name string, t *tensor.Tensor) error {
	n, r := len(t.Shape), w.rule
	if r.Transpose {
		if n < 2 {
			return fmt.Errorf("%q is %s and cannot be transposed", name, t)
		}
		t.Shape[n-1], t.Shape[n-2] = t.Shape[n-2], t.Shape[n-1]
	}
	if len(r.From) == 1 && r.Lo == 0 && r.Hi == 0 {
		return nil
	}
	if r.Axis < 0 || r.Axis >= n {
		return fmt.Errorf("%q is %s and has no dimension %d", name, t, r.Axis)
	}
	lo, hi := w.cut(t.Shape)
	if lo < 0 || lo > hi || hi > t.Shape[r.Axis] {
		return fmt.Errorf("%q is %s, which has no range %d..%d along dimension %d", name, t, r.Lo, r.Hi, r.Axis)
	}
	t.Shape[r.Axis] = hi - lo
	return nil
}

// cut returns the range of a tensor of the given shape that the rule selects.
func (w *Weight) cut(shape []int64) (lo, hi int64) {
	if w.rule.Hi == 0 && w.rule.Axis < len(shape) {
		return w.rule.Lo, shape[w.rule.Axis]
	}
	return w.rule.Lo, w.rule.Hi
}

// Mapped reports whether the weight is a tensor of a file without changes, which Read returns without a copy.
func (w *Weight) Mapped() bool {
	whole := !w.stack && len(w.rule.From) == 1 && w.rule.Lo == 0 && w.rule.Hi == 0
	return whole && !w.rule.Transpose && w.have == w.to && !w.scaled
}

// Read returns the weight: the mapped tensor if the rule changes nothing, otherwise a copy that is built from the
// weight's tensors. If lo and n are not nil, only the box of extents n at lo is read for a copy. The elements of the
// copy outside the box are zero; if they are many, they take no memory.
func (w *Weight) Read(lo, n []int64) (*tensor.Tensor, error) {
	if w.Mapped() {
		return w.from.View(w.Names[0])
	}
	out, err := tensor.New(w.to, w.Shape)
	if err != nil {
		return nil, err
	}
	if lo == nil {
		lo, n = make([]int64, len(w.Shape)), w.Shape
	}
	for l, parts := range w.layers {
		at := make([]int64, len(w.Shape)) // start of the next part
		// number of dimensions that the weight has in addition to those of a layer's tensors
		stacked := 0
		if w.stack {
			at[0], stacked = int64(l), 1
		}
		for _, name := range parts {
			t, err := w.from.Header(name)
			if err != nil {
				return nil, err
			}
			if err := w.shape(name, t); err != nil {
				return nil, err
			}
			shape := append(slices.Repeat([]int64{1}, stacked), t.Shape...)
			first, extents, some := common(at, shape, lo, n)
			if some {
				part, err := w.part(name, minus(first, at)[stacked:], extents[stacked:])
				if err != nil {
					return nil, err
				}
				part.Shape = extents
				if err := tensor.Paste(out, part, first); err != nil {
					return nil, err
				}
			}
			if len(parts) > 1 {
				at[stacked+w.rule.Axis] += t.Shape[w.rule.Axis]
			}
		}
	}
	return out, nil
}

// common returns the intersection of two boxes; some is false if it is empty.
func common(at, shape, lo, n []int64) (first, extents []int64, some bool) {
	some = true
	for d := range at {
		from, to := max(at[d], lo[d]), min(at[d]+shape[d], lo[d]+n[d])
		first, extents = append(first, from), append(extents, to-from)
		some = some && from < to
	}
	return first, extents, some
}

func minus(a, b []int64) []int64 {
	out := slices.Clone(a)
	for i := range out {
		out[i] -= b[i]
	}
	return out
}

// part reads a box of a tensor after the rule's transposition and cut. The box is given in
// coordinates of the result.
func (w *Weight) part(name string, lo, n []int64) (*tensor.Tensor, error) {
	t, err := w.from.View(name)
	if err != nil {
		return nil, err
	}
	lo, n = slices.Clone(lo), slices.Clone(n)
	if w.rule.Lo != 0 || w.rule.Hi != 0 {
		lo[w.rule.Axis] += w.rule.Lo
	}
	if w.rule.Transpose {
		for _, x := range [][]int64{lo, n} {
			x[len(x)-1], x[len(x)-2] = x[len(x)-2], x[len(x)-1]
		}
	}
	if scale := w.from.scale(name, t, w.to); scale != "" {
		t, err = w.from.dequantized(name, t, scale, w.to, lo, n)
	} else if !slices.Equal(n, t.Shape) {
		t, err = tensor.Slice(t, lo, n)
	}
	if err != nil {
		return nil, err
	}
	if w.rule.Transpose {
		if t, err = transposed(t); err != nil {
			return nil, err
		}
	}
	if t.DType != w.to {
		return converted(t, w.to)
	}
	return &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: t.Data}, nil
}

// transposed swaps the last two dimensions, in tiles that fit in caches.
func transposed(t *tensor.Tensor) (*tensor.Tensor, error) {
	n := len(t.Shape)
	rows, cols, size := t.Shape[n-2], t.Shape[n-1], t.DType.Size()
	out, err := tensor.New(t.DType, append(slices.Clone(t.Shape[:n-2]), cols, rows))
	if err != nil {
		return nil, err
	}
	const tile = 32
	matrix := rows * cols * size
	for at := int64(0); matrix > 0 && at < int64(len(t.Data)); at += matrix {
		from, to := t.Data[at:at+matrix], out.Data[at:at+matrix]
		for i0 := int64(0); i0 < rows; i0 += tile {
			for j0 := int64(0); j0 < cols; j0 += tile {
				for i := i0; i < min(i0+tile, rows); i++ {
					for j := j0; j < min(j0+tile, cols); j++ {
						copy(to[(j*rows+i)*size:(j*rows+i+1)*size], from[(i*cols+j)*size:])
					}
				}
			}
		}
	}
	return out, nil
}

// converted returns t with its elements rounded to type dt.
func converted(t *tensor.Tensor, dt ir.DType) (*tensor.Tensor, error) {
	out, err := tensor.New(dt, t.Shape)
	if err != nil {
		return nil, err
	}
	const block = 1 << 12
	from, to := t.DType.Size(), dt.Size()
	ints, floats := make([]int64, block), make([]float64, block)
	for i := int64(0); i < t.Len(); i += block {
		n := min(block, t.Len()-i)
		src, dst := t.Data[i*from:(i+n)*from], out.Data[i*to:(i+n)*to]
		if t.DType.IsInt() && dt.IsInt() {
			tensor.ToInt64(ints[:n], src, t.DType)
			tensor.FromInt64(dst, ints[:n], dt)
			continue
		}
		tensor.ToFloat64(floats[:n], src, t.DType)
		tensor.FromFloat64(dst, floats[:n], dt)
	}
	return out, nil
}
