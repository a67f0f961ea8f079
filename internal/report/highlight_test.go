package report

import (
	"html"
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

func TestHighlight(t *testing.T) {
	for line, want := range map[string]string{
		"":                            "",
		"  %y.g = relu %x":            "  <var>%y.g</var> = <b>relu</b> <var>%x</var>",
		"%y: bf16[T/tp, 8] = copy %x": "<var>%y</var>: <samp>bf16[T/tp, 8]</samp> = <b>copy</b> <var>%x</var>",
		"%y: f32[T] partial(tp, sum) @d = copy %x":   "<var>%y</var>: <samp>f32[T] partial(tp, sum)</samp> @d = <b>copy</b> <var>%x</var>",
		"all_reduce %a[%i] into %b, over=tp, op=sum": "<b>all_reduce</b> <var>%a</var>[<var>%i</var>] <b>into</b> <var>%b</var>, over=tp, op=sum",
		"for %i in %a..%b {  // %x < 1":              "<b>for</b> <var>%i</var> <b>in</b> <var>%a</var>..<var>%b</var> {  <i>// %x &lt; 1</i>",
		"%x = alloc f32[extent(%xi, 0), N]":          "<var>%x</var> = <b>alloc</b> f32[extent(<var>%xi</var>, 0), N]",
		"if 1 < 2 / 3 {":                             "<b>if</b> 1 &lt; 2 / 3 {",
		"% %. f32[ 1e-3 ü":                           "% %. f32[ 1e-3 ü",
		"wait %s.":                                   "<b>wait</b> <var>%s</var>.",
	} {
		if got := string(highlight(line)); got != want {
			t.Errorf("%q:\n got %s\nwant %s", line, got, want)
		}
	}
}

var tags = regexp.MustCompile(`</?(var|b|i|samp)>`)

// TestHighlightKeepsText checks that a marked up line without its elements is the original line.
func TestHighlightKeepsText(t *testing.T) {
	piece := rapid.SampledFrom([]string{"%", "x", ".", "f32", "[", "]", "/", "//", "<", "&", "'", `"`, " ", "linear",
		"op=", "sum", "partial(", ")", "1", "ü", "<b>"})
	rapid.Check(t, func(t *rapid.T) {
		line := ""
		for _, p := range rapid.SliceOfN(piece, 0, 30).Draw(t, "pieces") {
			line += p
		}
		marked := string(highlight(line))
		if got := html.UnescapeString(tags.ReplaceAllString(marked, "")); got != line {
			t.Fatalf("%q became %q, which reads %q", line, marked, got)
		}
	})
}
