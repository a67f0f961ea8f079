package ir

import (
	"errors"
	"fmt"
	"strings"
)

// Env returns the environment of one rank: dims, mesh functions, and the variables in vars, which may be nil.
func (b *Bound) Env(rank int, vars Vars) Env { return boundEnv{b, rank, vars} }

// Vars returns the values of variables and the extents of tensors. Index expressions need these values while a program
// is unrolled.
type Vars interface {
	Var(name string) (int64, bool)
	Extent(name string, axis int) (int64, bool)
}

type boundEnv struct {
	b    *Bound
	rank int
	vars Vars
}

func (e boundEnv) Dim(name string) (int64, bool) { v, ok := e.b.Dims[name]; return v, ok }

func (e boundEnv) Rank(ax string) (int64, bool) { return e.b.Coord(ax, e.rank) }

func (e boundEnv) Size(ax string) (int64, bool) { return e.b.AxisSize(ax) }

func (e boundEnv) Var(name string) (int64, bool) {
	if e.vars == nil {
		return 0, false
	}
	return e.vars.Var(name)
}

func (e boundEnv) Extent(name string, axis int) (int64, bool) {
	if e.vars == nil {
		return 0, false
	}
	return e.vars.Extent(name, axis)
}

// GlobalShape evaluates t's extents. The result is the global shape for the type of a value, and the local shape for
// the type of a buffer.
func (b *Bound) GlobalShape(t *Type, env Env) ([]int64, error) {
	shape := make([]int64, len(t.Dims))
	total := t.DType.Size()
	for i, d := range t.Dims {
		n, err := d.Extent.Eval(env)
		if err != nil {
			return nil, fmt.Errorf("extent %d: %w", i, err)
		}
		if n < 0 {
			return nil, fmt.Errorf("extent %d is %d, but an extent cannot be negative", i, n)
		}
		shape[i] = n
		if total, err = mulChecked(total, max(n, 1)); err != nil {
			return nil, fmt.Errorf("the tensor is too large: its number of bytes exceeds 64 bits")
		}
	}
	return shape, nil
}

// LocalShape returns the shape of the block that each rank holds of a value of type t. The error of LocalShape names a
// dimension whose extent is not divisible.
func (b *Bound) LocalShape(t *Type, env Env) ([]int64, error) {
	shape, err := b.GlobalShape(t, env)
	if err != nil {
		return nil, err
	}
	for i, d := range t.Dims {
		parts := int64(1)
		for _, ax := range d.Axes {
			n, _ := b.AxisSize(ax)
			parts *= n
		}
		if parts > 1 && shape[i]%parts != 0 {
			return nil, errors.New(Indivisible(d, shape[i], parts))
		}
		shape[i] /= max(parts, 1)
	}
	return shape, nil
}

// Indivisible returns the message that d's extent is not divisible by the number of ranks, parts.
func Indivisible(d Dimension, extent, parts int64) string {
	s := fmt.Sprintf("%s is not a multiple of %s=%d", valued(d.Extent, extent), SizeWords(d.Axes), parts)
	if next := (extent/parts + 1) * parts; next > 0 { // fits 64 bits
		s += fmt.Sprintf("; the next multiple is %d", next)
	}
	return s
}

func SizeWords(axes []string) string {
	words := make([]string, len(axes))
	for i, a := range axes {
		words[i] = "size(" + a + ")"
	}
	return strings.Join(words, "*")
}

// Offset returns the position in the global tensor at which rank's block begins, for a value of type t whose blocks
// have the given local shape.
func (b *Bound) Offset(t *Type, local []int64, rank int) []int64 {
	lo := make([]int64, len(t.Dims))
	for i, d := range t.Dims {
		block := int64(0)
		for _, ax := range d.Axes {
			n, _ := b.AxisSize(ax)
			c, _ := b.Coord(ax, rank)
			block = block*n + c
		}
		lo[i] = block * local[i]
	}
	return lo
}
