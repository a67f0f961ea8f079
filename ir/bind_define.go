package ir

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// parseDefines parses Binding.Defines, and removes the defaults of the dims that the definitions override.
func (b *Bound) parseDefines(bind Binding) *Diagnostic {
	b.defines = map[string]*Expr{}
	for _, name := range slices.Sorted(maps.Keys(bind.Defines)) {
		if _, twice := bind.Dims[name]; twice {
			return b.Info.Prog.bindError(Pos{}, "remove the value or the definition", "dim %s has both a value and a definition", name)
		}
		if b.Info.Dims[name] == nil {
			return b.unknownDim(name)
		}
		e, err := ParseExpr(bind.Defines[name])
		if err == nil {
			err = constantOnAllRanks(e)
		}
		if err == nil {
			err = b.knownDims(e)
		}
		if err != nil {
			return b.defineError(name, bind.Defines[name], err)
		}
		b.defines[name] = e
		delete(b.Dims, name)
	}
	return nil
}

// knownDims returns an error if e uses a name that is not a dim of the program.
func (b *Bound) knownDims(e *Expr) error {
	var err error
	e.Walk(func(x *Expr) {
		if x.Kind == ExprName && b.Info.Dims[x.Name] == nil && err == nil {
			err = fmt.Errorf("the program has no dim %s", clip(x.Name))
		}
	})
	return err
}

// constantOnAllRanks returns an error if e contains a term that a definition of a dim must not use, such as rank(AXIS).
func constantOnAllRanks(e *Expr) error {
	var err error
	e.Walk(func(x *Expr) {
		switch x.Kind {
		case ExprVar, ExprRank, ExprExtent:
			err = errors.New("a definition may contain only integers, dims and size(AXIS)")
		}
	})
	return err
}

func (b *Bound) defineError(name, text string, err error) *Diagnostic {
	why := err.Error()
	var ds Diagnostics
	if errors.As(err, &ds) && len(ds) > 0 {
		why = ds[0].Message
	}
	return b.Info.Prog.bindError(Pos{}, "", "the definition %s=%s: %s", name, clip(text), why)
}

// defineEarly evaluates the definitions of the dims that determine mesh sizes, and stores their values in bind.Dims.
// Later code treats these values like values that the caller set.
func (b *Bound) defineEarly(bind Binding) *Diagnostic {
	need := map[string]bool{}
	var want func(e *Expr)
	want = func(e *Expr) {
		e.Walk(func(x *Expr) {
			if d := b.defines[x.Name]; x.Kind == ExprName && d != nil && !need[x.Name] {
				need[x.Name] = true
				want(d)
			}
		})
	}
	for _, m := range b.Info.Prog.Meshes {
		for i := range m.Axes {
			want(m.Axes[i].Size)
		}
	}
	if name, err := b.evalDefines(need); err != nil {
		return b.defineError(name, bind.Defines[name], err)
	}
	for name := range need {
		bind.Dims[name] = b.Dims[name]
	}
	return nil
}

// defineLate evaluates those definitions that defineEarly does not evaluate. defineLate runs when the sizes of all axes
// are known and -n has determined the value of its dim. defineLate also checks that the early definitions still have
// the same values.
func (b *Bound) defineLate(bind Binding) *Diagnostic {
	todo := map[string]bool{}
	for name := range b.defines {
		if _, early := b.Dims[name]; !early {
			todo[name] = true
		}
	}
	if name, err := b.evalDefines(todo); err != nil {
		return b.defineError(name, bind.Defines[name], err)
	}
	for _, name := range slices.Sorted(maps.Keys(b.defines)) {
		switch v, err := b.defines[name].Eval(b.Env(0, nil)); {
		case err != nil:
			return b.defineError(name, bind.Defines[name], err)
		case v != b.Dims[name]:
			return b.defineError(name, bind.Defines[name], errors.New("the mesh's size depends on this dim, and the dim on the number of ranks (-n): the definitions are circular"))
		case v < 0:
			return b.defineError(name, bind.Defines[name], fmt.Errorf("the value is %d, but an extent cannot be negative", v))
		}
	}
	return nil
}

// evalDefines evaluates the definitions of the dims in todo, each after the dims on which it depends. On failure,
// evalDefines returns the name and the error of the first definition, in order of names, that failed.
func (b *Bound) evalDefines(todo map[string]bool) (string, error) {
	left := slices.Sorted(maps.Keys(todo))
	for len(left) > 0 {
		var first string
		var reason error
		before := len(left)
		left = slices.DeleteFunc(left, func(name string) bool {
			v, err := b.defines[name].Eval(b.Env(0, nil))
			if err == nil {
				b.Dims[name] = v
			} else if reason == nil {
				first, reason = name, err
			}
			return err == nil
		})
		if len(left) == before {
			return first, reason
		}
	}
	return "", nil
}

// unknownDim returns the error for a dim that the program does not declare.
func (b *Bound) unknownDim(name string) *Diagnostic {
	known := strings.Join(slices.Sorted(maps.Keys(b.Info.Dims)), ", ")
	return b.Info.Prog.bindError(Pos{}, "dims of this program: "+known, "the program has no dim %s", clip(name))
}
