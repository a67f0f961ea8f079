package capi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/laps"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/world"
)

// Placed is a dense block in the memory of a rank's device.
type Placed struct {
	Name    string
	Rank    int
	DType   string
	Shape   []int64
	Address uintptr // address of the block; 0 for a block without memory
}

// Prepare starts loading a model's plan for dims. The caller passes the returned number to Wait.
func (l *Library) Prepare(handle int64, dims string) (int64, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return 0, err
	}
	bound, err := readDims(dims)
	if err != nil {
		return 0, err
	}
	end := m.bound.begin()
	return l.background(func(ctx context.Context) error {
		defer end()
		return m.m.Prepare(ctx, bound)
	}), nil
}

func readDims(text string) (map[string]int64, error) {
	var dims map[string]int64
	return dims, options(text, &dims)
}

// Lendable returns, as JSON, the names of results that a model can leave in its own memory for the
// caller to read.
func (l *Library) Lendable(handle int64, dims string) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	bound, err := readDims(dims)
	if err != nil {
		return "", err
	}
	defer m.bound.begin()()
	names, err := m.m.Lendable(context.Background(), bound)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(append([]string{}, names...))
	return string(text), err
}

// form holds the data that is common to all runs of a model on tensors of the same names, types and shapes.
type form struct {
	m       *model
	in, out []Placed // without addresses
	dims    map[string]int64
	place   atomic.Pointer[string] // the caller's position in its most recent run; nil if unknown
}

// Form prepares runs of a model on blocks of the given names, types and shapes, which all belong
// to this process's rank.
func (l *Library) Form(handle int64, in, out []Placed, dims string) (int64, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return 0, err
	}
	f := &form{m: m, in: in, out: out}
	if f.dims, err = readDims(dims); err != nil {
		return 0, err
	}
	ins, outs, err := m.blocks(dims, f.dims)
	if err == nil {
		err = errors.Join(check(in, ins, "parameter"), check(out, outs, "result"))
	}
	if err != nil {
		return 0, err
	}
	return l.add(f), nil
}

// Enqueue enqueues a run on a stream of the caller, for this process's rank. The slice at holds the addresses of the
// form's blocks: first the parameters, then the results. It returns before the run ends. A result whose address is 0 is
// lent: Enqueue stores its address in the model's memory in at. The caller's thread issues the run, so a call of the
// driver that never returns also blocks the caller. place is the caller's position in its source, for errors in other
// processes; an empty place means the same position as in the form's previous run.
func (l *Library) Enqueue(handle int64, stream uintptr, at []uintptr, place string) error {
	laps.Begin()
	f, err := get[*form](l, handle)
	if err != nil {
		return err
	}
	if len(at) != len(f.in)+len(f.out) {
		return fmt.Errorf("%w: %d addresses are given for %d parameters and %d results", hocket.ErrInput, len(at),
			len(f.in), len(f.out))
	}
	results := at[len(f.in):]
	a := hocket.EnqueueArgs{Streams: []uintptr{stream}, Dims: f.dims, In: map[string]map[int]uintptr{},
		Out: map[string]map[int]uintptr{}}
	for i := range f.in {
		a.In[f.in[i].Name] = map[int]uintptr{f.in[i].Rank: at[i]}
	}
	for i := range f.out {
		r := &f.out[i]
		if results[i] != 0 {
			a.Out[r.Name] = map[int]uintptr{r.Rank: results[i]}
			continue
		}
		if a.Lend == nil {
			a.Lend = map[string]map[int]uintptr{}
		}
		a.Lend[r.Name] = map[int]uintptr{}
	}
	ctx := context.Background()
	if place != "" {
		f.place.Store(&place)
	}
	if at := f.place.Load(); at != nil {
		world.CalledBy(l.Thread())
		ctx = world.WithCall(ctx, f.m.fn, *at)
	}
	defer f.m.bound.begin()()
	laps.Lap("blocks")
	if err := f.m.m.Enqueue(device.Here(ctx), a); err != nil {
		return err
	}
	laps.End("leases ended")
	for i := range f.out {
		if results[i] == 0 {
			results[i] = a.Lend[f.out[i].Name][f.out[i].Rank]
		}
	}
	return nil
}

// blocks returns the layouts of a model's parameters and results for dims. text is the dims as JSON, which is the key
// in the cache of layouts.
func (m *model) blocks(text string, dims map[string]int64) (in, out []hocket.Layout, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.known[text]; ok {
		return known[0], known[1], nil
	}
	if in, out, err = m.m.Layouts(context.Background(), dims, nil); err != nil {
		return nil, nil, err
	}
	if m.known == nil || len(m.known) > 1000 {
		m.known = map[string][2][]hocket.Layout{}
	}
	m.known[text] = [2][]hocket.Layout{in, out}
	return in, out, nil
}

// check checks blocks of different names.
func check(given []Placed, as []hocket.Layout, what string) error {
	for i := range given {
		p := &given[i]
		if err := p.check(as, what); err != nil {
			return err
		}
		if slices.ContainsFunc(given[:i], func(o Placed) bool { return o.Name == p.Name && o.Rank == p.Rank }) {
			return fmt.Errorf("%w: %s %s is given twice for rank %d", hocket.ErrInput, what, p.Name, p.Rank)
		}
	}
	return nil
}

// check returns an error if a block differs from the layout that it should have.
func (p *Placed) check(as []hocket.Layout, what string) error {
	i := slices.IndexFunc(as, func(l hocket.Layout) bool { return l.Name == p.Name })
	if i < 0 {
		return fmt.Errorf("%w: the program has no %s %s", hocket.ErrInput, what, p.Name)
	}
	for _, b := range as[i].Blocks {
		if b.Rank != p.Rank {
			continue
		}
		given := p.DType + strings.ReplaceAll(fmt.Sprint(p.Shape), " ", ", ")
		want := &hocket.Tensor{DType: as[i].DType, Shape: as[i].Shape}
		switch {
		case as[i].DType.String() == p.DType && slices.Equal(b.Shape, p.Shape):
		// there is a single rank, which holds the whole tensor
		case len(as[i].Blocks) == 1 && slices.Equal(b.Shape, as[i].Shape):
			return fmt.Errorf("%w: %s is %s, want %v", hocket.ErrInput, p.Name, given, want)
		default:
			return fmt.Errorf("%w: %s %s, %v, has the block %v on rank %d, but %v is given: each process must pass the block of its "+
				"rank, and set dims if the run has another size", hocket.ErrInput, what, p.Name, want,
				&hocket.Tensor{DType: as[i].DType, Shape: b.Shape}, p.Rank, given)
		}
		return nil
	}
	return fmt.Errorf("%w: rank %d has no block of %s %s", hocket.ErrInput, p.Rank, what, p.Name)
}

// BindDevice binds a parameter, for all later runs, to a block in the memory of a rank's device.
// The block must stay valid. A block without an address removes the binding. An inout parameter is
// updated in place.
func (l *Library) BindDevice(handle int64, lent *Loan, p Placed, dims string) error {
	m, err := get[*model](l, handle)
	if err != nil {
		return err
	}
	bound, err := readDims(dims)
	if err != nil {
		return err
	}
	if p.Address == 0 {
		return m.bound.bind(p.Name, nil, nil, func() error { return m.m.BindDevice(p.Name, nil) })
	}
	ins, _, err := m.blocks(dims, bound)
	if err != nil {
		return err
	}
	if err := p.check(ins, "parameter"); err != nil {
		return err
	}
	d, err := m.m.DeviceTensorAt(context.Background(), p.Name, bound, map[int]uintptr{p.Rank: p.Address})
	if err != nil {
		return err
	}
	done := false
	b := &boundBlock{Closer: d, at: p, bytes: 1, updated: slices.Contains(m.states, p.Name)}
	for _, n := range p.Shape {
		b.bytes *= uintptr(n)
	}
	b.bytes *= uintptr(d.DType().Size())
	err = m.bound.bind(p.Name, lent, b, func() error {
		for name, t := range m.bound.tensors {
			if o, ok := t.device.(*boundBlock); ok && name != p.Name && o.conflicts(b) {
				return fmt.Errorf("%w: %s", hocket.ErrInput, tensor.SharesMemory(p.Name, name))
			}
		}
		err := m.m.BindDevice(p.Name, d)
		done = err == nil
		return err
	})
	if !done {
		err = errors.Join(err, d.Close())
	}
	return err
}

// boundBlock is a bound device tensor in memory of the caller.
type boundBlock struct {
	io.Closer
	at      Placed
	bytes   uintptr
	updated bool // whether runs update it in place
}

// conflicts reports whether two blocks share memory and runs update both.
func (b *boundBlock) conflicts(o *boundBlock) bool {
	return b.updated && o.updated && b.at.Rank == o.at.Rank && b.at.Address < o.at.Address+o.bytes &&
		o.at.Address < b.at.Address+b.bytes
}

// Sync starts waiting until the enqueued runs of a model have ended. The caller passes the returned number to Wait,
// which returns the error of these runs.
func (l *Library) Sync(handle int64) (int64, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return 0, err
	}
	return l.background(m.m.Sync), nil
}

// background runs f in a goroutine, and returns the number to wait for.
func (l *Library) background(f func(ctx context.Context) error) int64 {
	ctx, cancel := context.WithCancelCause(l.named(context.Background()))
	c := &call{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = f(ctx)
	}()
	return l.add(c)
}
