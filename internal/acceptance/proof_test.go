package acceptance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// imported reads a case of the corpus.
func (c dumpCase) imported(t *testing.T) *hocket.Program {
	t.Helper()
	if c.parsed != nil {
		return c.parsed
	}
	src := resized(corpus(t, c.file), c.extents)
	if c.edit != nil {
		src = c.edit(src)
	}
	p, rest, err := hocket.Import(c.file, src, c.defines)
	if err != nil || len(rest) > 0 {
		t.Fatalf("import: %v; left: %v", err, rest)
	}
	return p
}

// TestDumpsAreProved: of the corpus only the dump whose workers never wait for
// the caller's stream is refuted, for that reason, and repaired by that wait.
func TestDumpsAreProved(t *testing.T) {
	for _, c := range dumpCases {
		t.Run(c.name(), func(t *testing.T) {
			p := c.imported(t)
			b := hocket.Binding{Dims: c.dims}
			v, err := hocket.Check(p, b)
			if err != nil {
				t.Fatal(err)
			}
			if !c.races {
				if v.Kind != hocket.Proved {
					t.Errorf("%v (%s)\n%s", v.Kind, v.Reason, v.Diagnostics.String())
				}
				t.Logf("%v; %s", v, overlaps(v))
				return
			}
			said := v.Diagnostics.String()
			if v.Kind != hocket.Refuted || !strings.Contains(said, "fork it: wait main on %worker[0]") {
				t.Fatalf("%v\n%s", v.Kind, said)
			}
			fixed, err := hocket.Fix(p, b)
			if err != nil || fixed == nil || fixed.Verdict.Kind != hocket.Proved {
				t.Fatalf("not repaired: %+v, %v", fixed, err)
			}
			if len(fixed.Edits) != 1 || !strings.Contains(fixed.Edits[0], "main") {
				t.Errorf("repaired by %q", fixed.Edits)
			}
		})
	}
}

// overlaps lists the loops that a verdict says run one iteration after the other.
func overlaps(v hocket.Verdict) string {
	var lines []string
	for _, d := range v.Diagnostics {
		if d.Kind == "overlap" {
			lines = append(lines, fmt.Sprintf("line %d: %s", d.Pos.Line, d.Help))
		}
	}
	return strings.Join(lines, "; ")
}

// In the get form of the forwarding ring a rank takes rows from its left
// neighbour when that says it has them. With puts in place of gets, the same
// order of waits is a race: the right neighbour's rows may not be there.
func TestForwardingRings(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(root, "examples", "ag_linear_forward_get.hkt"))
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) hocket.Verdict {
		t.Helper()
		p, err := hocket.Parse("ring.hkt", text)
		if err != nil {
			t.Fatal(err)
		}
		v, err := hocket.Check(p, hocket.Binding{})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := check(string(src)); v.Kind != hocket.Proved {
		t.Errorf("get: %v\n%s", v.Kind, v.Diagnostics.String())
	}
	put := strings.Replace(string(src), "get %rows at tp[%left] into %rows", "put %rows into %rows at tp[%right]", 1)
	if v := check(put); v.Kind != hocket.Refuted || !strings.Contains(v.Diagnostics.String(), "at the same time") {
		t.Errorf("put in the order of get: %v\n%s", v.Kind, v.Diagnostics.String())
	}
}

// TestSerializedLoops: the forms of a stream loop that nvFuser went through.
// One whose join stands in the loop is right and runs one iteration after the
// other; with its forks before and its joins behind it is clean.
func TestSerializedLoops(t *testing.T) {
	const head = `
dim C = 5
dim T = 20
func f(%x: f32[T, 8], %w: f32[8, 8]) -> f32[T, 8] {
  %s = stream[3]
  %y = alloc f32[T, 8]
`
	const body = `
      %xi = chunk %x, axis=0, %i of C
      %yi = chunk %y, axis=0, %i of C
      linear %xi, %w into %yi
`
	for name, c := range map[string]struct {
		text string
		lost bool
	}{
		"merged": {"  for %i in 0..C {\n    on %s[%i mod 3] {\n      wait main" + body +
			"    }\n    wait %s[%i mod 3]\n  }\n", true},
		"join in loop": {"  for %j in 0..3 { on %s[%j] { wait main } }\n  for %i in 0..C {\n    on %s[%i mod 3] {\n      wait main" + body + "    }\n    wait %s[%i mod 3]\n  }\n", true},
		"fork in loop": {"  for %i in 0..C {\n    on %s[%i mod 3] {\n      wait main" + body +
			"    }\n  }\n  for %j in 0..3 { wait %s[%j] }\n", false},
		"two loops": {"  for %j in 0..3 { on %s[%j] { wait main } }\n  for %i in 0..C {\n    on %s[%i mod 3] {" +
			body + "    }\n  }\n  for %j in 0..3 { wait %s[%j] }\n", false},
		"stream loop":     {"  for %i in 0..C stream(3) {" + body + "  }\n", false},
		"one after other": {"  for %j in 0..3 { on %s[%j] { wait main } }\n  for %i in 0..C {\n    on %s[%i mod 3] {\n      wait %s[(%i + 2) mod 3]" + body + "    }\n  }\n  for %j in 0..3 { wait %s[%j] }\n", true},
	} {
		p, err := hocket.Parse(name, head+c.text+"  return %y\n}\n")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		v, err := hocket.Check(p, hocket.Binding{})
		if err != nil || v.Kind != hocket.Proved {
			t.Errorf("%s: %v, %v\n%s", name, v.Kind, err, v.Diagnostics.String())
		}
		if lost := overlaps(v) != ""; lost != c.lost {
			t.Errorf("%s: lost overlap is %v, want %v\n%s", name, lost, c.lost, v.Diagnostics.String())
		}
		if len(v.ForAll) != 1 {
			t.Errorf("%s: proved for all of %v, want C", name, v.ForAll)
		}
	}
}
