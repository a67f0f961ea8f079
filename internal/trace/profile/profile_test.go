package profile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/trace"
)

const late = "../account/testdata/tp-mlp-ar-late.rank0.json.gz"

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unzipped(t *testing.T, path string) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(content(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTruncated cuts files of every format at any position, and checks that reading the first part is an error. Text
// that is cut between two lines is an exception, because the first part is a valid file.
func TestTruncated(t *testing.T) {
	kineto := unzipped(t, late)
	for name, b := range map[string][]byte{
		"gzip": content(t, late), "json": kineto, "sqlite": content(t, "../nsys/testdata/export.sqlite"),
		"pickle": []byte("\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02s."),
	} {
		for i := range 40 {
			cut := len(b) * i / 40
			_, err := Read([]string{write(t, "cut.rank0", b[:cut])})
			if err == nil {
				t.Errorf("%s: the first %d of %d bytes are accepted as complete", name, cut, len(b))
			} else if !strings.Contains(err.Error(), "cut.rank0: ") || len(err.Error()) > 500 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	text := content(t, "../account/testdata/nsys-1.txt")
	if _, err := Read([]string{write(t, "cut.txt", text[:bytes.LastIndex(text, []byte("NVIDIA"))+4])}); err == nil ||
		!strings.Contains(err.Error(), "line 18: the row ends") {
		t.Errorf("text: %v", err)
	}
	last := bytes.LastIndexByte(text[:bytes.LastIndex(text, []byte("NVIDIA"))],
		'\n') + 1 // the first byte of the last row
	row := text[last : last+bytes.IndexByte(text[last:], '\n')]
	name := last + bytes.Index(row, []byte("nccl")) // a name that is cut looks like a shorter name
	for cut := last + 4; cut < name; cut += 7 {
		if _, err := Read([]string{write(t, "cut.txt", text[:cut])}); err == nil ||
			!strings.Contains(err.Error(), "line 18: ") {
			t.Errorf("text cut %d bytes after its last row begins: %v", cut-last, err)
		}
	}
	if _, err := Read([]string{write(t, "lines.txt", text[:last])}); err != nil {
		t.Errorf("text cut between two rows: %v", err)
	}
}

func event(name string, ts, dur float64, args string) string {
	return fmt.Sprintf(`{"ph":"X","cat":"kernel","name":%q,"pid":0,"tid":7,"ts":%v,"dur":%v,"args":{%s}}`, name, ts,
		dur, args)
}

func timeline(events ...string) string { return `{"traceEvents":[` + strings.Join(events, ",") + `]}` }

// TestRefused checks that the error for an unreadable file says what is wrong and in which file.
func TestRefused(t *testing.T) {
	one := timeline(event("k", 1, 2, ""))
	for want, text := range map[string]string{
		"it is empty": "",
		"it is none of the formats that can be read": "What is this?",
		"it is UTF-16 text: convert it":              "\xff\xfeS\x00t\x00",
		"its columns are separated by semicolons": "Start (ns);Duration " +
			"(ns);Device;Strm;Name\n1;2;NVIDIA (0);7;k\n",
		"a memory snapshot of torch: hocket memory": "\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]u.",
		"is neither a timeline nor a flight record": `{"a":1}`,
		"no events of a device":                     timeline(),
		`event 2 at line 1, column 95, "b": it ends 3 µs before it begins`: timeline(event("a", 1, 2, ""),
			event("b", 9, -3, "")),
		`ts: "1e99" is out of range`: strings.Replace(one, `"ts":1`,
			`"ts":1e99`, 1),
		`ts: "9223372036854775807" is out of range: it is in microseconds`: strings.Replace(one, `"ts":1`,
			`"ts":9223372036854775807`, 1),
		`ts: "\"never\"" is not a number`: strings.Replace(one, `"ts":1`,
			`"ts":"never"`, 1),
		`dur: "\"2\"" is not a number of microseconds`: strings.Replace(one, `"dur":2`,
			`"dur":"2"`, 1),
		"dur: it is missing": strings.Replace(one, `"dur":2,`,
			``, 1),
		"dur: \"1000000000001\" is out of range": strings.Replace(one, `"dur":2`,
			`"dur":1000000000001`, 1),
		`'x' follows the end of the document: remove it`: one + "xyz",
		"dur: \"2000000000000000\" is out of range": strings.Replace(one, `"dur":2`,
			`"dur":2000000000000000`, 1),
		`'{' follows the end of the document: the file has several documents`: one + "\n" + one,
		"distributedInfo: -1 is not the number of a " +
			"rank": `{"distributedInfo":{"rank":-1},` + one[1:],
		"distributedInfo: 1000000000 is not the number of a " +
			"rank": `{"distributedInfo":{"rank":1000000000},` + one[1:],
		"distributedInfo: rank 2 in a job of 2 " +
			"ranks": `{"distributedInfo":{"rank":2,"world_size":2},` + one[1:],
		"baseTimeNanoseconds: -5 is not": `{"baseTimeNanoseconds":-5,` +
			one[1:],
		"it has each event of the device twice": timeline(event("a", 1, 2, ""),
			event("b", 4, 2, ""), event("a", 1, 2, ""), event("b", 4, 2, "")),
		`and events of the unused categories "GPU kernels": was the profiler`: strings.Replace(one, `"kernel"`,
			`"GPU kernels"`, 1),
		"entry 1: it has no process_group":     `{"entries":[{"profiling_name":"nccl:x","collective_seq_id":1,"state":""}]}`,
		"entry 1: it has no profiling_name":    `{"entries":[{"process_group":["0"],"collective_seq_id":1,"state":""}]}`,
		"entry 1: it has no collective_seq_id": `{"entries":[{"process_group":["0"],"profiling_name":"nccl:x","state":""}]}`,
		"entry 1: it has no state":             `{"entries":[{"process_group":["0"],"profiling_name":"nccl:x","seq_id":1}]}`,
		"entry 1: a time is -5 ns since 1970": `{"entries":[{"process_group":["0"],"profiling_name":"nccl:x","seq_id":1,` +
			`"state":"","time_created_ns":-5}]}`,
		"entry 1: a tensor has the shape [2 -3]": `{"entries":[{"process_group":["0"],"profiling_name":"nccl:x","seq_id":1,` +
			`"state":"","input_sizes":[[2,-3]]}]}`,
		`entry 1: the state is "banana"; torch writes scheduled, started or completed`: `{"entries":[{"state":"banana"}]}`,
		"where a value is expected": `{"traceEvents":[,]}`,
		"where ',' is expected":     `{"traceEvents":[{} {}]}`,
		"is not a key":              `{traceEvents:[]}`,
		"a value of more than 1048576 bytes": `{"traceEvents":[{"name":"` +
			strings.Repeat("x", 1<<20) + `"}]}`,
		"its times are steps of a schedule":                                                `{"hocket":{"virtual":true},` + one[1:],
		"line 1, column 34: Name: want a string":                                           `{"traceEvents":[{"ph":"X","name":7}]}`,
		"entry 1: line 1, column 34: collective_seq_id: want a whole number, found string": `{"entries":[{"collective_seq_id":"x"}]}`,
		"opcode":                             "\x80\x02I1\n.",
		"it holds an object of posix.system": "\x80\x02}X\x07\x00\x00\x00entries](cposix\nsystem\nesX\x01\x00\x00\x00aNs.",
		"nested deeper": "\x80\x02}X\x07\x00\x00\x00entries](" + strings.Repeat("(",
			20) + strings.Repeat("l", 20) + "es.",
	} {
		_, err := Read([]string{write(t, "odd", []byte(text))})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "odd: ") {
			t.Errorf("%.80q: %v; want %q", text, err, want)
		}
	}
	report := write(t, "run.nsys-rep", []byte("anything"))
	if _, err := Read([]string{report}); err == nil ||
		!strings.Contains(err.Error(), "nsys stats --report cuda_gpu_trace "+report) {
		t.Errorf("a report of nsys: %v", err)
	}
	missing := filepath.Join(t.TempDir(), "nope.json")
	if _, err := Read([]string{missing}); err == nil || strings.Count(err.Error(), "nope.json") != 1 {
		t.Errorf("the file should be named once: %v", err)
	}
	cut := write(t, "cut.json", []byte(one[:len(one)-1]))
	if _, err := Read([]string{cut}); err == nil || strings.Count(err.Error(), "cut short") != 1 ||
		strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("a file that is cut short: %v", err)
	}
	two := []string{write(t, "a.rank3.json", []byte(one)), write(t, "b.rank3.json", []byte(one))}
	if _, err := Read(two); err == nil || !strings.Contains(err.Error(), "are both of rank 3") {
		t.Errorf("a rank twice: %v", err)
	}
	mixed := []string{write(t, "a.json", []byte(one)), "../account/testdata/nsys-3.txt"}
	if _, err := Read(mixed); err == nil || !strings.Contains(err.Error(), "give one kind") {
		t.Errorf("two kinds: %v", err)
	}
	if _, err := Read([]string{"-"}); err == nil || !strings.Contains(err.Error(), "write it to a file") {
		t.Errorf("standard input: %v", err)
	}
	if _, err := Read([]string{t.TempDir()}); err == nil {
		t.Error("a folder is read")
	}
}

// TestEpochTimes checks that times since 1970, which torch wrote before version 2.4, are read exactly, in nanoseconds.
// In each file the first event begins at 1685000000000002 µs, and the second 7 µs and some nanoseconds later.
func TestEpochTimes(t *testing.T) {
	const from = int64(1685000000000002)
	for ts, ns := range map[string]int64{"1685000000000009": 7000, "1685000000000009.345": 7345,
		"1685000000000009.0004":                  7000,
		"1685000000000009.123456789012345678901": 7123, "1.685000000000009345e15": 7345, "1685000000000009345E-3": 7345,
		"1685000000000009.9999": 8000} {
		first := fmt.Sprintf(`{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":3.002}`, from)
		second := fmt.Sprintf(`{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%s,"dur":1}`, ts)
		p, err := Read([]string{write(t, "epoch.json", []byte(timeline(first, second)))})
		if err != nil {
			t.Errorf("%s: %v", ts, err)
			continue
		}
		e := p.Trace.Events
		if e[0].Start != from*1000 || e[0].Duration() != 3002 || e[1].Start-e[0].Start != ns {
			t.Errorf("%s: begins at %d, lasts %d, and the second begins %d ns later; want %d", ts, e[0].Start,
				e[0].Duration(),
				e[1].Start-e[0].Start, ns)
		}
	}
}

// TestJobs checks that profiles of jobs of different sizes are refused, and that a file may begin with a byte order
// mark.
func TestJobs(t *testing.T) {
	of := func(rank, world int) string {
		return write(t, fmt.Sprintf("of%d.json", world),
			fmt.Appendf(nil, "\ufeff"+`{"distributedInfo":{"rank":%d,"world_size":%d},%s`,
				rank, world, timeline(event("k", 1, 2, ""))[1:]))
	}
	two, four := of(0, 2), of(1, 4)
	want := two + " is of a job of 2 ranks, and " + four + " of a job of 4: give the files of one job"
	if _, err := Read([]string{two, four}); err == nil || err.Error() != want {
		t.Errorf("%v; want %s", err, want)
	}
	p, err := Read([]string{two, of(1, 2)})
	if err != nil || p.Trace.Ranks != 2 || p.Trace.World != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestFlightEntries reads entries of old and new versions of torch: with numbers of calls, sends and receives, and
// unknown sizes.
func TestFlightEntries(t *testing.T) {
	const rest = `"process_group":["0","tp"],"state":"completed"`
	p, err := Read([]string{write(t, "f.json", []byte(`{"entries":[
		{"record_id":0,"profiling_name":"nccl:all_reduce","collective_seq_id":7,"input_sizes":[[2,3]],`+rest+`},
		{"profiling_name":"nccl:send 4->9","seq_id":8,`+rest+`},
		{"profiling_name":"nccl:recv 4<-9","seq_id":8,`+rest+`},
		{"profiling_name":"nccl:coalesced","is_p2p":true,"seq_id":8,`+rest+`}]}`))})
	if err != nil {
		t.Fatal(err)
	}
	r := p.Flight[0]
	if e := r.Entries[0]; !r.Whole || e.Seq != 7 || e.P2P || e.In != 6 || e.Out != -1 {
		t.Errorf("%+v", e)
	}
	for i, want := range [][2]int{{4, 9}, {9, 4}, {-1, -1}} {
		if e := r.Entries[i+1]; !e.P2P || e.Seq != 8 || e.From != want[0] || e.To != want[1] {
			t.Errorf("%+v; want a transfer from %d to %d", e, want[0], want[1])
		}
	}
}

// TestFlightBatch checks that the calls of a batch have the state of the entry that ends it, and that the calls before
// the batch keep their own.
func TestFlightBatch(t *testing.T) {
	entry := func(name, state string, seq, p2p, started int) string {
		return fmt.Sprintf(`{"process_group":["0","tp"],"profiling_name":"nccl:%s","state":%q,"collective_seq_id":%d,`+
			`"p2p_seq_id":%d,"time_discovered_started_ns":%d}`, name, state, seq, p2p, started)
	}
	p, err := Read([]string{write(t, "f.json", []byte(`{"entries":[`+strings.Join([]string{
		entry("all_reduce", "scheduled", 1, 0, 0), entry("send 0->1", "scheduled", 1, 1, 0),
		entry("recv 0<-1", "scheduled", 1, 1, 0), entry("coalesced", "completed", 1, 1, 77),
		entry("coalesced", "started", 2, 1, 0)}, ",")+`]}`))})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range p.Flight[0].Entries {
		got = append(got, fmt.Sprint(e.Op, " ", e.State, " ", e.Started))
	}
	want := []string{"all_reduce scheduled 0", "send completed 77", "recv completed 77", "coalesced started 0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}

// TestFlightStatus checks that the number of the last call is read from the status in a flight record, and may be a
// string. A status of another form must be ignored.
func TestFlightStatus(t *testing.T) {
	for status, want := range map[string]int64{`{"0":{"last_enqueued_collective":"7"}}`: 7,
		`{"0":{"last_enqueued_collective":8}}`:    8,
		`{"0":{"last_enqueued_collective":"-1"}}`: 0, `[1]`: 0, `{"0":3}`: 0} {
		p, err := Read([]string{write(t, "status.rank1.json", []byte(`{"entries":[],"pg_status":`+status+`}`))})
		if err != nil {
			t.Fatal(err)
		}
		if n, known := p.Flight[0].Enqueued["0"]; n != want || known != (want > 0) {
			t.Errorf("%s: %d, %v", status, n, known)
		}
	}
}

// TestOldCategories reads a profile whose categories and streams have the names of old versions of torch.
func TestOldCategories(t *testing.T) {
	put := func(cat, tid, name string, ts, dur, correlation int) string {
		return fmt.Sprintf(`{"ph":"X","cat":%q,"name":%q,"pid":0,"tid":%q,"ts":%d,"dur":%d,"args":{"correlation":%d}}`,
			cat, name,
			tid, ts, dur, correlation)
	}
	p, err := Read([]string{write(t, "old.json", []byte(timeline(put("Kernel", "stream 7", "gemm", 20, 5, 1),
		put("Memcpy", "stream 8", "Memcpy HtoD", 30, 6, 2), put("Runtime", "843", "cudaLaunchKernel", 11, 2, 1),
		put("Operator", "843", "aten::mm", 10, 4, 0))))})
	if err != nil {
		t.Fatal(err)
	}
	e := p.Trace.Events
	if len(e) != 2 || e[0].Stream != "stream 7" || e[0].Issued != 11_000 || e[0].Class != trace.Compute ||
		e[1].Class != trace.IO || len(p.Trace.Host) != 2 {
		t.Errorf("%+v, %+v", e, p.Trace.Host)
	}
}

// TestForeign checks that unknown keys, categories and columns are ignored.
func TestForeign(t *testing.T) {
	text := `{"new":{"a":[1,{"b":"]}\""}]},"traceEvents":[
		{"ph":"q","new":[[]],"args":7},
		{"ph":"X","cat":"mystery","name":"m","ts":"soon"},` +
		event("k", 5.25, 2, `"device":0,"stream":7,"new":{"x":[null,true,1e5]}`) + `,],"after":null}`
	p, err := Read([]string{write(t, "new.rank4.json", []byte(text))})
	if err != nil {
		t.Fatal(err)
	}
	if e := p.Trace.Events[0]; len(p.Trace.Events) != 1 || e.Start != 5250 || e.End != 7250 || p.Trace.ID(0) != 4 {
		t.Errorf("%+v, ranks %v", p.Trace.Events, p.Trace.IDs)
	}
}

// TestRanksInOneFile checks that each process in a file becomes a rank with a separate clock.
func TestRanksInOneFile(t *testing.T) {
	name := func(pid int, name string) string {
		return fmt.Sprintf(`{"ph":"M","name":"process_name","pid":%d,"args":{"name":%q}}`, pid, name)
	}
	second := strings.Replace(event("k", 7, 1, ""), `"pid":0`, `"pid":9`, 1)
	p, err := Read([]string{write(t, "merged.json", []byte(timeline(event("k", 5, 1, ""), second, name(0, "rank 6"),
		name(9, "rank 2"))))})
	if err != nil {
		t.Fatal(err)
	}
	tr := p.Trace
	if tr.Ranks != 2 || tr.IDs[0] != 2 || tr.IDs[1] != 6 || tr.Clocks[0] == tr.Clocks[1] || tr.Events[0].Start != 7000 {
		t.Errorf("%+v", tr)
	}
}

// heapWhile runs f and returns the largest size of the heap during this time.
func heapWhile(f func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as for users
	runtime.GC()
	var most atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse))
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-done
	return most.Load()
}

// zipped compresses what write writes.
func zipped(t *testing.T, name string, write func(w *bufio.Writer)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestSpeed)
	w := bufio.NewWriter(z)
	write(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

const gib = 1 << 30

// TestBombs checks that small files with a large content are refused or skipped, using little memory.
func TestBombs(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks hundreds of megabytes")
	}
	repeat := func(head, body string, n int, tail string) func(w *bufio.Writer) {
		return func(w *bufio.Writer) {
			w.WriteString(head)
			for range n {
				w.WriteString(body)
			}
			w.WriteString(tail)
		}
	}
	for want, path := range map[string]string{
		"a value of more than 1048576 bytes": zipped(t, "name", repeat(`{"traceEvents":[{"name":"`, strings.Repeat("x",
			1<<16), 1000, `"}]}`)),
		"no events of a device": zipped(t, "skipped", repeat(`{"x":"`, strings.Repeat("x", 1<<16), 1000,
			`","traceEvents":[]}`)),
		"is longer than": zipped(t, "zeros", repeat("1 ", strings.Repeat("\x00", 1<<16), 1000, "")),
		"more than 1500000 events": zipped(t, "events", repeat(`{"traceEvents":[`,
			`{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1},`, 1600000, `]}`)),
		"beyond the limit": zipped(t, "pickle", repeat("\x80\x02(", strings.Repeat("]", 1<<16), 1000, "")),
	} {
		var err error
		if heap := heapWhile(func() { _, err = Read([]string{path}) }); heap > gib {
			t.Errorf("%s: %d MiB of heap", want, heap>>20)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// TestMillion reads 200,000 rows, or a million with make long, using at most a GiB of memory.
func TestMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("reads many rows twice")
	}
	n := longtest.Of(200_000, 1_000_000)
	text := zipped(t, "rows.txt", func(w *bufio.Writer) {
		for i := range n {
			fmt.Fprintf(w, "%d 900 %d 1 1 1 1 1 1 1 0.0 0.0 GPU (%d) 1 7 kernel_%d<int>(float*)\n", 1000+i*1000, i, i%8,
				i%50)
		}
	})
	json := zipped(t, "rows.json", func(w *bufio.Writer) {
		w.WriteString(`{"traceEvents":[`)
		for i := range n {
			if i > 0 {
				w.WriteByte(',')
			}
			fmt.Fprintf(w,
				`{"ph":"X","cat":"kernel","name":"kernel_%d","pid":0,"tid":7,"ts":%d.125,"dur":0.9,"args":{"correlation":%d}}`, i%50, i, i)
		}
		w.WriteString(`]}`)
	})
	for _, path := range []string{text, json} {
		var p *Profile
		var err error
		if heap := heapWhile(func() { p, err = Read([]string{path}) }); heap > gib {
			t.Errorf("%s: %d MiB of heap", filepath.Base(path), heap>>20)
		}
		if err != nil || len(p.Trace.Events) != n {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
	}
}

// FuzzRead checks that the events of any file belong to existing ranks and end after they start. The sizes in flight
// records must not be negative, except -1 for unknown ones.
func FuzzRead(f *testing.F) {
	f.Add([]byte(timeline(event("ncclDevKernel_AllReduce", 1, 2, `"Collective name":"allreduce","In msg nelems":4`))))
	f.Add([]byte("1000 2000 7 16 1 1 GPU (3) 1 13 kernel\n"))
	f.Add([]byte(`{"entries":[{"process_group":["0","x"],"input_sizes":[[1]]}],"pg_config":{"0":{"ranks":"[0, 1]"}}}`))
	f.Add([]byte("\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02s."))
	f.Add([]byte("Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,Device,Ctx,Strm,Name\n1,2,3,1,1,1,GPU (0),1,7,k\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, rec, err := read(bufio.NewReader(bytes.NewReader(b)), "", -1, new(trace.Names))
		switch {
		case err != nil:
		case (tr == nil) == (rec == nil):
			t.Errorf("got a trace %v and a record %v", tr, rec)
		case rec != nil:
			for _, e := range rec.Entries {
				if e.In < -1 || e.Out < -1 {
					t.Errorf("%+v", e)
				}
			}
		default:
			for _, e := range tr.Events {
				if e.Rank < 0 || e.Rank >= tr.Ranks || e.End < e.Start {
					t.Errorf("%d ranks, and %+v", tr.Ranks, e)
				}
			}
		}
	})
}
