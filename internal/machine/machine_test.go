package machine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

func TestShipped(t *testing.T) {
	if got := fmt.Sprint(Names()); got != "[cpu h100x2 h100x6 h100x8 h200x2 h200x4 h200x8]" {
		t.Errorf("shipped: %s", got)
	}
	for _, n := range Names() {
		d, err := Load(n)
		if err != nil || d.Name != n || d.Source == "" {
			t.Errorf("%s: %+v, %v", n, d, err)
		}
	}
}

func TestLoadFile(t *testing.T) {
	data, err := shipped.ReadFile("descriptions/h200x4.json")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mine.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if d, err := Load(path); err != nil || d.Name != "h200x4" {
		t.Errorf("%v, %v", d, err)
	}
	for name, want := range map[string]string{"h100": "the machines are cpu, h100x2",
		filepath.Join(t.TempDir(), "none.json"): "none.json"} {
		if _, err := Load(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefused changes one thing at a time in a good description, and requires an error.
func TestRefused(t *testing.T) {
	good, err := shipped.ReadFile("descriptions/h200x4.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"name"`, `"nome"`, "unknown key"},
		{`"launch_us": 3.0`, `"launch_us": -1`, "launch_us is -1"},
		{`"memory_gbps": 3800`, `"memory_gbps": 0`, "must be positive"},
		{`"of": "bf16"`, `"of": "i32"`, `no positive entry for "i32"`},
		{`"gemm_beside_copy": 1.06`, `"gemm_beside_copy": 0.5`, "at least 1"},
		{`"launch_us"`, `"across": {"gbps": 1}, "launch_us"`, "across: nics is 0"},
		{`"launch_us"`, `"across": {"nics": 1}, "launch_us"`, "across: gbps is 0; it must be positive"},
		{`"launch_us"`, `"across": {"nics": 1, "gbps": 1, "latency_us": -1}, "launch_us"`, "across: latency_us is -1"},
		{`"launch_us"`, `"across": {"nics": 1, "gbps": 1, "all_reduce": [[1, 1]]}, "launch_us"`,
			"across: all_reduce: a table"},
		{`"copy": [[65536, 9.9], `, `"copy": [[65536, 99], `, "times must not fall"},
		{`"copy": [[65536, 9.9], `, `"copy": [[9999999, 9.9], `, "sizes must ascend"},
		{`"measured": [[8192`, `"measured": [[0`, "is not [m, n, k, microseconds]"},
		{`"wait_us": 3`, `"wait_us": 1e308`, "wait_us is 1e+308; it must not be negative, and at most 1e+09"},
		{`"memory_gbps": 3800`, `"memory_gbps": 1e-300`, "at least 1e-06"},
		{`"reduce_gbps": 4200`, `"reduce_gbps": 1e300`, "at most 1e+09"},
		{`"bf16": 815`, `"bf16": 1e-20`, "peak_tflops of bf16 is 1e-20; it must be positive: at least 1e-06"},
		{`"f64": 60`, `"f64": -60`, "peak_tflops of f64 is -60"},
		{`"gemm_beside_copy": 1.06`, `"gemm_beside_copy": 1e9`, "at most 1000"},
		{`"kernel_beside_gemm": 3`, `"kernel_beside_gemm": 0.5`, "kernel_beside_gemm is 0.5; it must be 0 or from 1 to 1000"},
		{`"measured": [[8192`, `"measured": [[1e-9`, "extents are from 1"},
		{`"measured": [[8192`, `"measured": [[1e300`, "extents are from 1"},
		{`"measured": [[8192, 7168, 8192, 1184.0]`, `"measured": [[8192, 7168, 8192, 1e10]`, "at most 1e+09"},
		{`"copy": [[65536, 9.9], `, `"copy": [[1048575.5, 9.9], `, "by a byte at least"},
		{`[352321536, 1144]]`, `[1e16, 1144]]`, "at most 2^50 bytes"},
		{`[352321536, 1144]]`, `[352321536, 1e308]]`, "and the time at most 1e+09 µs"},
		{`"kernel_beside_gemm": 3` + "\n}", `"kernel_beside_gemm": 3} {}`, "there is text after the end"},
		{`"kernel_beside_gemm": 3` + "\n}", `"kernel_beside_gemm": 3} and so on`,
			"there is text after the end"},
		{`{`, `[`, "line 1, column 1: want an object, found array"},
	} {
		text := strings.Replace(string(good), c.from, c.to, 1)
		if text == string(good) {
			t.Fatalf("%s is not in the description", c.from)
		}
		if c.from == "{" {
			text = "[]"
		}
		if _, err := Parse("m", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.to, err, c.want)
		}
	}
}

// TestTimes compares predictions of single operations with measured times.
func TestTimes(t *testing.T) {
	d, err := Load("h200x4")
	if err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	for _, c := range []struct {
		what      string
		got, want float64
		percent   float64
	}{
		{"a measured GEMM", d.GEMMTime(ir.BF16, 8192, 7168, 8192), 1187, 2},
		{"one between", d.GEMMTime(ir.BF16, 8192, 3584, 8192), 600, 8},
		{"a large one", d.GEMMTime(ir.BF16, 8192, 12288, 12288), 3040, 5},
		{"a thin one", d.GEMMTime(ir.BF16, 128, 7168, 8192), 35, 10},
		{"64 MB copied", d.CopyTime(64 * mib), 183, 1},
		{"all-reduce of 64 MB", d.CollectiveTime(&Collective{Op: ir.OpAllReduce, Moved: 96 * mib}), 319.6, 1},
		{"all-gather, interpolated", d.CollectiveTime(&Collective{Op: ir.OpAllGather, Moved: 50e6}), 200, 20},
		{"beyond the table", d.CollectiveTime(&Collective{Op: ir.OpReduceScatter, Moved: 704e6}), 2300, 5},
		{"barrier", d.CollectiveTime(&Collective{Op: ir.OpBarrier, Moved: 0}), d.Barrier, 0},
		{"nothing", d.GEMMTime(ir.BF16, 0, 5, 5), d.Launch, 0},
	} {
		if math.Abs(c.got-c.want) > c.want*c.percent/100 {
			t.Errorf("%s: %.1f µs, want %.1f ± %v %%", c.what, c.got, c.want, c.percent)
		}
	}
	if d.GEMMTime(ir.F32, 4096, 4096, 4096) < 5*d.GEMMTime(ir.BF16, 4096, 4096, 4096) {
		t.Error("f32 is as fast as bf16")
	}
}

// TestScaledTime compares predictions of products of 8-bit operands with measurements on two H200: hocket's of commit
// 7a8d96c (docs/measured/studies.tsv) for blocks and 8c6285f for rows, torch's for rows with fast accumulation.
func TestScaledTime(t *testing.T) {
	d, err := Load("h200x2")
	if err != nil {
		t.Fatal(err)
	}
	blocks, fast := Scaled{Blocks: true}, Scaled{FastAccum: true}
	for _, c := range []struct {
		of      Scaled
		m, n, k int64
		want    float64
	}{
		{blocks, 8192, 14336, 8192, 1460}, {blocks, 2048, 14336, 8192, 374.5}, {blocks, 8192, 28672, 4096, 1505},
		{blocks, 2048, 28672, 4096, 384}, {Scaled{}, 8192, 14336, 8192, 1392}, {Scaled{}, 2048, 14336, 8192, 356.5},
		{Scaled{}, 2048, 4096, 28672, 354}, {fast, 8192, 14336, 8192, 1279}, {fast, 2048, 14336, 8192, 324},
		{fast, 2048, 4096, 28672, 331},
	} {
		if got := d.ScaledTime(c.of, c.m, c.n, c.k); math.Abs(got-c.want) > c.want*0.07 {
			t.Errorf("%d×%d×%d, %+v: %.1f µs, measured %.1f", c.m, c.n, c.k, c.of, got, c.want)
		}
		if bound := d.ScaledBound(c.of, 2*float64(c.m)*float64(c.n)*float64(c.k)); bound > c.want {
			t.Errorf("%d×%d×%d, %+v: the bound is %.1f µs, measured %.1f", c.m, c.n, c.k, c.of, bound, c.want)
		}
	}
	// If a description has no rates for 8-bit operands with scales, they are derived from the size of an element.
	d.GEMM.Peak = map[string]float64{"bf16": 815}
	for _, of := range []Scaled{{}, blocks, fast} {
		if got, want := d.ScaledBound(of, 1e12), d.ComputeBound(ir.BF16, 1e12)/2; math.Abs(got-want) > 1e-9*want {
			t.Errorf("without a rate the bound is %g µs, want %g", got, want)
		}
	}
}

// points are measured times of one kind of collective.
type points struct {
	of   Collective
	list []Point
}

func (p points) Points(c *Collective) []Point {
	if c.Op != p.of.Op || c.Members != p.of.Members {
		return nil
	}
	return p.list
}

// TestMeasuredFirst checks that measured times are used before described ones, also between the measured sizes, and
// that the description is used for the rest.
func TestMeasuredFirst(t *testing.T) {
	d, err := Load("h200x4")
	if err != nil {
		t.Fatal(err)
	}
	like := Collective{Op: ir.OpAllGather, Members: 4}
	described := d.CollectiveTime(&Collective{Op: ir.OpAllGather, Members: 4, Message: 4000, Moved: 3000})
	for _, c := range []struct {
		what    string
		list    []Point
		op      ir.Op
		members int64
		message int64
		want    float64 // 0 means as described
	}{
		{"below the first", []Point{{1000, 5}, {3000, 9}}, ir.OpAllGather, 4, 10, 5},
		{"at a size", []Point{{1000, 5}, {3000, 9}}, ir.OpAllGather, 4, 3000, 9},
		{"between two", []Point{{1000, 5}, {3000, 9}, {9000, 10}}, ir.OpAllGather, 4, 1500, 6},
		{"beyond the last", []Point{{1000, 5}, {3000, 9}}, ir.OpAllGather, 4, 4000, 11},
		{"beyond a fall", []Point{{1000, 9}, {3000, 5}}, ir.OpAllGather, 4, 90000, 5},
		{"of one size", []Point{{1000, 5}}, ir.OpAllGather, 4, 4000, 20},
		{"below one size", []Point{{1000, 5}}, ir.OpAllGather, 4, 400, 5},
		{"nothing", nil, ir.OpAllGather, 4, 4000, 0},
		{"another op", []Point{{1000, 5}}, ir.OpAllToAll, 4, 4000, 0},
		{"another team", []Point{{1000, 5}}, ir.OpAllGather, 2, 4000, 0},
	} {
		d.Times = points{like, c.list}
		of := &Collective{Op: c.op, Members: c.members, Message: c.message, Moved: 3000}
		want := c.want
		if want == 0 {
			want = described
		}
		if got := d.CollectiveTime(of); math.Abs(got-want) > 1e-9 || d.Measured(of) != (c.want > 0) {
			t.Errorf("%s: %v µs, measured %v; want %v", c.what, got, d.Measured(of), want)
		}
	}
	d.Times = points{like, []Point{{1000, 5}}}
	if d.Measured(&Collective{Op: ir.OpAllGather, Members: 4}) {
		t.Error("an empty message was measured")
	}
}

// TestAcross checks collectives that cross nodes. The time of such a collective follows from the latency and bandwidth
// of the connection. It is shorter if every byte crosses once. If there is a measured time, it is used instead.
func TestAcross(t *testing.T) {
	d, err := Load("h200x4")
	if err != nil {
		t.Fatal(err)
	}
	d.Nodes = []int{0, 0, 1, 1}
	d.Across = &Across{Latency: 10, Bandwidth: 1, NICs: 2}
	mib := int64(1 << 20)
	gather := Collective{Op: ir.OpAllGather, DType: ir.BF16, Members: 4, Message: 8 * mib, Moved: 6 * mib}
	sum := Collective{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.BF16, Members: 4, Message: 8 * mib, Moved: 12 * mib}
	small := gather
	small.Message, small.Moved = 1024, 768
	near := gather
	near.Members = 2
	// Half of the gathered tensor crosses to each node, for each of its members: 8 MiB at 2 GB/s. In a sum, each
	// member's part of the data of the two members on the other node crosses in each of the two steps.
	for _, tc := range []struct {
		what     string
		c        Collective
		team     []int
		crosses  bool
		from, to float64
	}{
		{"gather", gather, []int{0, 1, 2, 3}, true, 4190, 4210},
		{"sum", sum, []int{0, 1, 2, 3}, true, 8400, 8500},
		{"small gather", small, []int{0, 1, 2, 3}, true, 10, 11},
		{"inside", near, []int{2, 3}, false, 0, 100},
		{"uneven", Collective{Op: ir.OpAllGather, DType: ir.BF16, Members: 3, Message: 3 * mib, Moved: 2 * mib},
			[]int{0, 1, 2}, true,
			1050, 1070},
	} {
		c := tc.c
		d.Span(&c, tc.team)
		if got := d.CollectiveTime(&c); d.Crosses(&c) != tc.crosses || got < tc.from || got > tc.to {
			t.Errorf("%s: crosses %v, %v µs, want %v to %v", tc.what, d.Crosses(&c), got, tc.from, tc.to)
		}
	}
	two, err := Load("h100x2")
	if err != nil {
		t.Fatal(err)
	}
	two.Nodes = []int{0, 1}
	c := Collective{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.BF16, Members: 2, Message: 4 * mib, Moved: 4 * mib}
	two.Span(&c, []int{0, 1})
	if got := two.CollectiveTime(&c); got != 2000 {
		t.Errorf("a measured sum takes %v µs, want 2000", got)
	}
}

// TestFit checks that the model of GPU counts first, then the connection between nodes, then the number of ranks on one
// node.
func TestFit(t *testing.T) {
	const h100, h200 = "NVIDIA H100 80GB HBM3 sm_90a", "NVIDIA H200 sm_90a"
	for _, c := range []struct {
		gpu   string
		ranks int
		nodes []int
		want  string
		fits  bool
	}{
		{h100, 1, nil, "h100x2", true},
		{h100, 2, nil, "h100x2", true},
		{h100, 4, nil, "h100x2", true}, // as near as h100x6
		{h100, 5, nil, "h100x6", true},
		{h100, 8, nil, "h100x8", true},
		{h100, 2, []int{0, 1}, "h100x2", true},
		{h100, 12, []int{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}, "h100x2", true}, // the other has no connection between nodes
		{h200, 2, nil, "h200x2", true},
		{h200, 3, nil, "h200x2", true},
		{h200, 4, nil, "h200x4", true},
		{h200, 8, nil, "h200x8", true},
		{h200, 4, []int{0, 0, 1, 1}, "h200x2", true}, // two on each node
		{"NVIDIA H100 PCIe sm_90a", 4, nil, "h100x2", false},
		{"NVIDIA H100 PCIe sm_90a", 8, nil, "h100x8", false},
		{"NVIDIA H200 NVL sm_90a", 2, nil, "h200x2", false},
		{"NVIDIA A100-SXM4-80GB sm_80", 4, nil, "h200x4", false},
		{"NVIDIA A100-SXM4-80GB sm_80", 2, []int{0, 1}, "h100x2", false},
		{"fake sm_90a", 4, nil, "h200x4", false},
		{"", 4, nil, "h200x4", false},
	} {
		d, fits, err := Fit(c.gpu, c.ranks, c.nodes)
		if err != nil || d.Name != c.want || fits != c.fits {
			t.Errorf("%q, %d ranks on nodes %v: %s, fits %v, %v; want %s, %v", c.gpu, c.ranks, c.nodes, d.Name, fits,
				err,
				c.want, c.fits)
		}
		if c.nodes != nil && strings.HasPrefix(d.Name, "h100") && d.Across == nil {
			t.Errorf("%s has no connection between nodes", d.Name)
		}
	}
}

// TestParseAcross checks that a stored connection is read as it was written, and that an unusable one is an error.
func TestParseAcross(t *testing.T) {
	tier, err := ParseAcross([]byte(`{"source": "here", "latency_us": 3, "gbps": 40, "nics": 2,
		"all_gather": [[1, 2], [3, 4]]}`))
	if err != nil || tier.Source != "here" || tier.NICs != 2 || len(tier.AllGather) != 2 {
		t.Errorf("%+v, %v", tier, err)
	}
	for _, text := range []string{"", "null", "{", `{"gbps": 1, "nics": 1, "more": 2}`, `{"gbps": 0, "nics": 1}`,
		`{"gbps": 1, "nics": 1, "all_reduce": []}`} {
		if tier, err := ParseAcross([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, tier)
		}
	}
}
