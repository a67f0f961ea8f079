package exported

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// dequantized is a source of one tensor: an 8-bit tensor of another source, multiplied by its scales.
type dequantized struct {
	Source
	of     *tensor.Tensor // the header of the 8-bit tensor
	scales *tensor.Scales
	to     ir.DType
}

// scaleOf returns the name of the scales of an 8-bit tensor in files, or "" if there are none. DeepSeek and Qwen name
// the scales of "w" "w_scale_inv"; others use "w_scale".
func scaleOf(files map[string]Source, name string) string {
	for _, s := range []string{name + "_scale_inv", name + "_scale"} {
		if files[s] != nil {
			return s
		}
	}
	return ""
}

// pieceOf returns the tensor of the given name in files as a piece of a weight of type dt and the given shape. 8-bit
// tensors that have scales are multiplied by them.
func pieceOf(files map[string]Source, name string, dt ir.DType, shape []int64) (piece, error) {
	p := piece{from: files[name], name: name}
	have, err := p.from.Header(name)
	if err != nil {
		return p, err
	}
	if scale := scaleOf(files, name); have.DType.IsFloat8() && !dt.IsFloat8() && !dt.IsInt() && scale != "" {
		p.scale = scale
		if p.from, err = newDequantized(files, name, scale, have, dt); err != nil {
			return p, err
		}
		have = &tensor.Tensor{DType: dt, Shape: have.Shape}
	}
	p.size = bytesOf(have)
	return p, fits(name, have, dt, shape)
}

func newDequantized(files map[string]Source, name, scale string, have *tensor.Tensor, dt ir.DType) (Source, error) {
	header, err := files[scale].Header(scale)
	if err != nil {
		return nil, err
	}
	s, err := tensor.New(header.DType, header.Shape)
	if err == nil {
		err = files[scale].ReadAt(s.Data, scale, 0)
	}
	if err != nil {
		return nil, err
	}
	scales, err := tensor.ScalesOf(have, s)
	if err != nil {
		return nil, fmt.Errorf("%w: %q cannot be the scales of %q: %w", ErrMismatch, scale, name, err)
	}
	return &dequantized{files[name], have, scales, dt}, nil
}

func (d *dequantized) Header(string) (*tensor.Tensor, error) {
	return &tensor.Tensor{DType: d.to, Shape: d.of.Shape}, nil
}

func (d *dequantized) ReadAt(to []byte, name string, from int64) error {
	size := d.to.Size()
	first, n := from/size, int64(len(to))/size
	raw := make([]byte, n) // callers read ranges of whole elements
	if err := d.Source.ReadAt(raw, name, first); err != nil {
		return err
	}
	vals := make([]float64, min(n, d.scales.Cols))
	for at := int64(0); at < n; {
		row, col := (first+at)/d.scales.Cols, (first+at)%d.scales.Cols
		part := vals[:min(n-at, d.scales.Cols-col)]
		tensor.ToFloat64(part, raw[at:], d.of.DType)
		d.scales.Apply(part, row, col)
		tensor.FromFloat64(to[at*size:], part, d.to)
		at += int64(len(part))
	}
	return nil
}

// largest8 is the largest number of the type f8e4m3.
const largest8 = 448

// quantized describes a weight whose 8-bit values or scales are in a parameter.
type quantized struct {
	piece
	dt         ir.DType // of the weight
	rows, cols int64
	at         int64 // position, in bytes, of the weight's values or scales in the parameter
}

// readQuantized reads the values or the scales of weights. lo and hi are the rows of each weight that are needed; all
// others stay zero.
func (c *Content) readQuantized(t *tensor.Tensor, rank, ranks int) error {
	errs := make([]error, len(c.weights))
	var wg sync.WaitGroup
	turn := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range c.weights {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			w := &c.weights[i]
			lo, hi := c.rowsOf(w, rank, ranks)
			errs[i] = w.read(t, c.Param.Quantized, lo, hi)
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// rowsOf returns the rows of a weight that a rank needs. A rank needs all rows if a scale can depend on all of them, or
// if the weight is not split by rows.
func (c *Content) rowsOf(w *quantized, rank, ranks int) (lo, hi int64) {
	split := c.Param.Split - (len(c.Header.Shape) - c.dims)
	if ranks < 2 || c.Param.Split < 0 || split != 0 || c.Param.Quantized.Form == "fp8-tensor" || w.rows%int64(ranks) != 0 {
		return 0, w.rows
	}
	mine := w.rows / int64(ranks)
	return int64(rank) * mine, int64(rank+1) * mine
}

// read writes the values or the scales of rows lo to hi of a weight to t.
func (w *quantized) read(t *tensor.Tensor, q *modelprogram.Quantized, lo, hi int64) error {
	g := grainOf(q.Form, w.rows, w.cols)
	if d, ok := w.from.(*dequantized); ok && g.matches(d) {
		return w.copied(t, d, q.Scales, g, lo, hi)
	}
	// Each iteration quantizes the rows that share scales.
	for i := lo; i < hi; i += g.high {
		n := min(g.high, hi-i)
		raw := make([]byte, n*w.cols*w.dt.Size())
		if err := w.from.ReadAt(raw, w.name, i*w.cols*w.dt.Size()); err != nil {
			return err
		}
		vals := make([]float32, n*w.cols)
		tensor.ToFloat32(vals, raw, w.dt)
		most := make([]float32, g.across)
		for k, v := range vals {
			j := int64(k) % w.cols / g.wide
			most[j] = max(most[j], v, -v)
		}
		for j, m := range most {
			most[j] = max(m/largest8, tensor.LeastScale)
		}
		if q.Scales {
			tensor.FromFloat32(t.Data[w.at+i/g.high*g.across*4:], most, ir.F32)
			continue
		}
		for k, v := range vals {
			vals[k] = max(min(v/most[int64(k)%w.cols/g.wide], largest8), -largest8)
		}
		tensor.FromFloat32(t.Data[w.at+i*w.cols:], vals, ir.F8E4M3)
	}
	return nil
}

// copied copies the 8-bit values or the scales of a file to t without quantizing again. Elements that share a scale in
// the parameter must share one in the file.
func (w *quantized) copied(t *tensor.Tensor, d *dequantized, scales bool, g grain, lo, hi int64) error {
	if !scales {
		return d.Source.ReadAt(t.Data[w.at+lo*w.cols:w.at+hi*w.cols], w.name, lo*w.cols)
	}
	for i := lo; i < hi; i += g.high {
		by := make([]float32, g.across)
		for j := range by {
			by[j] = float32(d.scales.At(i, int64(j)*g.wide))
		}
		tensor.FromFloat32(t.Data[w.at+i/g.high*g.across*4:], by, ir.F32)
	}
	return nil
}

// grain describes blocks of elements that share a scale: high rows by wide columns, and across blocks in a row of
// blocks.
type grain struct{ high, wide, across int64 }

func grainOf(form string, rows, cols int64) grain {
	rows, cols = max(rows, 1), max(cols, 1)
	switch form {
	case "fp8-row":
		return grain{1, cols, 1}
	case "fp8-block":
		return grain{modelprogram.Block, modelprogram.Block, (cols + modelprogram.Block - 1) / modelprogram.Block}
	}
	return grain{rows, cols, 1}
}

// matches reports whether any elements that share a scale in the form g also share a scale in a file.
func (g grain) matches(d *dequantized) bool {
	s := d.scales
	within := func(fine, coarse int64) bool { return fine <= coarse && coarse%fine == 0 }
	return d.of.DType == ir.F8E4M3 && (g.high == s.High && g.wide == s.Wide ||
		s.High >= s.Rows && s.Wide >= s.Cols || within(g.high, s.High) && within(g.wide, s.Wide))
}

// setWeights records the weights of which a quantized parameter is made. Each is a single tensor.
func (c *Content) setWeights(headers []*tensor.Tensor) error {
	at := int64(0)
	if len(c.pieces) != len(headers) {
		return fmt.Errorf("%w: %%%s cannot be quantized from several tensors for each weight", ErrMismatch, c.Param.Name)
	}
	for i, h := range headers {
		if len(h.Shape) != 2 {
			return fmt.Errorf("%w: a weight of %%%s is %s, not a matrix", ErrMismatch, c.Param.Name, h)
		}
		w := quantized{piece: c.pieces[i], dt: h.DType, rows: h.Shape[0], cols: h.Shape[1], at: at}
		c.weights = append(c.weights, w)
		if c.Param.Quantized.Scales {
			n, err := tensor.NumElements(modelprogram.ScalesShape(c.Param.Quantized.Form, h.Shape))
			if err != nil {
				return err
			}
			at += n * c.Header.DType.Size()
		} else {
			at += w.rows * w.cols
		}
	}
	c.dims = 2
	if c.Param.Quantized.Scales {
		c.dims = len(modelprogram.ScalesShape(c.Param.Quantized.Form, headers[0].Shape))
	}
	if n := bytesOf(&c.Header); n != at {
		return fmt.Errorf("%w: %%%s has %d bytes, and its weights %d", ErrMismatch, c.Param.Name, n, at)
	}
	return nil
}

// sources lists the names of the tensors in files from which a piece is read.
func (p *piece) sources() []string {
	return slices.DeleteFunc([]string{p.name, p.scale}, func(s string) bool { return s == "" })
}
