package capi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/laps"
)

// Placed is a dense block in the memory of a rank's device.
type Placed struct {
	Name    string
	Rank    int
	DType   string
	Shape   []int64
	Address uintptr // address of the block; 0 if it has none
}

// Prepare starts loading a model's plan for dims. The caller waits for the number that it returns.
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

// Enqueue enqueues a run on a stream of the caller, for this process's rank, which all blocks
// belong to. It returns before the run ends. A result without an address is lent: its address is
// set to the model's memory. The run is issued by the caller's thread: a call of the driver that
// never returns also blocks the caller.
func (l *Library) Enqueue(handle int64, stream uintptr, in, out []Placed, dims string) error {
	laps.Begin()
	m, err := get[*model](l, handle)
	if err != nil {
		return err
	}
	bound, err := readDims(dims)
	if err != nil {
		return err
	}
	ins, outs, err := m.blocks(dims, bound)
	if err != nil {
		return err
	}
	a := hocket.EnqueueArgs{Streams: []uintptr{stream}, Dims: bound}
	if a.In, err = addresses(in, ins, "parameter"); err != nil {
		return err
	}
	if a.Out, err = addresses(out, outs, "result"); err != nil {
		return err
	}
	for _, r := range out {
		if r.Address == 0 {
			if a.Lend == nil {
				a.Lend = map[string]map[int]uintptr{}
			}
			a.Lend[r.Name] = map[int]uintptr{}
			delete(a.Out, r.Name)
		}
	}
	defer m.bound.begin()()
	laps.Lap("blocks")
	if err := m.m.Enqueue(device.Here(l.named(context.Background())), a); err != nil {
		return err
	}
	laps.End("leases ended")
	for i := range out {
		if r := &out[i]; r.Address == 0 {
			r.Address = a.Lend[r.Name][r.Rank]
		}
	}
	return nil
}

// blocks returns the layouts of a model's parameters and results for dims. text is the dims as
// JSON, the key of a cache.
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

// addresses checks blocks, and returns their addresses by name and rank.
func addresses(given []Placed, as []hocket.Layout, what string) (map[string]map[int]uintptr, error) {
	all := map[string]map[int]uintptr{}
	for i := range given {
		p := &given[i]
		if err := p.check(as, what); err != nil {
			return nil, err
		}
		if all[p.Name] == nil {
			all[p.Name] = map[int]uintptr{}
		} else if all[p.Name][p.Rank] != 0 {
			return nil, fmt.Errorf("%w: %s %s is given twice for rank %d", hocket.ErrInput, what, p.Name, p.Rank)
		}
		all[p.Name][p.Rank] = p.Address
	}
	return all, nil
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
		case len(as[i].Blocks) == 1 && slices.Equal(b.Shape, as[i].Shape): // a single rank that holds the whole tensor
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
	err = m.bound.bind(p.Name, lent, d, func() error {
		err := m.m.BindDevice(p.Name, d)
		done = err == nil
		return err
	})
	if !done {
		err = errors.Join(err, d.Close())
	}
	return err
}

// Sync starts waiting until the enqueued runs of a model have ended. The caller waits for the
// number that it returns, and gets their error.
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
