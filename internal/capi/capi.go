// Package capi implements the interface of libhocket to other languages. Objects are numbers,
// options and results are JSON, and tensors are in the caller's memory. A caller can wait for a
// call in slices of time, so that an interpreter can handle signals in between. Package libhocket
// adds the C interface.
//
// No argument of a caller makes the package panic: a number that names no object is an error.
package capi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/contents"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Version is the version of the C interface. It changes when programs built for an earlier version
// would fail.
const Version = 4

// ErrHandle is wrapped by errors about numbers that name no object.
var ErrHandle = errors.New("it names no object")

// Library holds the objects of a process.
type Library struct {
	objects
	owners owners
	// Thread returns a number that identifies the calling thread. It is needed if several threads of the caller call
	// functions.
	Thread  func() uintptr
	calling sync.Map     // by thread: the name and position that Calling set for the next function that the thread calls
	called  atomic.Int64 // number of entries of calling
}

type calling struct{ call, place string }

// Calling sets the name of the function of the caller's library that makes the next run, load or collective, and the
// position of the call of that function in the user's source. Name and position apply to the next function that the
// same thread calls. Errors in other processes contain the name and the position: see world.CalledBy. Collectives set
// their own names; for them, the position stays in effect until the next Calling.
func (l *Library) Calling(call, place string) {
	thread := l.Thread()
	world.CalledBy(thread)
	if _, found := l.calling.Swap(thread, calling{call, place}); !found {
		l.called.Add(1)
	}
}

// named returns a context.Context that contains the name and position that this thread has set with Calling. If no
// thread has set them, named does not ask for the calling thread.
func (l *Library) named(ctx context.Context) context.Context {
	if l.called.Load() == 0 {
		return ctx
	}
	if c, ok := l.calling.LoadAndDelete(l.Thread()); ok {
		l.called.Add(-1)
		c := c.(calling)
		return world.WithCall(ctx, c.call, c.place)
	}
	return ctx
}

// Failed reports to the other processes of a machine the reason why this process is about to leave. It does nothing if
// there are no other processes.
func (l *Library) Failed(machineHandle int64, why string) error {
	m, err := get[*machine](l, machineHandle)
	if err == nil && m.w != nil {
		m.w.Failed(errors.New(why))
	}
	return err
}

// New returns a Library that has no objects yet.
func New() *Library {
	return &Library{objects: objects{all: map[int64]any{}}, Thread: func() uintptr { return 0 }}
}

// objects maps numbers to objects.
type objects struct {
	mu   sync.Mutex
	next int64
	all  map[int64]any // *machine, *model, *call, *collectives
}

func (l *objects) add(object any) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.all[l.next] = object
	return l.next
}

func get[T any](l *Library, handle int64) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object, ok := l.all[handle].(T)
	if !ok && handle == 0 {
		return object, fmt.Errorf("the %s is closed: %w", strings.TrimPrefix(fmt.Sprintf("%T", object), "*capi."),
			ErrHandle)
	}
	if !ok {
		return object, fmt.Errorf("handle %d: %w that can be used in this call; it may have been closed", handle,
			ErrHandle)
	}
	return object, nil
}

func (l *objects) drop(handle int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, handle)
}

// options decodes JSON. An unknown option gives an error. Empty text means no options.
func options(text string, to any) error {
	if text == "" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("%w: %w", hocket.ErrInput, optionError(err, to))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: options: there is more text after the JSON object, which ends at byte %d", hocket.ErrInput,
			d.InputOffset())
	}
	return nil
}

// optionError translates an error of decoding JSON into the terms of the caller.
func optionError(err error, to any) error {
	if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
		var names []string
		for f := range reflect.TypeOf(to).Elem().Fields() {
			names = append(names, f.Tag.Get("json"))
		}
		slices.Sort(names)
		return fmt.Errorf("unknown option %s; the options are %s", name, strings.Join(names, ", "))
	}
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
		want := wrong.Type.String()
		switch wrong.Type.Kind() {
		case reflect.Float64:
			want = "a number"
		case reflect.Int, reflect.Int64:
			want = "a whole number"
		case reflect.Bool:
			want = "true or false"
		case reflect.String:
			want = "a text"
		case reflect.Slice:
			want = "a list"
		case reflect.Map:
			want = "a mapping"
		}
		return fmt.Errorf("option %s is a %s, but must be %s", wrong.Field, wrong.Value, want)
	}
	return fmt.Errorf("options: %w", err)
}

type machine struct {
	m    *hocket.Machine
	name string
	w    *hocket.World // nil if there are no other processes
	// group reports that w contains only some of the processes that were started.
	group bool
}

// machineOptions are the options of Open.
type machineOptions struct {
	Machine string `json:"machine"`
	// Alone ignores the environment that launchers set: the machine belongs to this process only.
	Alone bool `json:"alone"`
	// Rank and Size are taken from the environment if both are nil.
	Rank *int `json:"rank"`
	Size *int `json:"size"`
	// Algorithm is the algorithm that Collectives will try first; Open only checks that it exists.
	Algorithm    string  `json:"algorithm"`
	ID           string  `json:"id"`
	Dir          string  `json:"dir"`
	Timeout      float64 `json:"timeout"`       // time limit, in seconds, for all processes to join
	StallTimeout float64 `json:"stall_timeout"` // seconds
}

// check returns an error if options do not fit together, or name an algorithm that the machine does not have.
func (o *machineOptions) check() error {
	switch {
	case o.Size == nil && o.Rank != nil:
		return fmt.Errorf("%w: option rank is %d, but size is not given: give rank, size and id, or none of them under a launcher",
			hocket.ErrInput, *o.Rank)
	case o.Size != nil && *o.Size < 1:
		return fmt.Errorf("%w: option size is %d, but must be at least 1", hocket.ErrInput, *o.Size)
	case o.Size != nil && *o.Size > 1 && o.Alone:
		return fmt.Errorf("%w: option size is %d, but alone is true", hocket.ErrInput, *o.Size)
	case o.Size != nil && *o.Size > 1 && o.Rank == nil:
		return fmt.Errorf("%w: option size is %d, but rank is not given", hocket.ErrInput, *o.Size)
	case o.Size != nil && o.Rank != nil && (*o.Rank < 0 || *o.Rank >= *o.Size):
		return fmt.Errorf("%w: option rank is %d, but must be from 0 to %d", hocket.ErrInput, *o.Rank, *o.Size-1)
	}
	k, err := device.KindNamed(o.Machine)
	if err != nil {
		var names []string
		for _, k := range device.Kinds() {
			names = append(names, k.Name)
		}
		return fmt.Errorf("%w: there is no machine %q; the machines are %s", hocket.ErrInput, o.Machine,
			strings.Join(names, ", "))
	}
	if o.Algorithm == "" {
		return nil
	}
	if err := comm.CheckName(o.Algorithm, k.Algorithms, true); err != nil {
		return fmt.Errorf("%w: option algorithm: %w", hocket.ErrInput, err)
	}
	return nil
}

// seconds converts an option to a duration. name is the option's name, for errors.
func seconds(name string, s float64) (time.Duration, error) {
	if s < 0 || s > math.MaxInt64/1e9 {
		return 0, fmt.Errorf("%w: option %s is %v, but must be a number of seconds, or 0 for the default",
			hocket.ErrInput, name,
			s)
	}
	return time.Duration(s * 1e9), nil
}

// Joined is the process's rank, the size of its world, and how the processes of a node exchange data (see
// hocket.Machine.Exchange).
type Joined struct {
	Rank     int    `json:"rank"`
	Size     int    `json:"size"`
	Exchange string `json:"exchange,omitempty"`
}

// Open opens a machine, and joins the other processes if a launcher started several processes.
func (l *Library) Open(ctx context.Context, text string) (handle int64, who Joined, err error) {
	var o machineOptions
	if err := options(text, &o); err != nil {
		return 0, who, err
	}
	if err := o.check(); err != nil {
		return 0, who, err
	}
	timeout, err := seconds("timeout", o.Timeout)
	if err != nil {
		return 0, who, err
	}
	stall, err := seconds("stall_timeout", o.StallTimeout)
	if err != nil {
		return 0, who, err
	}
	who = Joined{Size: 1}
	m := &machine{name: o.Machine}
	join := hocket.JoinOptions{ID: o.ID, Dir: o.Dir, Timeout: timeout, StallTimeout: stall}
	size := 1
	switch {
	case o.Size != nil:
		size, join.Size = *o.Size, *o.Size
		if o.Rank != nil {
			join.Rank = *o.Rank
		}
	case !o.Alone:
		if size, err = hocket.Launched(); err != nil {
			return 0, who, err
		}
	}
	if size > 1 {
		m.w, err = hocket.Join(ctx, join)
		if err != nil {
			return 0, who, err
		}
		who = Joined{Rank: m.w.Rank(), Size: m.w.Size()}
	}
	m.m, err = hocket.Open(context.WithoutCancel(ctx), hocket.MachineOptions{Name: o.Machine, World: m.w})
	if err != nil {
		if m.w != nil {
			m.w.Abort(err)
			_ = m.w.Leave() // err is the cause
		}
		return 0, who, err
	}
	who.Exchange = m.m.Exchange()
	return l.add(m), who, nil
}

// groupOptions are the options of Group.
type groupOptions struct {
	Name  string `json:"name"`
	Ranks []int  `json:"ranks"`
	// Alike requires all processes of the machine to call Group, including those outside the group. All these processes
	// compare the arguments of their calls. Processes outside the group get no machine.
	Alike bool `json:"alike"`
}

// Group opens a machine for some of the processes of another machine: see hocket.World.Group. In a
// process outside the group it returns rank -1 and no machine.
func (l *Library) Group(ctx context.Context, handle int64, text string) (group int64, who Joined, err error) {
	m, err := get[*machine](l, handle)
	if err != nil {
		return 0, who, err
	}
	var o groupOptions
	if err := options(text, &o); err != nil {
		return 0, who, err
	}
	own := slices.Index(o.Ranks, 0)
	if m.w != nil {
		own = slices.Index(o.Ranks, m.w.Rank())
		if o.Alike {
			if err := m.w.Same(l.named(ctx), "new group "+o.Name, fmt.Sprint("ranks ", o.Ranks)); err != nil {
				return 0, who, err
			}
		}
	}
	if err := m.hasRanks(o.Ranks); err != nil {
		return 0, who, err
	}
	who = Joined{Rank: own, Size: len(o.Ranks)}
	if own < 0 {
		return 0, who, nil
	}
	g := &machine{name: m.name, group: true}
	if m.w != nil {
		if g.w, err = m.w.Group(ctx, o.Name, o.Ranks); err != nil {
			return 0, who, err
		}
	}
	g.m, err = hocket.Open(context.WithoutCancel(ctx), hocket.MachineOptions{Name: m.name, World: g.w})
	if err != nil {
		if g.w != nil {
			g.w.Abort(err)
			_ = g.w.Leave() // err is the cause
		}
		return 0, who, err
	}
	return l.add(g), who, nil
}

// hasRanks returns an error unless every rank in a list is the rank of a process of the machine, and none occurs twice.
func (m *machine) hasRanks(ranks []int) error {
	size := 1
	if m.w != nil {
		size = m.w.Size()
	}
	there := fmt.Sprintf("the ranks of the %d processes are 0 to %d", size, size-1)
	if size == 1 {
		there = "the only process has rank 0"
	}
	if len(ranks) == 0 {
		return fmt.Errorf("%w: a group of no ranks; %s", hocket.ErrInput, there)
	}
	for i, r := range ranks {
		switch {
		case r < 0 || r >= size:
			return fmt.Errorf("%w: a group of ranks %v: there is no rank %d; %s", hocket.ErrInput, ranks, r, there)
		case slices.Contains(ranks[:i], r):
			return fmt.Errorf("%w: a group of ranks %v: rank %d is listed twice", hocket.ErrInput, ranks, r)
		}
	}
	return nil
}

type model struct {
	m       *hocket.Model
	machine *machine
	program *hocket.Program
	fn      string   // the function's name
	names   []string // names of all parameters
	states  []string // names of inout parameters
	extents map[string][]string
	types   map[string]string
	returns [][]string
	// declared holds the parameters' types as text. fixed holds the parameters' extents; an extent is -1 if it depends
	// on dims for which the model was not loaded with a value, or if it differs between ranks.
	declared  map[string]string
	fixed     map[string][]int64
	positions []string       // parameters that buckets pad with -1: see contents.Positions
	within    []string       // dims that occur in extents only as part of an expression
	split     []string       // dims over which parameters are split
	export    *hocket.Export // the archive from which the model was loaded; nil for a program's text
	unused    []string       // names of weights that the export does not use
	// quantize is the form in which weights of the export are quantized; empty for none.
	quantize string
	bound    *bound
	parts    map[string]wholeAndBlock // shapes of the parameters that are split over processes, for the model's own dims

	updating chan struct{} // semaphore: contains an element while a run updates tensors of the caller

	mu       sync.Mutex
	known    map[string][2][]hocket.Layout // layouts of parameters and results, by the text of the dims
	compared string                        // the last comparison, as JSON
}

// loadOptions are the options of Load.
type loadOptions struct {
	Name      string           `json:"name"` // name of the program, for messages
	Func      string           `json:"func"`
	Ranks     int              `json:"ranks"`
	Dims      map[string]int64 `json:"dims"`
	Strategy  string           `json:"strategy"`
	Algorithm string           `json:"algorithm"`
	Fixed     bool             `json:"fixed"`
	NoProve   bool             `json:"no_prove"`
	Arena     int64            `json:"arena"`
	Cache     int64            `json:"cache"`
	HardCache bool             `json:"hard_cache"`
	Grace     float64          `json:"grace"` // seconds
	Graph     bool             `json:"graph"`
	Gather    bool             `json:"gather"`
	// Export is the path of an archive written by torch.export.save, which is loaded in place of a
	// program. Plan maps its weights to layouts, and Shard overrides it. Weights are files with the values of
	// weights. If Unbound is set, the caller binds the weights. Quantize is the form in which weights of linears
	// are quantized.
	Export   string            `json:"export"`
	Plan     map[string]string `json:"plan"`
	Shard    map[string]string `json:"shard"`
	Weights  []string          `json:"weights"`
	Unbound  bool              `json:"unbound"`
	Quantize string            `json:"quantize"`
}

// Load loads a program's text, or the archive that an option names. It returns the number of the
// model.
func (l *Library) Load(machineHandle int64, program, text string) (int64, error) {
	m, err := get[*machine](l, machineHandle)
	if err != nil {
		return 0, err
	}
	o := loadOptions{Name: "program.hkt"}
	if err := options(text, &o); err != nil {
		return 0, err
	}
	p, export, err := o.program(program)
	if err != nil {
		return 0, err
	}
	if err := m.oneRankEach(p.IR(), &o); err != nil {
		return 0, closed(export, err)
	}
	mod, err := m.m.Load(p, hocket.Binding{Func: o.Func, Ranks: o.Ranks, Dims: o.Dims}, hocket.LoadOptions{
		Strategy: o.Strategy, Algorithm: o.Algorithm, FixedAlgorithms: o.Fixed, NoProve: o.NoProve, Arena: o.Arena,
		Cache: o.Cache, HardCache: o.HardCache,
		Grace: time.Duration(o.Grace * float64(time.Second)), Graph: o.Graph, Gather: o.Gather})
	var unused []string
	if err == nil && export != nil {
		if unused, err = export.Bind(context.Background(), mod); err != nil {
			err = errors.Join(err, mod.Close())
		}
	}
	if err != nil {
		return 0, closed(export, err)
	}
	fn := p.IR().Entry(o.Func)
	info, _ := checker.Check(p.IR()) // without errors, because the program is loaded
	names, states, extents, types := []string{}, []string{}, map[string][]string{}, map[string]string{}
	within, split, declared, fixed := []string{}, []string{}, map[string]string{}, map[string][]int64{}
	for _, param := range fn.Params {
		names = append(names, param.Name)
		types[param.Name] = param.Type.DType.String()
		extents[param.Name], declared[param.Name] = bareDims(param.Type), param.Type.String()
		fixed[param.Name] = fixedExtents(param.Type, o.Dims, m.w != nil)
		within = append(within, dimsWithin(param.Type)...)
		for _, d := range param.Type.Dims {
			if d.Extent.Kind == ir.ExprName && len(d.Axes) > 0 {
				split = append(split, d.Extent.Name)
			}
		}
		if param.Inout {
			states = append(states, param.Name)
		}
	}
	returns := [][]string{}
	for _, t := range fn.Results {
		returns = append(returns, bareDims(t))
		within = append(within, dimsWithin(t)...)
	}
	return l.add(&model{m: mod, machine: m, program: p, fn: fn.Name, names: names, states: states,
		extents: extents, types: types, declared: declared, fixed: fixed, returns: returns, within: within,
		positions: slices.AppendSeq([]string{}, maps.Keys(contents.Positions(info, fn))), split: split,
		export: export, unused: unused, quantize: o.Quantize, bound: newBound(), parts: m.parts(info, fn, &o),
		updating: make(chan struct{}, 1)}), nil
}

// oneRankEach returns an error if the mesh of a program has a fixed size that differs from the number of ranks that the
// caller requests, or from the number of processes.
func (m *machine) oneRankEach(p *ir.Program, o *loadOptions) error {
	mesh := p.MainMesh()
	if mesh == nil {
		return nil
	}
	ranks := int64(1)
	for _, axis := range mesh.Axes {
		n, err := axis.Size.Eval(loadedDims(o.Dims))
		if err != nil { // ranks determines the size
			if m.w != nil && o.Ranks != 0 && o.Ranks != m.w.Size() {
				return fmt.Errorf("%w: ranks is %d, and there are %s", hocket.ErrInput, o.Ranks,
					m.processes(int64(o.Ranks)))
			}
			return nil
		}
		ranks *= n
	}
	switch {
	case o.Ranks != 0 && int64(o.Ranks) != ranks:
		return fmt.Errorf("%w: ranks is %d, but the mesh of %s has size %d: leave ranks out, or make the mesh's size a dim",
			hocket.ErrInput, o.Ranks, o.Name, ranks)
	case m.w != nil && int64(m.w.Size()) != ranks:
		return fmt.Errorf("%w: the mesh of %s has size %d, and there are %s", hocket.ErrInput, o.Name, ranks,
			m.processes(ranks))
	}
	return nil
}

// processes returns text for errors: the number of processes, and how to run a program with the given number of ranks.
func (m *machine) processes(ranks int64) string {
	n := m.w.Size()
	if m.group {
		return fmt.Sprintf("%d processes in the group, which have one rank each: give group= a group of %d processes, as "+
			"hocket.new_group makes it", n, ranks)
	}
	text := fmt.Sprintf("%d processes, which have one rank each: start %d processes, as by hocket launch -n %[2]d",
		n, ranks)
	if ranks < int64(n) {
		text += fmt.Sprintf(", or load it in %d of them, with group=hocket.new_group(list(range(%[1]d)))", ranks)
	}
	return text
}

// bareDims returns, for each extent of a type, the name of the dim if the extent is a single dim, and "" for any other
// expression.
func bareDims(t *ir.Type) []string {
	names := []string{}
	for _, d := range t.Dims {
		name := ""
		if d.Extent.Kind == ir.ExprName {
			name = d.Extent.Name
		}
		names = append(names, name)
	}
	return names
}

// fixedExtents returns the extents of a type that follow from dims, and -1 for the others. If blocks is set, the result
// is also -1 for extents that are split over ranks.
func fixedExtents(t *ir.Type, dims map[string]int64, blocks bool) []int64 {
	list := []int64{}
	for _, d := range t.Dims {
		n, err := d.Extent.Eval(loadedDims(dims))
		if err != nil || blocks && len(d.Axes) > 0 {
			n = -1
		}
		list = append(list, n)
	}
	return list
}

// loadedDims evaluates expressions of the dims that a model was loaded with.
type loadedDims map[string]int64

func (d loadedDims) Dim(name string) (int64, bool)  { v, ok := d[name]; return v, ok }
func (loadedDims) Var(string) (int64, bool)         { return 0, false }
func (loadedDims) Rank(string) (int64, bool)        { return 0, false }
func (loadedDims) Size(string) (int64, bool)        { return 0, false }
func (loadedDims) Extent(string, int) (int64, bool) { return 0, false }

// dimsWithin returns the names in those extents of a type that are not a single name.
func dimsWithin(t *ir.Type) (names []string) {
	for _, d := range t.Dims {
		if d.Extent.Kind == ir.ExprName {
			continue
		}
		d.Extent.Walk(func(e *ir.Expr) {
			if e.Kind == ir.ExprName {
				names = append(names, e.Name)
			}
		})
	}
	return names
}

// layouts is the JSON result of Layouts.
type layouts struct {
	In  []layout `json:"in"`
	Out []layout `json:"out"`
}

type layout struct {
	Name   string  `json:"name"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	Inout  bool    `json:"inout"` // set for a parameter that runs update
	Blocks []block `json:"blocks"`
}

type block struct {
	Rank  int     `json:"rank"`
	Lo    []int64 `json:"lo"`
	Shape []int64 `json:"shape"`
}

// sizes determines the dims for which Layouts is called, by values of dims and by shapes of parameters from which dims
// follow.
type sizes struct {
	Dims   map[string]int64   `json:"dims"`
	Shapes map[string][]int64 `json:"shapes"`
	// dims that the caller states explicitly, in contrast to dims that follow from shapes
	Given map[string]int64 `json:"given"`
}

// Layouts returns, as JSON, how a model's parameters and results are laid out. of is JSON too, see
// sizes.
func (l *Library) Layouts(ctx context.Context, handle int64, of string) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	var s sizes
	if err := options(of, &s); err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(s.Shapes)) {
		if err := m.notBlock(name, s.Shapes[name], s.Given); err != nil {
			return "", err
		}
	}
	shapes, err := m.agree(s.Shapes)
	if err != nil {
		return "", err
	}
	in, out, err := m.m.Layouts(ctx, s.Dims, s.Shapes)
	var ds hocket.Diagnostics
	if shapes != "" && errors.Is(err, hocket.ErrInput) && errors.As(err, &ds) {
		return "", fmt.Errorf("%w: %s: %w", hocket.ErrInput, shapes, ds)
	}
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(layouts{listed(in), listed(out)})
	return string(text), err
}

// agree returns the dims that follow from the shapes of parameters, as the text "%x has T=3, %w has T=3". It returns an
// error if a dim differs between two parameters.
func (m *model) agree(shapes map[string][]int64) (string, error) {
	type source struct {
		name string
		n    int64
	}
	var list []string
	set := map[string]source{}
	for _, name := range m.names {
		for i, dim := range m.extents[name] {
			// package exec returns an error about tensors whose shapes do not fit
			if dim == "" || len(shapes[name]) != len(m.extents[name]) {
				continue
			}
			n, first := shapes[name][i], set[dim]
			if first.name != "" && first.n != n {
				help := ""
				if m.machine.w != nil && slices.Contains(m.split, dim) {
					help = "; " + wholeOrBind
				}
				return "", fmt.Errorf("%w: %s is %d by the shape of %%%s, %d, and %d by that of %%%s, %d%s",
					hocket.ErrInput, dim,
					first.n, first.name, shapes[first.name], n, name, shapes[name], help)
			}
			set[dim] = source{name, n}
			list = append(list, fmt.Sprintf("%%%s has %s=%d", name, dim, n))
		}
	}
	return strings.Join(list, ", "), nil
}

func listed(all []hocket.Layout) []layout {
	list := make([]layout, len(all))
	for i, l := range all {
		list[i] = layout{Name: l.Name, DType: l.DType.String(), Shape: l.Shape, Inout: l.Inout, Blocks: []block{}}
		for _, b := range l.Blocks {
			list[i].Blocks = append(list[i].Blocks, block{b.Rank, b.Lo, b.Shape})
		}
	}
	return list
}

// Parameters returns the names of a model's parameters as JSON, in the order of the signature.
func (l *Library) Parameters(handle int64) (string, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(m.names)
	return string(text), err
}

// Tensor is a dense tensor in the caller's memory. The memory must stay valid until Ended has returned the owner that
// was passed with the tensor.
type Tensor struct {
	Name  string
	Rank  int // the rank whose block this is; negative for a whole tensor
	DType string
	Shape []int64
	Data  []byte
}

func (t *Tensor) tensor() (*hocket.Tensor, error) {
	for _, dt := range ir.DTypes() {
		if dt.String() == t.DType {
			return &hocket.Tensor{DType: dt, Shape: slices.Clone(t.Shape), Data: t.Data}, nil
		}
	}
	return nil, fmt.Errorf("%w: %s has element type %q; the element types are %v", hocket.ErrInput, t.Name, t.DType,
		ir.DTypes())
}

// Bind sets the tensor of a parameter for all later runs. A tensor without data removes the binding.
func (l *Library) Bind(handle int64, lent *Loan, t Tensor) error {
	m, err := get[*model](l, handle)
	if err != nil {
		return err
	}
	defer m.forget()
	if t.Data == nil {
		return m.bound.bind(t.Name, nil, nil, func() error { return m.m.Bind(t.Name, nil) })
	}
	x, err := t.tensor()
	if err != nil {
		return err
	}
	return m.bound.bind(t.Name, lent, nil, func() error { return m.m.Bind(t.Name, x) })
}

// call is a call in progress.
type call struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error
}

// Run starts a run. in holds its arguments, and out the tensors that receive its results. dims, as JSON, sets the dims
// that neither the model nor shapes determine. The caller must pass the returned number to Wait until Wait reports the
// end of the run, or to Abandon. If an inout parameter is both in in and in out, its tensor is updated after the run
// has succeeded. Of the runs of one model that update tensors, only one executes at a time.
func (l *Library) Run(handle int64, lent *Loan, in, out []Tensor, dims string) (int64, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return 0, err
	}
	bound, err := readDims(dims)
	if err != nil {
		return 0, err
	}
	args, updates, err := m.args(in, out)
	if err != nil {
		return 0, err
	}
	args.Dims = bound
	lent.share()
	end := m.bound.begin()
	return l.background(func(ctx context.Context) error {
		defer lent.End()
		defer end()
		if updates {
			select {
			case m.updating <- struct{}{}:
				defer func() { <-m.updating }()
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return m.run(ctx, args, out)
	}), nil
}

// args returns the arguments of a run, and whether the run updates tensors that it reads.
func (m *model) args(in, out []Tensor) (args hocket.Args, updates bool, err error) {
	args = hocket.Args{In: map[string]*hocket.Tensor{}, Out: map[string]*hocket.Tensor{},
		InLocal: map[string]map[int]*hocket.Tensor{}}
	for i := range in {
		t := &in[i]
		x, err := t.tensor()
		if err != nil {
			return args, false, err
		}
		switch {
		case t.Rank < 0 && args.In[t.Name] != nil, t.Rank >= 0 && args.InLocal[t.Name][t.Rank] != nil:
			return args, false, fmt.Errorf("%w: %s is given twice", hocket.ErrInput, t.Name)
		case t.Rank < 0:
			args.In[t.Name] = x
		default:
			if args.InLocal[t.Name] == nil {
				args.InLocal[t.Name] = map[int]*hocket.Tensor{}
			}
			args.InLocal[t.Name][t.Rank] = x
		}
	}
	for i := range out {
		switch t := &out[i]; {
		case args.In[t.Name] != nil || args.InLocal[t.Name] != nil:
			updates = true // the run reads the tensor, so the tensor must keep its value if the run fails
		case t.Rank < 0:
			if args.Out[t.Name], err = t.tensor(); err != nil {
				return args, false, err
			}
		}
	}
	return args, updates, separate(out)
}

// separate returns an error if two results, which may be arguments that the run updates, share memory. An argument that
// is only read is copied before the run writes.
func separate(out []Tensor) error {
	for i := range out {
		for j := range out[:i] {
			if tensor.ShareBytes(out[i].Data, out[j].Data) {
				return fmt.Errorf("%w: %s", hocket.ErrInput, tensor.SharesMemory(out[j].Name, out[i].Name))
			}
		}
	}
	return nil
}

func (m *model) run(ctx context.Context, args hocket.Args, out []Tensor) error {
	r, err := m.m.Run(ctx, args)
	if err != nil {
		return err
	}
	results := make([]*hocket.Tensor, len(out)) // all destinations are checked before any result is copied
	for i := range out {
		t := &out[i]
		what := fmt.Sprintf("the block of result %s on rank %d", t.Name, t.Rank)
		if results[i] = r.OutLocal[t.Name][t.Rank]; t.Rank < 0 {
			results[i], what = r.Out[t.Name], "result "+t.Name
		}
		switch b := results[i]; {
		case t.Rank < 0 && args.Out[t.Name] != nil:
			results[i] = nil // the run has already written the result to the caller's memory
		case b == nil:
			return fmt.Errorf("%w: this process does not have %s", hocket.ErrInput, what)
		case b.DType.String() != t.DType || !slices.Equal(b.Shape, t.Shape) || len(b.Data) != len(t.Data):
			return fmt.Errorf("%w: %s is %s, but its destination is %s%v", hocket.ErrInput, what, b, t.DType,
				t.Shape)
		}
	}
	for i, b := range results {
		if b != nil {
			copy(out[i].Data, b.Data)
		}
	}
	return nil
}

// Wait waits up to most for a run and reports whether it has ended. If so, its number becomes
// invalid, and err is the error of the run.
func (l *Library) Wait(handle int64, most time.Duration) (over bool, err error) {
	c, err := get[*call](l, handle)
	if err != nil {
		return true, err
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		return false, nil
	}
	c.cancel(nil)
	l.drop(handle)
	return true, c.err
}

// Cancel makes a run end soon. The caller must still wait for it.
func (l *Library) Cancel(handle int64) error {
	c, err := get[*call](l, handle)
	if err == nil {
		c.cancel(world.ErrInterrupted)
	}
	return err
}

// Abandon cancels a run without waiting for it. Its number becomes invalid.
func (l *Library) Abandon(handle int64) error {
	c, err := get[*call](l, handle)
	if err == nil {
		c.cancel(world.ErrInterrupted)
		l.drop(handle)
	}
	return err
}

// Close closes a model or a machine. Closing a machine also closes its models, and leaves the other
// processes. Runs in progress end.
func (l *Library) Close(handle int64) error {
	l.mu.Lock()
	object := l.all[handle]
	if _, run := object.(*call); !run {
		delete(l.all, handle)
	}
	l.mu.Unlock()
	switch x := object.(type) {
	case *model:
		return x.close()
	case *collectives:
		return x.close()
	case *foreign, *form:
		return nil
	case *machine:
		err := x.m.Close()
		for _, m := range l.dropModels(x) {
			err = errors.Join(err, m.close())
		}
		if x.w != nil {
			_ = x.w.Leave() // the caller whose run failed got the cause
		}
		return err
	}
	return fmt.Errorf("handle %d: %w that can be closed", handle, ErrHandle)
}

// dropModels removes the models of a machine from l, and returns them.
func (l *objects) dropModels(of *machine) (list []*model) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for handle, object := range l.all {
		if m, ok := object.(*model); ok && m.machine == of {
			list = append(list, m)
			delete(l.all, handle)
		}
	}
	return list
}

func (m *model) close() error {
	return closed(m.export, errors.Join(m.m.Close(), m.bound.close()))
}

// failure is the JSON form of an error.
type failure struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	// Rank and PID are set for a *hocket.PeerError.
	Rank *int   `json:"rank,omitempty"`
	PID  int    `json:"pid,omitempty"`
	Host string `json:"host,omitempty"`
	// What and Values are set for a *hocket.DisagreeError: the value of each rank.
	What   string            `json:"what,omitempty"`
	Values map[string]string `json:"values,omitempty"`
	// Parameter and Index are set for a *hocket.InputError, and so is Rank.
	Parameter string  `json:"parameter,omitempty"`
	Index     []int64 `json:"index,omitempty"`
	Value     int64   `json:"value,omitempty"`
	Low       int64   `json:"low,omitempty"`
	High      int64   `json:"high,omitempty"`
	Begun     bool    `json:"begun,omitempty"`
}

// Describe returns an error as JSON: its kind, its text, and its details. The kind is one of
// program, input, memory, unsupported, lost, peer, disagree, closed, cancelled and handle, or
// machine for all other errors.
func Describe(err error) string {
	f := failure{Kind: "machine", Message: err.Error()}
	var ds hocket.Diagnostics
	var d *ir.Diagnostic
	var peer *hocket.PeerError
	var disagree *hocket.DisagreeError
	var input *hocket.InputError
	caller := errors.Is(err, hocket.ErrInput) // if so, the fault is in the arguments of the call, and not in the program
	switch {
	case errors.As(err, &ds) && !caller:
		f.Kind, f.Message = "program", ds.String()
	case errors.As(err, &d) && !caller, errors.Is(err, hocket.ErrDeadlock):
		f.Kind = "program"
	case errors.As(err, &disagree):
		f.Kind, f.What, f.Values = "disagree", disagree.What, map[string]string{}
		for _, v := range disagree.Values {
			f.Values[fmt.Sprint(v.Rank)] = v.String()
		}
	case errors.As(err, &peer):
		f.Kind, f.Rank, f.PID, f.Host = "peer", &peer.Rank, peer.PID, peer.Host
	case errors.As(err, &input):
		f.Kind, f.Rank, f.Parameter, f.Index, f.Value = "input", &input.Rank, input.Param, input.Index, input.Value
		f.Low, f.High, f.Begun = input.Low, input.High, input.Begun
	case errors.Is(err, hocket.ErrInput), errors.Is(err, hocket.ErrCapturing), errors.Is(err, hocket.ErrNoContents):
		f.Kind = "input"
	case errors.Is(err, hocket.ErrOutOfMemory), errors.Is(err, hocket.ErrBudget):
		f.Kind = "memory"
	case errors.Is(err, hocket.ErrUnsupported):
		f.Kind = "unsupported"
	case errors.Is(err, hocket.ErrDeviceLost):
		f.Kind = "lost"
	case errors.Is(err, hocket.ErrClosed), errors.Is(err, hocket.ErrLeft):
		f.Kind = "closed"
	case errors.Is(err, context.Canceled):
		f.Kind = "cancelled"
	case errors.Is(err, ErrHandle):
		f.Kind = "handle"
	}
	text, merr := json.Marshal(f)
	if merr != nil {
		return `{"kind":"machine","message":"the error cannot be encoded"}`
	}
	return string(text)
}
