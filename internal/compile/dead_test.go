package compile

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/ir"
)

// TestDeadStatements checks that an invalid statement is not an error if it never runs, whether this follows from
// literals or from dims, and that it is an error if it runs.
func TestDeadStatements(t *testing.T) {
	const program = `dim Two = 2
mesh tp[2]

func f(%x: f32[8, 4], %acc: inout f32[8, 4]) {
  for %j in LOW..HIGH {
    add %acc, %x into %acc
    if CONDITION {
      STATEMENT
    }
  }
}
`
	statements := map[string]string{
		"chunk":          "%c = chunk %acc, axis=0, %j - 1 of 1\n      neg %c into %c",
		"select":         "%c = select %acc, axis=1, index=4\n      neg %c into %c",
		"slice":          "%c = slice %acc, axis=0, 6..9\n      neg %c into %c",
		"backward slice": "%c = slice %acc, axis=0, 6..%j\n      neg %c into %c",
		"shapes":         "%c = alloc f32[8, 3]\n      add %x, %x into %c",
		"reshape":        "%c = reshape %acc, shape=(5, 5)\n      neg %c into %c",
		"split":          "%c = alloc f32[3, 4]\n      %r = alloc f32[1, 4]\n      reduce_scatter %c into %r, over=tp, op=sum, axis=0",
		"contraction":    "%w = alloc f32[4, 5]\n      %c = alloc f32[8, 4]\n      linear %x, %w into %c",
		"stream":         "%b = stream[2]\n      on %b[2] { neg %acc into %acc }",
	}
	for name, statement := range statements {
		for _, form := range []struct {
			low, high, condition string
			runs                 bool
		}{
			{"0", "1", "%j > 0", false},
			{"0", "Two - 1", "%j > 0", false},
			{"0", "1", "1 > 2", false},
			{"0", "1", "1 > Two", false},
			{"0", "1", "rank(tp) == 2", false},
			{"0", "0", "1 < 2", false},
			{"0", "Two - 2", "1 < 2", false},
			{"2", "3", "1 < 2", true},
			{"2", "Two + 1", "1 < 2", true},
			{"2", "3", "%j > 0", true},
			{"2", "3", "rank(tp) >= 0", true},
		} {
			source := strings.NewReplacer("LOW", form.low, "HIGH", form.high, "CONDITION", form.condition, "STATEMENT",
				statement).Replace(program)
			err := buildAndPlan(source)
			switch {
			case form.runs && err == nil:
				t.Errorf("%s runs and is not refused:\n%s", name, source)
			case !form.runs && err != nil:
				t.Errorf("%s never runs and is refused: %v\n%s", name, err, source)
			case !form.runs:
				c := newCase(t, source, ir.Binding{})
				c.run(t, c.lower(t, always(lower.Strategy{})), 1)
			}
		}
	}
}
