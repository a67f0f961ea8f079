package ir_test

import (
	"fmt"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestRandomRoundTrip(t *testing.T) {
	for seed := range irtest.RandomRuns() {
		p := irtest.RandomProgram(seed)
		text := p.String()
		q, ds := ir.Parse("random", text)
		if len(ds) > 0 {
			t.Fatalf("seed %d: %s\n%s", seed, ds, text)
		}
		if !ir.Equal(p, q) {
			t.Fatalf("seed %d: printed as\n%s\nwhich parses as\n%s", seed, text, q)
		}
		if again := q.String(); again != text {
			t.Fatalf("seed %d: printed as\n%s\nthen as\n%s", seed, text, again)
		}
	}
}

// withComments inserts comments and empty lines at all places where the grammar permits them. withComments returns the
// text and the number of comments.
func withComments(r *rand.Rand, text string) (string, int) {
	var b strings.Builder
	n := 0
	comment := func() string {
		n++
		return fmt.Sprintf("//c%d.", n)
	}
	depth := 0
	for _, c := range text {
		if c == '\n' && r.IntN(4) == 0 {
			b.WriteString(" " + comment())
		}
		b.WriteRune(c)
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		}
		if (c == ',' || depth > 0 && (c == '(' || c == '[')) && r.IntN(20) == 0 {
			b.WriteString(strings.Repeat("\n", r.IntN(3)) + comment() + strings.Repeat("\n", 1+r.IntN(3)))
		}
		for c == '\n' && r.IntN(4) == 0 {
			b.WriteString(pickText(r, "\n", "\n\n", comment()+"\n"))
		}
	}
	return b.String(), strings.Count(b.String(), "//")
}

func pickText(r *rand.Rand, list ...string) string { return list[r.IntN(len(list))] }

func TestFormatKeepsComments(t *testing.T) {
	for seed := range irtest.RandomRuns() / 4 {
		r := rand.New(rand.NewPCG(seed, 2))
		p := irtest.RandomProgram(seed)
		src, n := withComments(r, p.String())
		once, ds := ir.Format("random", src)
		if len(ds) > 0 {
			t.Fatalf("seed %d: %s\n%s", seed, ds, src)
		}
		if got := strings.Count(once, "//"); got != n {
			t.Fatalf("seed %d: %d of %d comments left of\n%s\nin\n%s", seed, got, n, src, once)
		}
		again := irtest.MustParse(t, "formatted", once)
		if !ir.Equal(p, again) {
			t.Fatalf("seed %d: another program:\n%s\n%s", seed, src, once)
		}
		if twice := again.String(); twice != once {
			t.Fatalf("seed %d: fmt of\n%s\nis\n%s\nthen\n%s", seed, src, once, twice)
		}
		if strings.Contains(once, "\n\n\n") || strings.Contains(once, "{\n\n") || strings.Contains(once, " \n") {
			t.Fatalf("seed %d: empty lines or blanks too many in\n%q", seed, once)
		}
	}
}
