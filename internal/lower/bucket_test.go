package lower

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// gradientLike returns a program with one product for each size, whose result is reduced and needed only at the end.
// Every product has as many bytes as its size.
func gradientLike(op string, sizes ...int) string {
	layout, results, body := "", []string{}, ""
	if op == "reduce_scatter" {
		layout = "/dp"
	}
	var names, params []string
	for i, n := range sizes {
		params = append(params, fmt.Sprintf("%%b%d: f32[8/dp, %d]", i, n/16))
		results = append(results, fmt.Sprintf("f32[4%s, %d]", layout, n/16))
		body += fmt.Sprintf("  %%w%d: f32[4%s, %d] = matmul %%a, %%b%d, ta=true\n", i, layout, n/16, i)
		names = append(names, fmt.Sprintf("%%w%d", i))
	}
	return fmt.Sprintf("mesh dp[2]\nfunc f(%%a: f32[8/dp, 4], %s) -> (%s) {\n%s  return %s\n}\n", strings.Join(params, ", "),
		strings.Join(results, ", "), body, strings.Join(names, ", "))
}

// bucketed lowers a program with buckets of at most the given bytes, or of unknown sizes if bytes is negative.
func bucketed(t *testing.T, src string, bytes int64) string {
	t.Helper()
	in, ds := checker.Read("test.hkt", src)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, src)
	}
	opts := &Buckets{}
	if bytes >= 0 {
		bound, ds := ir.Bind(in, ir.Binding{})
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		opts = &Buckets{Bytes: bytes, Sizes: bound.Env(0, nil)}
	}
	res, err := Run(in.Prog, Options{Choose: func(*Pair) Strategy { return Strategy{} }, Buckets: opts})
	if err != nil {
		t.Fatal(err)
	}
	return res.Program.String()
}

var reductions = regexp.MustCompile(`(?m)^( *)(?:(%\w+).* = )?(?:all_reduce|reduce_scatter) (%\S+?)[, ]`)

// TestBuckets checks which reductions share a collective. Collectives that are delayed are on a separate stream, so
// their lines are indented.
func TestBuckets(t *testing.T) {
	for _, op := range []string{"all_reduce", "reduce_scatter"} {
		for _, c := range []struct {
			sizes []int
			bytes int64
			want  string // the first result of each collective, with a + if the collective is delayed
		}{
			{[]int{160, 160, 160, 160}, 0, "w0+ w1+ w2+ w3"},
			{[]int{160, 160, 160, 160}, -1, "w0+ w1+ w2+ w3"},
			{[]int{160, 160, 160, 160}, 320, "w0+ w2"},
			{[]int{160, 160, 160, 160}, 479, "w0+ w2"},
			{[]int{160, 160, 160, 160}, 480, "w0+ w3"},
			{[]int{160, 160, 160, 160}, 640, "w0"},
			{[]int{160, 640, 160, 160}, 320, "w0+ w1+ w2"},
			{[]int{2 << 20, 160}, 4 << 20, "w0+ w1"}, // after the second, no work is left during which both could run
			{[]int{1 << 20, 160}, 4 << 20, "w0"},
			{[]int{160}, 320, "w0"},
		} {
			text := bucketed(t, gradientLike(op, c.sizes...), c.bytes)
			var got []string
			for _, m := range reductions.FindAllStringSubmatch(text, -1) {
				name := strings.TrimPrefix(m[2]+m[3], "%")[:2]
				if len(m[1]) > 2 {
					name += "+"
				}
				got = append(got, name)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s of %v with buckets of %d bytes: %v, want %s\n%s", op, c.sizes, c.bytes, got, c.want, text)
			}
		}
	}
}

// TestBucketsKeepOrder checks where a delayed reduction is waited for, and that some reductions are not delayed.
func TestBucketsKeepOrder(t *testing.T) {
	const head = "mesh dp[2]\nfunc f(%a: f32[8/dp, 4], %b: f32[8/dp, 4], %m: f32[4, 4]) -> (f32[4, 4], f32[4, 4]) {\n"
	for _, c := range []struct {
		name, body string
		want       []string // the statements that must remain: the issue, the wait, and these definitions
	}{
		{"what depends on the result is moved behind the work that hides it", `  %w: f32[4, 4] = matmul %a, %b, ta=true
  %s = scale %w, by=0.5
  %n = add %m, %s
  %y = matmul %m, %m
  %z = matmul %y, %m
  return %n, %z
`, []string{"%w.0", "all_reduce", "%y", "%z", "wait %w.s", "%w", "%s", "%n", "return"}},
		{"a product that needs the result waits for it", `  %w: f32[4, 4] = matmul %a, %b, ta=true
  %y = matmul %m, %m
  %z = matmul %y, %w
  return %w, %z
`, []string{"%w.0", "all_reduce", "%y", "wait %w.s", "%w", "%z", "return"}},
		{"nothing is computed meanwhile", `  %w: f32[4, 4] = matmul %a, %b, ta=true
  %z = matmul %w, %m
  %y = matmul %z, %m
  return %y, %z
`, []string{"%w.0", "%w", "%z", "%y", "return"}},
		{"a barrier", `  %w: f32[4, 4] = matmul %a, %b, ta=true
  barrier over=dp
  %y = matmul %m, %m
  return %w, %y
`, []string{"%w.0", "%w", "barrier", "%y", "return"}},
	} {
		text := bucketed(t, head+c.body+"}\n", 1<<20)
		var got []string
		for _, line := range strings.Split(text, "\n") {
			line = strings.TrimSpace(line)
			for _, w := range c.want {
				if name, _, _ := strings.Cut(line, ":"); name == w || strings.HasPrefix(line, w+" ") {
					got = append(got, w)
					break
				}
			}
		}
		got = slices.DeleteFunc(got, func(s string) bool { return s == "" })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q\n%s", c.name, got, c.want, text)
		}
	}
}
