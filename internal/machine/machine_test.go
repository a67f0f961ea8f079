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
	if got := fmt.Sprint(Names()); got != "[cpu h200x4]" {
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
	for name, want := range map[string]string{"h100": "there are cpu, h200x4", filepath.Join(t.TempDir(), "none.json"): "none.json"} {
		if _, err := Load(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefused changes one thing of a good description at a time.
func TestRefused(t *testing.T) {
	good, err := shipped.ReadFile("descriptions/h200x4.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{`"name"`, `"nome"`, "unknown field"},
		{`"launch_us": 3.0`, `"launch_us": -1`, "launch_us is -1"},
		{`"memory_gbps": 3800`, `"memory_gbps": 0`, "must be positive"},
		{`"of": "bf16"`, `"of": "i32"`, `no positive entry for "i32"`},
		{`"gemm_beside_copy": 1.06`, `"gemm_beside_copy": 0.5`, "at least 1"},
		{`"copy": [[65536, 9.9], `, `"copy": [[65536, 99], `, "times must not fall"},
		{`"copy": [[65536, 9.9], `, `"copy": [[9999999, 9.9], `, "sizes must ascend"},
		{`"measured": [[8192`, `"measured": [[0`, "is no [m, n, k, microseconds]"},
		{`{`, `[`, "cannot unmarshal"},
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

// TestTimes holds predictions of single operations to what was measured.
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
		{"all-reduce of 64 MB", d.CollectiveTime(ir.OpAllReduce, 96*mib), 319.6, 1},
		{"all-gather, interpolated", d.CollectiveTime(ir.OpAllGather, 50e6), 200, 20},
		{"beyond the table", d.CollectiveTime(ir.OpReduceScatter, 704e6), 2300, 5},
		{"barrier", d.CollectiveTime(ir.OpBarrier, 0), d.Barrier, 0},
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
