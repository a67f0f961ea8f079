package exported

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/torchexport"
)

// An export may leave extents of dimensions open, for example the number of tokens. The converted program has a dim for
// each open extent. To find the program, the model is converted several times, each time with other values of the
// extents. The resulting program texts must be equal except for numbers. From the numbers that differ, the expressions
// in the dims are derived.

// largest is the maximum of the values that are tried for an extent. The limit is small because a model may contain
// masks whose number of elements is the square of the number of tokens.
const largest = 2048

// programOf converts the model of an archive to a program.
func programOf(name string, a *torchexport.Archive, o modelprogram.Options) (*modelprogram.Model, error) {
	symbols, err := a.Symbols()
	if err != nil {
		return nil, err
	}
	if len(symbols) == 0 {
		g, err := a.Graph(nil)
		if err != nil {
			return nil, err
		}
		return modelprogram.Make(name, g, o)
	}
	if len(symbols) > 8 {
		return nil, fmt.Errorf("%w: %d extents of the model are open, but at most 8 are supported; export it with "+
			"fewer dynamic dimensions", modelprogram.ErrUnsupported,
			len(symbols))
	}
	var tries [][]int64
	for i, s := range symbols {
		tries = append(tries, extents(s, i))
	}
	var models []*modelprogram.Model
	var first *graph.Graph
	for k := range tries[0] {
		at := map[string]int64{}
		for i, s := range symbols {
			at[s.Name] = tries[i][k]
		}
		g, err := a.Graph(at)
		if err != nil {
			return nil, fmt.Errorf("with %s: %w", given(at), err)
		}
		for i, s := range symbols {
			if most := slices.Max(tries[i]); s.Max == 0 || s.Max > most {
				if err := depends(g, most); err != nil {
					return nil, err
				}
			}
		}
		if first == nil {
			first = g
		}
		m, err := modelprogram.Make(name, g, o)
		if err != nil {
			return nil, fmt.Errorf("with %s: %w", given(at), err)
		}
		models = append(models, m)
	}
	var dims []modelprogram.Dim
	taken := map[string]bool{"P": true}
	for i, s := range symbols {
		dims = append(dims, modelprogram.Dim{Name: dimName(first, tries[i][0], taken), Values: tries[i], Least: s.Least,
			Most: s.Max})
	}
	return modelprogram.Unify(name, models, dims)
}

// given formats the extents of symbols for messages: "s0=2, s1=3".
func given(at map[string]int64) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(at)) {
		list = append(list, fmt.Sprintf("%s=%d", name, at[name]))
	}
	return strings.Join(list, ", ")
}

// extents returns the values to try for the extent that a symbol represents, the default first. The order depends on i,
// the index of the symbol, so that no two symbols have the same ratio in all trials.
func extents(s torchexport.Symbol, i int) []int64 {
	lo, hi := max(s.Min, 2), int64(largest)
	if s.Max > 0 {
		hi = min(hi, s.Max)
	}
	hi = max(hi, lo)
	list := []int64{min(max(s.Hint, lo), hi)}
	var more []int64
	for _, n := range []int64{lo, hi, lo + (hi-lo)/3, lo + (hi-lo)*5/7, lo + 1} {
		if n = min(n, hi); !slices.Contains(list, n) && !slices.Contains(more, n) {
			more = append(more, n)
		}
	}
	for k := range more {
		list = append(list, more[(k+i)%len(more)])
	}
	for len(list) < 6 { // a symbol with few possible values gets some of them repeatedly
		list = append(list, list[(len(list)+i)%max(1, len(more)+1)])
	}
	return list
}

// depends returns an error if the graph adds, subtracts or compares a constant integer that exceeds the tried extents,
// such as the size of a sliding window. The effect of a larger constant would not show in the programs for the tried
// extents.
func depends(g *graph.Graph, most int64) error {
	for _, n := range g.Nodes {
		switch n.Op {
		case graph.AddOp, graph.Sub, graph.Le, graph.Lt, graph.Ge, graph.Gt:
		default:
			continue
		}
		for _, v := range n.In {
			if v.Leaf != graph.Constant || v.DType != graph.I64 && v.DType != graph.I32 {
				continue
			}
			if x, ok := v.Data.Uniform(); ok && math.Abs(x) > float64(most) && math.Abs(x) < math.MaxInt32 {
				return fmt.Errorf("%w: %s computes with the constant %v, which exceeds the largest extent that "+
					"hocket tries (%d): set a smaller max for the dynamic dimensions when "+
					"you export it", modelprogram.ErrUnsupported, n.From, x, most)
			}
		}
	}
	return nil
}

// dimName returns the name of the dim for an extent. The name is B if the extent first occurs as the first of several
// dimensions of an input. The name is T if the extent first occurs as another dimension, and N if no input has it. If
// another dim has this name, a number is appended.
func dimName(g *graph.Graph, extent int64, taken map[string]bool) string {
	name := "N"
	for _, v := range g.Inputs {
		for d, n := range v.Shape {
			if n == extent && name == "N" {
				name = "T"
				if d == 0 && len(v.Shape) > 1 {
					name = "B"
				}
			}
		}
	}
	full := name
	for i := 2; taken[full]; i++ {
		full = fmt.Sprint(name, i)
	}
	taken[full] = true
	return full
}
