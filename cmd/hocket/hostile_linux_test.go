package main

import (
	"bytes"
	"compress/gzip"
	"context"
	bits "encoding/binary"
	"encoding/json"
	"fmt"
	"hocket.example/hocket/internal/longtest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hostileFiles writes files to a folder that are malformed, huge or deeply nested.
func hostileFiles(t *testing.T, dir string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string, b []byte, sparse int64) {
		f, err := os.Create(filepath.Join(dir, name))
		must(err)
		_, err = f.Write(b)
		must(err)
		if sparse > 0 {
			must(f.Truncate(int64(len(b)) + sparse))
		}
		must(f.Close())
	}
	safetensors := func(name string, header any, sparse int64) {
		text, err := json.Marshal(header)
		must(err)
		write(name, append(bits.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), sparse)
	}
	entry := func(shape []int64, bytes int64) map[string]any {
		return map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int64{0, bytes}}
	}
	for _, name := range []string{"fifo", "fifo.safetensors", "fifo.npy", "fifo.json", "fifo.hkt", "fifo.csv",
		"fifo.pickle"} {
		must(syscall.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	for _, n := range []int{20, 40, 900} {
		text := "func f(%x: f32[4]) -> f32[4] {\n%y = alloc f32[4]\n" + nests(n) + "return %y\n}\n"
		write(fmt.Sprintf("nested%d.hkt", n), []byte(text), 0)
	}
	write("small.hkt", []byte("mesh tp[2]\nfunc f(%x: f32[8/tp]) -> f32[8/tp] {\n%y = add %x, %x\nreturn %y\n}\n"), 0)
	write("any.hkt", []byte("dim T = 4\nmesh tp[1]\nfunc f(%x: f32[T]) -> f32[T] {\n%y = add %x, %x\nreturn %y\n}\n"),
		0)
	write("sparse.hkt", []byte("// "), 64<<30)
	write("deep.hkt", []byte("func f(%x: f32["+strings.Repeat("(", 1<<20)), 0)
	write("escape.hkt", []byte("// \x1b]0;owned\a\nfunc f("), 0)
	safetensors("big.safetensors", map[string]any{"x": entry([]int64{1 << 38}, 1<<40)}, 1<<40)
	safetensors("rank.safetensors", map[string]any{"x": entry(make([]int64, 1<<20), 0)}, 0)
	many := map[string]any{}
	for i := range 1 << 18 {
		many[fmt.Sprint("t", i)] = entry([]int64{0}, 0)
	}
	safetensors("many.safetensors", many, 0)
	write("claim.safetensors", bits.LittleEndian.AppendUint64(nil, 99_999_999), 1<<30)
	write("sparse.json", []byte("{"), 64<<30)
	write("nest.json", []byte(strings.Repeat("[", 1<<20)), 0)
	header := "{'descr': '<f4', 'fortran_order': True, 'shape': (274877906944,), }"
	header += strings.Repeat(" ", 117-len(header)) + "\n"
	write("big.npy", append([]byte("\x93NUMPY\x01\x00\x76\x00"), header...), 1<<40)
	write("sparse.csv", []byte("id,lower,upper,size\n"), 64<<30)
	write("sparse.pickle", nil, 64<<30)
	write("line.csv", []byte("id,lower,upper,size\n"+strings.Repeat("x", 80<<20)), 0)
	write("many.csv", []byte("lower,upper,size\n"+strings.Repeat("0,9,1\n", 100_000)), 0)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write([]byte("\x80\x04" + strings.Repeat("]", 64<<20)))
	must(err)
	must(z.Close())
	write("lists.pickle.gz", packed.Bytes(), 0)
	hostilePickles(write)
	must(os.Symlink("loop.json", filepath.Join(dir, "loop.json")))
}

// hostilePickles writes small pickles of snapshots and flight records that describe very large objects.
func hostilePickles(write func(name string, b []byte, sparse int64)) {
	text := func(s string) string {
		return "X" + string(bits.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
	}
	snapshot := func(name, traces string) {
		s := "\x80\x02}" + text("segments") + "]s" + text("device_traces") + traces + "s."
		write(name, []byte(s), 0)
	}
	event := "}(" + text("action") + text("alloc") + text("size") + "K\x01" + text("addr") + "K\x01uq\x01"
	deep := ")" + strings.Repeat("q\x00h\x00\x86", 2_000_000)
	snapshot("deep.pickle", "]]}"+text("action")+deep+"saa")
	snapshot("shared.pickle", "](]("+event+strings.Repeat("h\x01", 100_000)+"eq\x02"+strings.Repeat("h\x02",
		10_000)+"e")
	snapshot("live.pickle", "]]("+event+strings.Repeat("h\x01", 500_000)+"ea")
	laughs := "]q\x000"
	for depth := range 6 {
		laughs += "](" + strings.Repeat("h"+string(rune(depth)), 999) + "eq" + string(rune(depth+1)) + "0"
	}
	write("laughs.pickle", []byte("\x80\x02}"+text("entries")+"]"+laughs+"h\x06as."), 0)
	var groups strings.Builder
	groups.WriteString(`{"pg_config":{"0":{"ranks":"[` + strings.Repeat("1,", 400_000) + `0]"}},"entries":[`)
	for n := range 200_000 {
		fmt.Fprintf(&groups, `{"process_group":["%d"],"collective_seq_id":%d,"profiling_name":"x","state":""},`, n, n)
	}
	groups.WriteString(`{"process_group":["x"],"collective_seq_id":1,"profiling_name":"x","state":""}]}`)
	write("groups.json", []byte(groups.String()), 0)
	var clocks strings.Builder
	clocks.WriteString(`{"traceEvents":[`)
	for n := range 100_000 {
		fmt.Fprintf(&clocks, `{"ph":"X","cat":"kernel",`+
			`"name":"ncclDevKernel_AllReduce","pid":%d,"tid":7,"ts":%d,"dur":5,"args":`+
			`{"Collective name":"allreduce","Process Group Name":"0","In msg nelems":4}},`, n%20_000, n)
	}
	clocks.WriteString(`]}`)
	write("clocks.json", []byte(clocks.String()), 0)
}

// nests returns a statement inside n nested loops.
func nests(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "for %%i%d in 0..2 {\n", i)
	}
	return b.String() + "add %x, %x into %y\n" + strings.Repeat("}\n", n)
}

// TestHostile checks that malicious files and flags are refused with limited time and memory. The error must name the
// file or the position, and the exit code must be one that the help lists.
func TestHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	dir := t.TempDir()
	hostileFiles(t, dir)
	var commands uint64
	odd := longtest.Drawn(t) % 2
	must := func(code int, says, line string) {
		t.Helper()
		if commands++; commands%2 != odd && !longtest.On() { // half of the commands
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second) // ten times what is promised
		defer cancel()
		args := strings.Fields(line)
		c := exec.CommandContext(ctx, os.Args[0], args...)
		c.Args[0], c.Dir = "hocket", dir                      // testscript.Main selects the command by this name
		c.Env = append(os.Environ(), "HOME="+dir, "GOGC=100") // Go's default, since memory is measured
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		_ = c.Run()
		switch used, ok := c.ProcessState.SysUsage().(*syscall.Rusage); {
		case ctx.Err() != nil:
			t.Errorf("%s: it does not end", line)
		case c.ProcessState.ExitCode() != code || !strings.Contains(out.String(), says):
			t.Errorf("%s: exit code %d, want %d; it says %q, want %q", line, c.ProcessState.ExitCode(), code,
				cutTo(out.String(), 400), says)
		case ok && used.Maxrss > 1<<20:
			t.Errorf("%s: it takes %d KiB", line, used.Maxrss)
		case strings.Contains(out.String(), "\x1b"):
			t.Errorf("%s: it prints escape sequences", line)
		}
	}
	for _, command := range []string{"run", "check", "opt", "fmt", "memory", "import"} {
		must(2, "fifo.hkt", command+" fifo.hkt")
		must(2, "/dev/zero", command+" /dev/zero")
	}
	for _, n := range []string{"20", "40"} {
		must(1, "nested"+n+".hkt:", "run nested"+n+".hkt")
		must(5, "more than 131072 commands", "check nested"+n+".hkt")
		must(1, "nested"+n+".hkt:", "memory nested"+n+".hkt")
	}
	must(1, "nested900.hkt:", "run nested900.hkt")
	must(1, "larger than 64.0 MiB", "check sparse.hkt")
	must(1, "deep.hkt:", "check deep.hkt")
	must(1, "escape.hkt:", "check escape.hkt")
	for _, in := range []string{"fifo.safetensors", "x=fifo.npy", "x=fifo.safetensors#x", "x=big.npy",
		"x=big.safetensors#x",
		"rank.safetensors", "many.safetensors", "claim.safetensors"} {
		file, _, _ := strings.Cut(strings.TrimPrefix(in, "x="), "#")
		if says := file; strings.HasPrefix(in, "x=big") {
			must(2, "%x is f32[274877906944], want f32[8]", "run small.hkt --in "+in)
			must(3, "out of memory", "run any.hkt --in "+in)
		} else {
			must(2, says, "run small.hkt --in "+in)
		}
	}
	for _, file := range []string{"fifo.json", "sparse.json", "nest.json", "loop.json", "none.json"} {
		must(2, file, "opt small.hkt --strategy auto --machine "+file)
		must(2, file, "trace "+file)
	}
	must(2, "/dev/zero", "trace /dev/zero")
	must(2, "fifo.csv", "memory fifo.csv")
	must(2, "fifo.pickle", "memory fifo.pickle")
	must(2, "sparse.csv: more than 67108864 bytes", "memory sparse.csv")
	must(2, "line.csv: more than 67108864 bytes", "memory line.csv")
	must(2, "many.csv: more than 268435456 pairs of buffers live at once", "memory many.csv")
	must(2, "sparse.pickle: pickle: offset 0", "memory sparse.pickle")
	must(2, "lists.pickle.gz: unpacked: pickle: offset ", "memory lists.pickle.gz")
	must(2, "deep.pickle: event 0: action is a tuple of 2", "memory deep.pickle")
	must(2, "shared.pickle: device_traces[20]: more than 2097152 segments, blocks and events", "memory shared.pickle")
	must(0, "500001 allocations traced", "memory live.pickle")
	must(2, "laughs.pickle: an entry has more than 1048576 bytes", "trace laughs.pickle")
	must(0, "200001 collectives of 1 rank", "trace groups.json")
	must(0, "5 collectives of 20000 ranks", "trace clocks.json")
	must(2, "fifo", "run small.hkt --save fifo")
	must(2, "small.hkt", "run small.hkt --save small.hkt")
	must(2, "none/x", "run small.hkt --trace none/x")
	must(2, "none/x", "run small.hkt --flight none/x")
	must(2, "max-commands", "run small.hkt --max-commands -1")
	must(1, "more than 3 commands", "run small.hkt --max-commands 3")
	must(0, "f on 2 ranks", "run small.hkt --max-commands 0 --max-time 0 --func f")
}

func cutTo(s string, n int) string { return s[:min(len(s), n)] }
