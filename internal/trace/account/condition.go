package account

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Condition is true if a number of a report exceeds a limit, as in "exposed > 10%".
type Condition struct {
	text   string
	metric string
	limit  float64 // a time in microseconds, a share, or a plain number
	share  bool    // whether the limit is a fraction of the summed time of all ranks
}

// metrics are the numbers of a report that conditions can name. The limit of a number that is a sum over ranks may be a
// share of the ranks' time. open is set for numbers that may include exposed communication whose kind is unknown.
var metrics = []struct {
	name  string
	sum   bool
	count bool
	open  bool
	of    func(r *Report) (float64, bool)
}{
	{"exposed", true, false, false, func(r *Report) (float64, bool) { return r.Exposed.TotalUS, r.Source != "flight" }},
	{"wait", true, false, true, func(r *Report) (float64, bool) { return deref(r.Exposed.WaitUS) }},
	{"transfer", true, false, true, func(r *Report) (float64, bool) { return deref(r.Exposed.TransferUS) }},
	{"idle", true, false, false, func(r *Report) (float64, bool) {
		var sum float64
		for _, x := range r.Idle {
			sum += x.TotalUS
		}
		return sum, r.Source != "flight"
	}},
	{"skew", false, false, false, func(r *Report) (float64, bool) {
		var most float64
		known := false
		for i := range r.Collectives {
			if v, ok := deref(r.Collectives[i].SkewUS); ok {
				most, known = max(most, v), true
			}
		}
		return most, known
	}},
	{"residual", false, false, false, func(r *Report) (float64, bool) { return deref(r.Alignment.ResidualUS) }},
	{"span", false, false, false, func(r *Report) (float64, bool) { return r.commonUS(), true }},
	{"step", false, false, false, func(r *Report) (float64, bool) {
		if r.Steps == nil {
			return 0, false
		}
		return r.Steps.P50US, true
	}},
	{"problems", false, true, false, func(r *Report) (float64, bool) {
		return float64(len(r.Problems)), true
	}},
}

func deref(v *float64) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return *v, true
}

var condition = regexp.MustCompile(`^\s*(\w+)\s*>\s*([0-9.]+)\s*(%|us|µs|ms|s|)\s*$`)

// ParseCondition parses a condition "METRIC > LIMIT".
func ParseCondition(text string) (*Condition, error) {
	m := condition.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("%q is not a condition: METRIC > LIMIT, as in exposed > 10%%, skew > 80us", text)
	}
	c := &Condition{text: strings.TrimSpace(text), metric: m[1], share: m[3] == "%"}
	limit, err := strconv.ParseFloat(m[2], 64)
	if err != nil {
		return nil, fmt.Errorf("%q: %s is not a number", text, m[2])
	}
	c.limit = limit * map[string]float64{"%": 0.01, "us": 1, "µs": 1, "ms": 1e3, "s": 1e6, "": 1}[m[3]]
	var names []string
	for _, x := range metrics {
		names = append(names, x.name)
		if x.name != c.metric {
			continue
		}
		switch {
		case x.count != (m[3] == ""):
			return nil, fmt.Errorf("%q: %s is %s", text, x.name, map[bool]string{true: "a number, without a unit",
				false: "a time: give us, ms, s"}[x.count])
		case c.share && !x.sum:
			return nil, fmt.Errorf("%q: %s has no share; give a time", text, x.name)
		}
		return c, nil
	}
	return nil, fmt.Errorf("%q: there is no metric %s; there are %s", text, c.metric, strings.Join(names, ", "))
}

// percent writes a share with as many digits as are necessary to distinguish it from the limit.
func percent(share, limit float64) string {
	for digits := 1; ; digits++ {
		text := fmt.Sprintf("%.*f %%", digits, 100*share)
		if digits == 6 || share == limit || text != fmt.Sprintf("%.*f %%", digits, 100*limit) {
			return text
		}
	}
}

// Holds reports whether the condition is true for a report, and describes the result. Holds returns an error if the
// report does not contain the number, or if the answer depends on an unknown part of it.
func (c *Condition) Holds(r *Report) (bool, string, error) {
	for _, x := range metrics {
		if x.name != c.metric {
			continue
		}
		v, known := x.of(r)
		if !known {
			why := r.Untold
			if why == "" {
				why = "the profile does not show it"
			}
			return false, "", fmt.Errorf("%s: there is no %s: %s", c.text, c.metric, why)
		}
		most := v
		if x.open {
			most += r.Exposed.UnknownUS
		}
		shown := text(v)
		if x.count {
			shown = fmt.Sprint(v)
		}
		unknown := text(most - v)
		if c.share {
			if whole := r.ranksUS(); whole > 0 {
				v, most = v/whole, most/whole
			}
			shown, unknown = percent(v, c.limit), fmt.Sprintf("%.1f %%", 100*(most-v))
		}
		if v <= c.limit && most > c.limit {
			return false, "", fmt.Errorf("%s: it is at least %s, and may include %s of communication whose waiting is "+
				"unknown",
				c.text, shown, unknown)
		}
		return v > c.limit, fmt.Sprintf("%s: it is %s", c.text, shown), nil
	}
	return false, "", fmt.Errorf("there is no metric %s", c.metric)
}
