package modelprogram

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// indivisible matches the message about an extent that a number of ranks does not divide.
var indivisible = regexp.MustCompile(`(\d+) is not a multiple of size\(`)

// heads matches statements whose operands are split by heads.
var heads = regexp.MustCompile(`= (rope|attention) `)

// Divides returns an error that wraps ErrPlan if the model's number of ranks does not divide all extents that the plan
// splits. Binding the program returns an error for each use of such an extent. This error names the smallest extent,
// and the numbers of ranks that divide all of them.
func (m *Model) Divides(ranks int) error {
	_, ds := ir.Bind(m.Info, ir.Binding{})
	var worst *ir.Diagnostic
	least := int64(0)
	for _, d := range ds {
		found := indivisible.FindStringSubmatch(d.Message)
		if found == nil {
			return nil
		}
		if n, err := strconv.ParseInt(found[1], 10, 64); err == nil && (worst == nil || n < least) {
			worst, least = d, n
		}
	}
	if worst == nil {
		return nil
	}
	var fit []string
	for n := range min(int(least), 64) {
		if least%int64(n+1) != 0 {
			continue
		}
		if _, ds := ir.Bind(m.Info, ir.Binding{Ranks: n + 1}); !ds.HasErrors() {
			fit = append(fit, strconv.Itoa(n+1))
		}
	}
	if len(fit) == 0 {
		return nil
	}
	counts := strings.Join(fit, ", ")
	if last := len(fit) - 1; last > 0 {
		counts = strings.Join(fit[:last], ", ") + " or " + fit[last]
	}
	return fmt.Errorf("%w: %s cannot be split over %d ranks: use %s", ErrPlan, m.split(least, worst.Pos), ranks, counts)
}

// split describes the extent that the statement or parameter at a position splits.
func (m *Model) split(extent int64, at ir.Pos) string {
	lines := strings.Split(m.Text, "\n")
	line := ""
	if i := int(at.Line) - 1; i >= 0 && i < len(lines) {
		line = strings.TrimSpace(lines[i])
	}
	if heads.MatchString(line) {
		return fmt.Sprintf("%d heads", extent)
	}
	name, _, _ := strings.Cut(line, ":")
	return fmt.Sprintf("the extent %d of %s", extent, name)
}
