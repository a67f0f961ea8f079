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

// TestDumpsAreProved checks that all dumps of the corpus are proved except one, whose worker streams never wait for the
// caller's stream. That dump must be refuted for this reason, and the suggested repair must be that wait.
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

// overlaps lists the loops whose iterations run one after another, according to the diagnostics of a verdict.
func overlaps(v hocket.Verdict) string {
	var lines []string
	for _, d := range v.Diagnostics {
		if d.Kind == "overlap" {
			lines = append(lines, fmt.Sprintf("line %d: %s", d.Pos.Line, d.Help))
		}
	}
	return strings.Join(lines, "; ")
}

// TestForwardingRings checks the forwarding ring. In the form with gets, a rank copies rows from its left neighbour
// after the neighbour has signalled that it has them. With puts instead of gets, the same order of waits is a race: the
// right neighbour may not have the rows yet.
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
		t.Errorf("puts with the waits of gets: %v\n%s", v.Kind, v.Diagnostics.String())
	}
}

// TestSerializedLoops checks the forms that nvFuser's loop over streams had in the course of its development. With the
// join inside the loop the program is correct, but its iterations run one after another. With the forks before the loop
// and the joins after it, the iterations overlap.
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
		"stream loop": {"  for %i in 0..C stream(3) {" + body + "  }\n", false},
		"merged, with scratch": {"  for %i in 0..C {\n    on %s[%i mod 3] {\n      wait main\n" +
			"      %p = alloc f32[ceildiv(T, C), 8]\n      %xi = chunk %x, axis=0, %i of C\n      relu %xi into %p\n" +
			"      %yi = chunk %y, axis=0, %i of C\n      linear %p, %w into %yi\n    }\n    wait %s[%i mod 3]\n  }\n",
			true},
		"merged, then main adds": {"  %a = alloc f32[4, 8]\n  fill into %a, value=0\n  for %i in 0..C {\n" +
			"    on %s[%i mod 3] {\n      wait main" + body + "    }\n    wait %s[%i mod 3]\n" +
			"    %z = chunk %y, axis=0, %i of C\n    add %a, %z into %a\n  }\n", true},
		"each reads what main adds": {"  %a = alloc f32[4, 8]\n  fill into %a, value=0\n  for %i in 0..C {\n" +
			"    on %s[%i mod 3] {\n      wait main\n      %yi = chunk %y, axis=0, %i of C\n" +
			"      linear %a, %w into %yi\n    }\n    wait %s[%i mod 3]\n" +
			"    %z = chunk %y, axis=0, %i of C\n    add %a, %z into %a\n  }\n", false},
		"one scratch": {"  %p = alloc f32[4, 8]\n  for %i in 0..C {\n    on %s[%i mod 3] {\n      wait main\n" +
			"      %xi = chunk %x, axis=0, %i of C\n      relu %xi into %p\n" +
			"      %yi = chunk %y, axis=0, %i of C\n      linear %p, %w into %yi\n    }\n    wait %s[%i mod 3]\n  }\n",
			false},
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
			t.Errorf("%s: serialized loops are %v, want %v\n%s", name, lost, c.lost, v.Diagnostics.String())
		}
		if fits := strings.Contains(c.text, "[4, 8]"); !fits && len(v.ForAll) != 1 { // holds for this C only
			t.Errorf("%s: proved for all of %v, want C", name, v.ForAll)
		}
	}
}

// TestMergedLoops tests an open question of nvFuser's pull request 5751: the loop that joins the streams must not be
// merged into the loop that uses them. In dumps and in native programs, only the merged loop must be reported, together
// with the wait that serializes it, and must be predicted to take longer.
func TestMergedLoops(t *testing.T) {
	for _, c := range []struct {
		file, apart, merged string
		dims                map[string]int64
		wait                string // the wait that serializes
	}{
		{"host_ir.txt", "  SetCurrentStream(Stream 0x55d0a1)\n  FOR i9 from 0 to 4:\n    Synchronize(Stream i9)\n",
			"    SetCurrentStream(Stream 0x55d0a1)\n    Synchronize(Stream i9)\n", nil,
			"wait %worker[%i9] (line 16) makes main wait for %worker[0], and " +
				"wait main (line 6) makes %worker[1] wait for main"},
		{"row_parallel_chunked.hkt", "    }\n  }\n  for %j in 0..2 { wait %s[%j] }",
			"    }\n    wait %s[%i mod 2]\n    on %s[(%i + 1) mod 2] { wait main }\n  }",
			map[string]int64{"T": 6144, "K": 4096, "N": 4096, "C": 6},
			"wait %s[%i mod 2] (line 26) makes main wait for %s[0], and " +
				"wait main (line 27) makes %s[1] wait for main"},
	} {
		t.Run(c.file, func(t *testing.T) {
			src, err := os.ReadFile(filepath.Join(root, "examples", c.file))
			if err != nil {
				t.Fatal(err)
			}
			merged := strings.Replace(string(src), c.apart, c.merged, 1)
			if merged == string(src) {
				t.Fatalf("the program does not contain %q", c.apart)
			}
			us := map[string]float64{}
			for _, text := range []string{string(src), merged} {
				p, err := hocket.Parse(c.file, text)
				if err != nil {
					t.Fatal(err)
				}
				b := hocket.Binding{Dims: c.dims}
				v, err := hocket.Check(p, b)
				if err != nil || v.Kind != hocket.Proved {
					t.Fatalf("%v, %v\n%s", v.Kind, err, v.Diagnostics)
				}
				said := ""
				for _, d := range v.Diagnostics {
					if d.Kind == "overlap" {
						said += d.Message + "\n" + d.Help
					}
				}
				if text == merged && (!strings.Contains(said, c.wait) ||
					!strings.Contains(said, "into a separate loop")) ||
					text != merged && said != "" {
					t.Errorf("it is reported: %q\n%s", said, text)
				}
				e, err := p.Explain(hocket.LowerOptions{Binding: b, Machine: "h200x2"})
				if err != nil {
					t.Fatal(err)
				}
				us[text] = e.Time
			}
			if apart, both := us[string(src)], us[merged]; apart <= 0 || both < 1.1*apart {
				t.Errorf("merged: %.1f µs, want more than the %.1f with a separate loop of joins", both, apart)
			}
		})
	}
}
