package modeltest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// steps is a program with split and replicated state, and results in three layouts.
const steps = `dim T = 4
mesh tp[2]
func step(%x: i32[T/tp, 2], %n: i32[2], %s: inout i32[T/tp, 2], %r: inout i32[2]) -> (i32[T/tp, 2], i32[T, 2]) {
  %y = sub %x, %s
  %m = add %r, %n
  %z: i32[T, 2] = all_gather %y, over=tp, axis=0
  copy %y into %s
  copy %m into %r
  return %y, %z
}
func spread(%c: i32[T, 2]) -> i32[T/tp, 2] {
  %d: i32[T/tp, 2] = reshard %c
  %e = neg %d
  return %e
}
`

// layout is the layout of a parameter or result in the program steps: split by rows, replicated, or a replicated vector
// of a fixed length.
type layout byte

const (
	split  layout = 'A'
	whole  layout = 'C'
	vector layout = 'B'
)

// function is a function of the program steps, with a Go implementation of its computation.
type function struct {
	name     string
	ins      map[string]layout
	outs     map[string]layout
	computes func(in map[string][]int32) (out map[string][]int32)
}

var functions = []function{
	{
		"step", map[string]layout{"x": split, "n": vector, "s": split, "r": vector},
		map[string]layout{"y": split, "z": whole, "s": split, "r": vector},
		func(in map[string][]int32) map[string][]int32 {
			y, m := make([]int32, len(in["x"])), make([]int32, 2)
			for i := range y {
				y[i] = in["x"][i] - in["s"][i]
			}
			for i := range m {
				m[i] = in["r"][i] + in["n"][i]
			}
			return map[string][]int32{"y": y, "z": y, "s": y, "r": m}
		},
	},
	{
		"spread", map[string]layout{"c": whole}, map[string]layout{"e": split},
		func(in map[string][]int32) map[string][]int32 {
			e := make([]int32, len(in["c"]))
			for i := range e {
				e[i] = -in["c"][i]
			}
			return map[string][]int32{"e": e}
		},
	},
}

// onDevice is a device tensor and its expected contents; nil if these are undefined.
type onDevice struct {
	*hocket.DeviceTensor
	layout layout
	rows   int64
	vals   []int32
}

// walk is a random sequence of operations on device tensors.
type walk struct {
	t      *testing.T
	rand   *rand.Rand
	models []*hocket.Model // one for each function
	pool   []*onDevice
	others Outside
	bound  []int32          // the values to which the parameter %n is bound; nil if it is not bound
	on     []map[string]int // for each model: the index in the pool of the tensor to which a parameter is bound
	given  []*inHost        // results of earlier runs, which belong to the caller
	log    []string
}

// inHost is a tensor in host memory, with its contents before and after a batch.
type inHost struct {
	*hocket.Tensor
	layout       layout
	before, vals []int32
}

// DeviceTensors performs count random operations on device tensors. DeviceTensors writes and reads the tensors, and
// runs two models for several dims, alone and in batches. Some parameters and results of the runs are device tensors.
// Other parameters and results are tensors in host memory, some of which are shared by runs of a batch. All results are
// compared with a computation in Go.
//
// If others is not nil, it fills and reads blocks that are not in the host's memory.
func DeviceTensors(t *testing.T, m *hocket.Machine, opts hocket.LoadOptions, others Outside, seed uint64, count int) {
	t.Helper()
	if others == nil {
		others = inProcess{}
	}
	w := &walk{t: t, rand: rand.New(rand.NewPCG(seed, 1)), others: others}
	p, err := hocket.Parse("steps.hkt", steps)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range functions {
		model, err := m.Load(p, hocket.Binding{Func: f.name}, opts)
		if err != nil {
			t.Fatal(err)
		}
		w.models = append(w.models, model)
		w.on = append(w.on, map[string]int{})
	}
	for _, rows := range []int64{2, 4, 6} {
		w.add(split, rows)
		w.add(split, rows)
		w.add(whole, rows)
		w.add(vector, rows)
	}
	for range count {
		switch w.rand.IntN(11) {
		case 0:
			w.write()
		case 8:
			w.fill()
		case 10:
			w.bindDevice(w.rand.IntN(len(functions)))
		case 9:
			w.view(w.pool[w.rand.IntN(len(w.pool))])
		case 1:
			w.read(w.pool[w.rand.IntN(len(w.pool))])
		case 2:
			w.replace()
		case 3:
			w.bind()
		default:
			w.run(w.rand.IntN(len(functions)))
		}
		if t.Failed() {
			t.Fatalf("seed %d, after: %v", seed, w.log)
		}
	}
	for _, h := range w.given {
		w.compare("a result, later", h.Tensor, h.vals)
	}
	for _, d := range w.pool {
		w.read(d)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, model := range w.models {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (w *walk) did(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// make makes a device tensor with the given layout.
func (w *walk) make(l layout, rows int64) *onDevice {
	w.t.Helper()
	var ports [][2]any
	for i, f := range functions {
		for _, list := range []map[string]layout{f.ins, f.outs} {
			for _, name := range slices.Sorted(maps.Keys(list)) {
				if list[name] == l {
					ports = append(ports, [2]any{i, name})
				}
			}
		}
	}
	port := ports[w.rand.IntN(len(ports))]
	d, err := w.models[port[0].(int)].NewDeviceTensor(w.t.Context(), port[1].(string), map[string]int64{"T": rows})
	if err != nil {
		w.t.Fatal(err)
	}
	return &onDevice{DeviceTensor: d, layout: l, rows: rows}
}

func (w *walk) add(l layout, rows int64) { w.pool = append(w.pool, w.make(l, rows)) }

// values returns fresh values for a tensor.
func (w *walk) values(l layout, rows int64) []int32 {
	if l == vector {
		rows = 1
	}
	vals := make([]int32, 2*rows)
	for i := range vals {
		vals[i] = int32(w.rand.Uint32())
	}
	return vals
}

func (w *walk) tensor(l layout, vals []int32) *hocket.Tensor {
	w.t.Helper()
	shape := []int64{int64(len(vals) / 2), 2}
	if l == vector {
		shape = shape[1:]
	}
	floats := make([]float64, len(vals))
	for i, v := range vals {
		floats[i] = float64(v)
	}
	t, err := hocket.FromFloats(ir.I32, floats, shape...)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w *walk) compare(what string, got *hocket.Tensor, want []int32) {
	w.t.Helper()
	var vals []int32
	for _, v := range got.Floats() {
		vals = append(vals, int32(v))
	}
	if !slices.Equal(vals, want) {
		w.t.Errorf("%s: got %v, want %v", what, vals, want)
	}
}

func (w *walk) write() {
	w.t.Helper()
	i := w.rand.IntN(len(w.pool))
	d := w.pool[i]
	d.vals = w.values(d.layout, d.rows)
	w.did("write %d", i)
	if err := d.Write(w.t.Context(), w.tensor(d.layout, d.vals)); err != nil {
		w.t.Error(err)
	}
}

func (w *walk) read(d *onDevice) {
	w.t.Helper()
	got, err := d.Read(w.t.Context())
	switch {
	case d.vals == nil:
		if !errors.Is(err, hocket.ErrNoContents) {
			w.t.Errorf("read of what holds nothing: %v", err)
		}
	case err != nil:
		w.t.Error(err)
	default:
		w.compare("read", got, d.vals)
	}
}

// replace closes a random tensor and makes another in its place.
func (w *walk) replace() {
	w.t.Helper()
	i := w.rand.IntN(len(w.pool))
	w.did("replace %d", i)
	if err := w.pool[i].Close(); err != nil {
		w.t.Error(err)
	}
	w.pool[i] = w.make(w.pool[i].layout, w.pool[i].rows)
	for f, on := range w.on {
		for name, k := range on {
			if k == i && w.rand.IntN(2) == 0 {
				delete(on, name)
				w.bindTo(f, name, nil)
			} else if k == i {
				w.bindTo(f, name, w.pool[i].DeviceTensor)
			}
		}
	}
}

func (w *walk) bindTo(f int, name string, d *hocket.DeviceTensor) {
	w.t.Helper()
	if err := w.models[f].BindDevice(name, d); err != nil {
		w.t.Error(err)
	}
}

// bindDevice binds a parameter to a device tensor, or removes the binding.
func (w *walk) bindDevice(f int) {
	w.t.Helper()
	names := slices.Sorted(maps.Keys(functions[f].ins))
	name := names[w.rand.IntN(len(names))]
	list := w.fitting(functions[f].ins[name], []int64{2, 4, 6}[w.rand.IntN(3)], nil)
	if name == "n" {
		w.bound = nil // %n cannot be bound to host values and a device tensor at the same time
	}
	if w.rand.IntN(4) == 0 {
		w.did("unbind %s", name)
		delete(w.on[f], name)
		w.bindTo(f, name, nil)
		return
	}
	i := list[w.rand.IntN(len(list))]
	w.did("bind %s to %d", name, i)
	w.on[f][name] = i
	w.bindTo(f, name, w.pool[i].DeviceTensor)
}

// boundTo returns the index of the device tensor to which a parameter is bound. ok is false if a run with the given
// number of rows cannot use the tensor.
func (w *walk) boundTo(f int, name string, rows int64) (i int, ok bool) {
	i, ok = w.on[f][name]
	return i, ok && w.pool[i].vals != nil && (w.pool[i].layout == vector || w.pool[i].rows == rows)
}

func (w *walk) bind() {
	w.t.Helper()
	var t *hocket.Tensor
	if w.bound = nil; w.rand.IntN(3) > 0 {
		w.bound = w.values(vector, 0)
		t = w.tensor(vector, w.bound)
	}
	w.did("bind %v", t != nil)
	delete(w.on[0], "n")
	if err := w.models[0].Bind("n", t); err != nil {
		w.t.Error(err)
	}
}

// fitting lists the tensors with the given layout and number of rows that are not in taken.
func (w *walk) fitting(l layout, rows int64, taken map[int]bool) (list []int) {
	for i, d := range w.pool {
		if d.layout == l && (l == vector || d.rows == rows) && !taken[i] {
			list = append(list, i)
		}
	}
	return list
}

func (w *walk) run(f int) {
	w.t.Helper()
	rows := 2 * (1 + w.rand.Int64N(3))
	var batch []hocket.Args
	var wants []map[string][]int32
	var host []*inHost                            // host tensors that are arguments of the batch or receive its results
	on := func(a hocket.Args, name string) bool { // whether the bound device tensor is used by default
		_, bound := w.on[f][name]
		return bound && a.In[name] == nil && a.DeviceIn[name] == nil && a.Out[name] == nil
	}
	for range 1 + w.rand.IntN(3) {
		a, want := w.args(f, rows, &host)
		batch, wants = append(batch, a), append(wants, want)
	}
	reports, err := w.models[f].RunBatch(w.t.Context(), batch)
	if err != nil {
		w.t.Error(err)
		return
	}
	for i, r := range reports {
		for _, name := range slices.Sorted(maps.Keys(functions[f].outs)) {
			got, left, into := r.Out[name], batch[i].DeviceOut[name] != nil || on(batch[i], name), batch[i].Out[name]
			switch {
			case slices.Contains(r.OutNames, name) == left || (got == nil) != left:
				w.t.Errorf("run %d: result %s is there: %v, left on the devices: %v", i, name, got != nil, left)
			case into != nil && got != into:
				w.t.Errorf("run %d: result %s is not in the tensor for it", i, name)
			case into == nil && !left:
				w.given = append(w.given, &inHost{Tensor: got, vals: wants[i][name]})
				w.compare(fmt.Sprintf("run %d, %s", i, name), got, wants[i][name])
			}
		}
	}
	for i, h := range host {
		w.compare(fmt.Sprintf("host tensor %d", i), h.Tensor, h.vals)
	}
}

// args chooses at random where the parameters and results of a run are, and computes the expected results.
func (w *walk) args(number int, rows int64, host *[]*inHost) (hocket.Args, map[string][]int32) {
	f := &functions[number]
	a := hocket.Args{Out: map[string]*hocket.Tensor{}, In: map[string]*hocket.Tensor{}, DeviceIn: map[string]*hocket.DeviceTensor{}, DeviceOut: map[string]*hocket.DeviceTensor{}}
	in := map[string][]int32{}
	line := fmt.Sprintf("%s %d", f.name, rows)
	taken, stays := map[int]bool{}, map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(f.ins)) {
		l := f.ins[name]
		if i, ok := w.boundTo(number, name, rows); ok && w.rand.IntN(4) > 0 {
			in[name] = w.pool[i].vals
			line += fmt.Sprintf(" %s=%d", name, i)
			if _, inout := f.outs[name]; inout && !taken[i] {
				taken[i], stays[name] = true, i
			}
			continue
		}
		list := slices.DeleteFunc(w.fitting(l, rows, nil), func(i int) bool { return w.pool[i].vals == nil })
		switch from := w.rand.IntN(3); {
		case from > 0 && len(list) > 0:
			i := list[w.rand.IntN(len(list))]
			a.DeviceIn[name], in[name] = w.pool[i].DeviceTensor, w.pool[i].vals
			line += fmt.Sprintf(" %s<%d", name, i)
		case name == "n" && w.bound != nil && w.rand.IntN(2) > 0:
			in[name] = w.bound
		default:
			h := w.again(l, *host)
			if h == nil {
				h = w.fresh(l, rows)
				*host = append(*host, h)
			}
			a.In[name], in[name] = h.Tensor, h.before
		}
	}
	want := f.computes(in)
	for _, name := range slices.Sorted(maps.Keys(f.outs)) {
		list := w.fitting(f.outs[name], rows, taken)
		if _, ok := stays[name]; w.rand.IntN(3) == 0 || len(list) == 0 || ok && w.rand.IntN(2) == 0 {
			if h := w.receiver(f.outs[name], rows, *host, a.Out); h != nil {
				if !slices.Contains(*host, h) {
					*host = append(*host, h)
				}
				a.Out[name], h.vals = h.Tensor, want[name]
				line += fmt.Sprintf(" %s>host", name)
			} else if i, ok := stays[name]; ok {
				w.pool[i].vals = want[name]
				line += " " + name
			}
			continue
		}
		i := list[w.rand.IntN(len(list))]
		taken[i] = true
		a.DeviceOut[name], w.pool[i].vals = w.pool[i].DeviceTensor, want[name]
		line += fmt.Sprintf(" %s>%d", name, i)
	}
	w.did("%s", line)
	return a, want
}

// fresh returns a new tensor in host memory.
func (w *walk) fresh(l layout, rows int64) *inHost {
	vals := w.values(l, rows)
	return &inHost{w.tensor(l, vals), l, vals, vals}
}

// again returns a random tensor of the layout's shape that the batch already uses, or nil.
func (w *walk) again(l layout, host []*inHost) *inHost {
	if w.rand.IntN(2) == 0 {
		return nil
	}
	for _, i := range w.rand.Perm(len(host)) {
		if (host[i].layout == vector) == (l == vector) {
			return host[i]
		}
	}
	return nil
}

// receiver chooses the host tensor for a result at random: a new one, one that the batch already uses and that is not
// in taken, or none.
func (w *walk) receiver(l layout, rows int64, host []*inHost, taken map[string]*hocket.Tensor) *inHost {
	switch w.rand.IntN(3) {
	case 0:
		return nil
	case 1:
		return w.fresh(l, rows)
	}
	h := w.again(l, host)
	for _, t := range taken {
		if h != nil && t == h.Tensor {
			return nil
		}
	}
	return h
}
