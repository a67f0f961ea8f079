package footprint

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// snapshotOf pickles value, and reads the result as snapshots, one for each device.
func snapshotOf(t *testing.T, value fields) []*Snapshot {
	t.Helper()
	var b bytes.Buffer
	k := &pickler{w: bufio.NewWriter(&b)}
	k.bytes(0x80, 2)
	k.value(value)
	k.bytes('.')
	if err := k.w.Flush(); err != nil {
		t.Fatal(err)
	}
	all, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// corpus opens a file of the shared test corpus.
func corpus(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "shared", "corpus", name))
	if err != nil {
		t.Skip("no recordings here: ", err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func forumPlan(t testing.TB, layers int64) *plan.Plan {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("..", "..", "examples", "forum.hkt"))
	if err != nil {
		t.Fatal(err)
	}
	info, ds := checker.Read("forum.hkt", string(src))
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	u, err := compile.Build(info, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := u.Plan(ir.Binding{Dims: map[string]int64{"B": 4096, "D": 8192, "L": layers}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSnapshots reads snapshots that torch 2.11 recorded on two H100. The expected peaks were
// computed from the snapshots in Python by torch's own rules.
func TestSnapshots(t *testing.T) {
	for _, c := range []struct {
		file                         string
		reserved, allocated, waiting int64
	}{
		{"forum-sync.rank0.pickle.gz", 1308622848, 1308622848, 0},
		{"forum-record-stream.rank0.pickle.gz", 2919235584, 1308622848, 1677721600},
		{"forum-record-stream.rank1.pickle.gz", 2785017856, 1308622848, 1543503872},
		{"none.rank0.pickle.gz", 6006243328, 1308622848, 4831838208},
	} {
		all, err := ReadSnapshot(corpus(t, "memory/"+c.file))
		if err != nil {
			t.Fatalf("%s: %v", c.file, err)
		}
		x := all[0].Explain()
		if len(all) != 1 || x.ReservedPeak != c.reserved || x.AllocatedPeak != c.allocated || x.Waiting != c.waiting {
			t.Errorf("%s: %d devices, %+v; want %+v", c.file, len(all), x, c)
		}
		// The bound is the sum of eight weights, the input, a workspace of 32 MiB and two activations.
		if want := int64(8*8192*8192*2 + 3*4096*8192*2 + 32<<20); x.Bound != want || x.Peak != want {
			t.Errorf("%s: a plan takes %d, bound %d; want %d", c.file, x.Peak, x.Bound, want)
		}
	}
}

// recorded reads a snapshot that tools/peers/memory.py recorded with torch 2.11 on two H100.
func recorded(t *testing.T, name string) *Snapshot {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "forum-"+name+".rank0.pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := ReadSnapshot(f)
	if err != nil || len(all) != 1 {
		t.Fatalf("%s: %d devices, %v", name, len(all), err)
	}
	return all[0]
}

// TestRecordedPeaks checks that the peaks computed from snapshots equal the peaks that torch counted in the same runs.
// torch does not count waiting memory, nor its part in graph pools; they can only be computed from the snapshots.
func TestRecordedPeaks(t *testing.T) {
	const activation = 4096 * 8192 * 2
	for name, want := range map[string]struct{ reserved, allocated, waiting, private, privateWaiting int64 }{
		"second-stream-eager":      {1310720000, 1308623360, 0, 0, 0},
		"record_stream-eager":      {3256877056, 1308623360, 31 * activation, 0, 0},
		"record_stream-graph":      {1715470336, 1308624384, 7 * activation, 8 * activation, 7 * activation},
		"sync-graph-of-5":          {1379926016, 1375733248, 0, 3 * activation, 0},
		"reuse-graph-of-5":         {1379926016, 1375733248, 2 * activation, 3 * activation, 2 * activation},
		"record_stream-graph-of-5": {3862953984, 1375733248, 39 * activation, 40 * activation, 39 * activation},
	} {
		x := recorded(t, name).Explain()
		if x.ReservedPeak != want.reserved || x.AllocatedPeak != want.allocated || x.Waiting != want.waiting ||
			x.Private != want.private || x.PrivateWaiting != want.privateWaiting {
			t.Errorf("%s: reserved %d, allocated %d, waiting %d, private %d, of which %d waiting; want %+v", name,
				x.ReservedPeak, x.AllocatedPeak, x.Waiting, x.Private, x.PrivateWaiting, want)
		}
	}
}

// TestPrivatePools checks that segments of private pools are counted, and that pool ids are read in the form of other
// versions of torch, too.
func TestPrivatePools(t *testing.T) {
	segment := func(addr int64, pool ...any) fields {
		f := fields{
			{"address", addr}, {"total_size", int64(4 << 20)}, {"stream", int64(0)}, {"device", int64(0)},
			{"blocks", []any{fields{{"size", int64(4 << 20)}, {"state", "active_pending_free"}}}},
		}
		if len(pool) > 0 {
			f = append(f, fields{{"segment_pool_id", pool}}...)
		}
		return f
	}
	all := snapshotOf(t, fields{
		{"segments", []any{segment(0), segment(8<<20, int64(0), int64(0)), segment(16<<20, int64(0), int64(3)),
			segment(24<<20, int64(7), int64(0))}},
		{"device_traces", []any{[]any{}}},
	})
	if x := all[0].Explain(); len(all) != 1 || x.Private != 8<<20 || x.PrivateWaiting != 8<<20 ||
		x.ReservedPeak != 16<<20 || x.Waiting != 16<<20 {
		t.Errorf("%d devices, %+v", len(all), x)
	}
}

// TestSimulationAgreesWithSnapshots checks that the simulation reserves as much memory as torch did, within 5 %.
func TestSimulationAgreesWithSnapshots(t *testing.T) {
	p := forumPlan(t, 8)
	for _, c := range []struct {
		policy string
		want   float64 // in rank 0's snapshot
	}{{"caching", 1308622848}, {"deferred-free", 2919235584}, {"captured", 3862953984},
		{"captured-caching", 1379926016}} {
		s, err := Simulate(p, c.policy, Speed{})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %+v", c.policy, s.ReservedPeak)
		if math.Abs(float64(s.ReservedPeak)-c.want) > 0.05*c.want {
			t.Errorf("%s: %d bytes reserved, torch reserved %.0f", c.policy, s.ReservedPeak, c.want)
		}
	}
	// Within a capture the host's speed does not matter: the simulation matches the recording except for small blocks.
	for policy, name := range map[string]string{"captured": "record_stream-graph-of-5",
		"captured-caching": "sync-graph-of-5"} {
		s, err := Simulate(p, policy, Speed{})
		if err != nil {
			t.Fatal(err)
		}
		x := recorded(t, name).Explain()
		if x.ReservedPeak-s.ReservedPeak != 4<<20 || x.AllocatedPeak-s.AllocatedPeak != 3*512 || s.Waiting != x.Waiting {
			t.Errorf("%s: %+v, recorded %d reserved, %d allocated, %d waiting", policy, s, x.ReservedPeak,
				x.AllocatedPeak, x.Waiting)
		}
	}
	// Waiting memory depends on the host's speed: if the host is slower than the device, no memory waits.
	slow, err := Simulate(p, "deferred-free", Speed{HostSec: 10e-3})
	if err != nil {
		t.Fatal(err)
	}
	fast, err := Simulate(p, "deferred-free", Speed{HostSec: 1e-6})
	if err != nil {
		t.Fatal(err)
	}
	// Within a capture the outputs of all 40 layers stay allocated, at any speed.
	for _, host := range []float64{1e-6, 10e-3} {
		s, err := Simulate(p, "captured", Speed{HostSec: host})
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(8*8192*8192*2 + 32<<20 + 41*67108864); s.ReservedPeak != want {
			t.Errorf("captured: %d bytes reserved, want %d", s.ReservedPeak, want)
		}
	}
	caching, err := Simulate(p, "caching", Speed{HostSec: 1e-6})
	if err != nil {
		t.Fatal(err)
	}
	if slow.ReservedPeak != caching.ReservedPeak+67108864 && slow.ReservedPeak != caching.ReservedPeak ||
		fast.ReservedPeak < 2*slow.ReservedPeak {
		t.Errorf("reserved with a slow host %d, with a fast host %d, without a second stream %d", slow.ReservedPeak,
			fast.ReservedPeak, caching.ReservedPeak)
	}
}

func TestOfPlan(t *testing.T) {
	r, err := OfPlan(forumPlan(t, 8))
	if err != nil {
		t.Fatal(err)
	}
	want := int64(8*8192*8192*2 + 3*4096*8192*2)
	if r.Peak != want || r.Bound != want || r.Sequential != want || r.GapPercent != 0 || len(r.AtPeak) != 4 {
		t.Errorf("%+v, want %d", r, want)
	}
}

// TestPicture checks docs/memory.svg, the picture in docs/memory.md; -update draws it again.
func TestPicture(t *testing.T) {
	p := forumPlan(t, 8)
	var curves []report.Curve
	end := 0.0
	for _, name := range []string{"all-reduce on the current stream (simulated)",
		"second stream and record_stream (simulated)", "the same, captured (simulated)"} {
		s, err := Simulate(p, Policies()[len(curves)], Speed{})
		if err != nil {
			t.Fatal(err)
		}
		curves = append(curves, reserved(name, s.Curve))
		end = max(end, s.Curve[len(s.Curve)-1].At)
	}
	picture(t, "memory.svg", fmt.Sprintf("time of the host, 0 to %.0f ms", 1e3*end), curves, p.ArenaBytes)
}

// TestRecordedPicture checks docs/memory-recorded.svg, which shows the snapshots in testdata.
func TestRecordedPicture(t *testing.T) {
	var curves []report.Curve
	end := 0.0
	for _, c := range []struct{ file, name string }{
		{"second-stream-eager", "all-reduce on a second stream, not recorded, eager (recorded by torch)"},
		{"record_stream-eager", "record_stream, eager (recorded by torch)"},
		{"record_stream-graph-of-5", "record_stream, five iterations captured (recorded by torch)"},
		{"reuse-graph-of-5", "the same with graph_capture_record_stream_reuse (recorded by torch)"},
	} {
		points := recorded(t, c.file).Explain().Curve
		curves = append(curves, reserved(c.name, points))
		end = max(end, points[len(points)-1].At)
	}
	picture(t, "memory-recorded.svg", fmt.Sprintf("allocations of the program, 0 to %.0f", end), curves,
		forumPlan(t, 8).ArenaBytes)
}

func reserved(name string, points []Point) report.Curve {
	return NewCurve(name, points, func(p Point) int64 { return p.Reserved })
}

func picture(t *testing.T, name, axis string, curves []report.Curve, plan int64) {
	t.Helper()
	var b bytes.Buffer
	if err := report.WriteCurves(&b, &report.Curves{Axis: axis, Curves: curves, Plan: plan}); err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(b.Bytes(), new(struct{})); err != nil {
		t.Errorf("the picture is not well-formed XML: %v", err)
	}
	golden.File(t, filepath.Join("..", "..", "docs", name), b.String())
}

// TestPage checks that the page has a rectangle and a title for each buffer, shows equal plans once, and escapes names.
func TestPage(t *testing.T) {
	p := forumPlan(t, 8)
	r, err := OfPlan(p)
	if err != nil {
		t.Fatal(err)
	}
	other := Picture("two", p, r)
	other.Buffers[0].Offset++
	var b bytes.Buffer
	if err := report.WriteMemory(&b, "a <title>", []*report.MemoryPlan{Picture("one", p, r), Picture("also", p, r),
		other}); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if got := strings.Count(page, "</title></rect>"); got != 2*10 {
		t.Errorf("%d rectangles for two times 10 buffers", got)
	}
	for _, want := range []string{"a &lt;title&gt;", "one = also", "%h[7]: 64.0 MiB at ", "line 11", `class="bound"`,
		`class="reserved"`, `class="live"`, "A rank needs 1.2 GiB with one = also and 1.2 GiB with two."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// TestSimulatedTrace checks that the trace of a simulation is a snapshot whose peaks equal those that the simulation
// counted, and that it names the program's statements. In the steady state, that is in later runs, no segment is
// reserved.
func TestSimulatedTrace(t *testing.T) {
	p := forumPlan(t, 8)
	for _, policy := range []string{"caching", "deferred-free", "captured", "captured-caching",
		"deferred-free,expandable_segments:True", "deferred-free,garbage_collection_threshold:0.5,memory_mb:2000"} {
		s, err := Simulate(p, policy, Speed{})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := WriteSnapshot(&b, s.Snapshot); err != nil {
			t.Fatal(err)
		}
		all, err := ReadSnapshot(&b)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %d devices, %v", policy, len(all), err)
		}
		x := all[0].Explain()
		if x.ReservedPeak != s.ReservedPeak || x.AllocatedPeak != s.AllocatedPeak || x.Waiting != s.Waiting {
			t.Errorf("%s: the snapshot says %d, %d, %d, the simulation %d, %d, %d", policy, x.ReservedPeak,
				x.AllocatedPeak, x.Waiting, s.ReservedPeak, s.AllocatedPeak, s.Waiting)
		}
		for _, w := range x.WaitingBySite {
			if !strings.HasPrefix(w.Site, "forum.hkt:") {
				t.Errorf("%s: %q waits", policy, w.Site)
			}
		}
		for _, g := range all[0].Segments {
			sum := int64(0)
			for _, b := range g.Blocks {
				sum += b.Bytes
			}
			if sum != g.Bytes {
				t.Errorf("%s: a segment of %d bytes has blocks of %d bytes together", policy, g.Bytes, sum)
			}
		}
		later := 0
		for _, n := range s.ByRun[1:] {
			later += n
		}
		if policy == "caching" && (s.ByRun[0] == 0 || later > 0) || policy == "deferred-free" && later == 0 {
			t.Errorf("%s: segments by run: %d", policy, s.ByRun)
		}
	}
}
