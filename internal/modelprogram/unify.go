package modelprogram

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Dim is an extent whose value a model leaves open.
type Dim struct {
	Name   string
	Values []int64 // values of the extent in the models that are passed to Unify
	// Least and Most are the bounds of the values for which the model is valid. Most is 0 if there is no upper bound.
	Least, Most int64
}

// Unify combines the programs of a model for several extents into one program with dims. The programs must be equal
// except for numbers. Each number must be a constant, a multiple of a dim plus a constant, or a multiple of the product
// of two dims. The extents of the first model become the defaults of the dims.
//
// Unify infers from examples how numbers depend on dims. The examples should therefore include the smallest and the
// largest extents for which the model is valid, and further extents without common factors.
func Unify(name string, models []*Model, dims []Dim) (*Model, error) {
	if len(models) < 2 {
		return nil, fmt.Errorf("%w: dims cannot be inferred from one model; at least two are needed", ErrUnsupported)
	}
	first := models[0]
	lists := make([][]string, len(models))
	for i, m := range models {
		lists[i] = words.FindAllString(m.Text, -1)
		if len(lists[i]) != len(lists[0]) {
			return nil, differs(models, dims, i, lineOf(lists[0], lists[i]))
		}
	}
	var b strings.Builder
	column := make([]int64, len(models))
	for k, word := range lists[0] {
		same := true
		for i := range models {
			same = same && lists[i][k] == word
		}
		if same {
			b.WriteString(word)
			continue
		}
		for i := range models {
			n, err := strconv.ParseInt(lists[i][k], 10, 64)
			if err != nil {
				i = slices.IndexFunc(lists, func(l []string) bool { return l[k] != word })
				return nil, differs(models, dims, i, lineOf(lists[0], lists[i]))
			}
			column[i] = n
		}
		text := express(column, dims)
		if text == "" {
			return nil, fmt.Errorf("%w: for %s it has the numbers %v in one place, which are no multiple of a dim "+
				"plus a constant: line %q", ErrUnsupported, dimsText(dims), column,
				strings.TrimSpace(lineAt(lists[0], k)))
		}
		b.WriteString(text)
	}
	text := b.String()
	at := strings.Index(text, "dim ")
	info, ds := checker.Read(name, text[:at]+declarations(dims)+text[at:])
	if ds.HasErrors() {
		return nil, fmt.Errorf("%w: the program that was made of it is wrong: %w", ErrUnsupported, ds)
	}
	for _, d := range dims {
		info.Dims[d.Name].Least, info.Dims[d.Name].Most = d.Least, d.Most
	}
	for i, p := range first.Params {
		if slices.ContainsFunc(models, func(m *Model) bool { return !p.sameContents(&m.Params[i]) }) {
			return nil, fmt.Errorf("%w: %%%s has contents that depend on %s", ErrUnsupported, p.Name, dimsText(dims))
		}
	}
	m := *first
	m.Text, m.Info, m.Params = info.Prog.String(), info, slices.Clone(first.Params)
	return &m, nil
}

// declarations returns the statements that declare dims.
func declarations(dims []Dim) string {
	var b strings.Builder
	for _, d := range dims {
		fmt.Fprintf(&b, "dim %s = %d", d.Name, d.Values[0])
		if limits := (&ir.Dim{Least: d.Least, Most: d.Most}).Range(); limits != "" {
			fmt.Fprintf(&b, "  // %s", limits)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// sameContents reports whether two parameters have the same contents, which inputs always have.
func (p *Param) sameContents(o *Param) bool {
	return p.Input || slices.Equal(p.Shape, o.Shape) && slices.Equal(p.Weights, o.Weights) &&
		(p.Constant == nil || o.Constant != nil && slices.Equal(p.Constant.Elems, o.Constant.Elems))
}

// words matches names, numbers, blanks and punctuation.
var words = regexp.MustCompile(`[%A-Za-z_][A-Za-z0-9_.]*|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|\s+|[^\sA-Za-z0-9_%]`)

func dimsText(dims []Dim) string {
	var list []string
	for _, d := range dims {
		list = append(list, d.Name)
	}
	return strings.Join(list, " and ")
}

func differs(models []*Model, dims []Dim, i int, line string) error {
	var at []string
	for _, d := range dims {
		at = append(at, fmt.Sprintf("%s=%d and %s=%d", d.Name, d.Values[0], d.Name, d.Values[i]))
	}
	return fmt.Errorf("%w: the programs for %s differ from line %q on in more than numbers", ErrUnsupported,
		strings.Join(at, ", "),
		line)
}

// lineOf returns the first line in which two texts differ in more than numbers.
func lineOf(a, b []string) string {
	for k := range a {
		if k >= len(b) || a[k] != b[k] &&
			(strings.Trim(a[k], "0123456789") != "" || strings.Trim(b[k], "0123456789") != "") {
			return strings.TrimSpace(lineAt(a, k))
		}
	}
	return ""
}

// lineAt returns the line that contains word k.
func lineAt(list []string, k int) string {
	from, to := k, k
	for from > 0 && !strings.Contains(list[from-1], "\n") {
		from--
	}
	for to < len(list) && !strings.Contains(list[to], "\n") {
		to++
	}
	return strings.Join(list[from:to], "")
}

// express returns an expression over dims that has the given values, or "" if there is none.
func express(values []int64, dims []Dim) string {
	for _, d := range dims {
		if a, c, ok := linear(values, d.Values); ok {
			return multiple(d.Name, a, c)
		}
	}
	for i, d := range dims {
		for _, e := range dims[i+1:] {
			product := make([]int64, len(values))
			for k := range values {
				product[k] = d.Values[k] * e.Values[k]
			}
			if a, c, ok := linear(values, product); ok && c == 0 {
				return multiple(d.Name+" * "+e.Name, a, 0)
			}
		}
	}
	return ""
}

// linear returns a and c such that each value is a·of+c, and a is positive.
func linear(values, of []int64) (a, c int64, ok bool) {
	for i, v := range of {
		if v == of[0] || (values[i]-values[0])%(v-of[0]) != 0 {
			continue
		}
		a = (values[i] - values[0]) / (v - of[0])
		c = values[0] - a*of[0]
		for j, w := range of {
			if a*w+c != values[j] {
				return 0, 0, false
			}
		}
		return a, c, a > 0
	}
	return 0, 0, false
}

// multiple returns the text of a times the named dim, plus c.
func multiple(name string, a, c int64) string {
	if a != 1 {
		name += fmt.Sprintf(" * %d", a)
	}
	switch {
	case c > 0:
		name += fmt.Sprintf(" + %d", c)
	case c < 0:
		name += fmt.Sprintf(" - %d", -c)
	}
	return name
}
