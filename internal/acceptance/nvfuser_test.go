package acceptance_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// These tests run nvFuser's dumps. The expected results of these tests are computed from the inputs by plain loops. All
// extents in these tests differ, so that swapped axes give wrong results.

// corpus returns the text of a dump of the corpus, which is not in this repository. HOCKET_CORPUS
// is its folder.
func corpus(t testing.TB, file string) string {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(corpusDir(), file))
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("the dumps are not here (%v); HOCKET_CORPUS names their folder", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

func corpusDir() string {
	if dir := os.Getenv("HOCKET_CORPUS"); dir != "" {
		return dir
	}
	return filepath.Join(root, "..", "shared", "corpus", "nvfuser")
}

var (
	printedAxis = regexp.MustCompile(`([irb?][A-Za-z.]+)(\d+)\{\d+\}`)
	printedDim  = regexp.MustCompile(`(?:\{|ceilDiv\()(i\d+)\b`)
	printedSize = regexp.MustCompile(`size=\d+, `)
)

// resized replaces the extents of axes in a dump. The keys of extents are the numbers of the axes.
func resized(src string, extents map[int]int) string {
	if extents == nil {
		return src
	}
	src = printedSize.ReplaceAllString(src, "")
	return printedAxis.ReplaceAllStringFunc(src, func(s string) string {
		m := printedAxis.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2])
		if e, ok := extents[n]; ok {
			return fmt.Sprintf("%s%s{%d}", m[1], m[2], e)
		}
		return s
	})
}

// dumpCase is a dump of the corpus with a function that computes its expected result.
type dumpCase struct {
	file    string
	extents map[int]int
	dims    map[string]int64
	defines map[string]string
	want    func(in map[string]tens) tens
	// edit, if set, changes the text of the dump. If parsed is set, this program is run instead of the dump.
	edit   func(string) string
	parsed *hocket.Program
	// races reports that the dump has a race: its result is wrong under some schedule.
	races bool
}

var missing5259 = map[string]string{"i84": "(rank+streamIdx)%8", "i90": "(8+rank-streamIdx)%8",
	"i107": "(rank+streamIdx)%8"}

func linearAll(in map[string]tens) tens { return linear(in["T0"], in["T1"], in["T2"]) }
func identity(in map[string]tens) tens  { return in["T0"] }

// ringExtents are the extents of a ring: 3 rows per chunk, 5 columns of the contraction, 7 columns
// of the result.
var ringExtents = map[int]int{1: 3, 2: 5, 3: 7, 4: 5, 5: 7, 7: 3, 8: 7, 9: 5, 11: 3, 12: 5, 13: 3, 14: 5, 15: 3, 16: 5}

// with returns ringExtents with additional extents.
func with(extents map[int]int) map[int]int {
	for k, v := range ringExtents {
		if _, there := extents[k]; !there {
			extents[k] = v
		}
	}
	return extents
}

var dumpCases = []dumpCase{
	{file: "pr3524-23.txt", want: func(in map[string]tens) tens {
		sum := in["T0"].sumAxis(3)
		for i := range sum.v {
			sum.v[i] *= 2
		}
		return sum
	}},
	{file: "pr3606-22.txt", races: true, dims: map[string]int64{"i0": 6, "i3": 3, "i4": 5, "i5": 5, "i6": 7},
		want: func(in map[string]tens) tens {
			return linear(in["T0"], flipped(in["T1"]), tens{})
		}},
	{file: "pr4147-16.txt", dims: map[string]int64{"i0": 6, "i2": 5}, want: identity},
	{file: "pr4147-17.txt", dims: map[string]int64{"i0": 7, "i2": 3}, want: identity},
	{file: "pr4387-10.txt", dims: map[string]int64{"i0": 6}, want: identity},
	{file: "pr4387-12.txt", dims: map[string]int64{"i0": 6, "i3": 8, "i4": 5},
		want: func(in map[string]tens) tens { return in["T0"].sumAxis(1) }},
	{file: "pr4387-14.txt", dims: map[string]int64{"i0": 6, "i3": 3, "i4": 5, "i6": 5, "i7": 7},
		want: func(in map[string]tens) tens {
			x, w := in["T0"], in["T1"]
			out := newTens(6, 3, 7)
			each(out, func(ix []int64) float64 {
				v := 0.0
				for d := range int64(8) {
					for k := range int64(5) {
						v += x.at(d, ix[0], ix[1], k) * w.at(d, k, ix[2])
					}
				}
				return v
			})
			return out
		}},
	{file: "pr4515-08.txt", dims: map[string]int64{"i2": 5}, want: identity},
	{file: "pr5180-06.txt", extents: with(map[int]int{17: 3, 18: 7, 19: 5}), want: linearAll},
	{file: "pr5205-04.txt", extents: map[int]int{0: 6, 2: 3, 3: 5, 4: 7, 5: 5, 6: 7, 7: 6, 9: 3, 10: 7, 11: 5, 12: 6,
		14: 3, 15: 7, 17: 3, 18: 7, 19: 5, 21: 3, 22: 7},
		want: func(in map[string]tens) tens {
			y := linear(in["T0"], in["T1"], in["T2"])
			out := newTens(6, 8, 3, 7)
			each(out, func(ix []int64) float64 { return y.at(ix[1], ix[0], ix[2], ix[3]) })
			return out
		}},
	{file: "pr5259-03.txt", extents: with(map[int]int{17: 3, 18: 5, 19: 3, 20: 7, 21: 5}), defines: missing5259,
		want: linearAll},
	{file: "pr5327-ring-with-index-definitions.txt", extents: with(map[int]int{17: 3, 18: 7, 19: 5}), want: linearAll},
	{file: "test-test_overlap-26.txt", dims: map[string]int64{"i0": 18}, want: rowParallel},
	{file: "test-test_overlap-26.txt", dims: map[string]int64{"i0": 7}, want: rowParallel},
	{file: "test-test_overlap-26.txt", dims: map[string]int64{"i0": 1}, want: rowParallel},
	{file: "test-test_overlap-26.txt", dims: map[string]int64{"i0": 0}, want: rowParallel},
	{file: "test-test_stream-27.txt", dims: map[string]int64{"i0": 5, "i2": 7, "i4": 10},
		want: func(in map[string]tens) tens {
			out := newTens(3, 5, 4)
			each(out, func(ix []int64) float64 {
				v := 0.0
				for k := range int64(7) {
					v += in["T0"].at(ix[1], k) * in["T1"].at(ix[0], k, ix[2])
				}
				return v
			})
			return out
		}},
}

// rowParallel returns y[s, m, n] = Σ x[s, d, m, k]·w[d, n, k], summed over devices d and k.
func rowParallel(in map[string]tens) tens {
	x, w := in["T0"], in["T1"]
	out := newTens(3, x.shape[2], 2)
	each(out, func(ix []int64) float64 {
		v := 0.0
		for d := range int64(2) {
			for k := range int64(4) {
				v += x.at(ix[0], d, ix[1], k) * w.at(d, ix[2], k)
			}
		}
		return v
	})
	return out
}

// each sets every element to the value of f at its indices.
func each(t tens, f func(ix []int64) float64) {
	ix := make([]int64, len(t.shape))
	for i := range t.v {
		rest := int64(i)
		for d := len(ix) - 1; d >= 0; d-- {
			ix[d] = rest % t.shape[d]
			rest /= t.shape[d]
		}
		t.v[i] = f(ix)
	}
}

func flipped(t tens) tens {
	out := newTens(t.shape[1], t.shape[0])
	each(out, func(ix []int64) float64 { return t.at(ix[1], ix[0]) })
	return out
}

// load imports a case and returns inputs that differ from run to run.
func (c dumpCase) load(t *testing.T, runs int) (*hocket.Model, []hocket.Args, []tens) {
	t.Helper()
	src := ""
	if c.parsed == nil {
		src = resized(corpus(t, c.file), c.extents)
	}
	if c.edit != nil {
		src = c.edit(src)
	}
	p := c.parsed
	if p == nil {
		var rest map[string]string
		var err error
		if p, rest, err = hocket.Import(c.file, src, c.defines); err != nil || len(rest) > 0 {
			t.Fatalf("import: %v; left: %v", err, rest)
		}
	}
	m, err := hocket.Open(context.Background(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	model, err := m.Load(p, hocket.Binding{Dims: c.dims}, hocket.LoadOptions{NoProve: c.races})
	if err != nil {
		t.Fatal(err)
	}
	ports, err := model.Inputs(nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, p)
	}
	var batch []hocket.Args
	var want []tens
	for run := range runs {
		in, args := map[string]tens{}, hocket.Args{In: map[string]*hocket.Tensor{}}
		for i, port := range ports {
			x := ints(run*17+i+1, 2, port.Shape...)
			in[port.Name] = x
			if args.In[port.Name], err = hocket.FromFloats(port.DType, x.v, port.Shape...); err != nil {
				t.Fatal(err)
			}
		}
		batch, want = append(batch, args), append(want, c.want(in))
	}
	return model, batch, want
}

// wrong describes how the result in a report differs from the expected one; it returns "" if they are equal.
func wrong(r *hocket.Report, want tens) string {
	got := r.Out[r.OutNames[0]]
	if !slices.Equal(got.Shape, want.shape) {
		return fmt.Sprintf("the result has shape %v, not %v", got.Shape, want.shape)
	}
	for i, v := range got.Floats() {
		if v != want.v[i] {
			return fmt.Sprintf("element %d is %v, not %v", i, v, want.v[i])
		}
	}
	return ""
}

func (c dumpCase) name() string {
	return fmt.Sprintf("%s%v", strings.TrimSuffix(c.file, ".txt"), c.dims)
}

func TestDumpsRun(t *testing.T) {
	for _, c := range dumpCases {
		t.Run(c.name(), func(t *testing.T) {
			if c.races { // on concurrent streams a program with a race is correct only by chance
				model, batch, want := c.load(t, 1)
				c.evaluate(t, model, batch[0], want[0])
				return
			}
			c.run(t, 2, 0)
		})
	}
}

// run evaluates the reference of the case, and runs the case back to back: on concurrent streams, and under random
// schedules.
func (c dumpCase) run(t *testing.T, runs, schedules int) {
	t.Helper()
	model, batch, want := c.load(t, runs)
	c.evaluate(t, model, batch[0], want[0])
	reports, err := model.RunBatch(context.Background(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range reports {
		if why := wrong(r, want[i]); why != "" {
			t.Errorf("run %d: %s", i, why)
		}
	}
	err = model.Explore(context.Background(), batch, hocket.ExploreOptions{Schedules: schedules, Seed: 1},
		func(seed int64, reports []*hocket.Report) error {
			for i, r := range reports {
				if why := wrong(r, want[i]); why != "" {
					return fmt.Errorf("schedule %d, run %d: %s", seed, i, why)
				}
			}
			return nil
		})
	if err != nil {
		t.Error(err)
	}
}

// evaluate checks that the reference evaluator, which executes everything in text order, computes
// the expected result.
func (c dumpCase) evaluate(t *testing.T, model *hocket.Model, args hocket.Args, want tens) {
	t.Helper()
	ref, err := model.Reference(context.Background(), args)
	if err != nil {
		t.Fatal(err)
	}
	ports, err := model.Inputs(nil)
	if err != nil {
		t.Fatal(err)
	}
	result, err := hocket.FromFloats(ports[0].DType, want.v, want.shape...)
	if err != nil {
		t.Fatal(err)
	}
	rep := &hocket.Report{OutNames: []string{"want"}, Out: map[string]*hocket.Tensor{"want": result}}
	if cmp := ref.Compare(rep); cmp.Verdict != hocket.Exact {
		t.Errorf("the evaluator has another result: %s", cmp)
	}
}

// TestCorpusIsProved checks every dump of the corpus with all dims 8. Files that are added to the
// corpus are checked without changing the test.
func TestCorpusIsProved(t *testing.T) {
	refused := map[string]string{
		"pr2692-25.txt":   "the index i28 is used but not defined",
		"pr3606-22.txt":   "may run at the same time",
		"tutorial-35.txt": "it is not known what HostUnit2 computes",
	}
	corpus(t, "pr3606-22.txt") // this call skips the test if the corpus is missing
	files, err := filepath.Glob(filepath.Join(corpusDir(), "*.txt"))
	if err != nil || len(files) < 17 {
		t.Fatalf("%d dumps, %v", len(files), err)
	}
	for _, path := range files {
		file := filepath.Base(path)
		t.Run(file, func(t *testing.T) {
			src := corpus(t, file)
			dims := map[string]int64{}
			for _, m := range printedDim.FindAllStringSubmatch(src, -1) {
				dims[m[1]] = 8
			}
			p, err := hocket.Parse(file, src)
			if err == nil {
				var v hocket.Verdict
				if v, err = hocket.Check(p, hocket.Binding{Dims: dims}); err == nil && v.Kind != hocket.Proved {
					err = v.Diagnostics
				}
			}
			if err == nil != (refused[file] == "") || err != nil && !strings.Contains(err.Error(), refused[file]) {
				t.Errorf("want error %q, got %v", refused[file], err)
			}
		})
	}
}

// TestDumpsUnderSchedules runs all dumps under random schedules. Only the dump in which worker streams never wait for
// the caller's stream may have a wrong result. The dump must be correct with the wait that nvFuser added later.
func TestDumpsUnderSchedules(t *testing.T) {
	schedules := 30
	if testing.Short() {
		schedules = 6
	}
	for _, c := range append(slices.Clone(dumpCases), repaired()) {
		t.Run(c.name(), func(t *testing.T) {
			model, batch, want := c.load(t, 2)
			seen := ""
			err := model.Explore(context.Background(), batch, hocket.ExploreOptions{Schedules: schedules, Seed: 1},
				func(seed int64, reports []*hocket.Report) error {
					for i, r := range reports {
						if why := wrong(r, want[i]); why != "" && seen == "" {
							seen = fmt.Sprintf("schedule %d, run %d: %s", seed, i, why)
						}
					}
					return nil
				})
			if err != nil && c.races && strings.Contains(err.Error(), "should hold the same elements") {
				seen, err = err.Error(), nil // copies of a result differ, so one is wrong
			}
			switch {
			case err != nil:
				t.Error(err)
			case c.races && seen == "":
				t.Errorf("none of %d schedules reveals that workers do not wait for the caller's stream", schedules)
			case !c.races && seen != "":
				t.Error(seen)
			}
		})
	}
}

// repaired returns the dump whose worker streams do not wait for the caller's stream, with the missing Synchronize
// added.
func repaired() dumpCase {
	for _, c := range dumpCases {
		if c.races {
			c.races, c.edit = false, func(src string) string {
				set := "    SetCurrentStream to Stream ( i104 % numberOfStreams )\n"
				return strings.Replace(src, set, set+"    Synchronize Stream 0\n", 1)
			}
			return c
		}
	}
	return dumpCase{}
}

// TestDumpsAsPrograms checks that an imported dump can be printed and parsed, and then has the same
// results.
func TestDumpsAsPrograms(t *testing.T) {
	for _, c := range dumpCases {
		t.Run(c.name(), func(t *testing.T) {
			p, _, err := hocket.Import(c.file, resized(corpus(t, c.file), c.extents), c.defines)
			if err != nil {
				t.Fatal(err)
			}
			again, err := hocket.Parse("again.hkt", p.String())
			if err != nil {
				t.Fatalf("%v\n%s", err, p)
			}
			if again.String() != p.String() {
				t.Errorf("the printed text differs when the program is parsed and printed again:\n%s\n%s", p, again)
			}
			c.parsed = again
			model, batch, want := c.load(t, 1)
			c.evaluate(t, model, batch[0], want[0])
		})
	}
}

// TestDumpsRefused checks that unsupported parts of a dump are refused with their position, a
// reason and a suggestion.
func TestDumpsRefused(t *testing.T) {
	for _, c := range []struct {
		file, place, why, help string
	}{
		{"pr2692-25.txt", ":4:", "the index i28 is used but not defined", "--define 'i28="},
		{"tutorial-35.txt", ":7:1:", "it is not known what HostUnit2 computes", "copy all of it"},
	} {
		t.Run(c.file, func(t *testing.T) {
			_, err := hocket.Parse(c.file, corpus(t, c.file))
			var ds hocket.Diagnostics
			if !errors.As(err, &ds) {
				t.Fatalf("it is read: %v", err)
			}
			d := ds[0]
			if first := d.String(); !strings.HasPrefix(first, c.file+c.place) || !strings.Contains(first, c.why) ||
				!strings.Contains(d.Help, c.help) {
				t.Errorf("want %s … %s … help: %s\ngot:\n%s", c.place, c.why, c.help, first)
			}
		})
	}
}
