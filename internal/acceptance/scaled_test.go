package acceptance_test

import (
	"fmt"
	"strings"
	"testing"
)

// scaledBy multiplies the elements of the matrix x by the scales s: one scale for all elements, one for each row, or
// one for each block of 128 columns and the given number of rows.
func scaledBy(x, s tens, rows int64) tens {
	out := newTens(x.shape...)
	for i := range x.shape[0] {
		for j := range x.shape[1] {
			by := s.v[0]
			switch len(s.shape) {
			case 1:
				by = s.at(i)
			case 2:
				by = s.at(i/rows, j/128)
			}
			out.set(x.at(i, j)*by, i, j)
		}
	}
	return out
}

// TestAcceptanceScaled runs pipelines of 8-bit operands with scales: a ring that gathers the operands, and partial sums
// that are added on the rank that owns the block. All numbers are small integers, so that results are exact.
func TestAcceptanceScaled(t *testing.T) {
	const m, n, k = 8, 256, 512
	for _, form := range []string{"one", "rows", "blocks"} {
		for _, d := range []int64{1, 2, 4} {
			// These are the extents of the scales of four operands: x[m/d, k] and w[n, k], and x[m, k/d] and w[n, k/d].
			along := map[string][4]string{"one": {"", "", "", ""}, "rows": {"8/d", "256", "8", "256"},
				"blocks": {"8/d, 4", "2, 4", "8, 4/d", "2, 4/d"}}[form]
			shapes := map[string][]int64{"x": {m, k}, "w": {n, k}, "sx": {}, "sw": {}}
			switch form {
			case "rows":
				shapes["sx"], shapes["sw"] = []int64{m}, []int64{n}
			case "blocks":
				shapes["sx"], shapes["sw"] = []int64{m, k / 128}, []int64{n / 128, k / 128}
			}
			runs := runsOf(3, 2, shapes)
			for _, in := range runs {
				for _, name := range []string{"sx", "sw"} {
					for i := range in[name].v {
						in[name].v[i] += 3 // scales are positive
					}
				}
			}
			want := func(in map[string]tens) tens {
				return linear(scaledBy(in["x"], in["sx"], 1), scaledBy(in["w"], in["sw"], 128), tens{})
			}
			pass := `    if %i < %n - 1 {
      %next = chunk %NAME, axis=0, (%j + %n - 1) mod %n of %n
      permute %NAMEj into %next, over=d, to=(%r + 1) mod %n, from=(%r + %n - 1) mod %n
    }
`
			passed := func(name string) string {
				return strings.ReplaceAll(strings.ReplaceAll(pass, "NAME", name), "%next", "%next"+name)
			}
			start, at, sends, by := "", "", "", "%sx"
			if form != "one" {
				start = "  %allsx = alloc f32[" + strings.Replace(along[0], "/d", "", 1) + "]\n" +
					"  %ownsx = chunk %allsx, axis=0, %r of %n\n  copy %sx into %ownsx\n"
				at, sends, by = "    %allsxj = chunk %allsx, axis=0, %j of %n\n", passed("allsx"), "%allsxj"
			}
			t.Run(fmt.Sprintf("ring/%s/%d", form, d), func(t *testing.T) {
				testCase{src: fmt.Sprintf("mesh d[%d]\nfunc f(%%x: f8e4m3[8/d, 512], %%w: f8e5m2[256, 512], %%sx: f32[%s], %%sw: f32[%s])"+
					" -> f32[8, 256] {\n", d, along[0], along[1]) + `  let %n = size(d)
  let %r = rank(d)
  %all = alloc f8e4m3[8, 512]
  %y = alloc f32[8, 256]
  %own = chunk %all, axis=0, %r of %n
  copy %x into %own
` + start + `  for %i in 0..%n {
    let %j = (%r + %n - %i) mod %n
    %allj = chunk %all, axis=0, %j of %n
    %yj = chunk %y, axis=0, %j of %n
` + at + "    linear %allj, %w, " + by + ", %sw into %yj\n" + passed("all") + sends + `  }
  return %y
}`, runs: runs, want: want}.check(t)
			})
			t.Run(fmt.Sprintf("sums/%s/%d", form, d), func(t *testing.T) {
				cut := "%sx"
				chunk := ""
				if form != "one" {
					cut, chunk = "%sxi", "    %sxi = chunk %sx, axis=0, %i of size(d)\n"
				}
				testCase{src: fmt.Sprintf("mesh d[%d]\nfunc f(%%x: f8e4m3[8, 512/d], %%w: f8e4m3[256, 512/d], %%sx: f32[%s], %%sw: f32[%s])"+
					" -> f32[8/d, 256] {\n", d, along[2], along[3]) + `  %y = alloc f32[8/d, 256]
  for %i in 0..size(d) stream(2) {
    %xi = chunk %x, axis=0, %i of size(d)
` + chunk + `    %q = alloc f32[8/d, 256]
    linear %xi, %w, ` + cut + `, %sw into %q
    reduce %q into %y, over=d, op=sum, root=%i
  }
  return %y
}`, runs: runs, want: want}.check(t)
			})
		}
	}
}
