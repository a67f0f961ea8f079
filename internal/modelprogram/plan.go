package modelprogram

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/jsontext"
)

// Plan is a tensor-parallel plan in the form of transformers' base_model_tp_plan: it maps patterns of module paths to
// styles. A pattern matches the last components of a path, and "*" matches one component. If several patterns match,
// overriding rules come first, then rules with more components, then later rules.
type Plan []Rule

// Rule is an entry of a plan.
type Rule struct {
	Pattern   string
	Style     string
	Overrides bool // set by With
}

// Unused is an entry of a plan that determines the layout of no weight.
type Unused struct {
	Rule
	Weight string // a weight that the entry's pattern matches but its style cannot split; "" for none
}

func (u Unused) String() string {
	if u.Weight == "" {
		return "no weight matches " + u.Pattern
	}
	return fmt.Sprintf("%s matches %s, but %s splits only weights of linears, matrix products and embeddings", u.Pattern,
		u.Weight, u.Style)
}

// ErrPlan is wrapped by errors about a plan that determines the layout of no weight.
var ErrPlan = errors.New("the plan does not fit the model")

// CheckPlan returns an error if the model's plan has entries, but determines the layout of no weight.
func (m *Model) CheckPlan(p Plan) error {
	if len(p) == 0 || len(m.Unused) < len(p) {
		return nil
	}
	return fmt.Errorf("%w: %s; the model's weights are %s", ErrPlan, m.UnusedText(), Few(m.WeightNames()))
}

// CheckShard returns an error if an overriding entry of the plan determines the layout of no weight.
func (m *Model) CheckShard() error {
	for _, u := range m.Unused {
		if u.Overrides {
			return fmt.Errorf("%w: shard: %s; the model's weights are %s", ErrPlan, u, Few(m.WeightNames()))
		}
	}
	return nil
}

// UnusedText lists the reasons why entries of the plan are unused.
func (m *Model) UnusedText() string {
	var list, unmatched []string
	for _, u := range m.Unused {
		if u.Weight != "" {
			list = append(list, u.String())
		} else {
			unmatched = append(unmatched, u.Pattern)
		}
	}
	if len(unmatched) > 0 {
		list = append(list, "no weight matches "+Some(unmatched))
	}
	return strings.Join(list, "; ")
}

// Some lists at most 12 names for a message.
func Some(names []string) string { return first(12, names) }

// Few lists at most 3 names for a message that has more to say.
func Few(names []string) string { return first(3, names) }

func first(most int, names []string) string {
	switch more := len(names) - most; {
	case len(names) == 0:
		return "none"
	case more > 0:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Styles lists the styles that a plan may contain.
var Styles = []string{"colwise", "rowwise", "colwise_gather_output", "rowwise_split_input", "embedding_rowwise",
	"packed_colwise", "moe_tp_experts", "replicated_with_grad_allreduce"}

// instead maps styles of transformers that hocket does not support to advice.
var instead = map[string]string{
	"all_reduce":     "leave the entry out: hocket reduces sums where that is needed",
	"mla_kv_a_proj":  "leave the entry out, for a weight that is whole on each rank",
	"packed_rowwise": "name packed_colwise to split the output features of each part, or leave the entry out",
}

// ParsePlan reads a plan in JSON: an object that maps patterns to styles.
func ParsePlan(text []byte) (Plan, error) {
	var m map[string]string
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%w; a plan is a JSON object of styles by pattern", jsontext.Locate(text, err))
	}
	d, seen := json.NewDecoder(bytes.NewReader(text)), map[json.Token]bool{}
	for _, _ = d.Token(); d.More(); _, _ = d.Token() { // Token cannot fail, since Unmarshal has read the text
		key, _ := d.Token()
		if seen[key] {
			line, _ := jsontext.Position(text, d.InputOffset())
			return nil, fmt.Errorf("line %d: the pattern %q is given twice", line, key)
		}
		seen[key] = true
	}
	p := PlanOf(m)
	return p, p.Check()
}

// PlanOf returns the plan of a map from patterns to styles.
func PlanOf(styles map[string]string) (p Plan) {
	for _, pattern := range slices.Sorted(maps.Keys(styles)) {
		p = append(p, Rule{Pattern: pattern, Style: styles[pattern]})
	}
	return p
}

// With returns a plan in which the rules of shard override the rules of p, even rules with more components, and replace
// rules with the same pattern.
func (p Plan) With(shard Plan) Plan {
	p = slices.DeleteFunc(slices.Clone(p), func(have Rule) bool { return slices.ContainsFunc(shard, have.same) })
	for _, r := range shard {
		r.Overrides = true
		p = append(p, r)
	}
	return p
}

// same reports whether two rules have the same pattern.
func (r Rule) same(other Rule) bool { return r.Pattern == other.Pattern }

// ParseRules reads entries "PATTERN=STYLE". Entries with the same pattern must have the same style.
func ParseRules(entries []string) (p Plan, err error) {
	for _, s := range entries {
		r, err := ParseRule(s)
		if err != nil {
			return nil, err
		}
		switch i := slices.IndexFunc(p, r.same); {
		case i < 0:
			p = append(p, r)
		case p[i] != r:
			return nil, fmt.Errorf("%s has two styles, %s and %s: remove one of them", r.Pattern, p[i].Style, r.Style)
		}
	}
	return p, nil
}

// ParseRule reads "PATTERN=STYLE".
func ParseRule(s string) (Rule, error) {
	pattern, style, ok := strings.Cut(s, "=")
	if !ok || pattern == "" {
		return Rule{}, fmt.Errorf("%q: want PATTERN=STYLE", s)
	}
	r := Rule{Pattern: strings.TrimSpace(pattern), Style: strings.TrimSpace(style)}
	return r, Plan{r}.Check()
}

// Check returns an error for styles that do not exist.
func (p Plan) Check() error {
	var errs []error
	for _, r := range p {
		if !slices.Contains(Styles, r.Style) {
			help := instead[r.Style]
			if help == "" {
				help = "styles are " + strings.Join(Styles, ", ")
			}
			errs = append(errs, fmt.Errorf("%s: there is no style %q; %s", r.Pattern, r.Style, help))
		}
	}
	return errors.Join(errs...)
}

// matches reports whether the pattern matches the last components of a path.
func (r Rule) matches(path string) bool {
	want, parts := strings.Split(r.Pattern, "."), strings.Split(path, ".")
	return len(want) <= len(parts) && slices.EqualFunc(want, parts[len(parts)-len(want):],
		func(w, have string) bool { return w == "*" || w == have })
}

// style returns the style of the first path that has a style, or "". A path that an overriding rule matches comes
// before the others.
func (p Plan) style(paths ...string) string {
	for _, overrides := range []bool{true, false} {
		for _, path := range paths {
			best, style := 0, ""
			for _, r := range p {
				if n := strings.Count(r.Pattern, ".") + 1; r.Overrides == overrides && n >= best && r.matches(path) {
					best, style = n, r.Style
				}
			}
			if style != "" {
				return style
			}
		}
	}
	return ""
}

// layout describes how a weight is split.
type layout struct {
	split int // dimension; -1 for none
	parts int // number of parts of a packed weight
	style string
}

// use describes one use of a weight: the dimensions of the weight that are output features and input features, -1 for
// none.
type use struct {
	node    *graph.Node
	out, in int
}

// uses lists the uses of a weight as an operand of products, embeddings and similar operations.
func (l *recognition) uses(w *graph.Value) []use {
	var list []use
	for _, n := range l.users[w] {
		switch {
		case n.Op == graph.Linear && len(n.In) == 3 && n.In[2] == w:
			list = append(list, use{n, 0, -1})
		case n.Op == graph.Linear && n.In[1] == w:
			list = append(list, use{n, 0, 1})
		case n.Op == graph.MatMul && n.In[1] == w && len(w.Shape) == 2:
			list = append(list, use{n, 1, 0})
		case n.Op == graph.GroupedMatMul && n.In[1] == w:
			list = append(list, use{n, 2, 1})
		case n.Op == graph.Embedding && n.In[0] == w:
			list = append(list, use{n, 0, -1})
		case n.Op == graph.AddOp && len(w.Shape) == 1 && slices.ContainsFunc(n.In, isProduct):
			list = append(list, use{n, 0, -1})
		case n.Op == graph.Transpose && len(w.Shape) >= 2 && swapsLast(n.Attrs.Axes):
			d := len(w.Shape)
			turned := graph.Swapped(d, d-1, d-2)
			turn := func(i int) int {
				if i < 0 {
					return i
				}
				return int(turned[i])
			}
			for _, u := range l.uses(n.Out[0]) {
				list = append(list, use{u.node, turn(u.out), turn(u.in)})
			}
		}
	}
	return list
}

func isProduct(v *graph.Value) bool {
	return v.Node != nil && (v.Node.Op == graph.MatMul || v.Node.Op == graph.Linear)
}

// swapsLast reports whether a permutation exchanges the last two dimensions and no others.
func swapsLast(perm []int64) bool {
	d := len(perm)
	return d >= 2 && slices.Equal(perm, graph.Swapped(d, d-1, d-2))
}

// layouts chooses the layout of every weight.
func (l *emission) layouts() error {
	l.layout = map[*graph.Value]layout{}
	var laidOut []string
	for _, w := range l.g.Weights {
		at := layout{split: -1}
		for _, u := range l.uses(w) {
			paths := []string{w.Path, u.node.From.Module, parent(w.Path)}
			laidOut = append(laidOut, paths...)
			style := l.plan.style(paths...)
			got := layout{split: -1, style: style}
			switch style {
			case "colwise", "colwise_gather_output", "embedding_rowwise":
				got.split = u.out
			case "rowwise", "rowwise_split_input":
				got.split = u.in
				if u.node.Op == graph.Embedding {
					got.split = u.out
				}
			case "packed_colwise":
				got.split = u.out
				if got.parts = l.partsOf(u.node); got.parts < 2 {
					return refuse(u.node, "%s is packed_colwise, and its result is not cut into equal parts", w.Path)
				}
			}
			if at.split < 0 || at.style == "" {
				at = got
			} else if got.split >= 0 && (got.split != at.split || got.parts != at.parts) {
				return refuse(u.node, "weight %s is used twice, and the plan splits it in two ways", w.Path)
			}
		}
		l.layout[w] = at
	}
	l.reportUnused(laidOut)
	return nil
}

// reportUnused records the entries of the plan that match none of the paths of weights with a layout.
func (l *emission) reportUnused(paths []string) {
	for _, r := range l.plan {
		if slices.ContainsFunc(paths, r.matches) {
			continue
		}
		i := slices.IndexFunc(l.g.Weights, func(w *graph.Value) bool { return r.matches(w.Path) || r.matches(parent(w.Path)) })
		switch {
		case i < 0:
			l.unused = append(l.unused, Unused{r, ""})
		case r.Style != "replicated_with_grad_allreduce": // without the entry, the weight is whole as well
			w := l.g.Weights[i]
			l.unused = append(l.unused, Unused{r, fmt.Sprintf("%s, %s%v", w.Path, w.DType, w.Shape)})
		}
	}
}

// parent returns the path of the module of a weight.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '.'), 0)] }

// partsOf returns the number of equal parts into which slices cut the last dimension of a product, or 0 if they do not
// cut it into equal parts.
func (l *recognition) partsOf(n *graph.Node) int {
	v := n.Out[0]
	for range 16 {
		users := l.users[v]
		if len(users) == 0 {
			return 0
		}
		u := users[0]
		last := len(v.Shape) - 1
		switch {
		case u.Op == graph.SliceOp && u.Attrs.Axis == last:
			size := v.Shape[last]
			for _, u := range users {
				if u.Op != graph.SliceOp || u.Attrs.Axis != last || (u.Attrs.Hi-u.Attrs.Lo)*int64(len(users)) != size ||
					u.Attrs.Step != 1 {
					return 0
				}
			}
			return len(users)
		case len(u.Out) == 1 && graph.Last(u.Out[0].Shape) == v.Shape[last] &&
			(u.Op == graph.Reshape || u.Op == graph.AddOp || u.Op == graph.Where || u.Op == graph.Cast):
			v = u.Out[0]
		default:
			return 0
		}
	}
	return 0
}
