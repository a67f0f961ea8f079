package capi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// wholeOrBind is the remedy in errors about a block that was passed in place of a whole tensor.
const wholeOrBind = "give whole tensors, or bind() this process's block"

// wholeAndBlock holds the shapes of the whole tensor and of one process's block, for a parameter that is split over
// processes. dims holds the names of the parameter's extents.
type wholeAndBlock struct {
	whole, block []int64
	dims         []string
}

// parts returns the shapes of the parameters that are split over processes, for the dims of the options and the
// program's default dims. The result is empty if one process runs all ranks, or if dims have no value.
func (m *machine) parts(info *ir.Info, fn *ir.Func, o *loadOptions) map[string]wholeAndBlock {
	if m.w == nil {
		return nil
	}
	bound, ds := ir.Resolve(info, ir.Binding{Func: fn.Name, Ranks: cmp.Or(o.Ranks, m.w.Size()), Dims: o.Dims})
	if ds.HasErrors() {
		return nil
	}
	parts, env := map[string]wholeAndBlock{}, bound.Env(0, nil)
	for _, q := range fn.Params {
		whole, err := bound.GlobalShape(q.Type, env)
		if err != nil {
			continue
		}
		block, err := bound.LocalShape(q.Type, env)
		if err == nil && !slices.Equal(whole, block) {
			parts[q.Name] = wholeAndBlock{whole, block, bareDims(q.Type)}
		}
	}
	return parts
}

// notBlock returns an error if a weight that should be whole has the shape of one process's block, for the model's own
// dims. If the caller sets the dims, the shape is taken for that of a whole tensor.
func (m *model) notBlock(name string, shape []int64, dims map[string]int64) error {
	p, split := m.parts[name]
	if !split || !slices.Equal(shape, p.block) {
		return nil
	}
	var along, set []string
	for i, n := range p.whole {
		if n == shape[i] {
			continue
		}
		if given, ok := dims[p.dims[i]]; ok && given == shape[i] {
			return nil
		}
		along = append(along, fmt.Sprint(i))
		if p.dims[i] != "" {
			set = append(set, fmt.Sprintf("%q: %d", p.dims[i], shape[i]))
		}
	}
	help := ""
	if len(set) == len(along) {
		help = fmt.Sprintf("; if %s is whole, load the program with dims={%s}", listing(shape), strings.Join(set, ", "))
	}
	return fmt.Errorf("%w: %%%s has the shape %s, which is the block of one process: the whole tensor is %s, split along dimension %s over %d processes; %s%s",
		hocket.ErrInput, name, listing(shape), listing(p.whole), strings.Join(along, " and "), m.machine.w.Size(), wholeOrBind, help)
}

// listing returns a shape in Python's notation.
func listing(shape []int64) string { return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ") }
