package nsys

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
)

const rows = "../account/testdata/nsys-1.txt"

func readRows(t *testing.T) *trace.Trace {
	t.Helper()
	f, err := os.Open(rows)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tr, err := ReadText(f, new(trace.Names))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// plain returns the kernels of a trace in a fixed order, with the fields that both the text and the database have.
func plain(tr *trace.Trace) []trace.Event {
	var out []trace.Event
	for _, e := range tr.Events {
		out = append(out, trace.Event{Rank: tr.ID(e.Rank), Stream: e.Stream, ID: e.ID, Name: e.Name, Class: e.Class,
			Start: e.Start, End: e.End})
	}
	slices.SortFunc(out, func(a, b trace.Event) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Rank,
			b.Rank))
	})
	return out
}

// TestSQLite checks that the events read from a database, which SQLite created from the rows of a text, are those read
// from the text.
func TestSQLite(t *testing.T) {
	want := plain(readRows(t))
	for name, path := range exports(t) {
		got, err := ReadSQLite(path, new(trace.Names))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.EqualFunc(plain(got)[:len(want)], want, func(a, b trace.Event) bool { return a == b }) {
			t.Errorf("%s: the events differ from those of the text", name)
		}
		for _, e := range got.Events {
			if e.Issued != e.Start-5000 {
				t.Errorf("%s: issued at %d; want 5 µs before %d", name, e.Issued, e.Start)
				break
			}
		}
	}
}

// exports returns the paths of the database in testdata and, if Python is installed, of others with different layouts.
func exports(t *testing.T) map[string]string {
	out := map[string]string{"small pages": "testdata/export.sqlite"}
	for name, args := range map[string][]string{"pages of 64 KiB": {"65536", "1"}, "many rows": {"4096", "60"}} {
		if path := written(t, args...); path != "" {
			out[name] = path
		}
	}
	return out
}

// written lets Python write a database, and returns its path. The path is empty if Python is not installed.
func written(t *testing.T, args ...string) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Log("without python3 the test reads fewer layouts")
		return ""
	}
	path := filepath.Join(t.TempDir(), "export.sqlite")
	cmd := exec.Command(python, append([]string{"testdata/export.py", rows, path}, args...)...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Logf("python3 without sqlite3? %v\n%s", err, text)
		return ""
	}
	return path
}

func TestSQLiteMissing(t *testing.T) {
	for _, column := range []string{"start", "streamId", "demangledName"} {
		path := written(t, "4096", "1", column)
		if path == "" {
			t.Skip("no Python with sqlite3")
		}
		_, err := ReadSQLite(path, new(trace.Names))
		if err == nil || !strings.Contains(err.Error(), "lacks the columns "+column) {
			t.Errorf("without %s: %v", column, err)
		}
	}
}

func TestSQLiteWAL(t *testing.T) {
	b, err := os.ReadFile("testdata/export.sqlite")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "export.sqlite")
	for name, content := range map[string][]byte{path: b, path + "-wal": []byte("changes")} {
		if err := os.WriteFile(name, content, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadSQLite(path, new(trace.Names)); err == nil || !strings.Contains(err.Error(), "write-ahead log") {
		t.Errorf("%v", err)
	}
}

// TestForms reads the same two kernels and a copy in every form that nsys stats prints.
func TestForms(t *testing.T) {
	const kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
	for name, text := range map[string]string{
		"columns with a header": `
 ** CUDA GPU Trace (cuda_gpu_trace):

 Start (ns)  Duration (ns)  CorrId  GrdX  GrdY  Bytes (MB)  SrcMemKd  Device  Ctx  GreenCtx  Strm  Name
 ----------  -------------  ------  ----  ----  ----------  --------  ------  ---  --------  ----  ----
       1000          2000      7     16     1                         NVIDIA H100 80GB HBM3 (3)    1      13  ` + kernel + `
       4000           500      8                     0.004   Pinned    NVIDIA H100 80GB HBM3 (3)    1       0     7  [CUDA memcpy Host-to-Device]
`,
		"CSV": `Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,` +
			`DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1000,2000,7,16,1,1,640,1,1,96,0.037,0.082,,,,,NVIDIA H100 80GB HBM3 (3),1,,13,"` + kernel + `"
4000,500,8,,,,,,,,,,0.004,1.2,Pinned,Device,NVIDIA H100 80GB HBM3 (3),1,,7,[CUDA memcpy Host-to-Device]
`,
		"CSV with other columns in another order, in microseconds": `Name,Strm,New,Device,CorrId,Duration (us),Start (us),Other,More,Columns,Than,Known
"` + kernel + `",13,x,GPU (3),7,2,1,,,,,
[CUDA memcpy Host-to-Device],7,x,GPU (3),8,0.5,4,,,,,
`,
		"CSV without a header": `1000,2000,7,16,1,1,640,1,1,96,0.037,0.082,,,,,NVIDIA H100 80GB HBM3 (3),1,13,"` + kernel + `"
4000,500,8,,,,,,,,,,0.004,1.2,Pinned,Device,NVIDIA H100 80GB HBM3 (3),1,7,[CUDA memcpy Host-to-Device]
`,
		"in milliseconds, among other text": `$ nsys stats report.nsys-rep --report cuda_gpu_trace --timeunit ms
 Start (ms)  Duration (ms)  CorrId  Device  Ctx  Strm  Name
 53.3 14580255 16 911265.9 693407.0 254975 a line of another report
 0.001 0.002 7 GPU (3) 1 13 ` + kernel + `
 0.004 0.0005 8 GPU (3) 1 7 [CUDA memcpy Host-to-Device]
`,
	} {
		tr, err := ReadText(strings.NewReader(text), new(trace.Names))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := []trace.Event{
			{Rank: 3, Stream: "stream 13", ID: 7, Name: "all_gather", Class: trace.Comm, Start: 1000, End: 3000},
			{Rank: 3, Stream: "stream 7", ID: 8, Name: "[CUDA memcpy Host-to-Device]", Class: trace.IO, Start: 4000,
				End: 4500},
		}
		if got := plain(tr); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestTextRefused checks that each error names its line.
func TestTextRefused(t *testing.T) {
	good := "1000 2000 7 16 1 1 GPU (3) 1 13 kernel\n"
	for text, want := range map[string]string{
		"":                             "no row",
		"hello\n":                      "no row",
		good + "1001 2000 7 16 1 1 NV": "line 2: the row ends before its device",
		good + "99999999999999999999 1 7 GPU (3) 1 13 k\n":       "line 2: start: ",
		good + "1001 2000 7 GPU (99999999999999999999) 1 13 k\n": "line 2: ",
		"Start (ns),Duration (ns),CorrId,Name\n":                 "line 1: the header lacks the columns device, strm",
		"Start (fortnights) Duration\n":                          `line 1: times in "fortnights"`,
		good + strings.Repeat("x", maxLine+1):                    "line 2 is longer than",
		good + "1,2,3,4,5,6,7,8,9,10,11,\"unfinished\n":          "line 2: ",
	} {
		if _, err := ReadText(strings.NewReader(text), new(trace.Names)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v; want %q", text, err, want)
		}
	}
}
