package trace

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// unit is a unit of time for the labels of the axis.
type unit struct {
	name string
	ns   float64
}

func unitFor(span int64, virtual bool) unit {
	switch {
	case virtual:
		return unit{"steps", 1}
	case span < 2e3:
		return unit{"ns", 1}
	case span < 2e6:
		return unit{"µs", 1e3}
	case span < 2e9:
		return unit{"ms", 1e6}
	}
	return unit{"s", 1e9}
}

// tickEvery is the smallest distance between two ticks, in columns: enough for a number.
const tickEvery = 12

// step returns the distance between ticks in units: 1, 2 or 5 times a power of ten.
func (p *painter) step() float64 {
	least := float64(p.span) / p.unit.ns * tickEvery / float64(p.columns)
	base := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*base >= least {
			return m * base
		}
	}
	return 10 * base
}

// axis draws the numbers and, below them, the line with the ticks.
func (p *painter) axis(b *strings.Builder) {
	corner, line, tick, end := "┌", "─", "┬", "┐"
	name := p.unit.name
	if p.style.ASCII {
		corner, line, tick, end = "+", "-", "+", "+"
		name = strings.Replace(name, "µ", "u", 1)
	}
	numbers := []rune(strings.Repeat(" ", p.columns))
	marks := strings.Split(strings.Repeat(line, p.columns), "")
	step := p.step()
	for i := 0; ; i++ {
		value := float64(i) * step
		at := int(value * p.unit.ns / float64(p.span) * float64(p.columns))
		text := []rune(strconv.FormatFloat(value, 'g', 6, 64))
		if at >= p.columns {
			break
		}
		marks[at] = tick
		copy(numbers[max(min(at, p.columns-len(text)), 0):], text)
	}
	fmt.Fprintf(b, "%*s %s\n", p.labels, name, strings.TrimRight(string(numbers), " "))
	fmt.Fprintf(b, "%*s%s%s%s\n", p.labels, "", corner, strings.Join(marks, ""), end)
}
