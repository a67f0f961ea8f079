package compile

import (
	"slices"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/ir"
)

// Auto is the name of the strategy that uses, for each pair, the strategy with the shortest predicted time.
const Auto = "auto"

// Strategies lists the names of the strategies. The name chunked may be followed by the number of chunks: "chunked(8)".
var Strategies = []string{"sequential", "chunked", "exchange", "ahead", "delayed", Auto}

// CheckStrategy returns an error if no strategy has the name s.
func CheckStrategy(s string) error {
	if s == Auto {
		return nil
	}
	_, err := lower.ParseStrategy(s)
	return err
}

// always returns a chooser that chooses s for every pair.
func always(s lower.Strategy) func(*lower.Pair) lower.Strategy {
	s.Delayed = false
	return func(*lower.Pair) lower.Strategy { return s }
}

// applied returns an error if the requested strategy was not applied to any pair.
func applied(p *ir.Program, res *lower.Result, s lower.Strategy) error {
	if s == (lower.Strategy{}) || res.Groups > 0 || !slices.ContainsFunc(res.Stages, func(st lower.Stage) bool { return st.Pass == "overlap" }) {
		return nil
	}
	used := func(c lower.Choice) bool {
		c.Strategy.Ahead = s.Ahead // ahead becomes exchange where no blocks can be sent ahead
		c.Strategy.Ragged = false
		return c.Strategy == s
	}
	if slices.ContainsFunc(res.Choices, used) {
		return nil
	}
	pos := p.Funcs[len(p.Funcs)-1].Pos
	var notes []ir.Note
	for _, c := range res.Choices {
		notes = append(notes, ir.Note{Pos: c.Pair.Pos, Message: c.Pair.String() + ": " + c.Why})
	}
	notes = append(notes, res.Alone...)
	if len(notes) > 0 {
		pos = notes[0].Pos
	}
	d := p.Diag("strategy", pos, "strategy %s applies to no collective of this program", s)
	d.Notes = notes
	d.Help = "use sequential, or choose layouts with which a linear or matmul uses the result of an all_gather, or computes the operand of a collective"
	if s.Delayed {
		d.Help = "use sequential: the result of each reduction is needed before any other GEMM"
	}
	if len(notes) == 0 {
		d.Message += ": it has no all_gather, reduce_scatter or all_reduce of values"
	}
	return ir.Diagnostics{d}
}
