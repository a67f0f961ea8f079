package files

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhat checks that the function What recognizes files of the repository, and the beginnings of other files.
func TestWhat(t *testing.T) {
	weights := `{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`
	begins := map[string]string{
		string(binary.LittleEndian.AppendUint64(nil, uint64(len(weights)))) + weights: "a safetensors file of weights",
		`{"traceEvents": []}`: "a timeline: hocket trace",
		`{"version": "2.10", "pg_config": {}, "entries": []}`:       "a flight record of torch: hocket trace",
		"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00x]u.": "a memory snapshot of torch: hocket memory",
		"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02s.":       "a flight record of torch: hocket trace",
		`<algo name="x" proto="Simple" nchannels="1">`:              "a schedule of MSCCL: hocket check",
		"SQLite format 3\x00": "a database",
		"What is this?":       "",
		"{}":                  "",
		"":                    "",
	}
	for file, what := range map[string]string{"examples/mlp.hkt": "a program: hocket check", "testdata/layers.pt2": "an archive",
		"examples/schedules/exchange.json": "a schedule of MSCCL++: hocket check", "examples/host_ir.txt": "a dump of nvFuser",
		"examples/jax_mlp.mlir": "a StableHLO module", "internal/trace/account/testdata/nsys-1.txt": "what nsys stats prints"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		begins[string(text)] = what
	}
	for text, want := range begins {
		if got := What([]byte(text)); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%.40q is %q, want %q", text, got, want)
		}
	}
}

// TestBegin checks that Begin reads files that are shorter than the requested number of bytes, and reads only regular
// files.
func TestBegin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{0: "", 2: "ab", 3: "abc", 9: "abc"} {
		if got := string(Begin(path, n)); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	if got := Begin(filepath.Dir(path), 2); got != nil {
		t.Errorf("a directory begins with %q", got)
	}
}
