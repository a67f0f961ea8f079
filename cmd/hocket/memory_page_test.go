package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/golden"
)

// hocketHere runs a command line in the repository's root.
func hocketHere(words ...string) (stdout, stderr string, code int) {
	a, out, errs := testApp(strings.NewReader(""))
	a.json = wantsJSON(words)
	if a.json {
		a.text = &bytes.Buffer{}
	}
	ctx := context.Background()
	code = a.finish(ctx, a.execute(ctx, words))
	return out.String(), errs.String(), code
}

// TestMemoryPage runs the commands in docs/memory.md and compares their output with the page. -update rewrites the
// page.
func TestMemoryPage(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	page := filepath.Join("docs", "memory.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	got := pageCommand.ReplaceAllStringFunc(string(text), func(block string) string {
		ran++
		line := pageCommand.FindStringSubmatch(block)[1]
		out, errs, code := hocketHere(strings.Fields(line)...)
		if code != 0 {
			t.Errorf("%s: exit code %d", line, code)
		}
		return "```\n$ hocket " + line + "\n" + out + errs + "```\n"
	})
	if ran < 4 {
		t.Errorf("the page has only %d commands", ran)
	}
	switch {
	case got == string(text):
	case golden.Update():
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("docs/memory.md shows other output than the commands give (-update rewrites it)")
	}
}

// The names of the members of the --json output must not change, because users rely on them.
func TestMemoryJSON(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	out, errs, code := hocketHere("memory", "examples/layers_all_reduce.hkt", "--func", "layers", "--strategy",
		"exchange", "--json")
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	var r struct {
		Peak, Bound, Sequential, Reserved *int64
		Gap                               *float64 `json:"gap_percent"`
		Buffers                           *int
		AtPeak                            []struct {
			Name  *string
			Bytes *int64
			Line  *int32
		} `json:"at_peak"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Peak == nil || r.Bound == nil || r.Sequential == nil || r.Reserved == nil || r.Gap == nil ||
		r.Buffers == nil || len(r.AtPeak) == 0 {
		t.Fatalf("a member is missing: %s", out)
	}
	sum := int64(0)
	for _, h := range r.AtPeak {
		if h.Name == nil || h.Bytes == nil || h.Line == nil {
			t.Fatalf("a member of at_peak is missing: %s", out)
		}
		sum += *h.Bytes
	}
	// The peak consists of 8 weights of 32×16 f32, the 32×32 input, the half of the input, the sum, and two receive
	// slots of half the size of the sum.
	want := int64(8*32*16*4 + 32*32*4 + 32*16*4 + 2*32*32*4)
	if *r.Peak != want || *r.Bound != want || sum != want {
		t.Errorf("peak %d, bound %d, buffers at it %d; want %d", *r.Peak, *r.Bound, sum, want)
	}
}

// The snapshot that --viz writes can be loaded by Python and has the fields that torch's viewer reads. Replaying its
// events must lead to the state that its segments describe.
func TestVizLoadsInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 to load the pickle with")
	}
	t.Chdir(filepath.Join("..", ".."))
	file := filepath.Join(t.TempDir(), "plan.pickle")
	if out, errs, code := hocketHere("memory", "examples/model_32.hkt", "--strategy", "exchange", "--viz",
		file); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	const script = `
import pickle, sys
d = pickle.load(open(sys.argv[1], "rb"))
assert len(d["segments"]) == len(d["device_traces"]) == 4
for s in d["segments"]:
    for k in "device address total_size allocated_size active_size stream segment_type segment_pool_id frames blocks".split():
        assert k in s, k
    at = s["address"]
    for b in s["blocks"]:
        assert b["address"] == at and b["state"] in ("active_allocated", "inactive"), b
        for k in "size requested_size frames".split():
            assert k in b, k
        at += b["size"]
    assert at == s["address"] + s["total_size"]
    live, end, last = {}, s["address"] + s["total_size"], -1
    for e in d["device_traces"][s["device"]]:
        for k in "action addr size stream frames time_us".split():
            assert k in e, k
        for f in e["frames"]:
            assert f["filename"] and f["name"] and f["line"] >= 0
        assert e["time_us"] > last or e["action"] == "segment_alloc"
        last = e["time_us"]
        if e["action"] == "alloc":
            for a, n in live.items():
                assert e["addr"] + e["size"] <= a or a + n <= e["addr"], "two live blocks overlap"
            assert s["address"] <= e["addr"] and e["addr"] + e["size"] <= end
            live[e["addr"]] = e["size"]
        elif e["action"] == "free_completed":
            assert live.pop(e["addr"]) == e["size"]
    assert sum(live.values()) == s["allocated_size"]
`
	if out, err := exec.Command(python, "-c", script, file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Files that are not snapshots, and malicious snapshots, must be refused with an error message of one sentence.
func TestMemoryRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty.pickle":   "",
		"text.pickle":    "hello",
		"number.pickle":  "\x80\x02K\x01.",
		"system.pickle":  "cos\nsystem\n(S'touch /tmp/never'\ntR.",
		"huge.pickle":    "\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
		"shallow.pickle": "\x80\x02}q\x00X\x08\x00\x00\x00segmentsq\x01K\x01s.",
		"gzip.pickle.gz": "\x1f\x8b\x08",
		"head.csv":       "a,b\n1,2\n",
		"negative.csv":   "id,lower,upper,size\n0,5,3,10\n",
		"large.csv":      "id,lower,upper,size\n0,0,1,9223372036854775807\n",
		"ragged.csv":     "id,lower,upper,size\n0,0\n",
		"timeline.json":  `{"traceEvents":[]}`,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errs, code := hocketHere("memory", file)
		if code != exitUsage || !strings.HasPrefix(errs, "error: ") || strings.Contains(errs, "internal error") {
			t.Errorf("%s: exit code %d, %s", name, code, errs)
		}
	}
}

// TestMemoryMessages checks the errors for arguments that are not programs, and the advice in the output for a
// snapshot.
func TestMemoryMessages(t *testing.T) {
	snapshot, err := filepath.Abs("../../internal/footprint/testdata/forum-record_stream-eager.rank0.pickle.gz")
	if err != nil {
		t.Fatal(err)
	}
	forum, err := filepath.Abs("../../examples/forum.hkt")
	if err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var part bytes.Buffer
	w := gzip.NewWriter(&part)
	_, _ = w.Write(text[:3000])
	_ = w.Close()
	experts, err := filepath.Abs("../../examples/moe.hkt")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for name, data := range map[string][]byte{"empty.pickle": nil, "train.py": []byte("# a comment\nimport torch\n"),
		"part.pickle.gz": part.Bytes(), "snapshot.pickle": text} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line, stdin string
		code        int
		want        []string // in this order
	}{
		{"memory", "", exitUsage, []string{"one SNAPSHOT.pickle", "FILE.csv"}},
		{"memory empty.pickle", "", exitUsage, []string{"the file is empty"}},
		{"memory train.py", "", exitUsage, []string{"train.py is Python code", "_dump_snapshot"}},
		{"memory part.pickle.gz", "", exitUsage, []string{"unpacked: pickle: offset 3000:", "copy the whole snapshot"}},
		{"memory -", string(text), exitUsage, []string{"pass a pickle as a file"}},
		{"snapshot.pickle", "", exitUsage, []string{"did you mean hocket memory snapshot.pickle?"}},
		{"memory snapshot.pickle", "", 0, []string{"of one rank", " GB)", "different moments", "cost ",
			"delete tensor.record_stream", "TORCH_NCCL_AVOID_RECORD_STREAMS=1", "forum.hkt --dim B="}},
		{"memory " + experts + " --strategy all --html page.html", "", 0, []string{"sequential\npeak ",
			"strategy chunked(4) applies to no collective", "strategy exchange applies to no collective"}},
		{"memory " + forum + " --policy captured", "", 0, []string{"per rank: ", "five iterations in one capture"}},
		{"memory " + forum + " --policy caching,expandable_segments:True", "", 0, []string{"runs: does not apply"}},
	} {
		a, out, errs := testApp(strings.NewReader(c.stdin))
		code := a.finish(t.Context(), a.execute(t.Context(), strings.Fields(c.line)))
		said := out.String() + errs.String()
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.line, code, c.code)
		}
		rest := said
		for _, want := range c.want {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("%s: want %q in order in\n%s", c.line, want, said)
			}
			rest = after
		}
	}
}

// TestMemoryBudget checks that --budget inserts waits until the plan fits, and none that other waits imply. If no plan
// fits, the output must have the smallest possible size.
func TestMemoryBudget(t *testing.T) {
	t.Chdir(t.TempDir())
	const src = `mesh tp[2]
func f(%x: bf16[1024, 256], %w: bf16[256, 256]) -> bf16[1024, 256] {
  %s = stream
  %y = alloc bf16[1024, 256]
  for %i in 0..8 {
    %xi = chunk %x, axis=0, %i of 8
    %yi = chunk %y, axis=0, %i of 8
    %p = alloc bf16[extent(%xi, 0), 256]
    linear %xi, %w into %p
    on %s {
      wait main
      all_reduce %p into %yi, over=tp, op=sum
    }
  }
  wait %s
  return %y
}
`
	if err := os.WriteFile("p.hkt", []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	var r struct {
		Peak, Bound int64
		Fit         struct {
			Waits  []struct{ Before, Behind string }
			Before float64 `json:"us_before"`
			After  float64 `json:"us_after"`
		}
	}
	out, errs, code := hocketHere("memory", "p.hkt", "--budget", "1344K", "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	// The peak consists of x, y, w and three of the eight chunks.
	if want := int64(512+512+128+3*64) << 10; r.Peak != want || r.Bound != want || len(r.Fit.Waits) != 5 ||
		r.Fit.After < r.Fit.Before || r.Fit.Before <= 0 {
		t.Errorf("%+v, want %d bytes by 5 waits", r, want)
	}
	out, errs, code = hocketHere("memory", "p.hkt", "--budget", "1M")
	if !strings.Contains(errs, "more than the budget of 1.0 MiB: the plan needs 1.2 MiB, and no added wait reduces that") ||
		code != exitProgram || !strings.Contains(out, "1245184 bytes") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}
