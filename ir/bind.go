package ir

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxRanks limits the number of ranks to which a program may be bound.
const MaxRanks = 1 << 16

// WorldAxis is the built-in mesh axis that contains all ranks: rank(world) is the global rank, and over=world selects
// all ranks.
const WorldAxis = "world"

// Binding selects the function, the number of ranks and the values of dims for a run of a program.
type Binding struct {
	// Func is the name of the function to run. If Func is empty, the last function runs.
	Func string
	// Ranks is the number of ranks. The value 0 selects the size of the main mesh.
	Ranks int
	// Dims overrides the defaults of dims.
	Dims map[string]int64
	// Defines sets dims to index expressions over other dims and size(AXIS).
	Defines map[string]string
}

// Bound is a program together with the function to run, the number of ranks and the values of dims. All extents and
// mesh sizes of a bound program have values.
type Bound struct {
	Info  *Info
	Func  *Func
	Ranks int
	// Dims holds the value of every dim that has one.
	Dims map[string]int64

	axes    map[string]*boundMesh
	meshes  []*boundMesh
	defines map[string]*Expr // Binding.Defines, parsed
	solved  string           // the dim that the number of ranks determines; "" for none
}

// Bind resolves dims, meshes and ranks, and performs the checks that depend on them: every dim that the function uses
// has a value, split dimensions are divisible, sizes fit 64 bits, and every constraint that depends only on dims holds.
func Bind(in *Info, b Binding) (*Bound, Diagnostics) {
	bd, d := resolve(in, b, (*Bound).needDims)
	if d != nil {
		return nil, Diagnostics{d}
	}
	if ds := bd.checkFuncs(); ds.HasErrors() {
		return nil, ds
	}
	return bd, nil
}

// Resolve resolves dims, meshes and ranks in the same way as Bind. Resolve does not examine the body of any function,
// and permits dims without a value.
func Resolve(in *Info, b Binding) (*Bound, Diagnostics) {
	bd, d := resolve(in, b, func(*Bound, Binding) *Diagnostic { return nil })
	if d != nil {
		return nil, Diagnostics{d}
	}
	return bd, nil
}

// Dims returns the value of every dim that has one, as Bind computes it. Dims does not examine the body of any
// function. Therefore Dims does not report a dim that a function uses but that has no value; only Bind does.
func Dims(in *Info, b Binding) (map[string]int64, Diagnostics) {
	bd, unresolved := Resolve(in, b)
	if unresolved != nil {
		if _, ds := Bind(in, b); ds.HasErrors() {
			return nil, ds // this error may also list further dims without a value
		}
		return nil, unresolved
	}
	return bd.Dims, nil
}

// Early reports errors in a binding that do not depend on the values of open dims: an unknown function, unknown dims
// and definitions, and ranks that do not fill meshes. If the binding leaves no dim open, Early reports everything that
// Bind reports.
func Early(in *Info, b Binding) Diagnostics {
	bd, b, d := begin(in, b)
	for _, step := range []func(*Bound, Binding) *Diagnostic{(*Bound).bindDims, (*Bound).parseDefines,
		(*Bound).defineEarly, (*Bound).limitDims, (*Bound).solveRanks, (*Bound).bindKnownMeshes} {
		if d == nil {
			d = step(bd, b)
		}
	}
	if d != nil {
		return Diagnostics{d}
	}
	for name := range in.Dims {
		_, given := b.Dims[name]
		given = given || name == bd.solved
		if _, defined := bd.defines[name]; !given && !defined {
			return nil
		}
	}
	_, ds := Bind(in, b)
	return ds
}

// bindKnownMeshes calls bindMeshes if the sizes of all axes are known, either as numbers or from the values in the
// binding.
func (b *Bound) bindKnownMeshes(bind Binding) *Diagnostic {
	fixed := &Bound{Info: b.Info, Func: b.Func, Ranks: b.Ranks, Dims: maps.Clone(bind.Dims),
		axes: map[string]*boundMesh{}}
	for _, m := range b.Info.Prog.Meshes {
		for i := range m.Axes {
			if _, err := m.Axes[i].Size.Eval(fixed.Env(0, nil)); err != nil {
				return nil
			}
		}
	}
	return fixed.bindMeshes(bind)
}

// resolve finds the function and the values of dims, axes and ranks. It calls need, which reports dims without a value,
// before it computes meshes from the dims.
func resolve(in *Info, b Binding, need func(*Bound, Binding) *Diagnostic) (*Bound, *Diagnostic) {
	bd, b, d := begin(in, b)
	if d != nil {
		return nil, d
	}
	steps := []func(*Bound, Binding) *Diagnostic{(*Bound).bindDims, (*Bound).parseDefines, (*Bound).defineEarly,
		(*Bound).limitDims, (*Bound).solveRanks, need, (*Bound).bindMeshes, (*Bound).defineLate}
	for _, step := range steps {
		if d := step(bd, b); d != nil {
			return nil, d
		}
	}
	return bd, nil
}

// begin finds the function that the binding names.
func begin(in *Info, b Binding) (*Bound, Binding, *Diagnostic) {
	bd := &Bound{Info: in, Dims: map[string]int64{}, axes: map[string]*boundMesh{}}
	p := in.Prog
	if len(p.Funcs) == 0 {
		return nil, b, p.bindError(Pos{}, "func f(%x: f32[4]) -> f32[4] { return %x }", "the program has no function")
	}
	if bd.Func = p.Entry(b.Func); bd.Func == nil {
		return nil, b, p.bindError(Pos{}, "one of: "+joinFuncs(p), "the program has no function %s", clip(b.Func))
	}
	given := map[string]int64{} // copied, since defineEarly adds entries
	maps.Copy(given, b.Dims)
	b.Dims = given
	return bd, b, nil
}

func (p *Program) bindError(pos Pos, help, format string, args ...any) *Diagnostic {
	d := p.Diag("bind", pos, format, args...)
	d.Help = help
	return d
}

func joinFuncs(p *Program) string {
	names := make([]string, len(p.Funcs))
	for i, f := range p.Funcs {
		names[i] = f.Name
	}
	return strings.Join(names, ", ")
}

// bindDims sets dims to their defaults, or to the values in the binding.
func (b *Bound) bindDims(bind Binding) *Diagnostic {
	p := b.Info.Prog
	for _, name := range slices.Sorted(maps.Keys(bind.Dims)) {
		v := bind.Dims[name]
		if b.Info.Dims[name] == nil {
			return b.unknownDim(name)
		}
		if v < 0 {
			return p.bindError(b.Info.Dims[name].Pos, "choose 0 or a positive number", "dim %s is %d, but an "+
				"extent cannot be negative", name, v)
		}
		b.Dims[name] = v
	}
	for name, d := range b.Info.Dims {
		if _, set := b.Dims[name]; !set && d.HasValue {
			b.Dims[name] = d.Default
		}
	}
	return nil
}

// limitDims returns an error for a dim whose value is outside the range for which an imported model is valid.
func (b *Bound) limitDims(Binding) *Diagnostic {
	for _, name := range slices.Sorted(maps.Keys(b.Dims)) {
		d, v := b.Info.Dims[name], b.Dims[name]
		if d == nil || v >= d.Least && (d.Most == 0 || v <= d.Most) {
			continue
		}
		return b.Info.Prog.bindError(d.Pos,
			"choose another value, or export the model with another range of this dimension",
			"%s is %d; the export allows %s", name, v, d.Range())
	}
	return nil
}

// Range describes the values that Least and Most allow: "at most 128", "4 to 128"; "" if they allow all values.
func (d *Dim) Range() string {
	switch {
	case d.Least > 0 && d.Most > 0:
		return fmt.Sprintf("%d to %d", d.Least, d.Most)
	case d.Least > 0:
		return fmt.Sprintf("at least %d", d.Least)
	case d.Most > 0:
		return fmt.Sprintf("at most %d", d.Most)
	}
	return ""
}

// MainMesh returns the mesh declared without a device list, or nil.
func (p *Program) MainMesh() *Mesh {
	for _, m := range p.Meshes {
		if !m.HasDevices {
			return m
		}
	}
	return nil
}

// solveRanks makes the number of ranks equal to the size of the main mesh. If the size of exactly one axis is a
// dim, the number of ranks (option -n) determines the value of that dim.
func (b *Bound) solveRanks(bind Binding) *Diagnostic {
	b.Ranks = bind.Ranks
	m := b.Info.Prog.MainMesh()
	if b.Ranks < 0 || b.Ranks > MaxRanks {
		return b.Info.Prog.bindError(Pos{}, "omit the number of ranks to use the mesh's size",
			"%d ranks are requested, but a program runs on 1 to %d ranks", b.Ranks, MaxRanks)
	}
	if b.Ranks == 0 || m == nil {
		return nil
	}
	var free *MeshAxis
	others := int64(1)
	for i := range m.Axes {
		ax := &m.Axes[i]
		if ax.Size.Kind == ExprName && free == nil {
			if _, set := bind.Dims[ax.Size.Name]; !set {
				free = ax
				continue
			}
		} else if ax.Size.Kind == ExprName && free != nil {
			if _, set := bind.Dims[ax.Size.Name]; !set {
				return nil // two axes have dims as sizes, so the defaults of the dims apply
			}
		}
		n, err := ax.Size.Eval(b.Env(0, nil))
		if err != nil || n < 1 || n > MaxRanks || others > MaxRanks {
			return nil // bindMeshes reports the error
		}
		others *= n
	}
	if free == nil {
		return nil
	}
	if int64(b.Ranks)%others != 0 {
		return b.Info.Prog.bindError(free.Pos, fmt.Sprintf("run the program with a multiple of %d ranks", others),
			"%d ranks do not fill the mesh: the number of ranks must be a multiple of %d, the product of the mesh's other axes", b.Ranks, others)
	}
	b.solved = free.Size.Name
	b.Dims[b.solved] = int64(b.Ranks) / others
	return nil
}
