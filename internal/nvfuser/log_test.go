package nvfuser

import (
	"fmt"
	"strings"
	"testing"
)

// ofLog imports a log whose program must equal that of the dump, and returns the warnings.
func ofLog(t *testing.T, log, dump string, defines map[string]string) string {
	t.Helper()
	if !IsDump(log) {
		t.Fatalf("no dump is found in\n%s", log)
	}
	p, rest, ds := Import("d.txt", log, defines)
	if ds.HasErrors() || len(rest) > 0 {
		t.Fatalf("%s\nleft: %v\n%s", ds, rest, log)
	}
	if got, want := withoutLines(p.String()), withoutLines(program(t, dump).String()); got != want {
		t.Fatalf("got\n%s\nwant\n%s\nof\n%s", got, want, log)
	}
	return ds.String()
}

// prefixed returns the text with a prefix before every line.
func prefixed(prefix, text string) string {
	var b strings.Builder
	for l := range strings.Lines(text) {
		b.WriteString(prefix + l)
	}
	return b.String()
}

// loops is a dump with a loop, for which indentation matters, and with definitions of indices after its end.
var loops = container("  GetCurrentStream into Stream 0x7fa0\n  FOR i9 in iS0{i0}:\n    SetCurrentStream to Stream i9\n"+
	"    Synchronize Stream 0x7fa0\n    T2_l_float[iS4{4}] = HirAliasSelect( "+t0+", axis = iS0{i0}, index = i12 )\n"+
	"    T3_l_float[iS5{4}] = HirAliasSelect( "+t1+", axis = iS2{i0}, index = i9 )\n"+
	"    T3_l_float[iS5{4}] = Set( T2_l_float[iS4{4}], cache_op=Streaming )\n  SetCurrentStream to Stream 0x7fa0\n"+
	"  FOR i9 in iS0{i0}:\n    Synchronize Stream i9\n") + "\nIndex definitions:\n  i12 = i9 % 8;\n"

// TestLogs checks that a dump gives the same program in every kind of log.
func TestLogs(t *testing.T) {
	for name, log := range map[string]string{
		"pytest": "===== test session starts =====\nplatform linux\ntests/python/test_overlap.py::test_row[1] " +
			loops +
			"PASSED\n\n===== 1 passed in 3.2s =====\n",
		"gtest":         "[ RUN      ] OverlapTest.Ring\n" + loops + "\n[       OK ] OverlapTest.Ring (31 ms)\n",
		"fence":         "This is the host program:\n\n```\n" + loops + "```\nThanks.\n",
		"commit":        "commit 1234\n\n    Adds a lowering path.\n\n" + prefixed("    ", loops) + "\n    Fixes #1.\n",
		"python":        "def test():\n    # The dump:\n" + prefixed("    # ", loops) + "    assert True\n",
		"quoted":        "On Monday she wrote:\n" + prefixed("> ", loops) + "Looks right.\n",
		"mpirun":        "[1,0]<stdout>:starts\n" + prefixed("[1,0]<stdout>:", loops) + "[1,0]<stdout>:PASSED\n",
		"prterun":       prefixed("[prterun-host-17@1,0]<stdout>: ", loops),
		"torchrun":      prefixed("[default0]:", loops),
		"srun":          prefixed("0: ", loops),
		"CI":            prefixed("2025-10-06T13:55:01.1234567Z ", loops) + "2025-10-06T13:55:02.0000000Z Done\n",
		"CI and mpirun": prefixed("2025-10-06T13:55:01.1234567Z [1,3]<stdout>:", loops),
		"every rank":    loops + strings.ReplaceAll(loops, "0x7fa0", "0x55e8") + loops,
		"broken": "Author: x\n\n    ```\n" + prefixed("    ",
			strings.Replace(loops, "cache_op=Streaming", "cache_op=Strea\nming", 1)) + "    ```\n",
		"windows": strings.ReplaceAll("log\n"+loops+"end\n", "\n", "\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if said := ofLog(t, log, loops, nil); said != "" {
				t.Errorf("it warns: %s", said)
			}
		})
	}
}

// TestLogsOfRanks checks that the tags of lines separate the output of ranks that printed at the same time.
func TestLogsOfRanks(t *testing.T) {
	lines := strings.SplitAfter(loops, "\n")
	var log strings.Builder
	for i := range len(lines) + 2 {
		for rank := range 3 { // rank r prints each line r lines later than rank 0
			if at := i - rank; at >= 0 && at < len(lines) && lines[at] != "" {
				fmt.Fprintf(&log, "[rank%d]: %s", rank, lines[at])
			}
		}
	}
	if said := ofLog(t, log.String(), loops, nil); said != "" {
		t.Errorf("it warns: %s", said)
	}
}

// TestMessagesBetween checks that messages of other programs within a dump are ignored with a warning that names their
// lines.
func TestMessagesBetween(t *testing.T) {
	for _, message := range []string{
		"node7:2101:2345 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
		"[W1006 13:55:01.123456789 ProcessGroupNCCL.cpp:4115] Warning: using GPU 0",
		"[rank0]:[W1006 13:55:01.123 ProcessGroupNCCL.cpp:4115] Warning: using GPU 0",
		"WARNING:root:slow",
		"/opt/torch/nn.py:12: UserWarning: deprecated",
		"2025-10-06 13:55:01,123 INFO starting",
		"--------------------------------------------------------------------------",
	} {
		lines := strings.SplitAfter(loops, "\n")
		for at := 1; at < 8; at++ { // the message is inserted before each line of the container except the first
			log := strings.Join(lines[:at], "") + message + "\n" + strings.Join(lines[at:], "")
			said := ofLog(t, log, loops, nil)
			if want := fmt.Sprintf("d.txt:%d:1: warning: this line looks like a message", at+1); !strings.Contains(said,
				want) {
				t.Errorf("want %q, got %s", want, said)
			}
		}
	}
	// A line that has not the form of another program's message is an error at its position.
	lines := strings.SplitAfter(loops, "\n")
	refused(t, lines[0]+lines[1]+"  hello world\n"+strings.Join(lines[2:], ""), "3:", "")
}

// TestSeveralDumps checks that a number selects one of several different dumps in a log, and that positions refer to
// the log.
func TestSeveralDumps(t *testing.T) {
	one := container(copyT1)
	log := "tests/a.py::test_row[2]\n" + one + one + "PASSED\n" + loops + "bye\n"
	refused(t, log, "2:1:", "the file has 2 different dumps")
	_, _, ds := Import("d.txt", log, nil)
	for _, want := range []string{"d.txt:2:1: note: dump 1 of tests/a.py::test_row[2]: 4 lines, printed 2 times",
		"d.txt:11:1: note: dump 2: 14 lines, printed once", "--define dump=1"} {
		if !strings.Contains(ds.String(), want) {
			t.Errorf("want %q, got\n%s", want, ds)
		}
	}
	ofLog(t, log, one, map[string]string{"dump": "1"})
	ofLog(t, log, loops, map[string]string{"dump": "2"})
	p, _, _ := Import("d.txt", log, map[string]string{"dump": "2"})
	contains(t, p, "for %i9 in 0..i0 {  // line 13")
	for _, bad := range []string{"0", "3", "x"} {
		if _, _, ds := Import("d.txt", log, map[string]string{"dump": bad}); !strings.Contains(ds.String(),
			"--define dump="+bad+": the file has 2") {
			t.Errorf("dump=%s: %s", bad, ds)
		}
	}
	// The ranks print at the same time and their lines have no tags.
	lines := strings.SplitAfter(loops, "\n")
	_, _, ds = Import("d.txt", lines[0]+loops+strings.Join(lines[1:], ""), nil)
	if !strings.Contains(ds.String(), "the next dump begins before its end") ||
		!strings.Contains(ds.String(), "run mpirun with --tag-output") {
		t.Errorf("got %s", ds)
	}
}

// TestCutLog checks the error about a log that ends within its dumps.
func TestCutLog(t *testing.T) {
	lines := strings.SplitAfter(loops, "\n")
	other := strings.SplitAfter(container(copyT1), "\n")
	log := prefixed("[rank0]: ", strings.Join(other[:3], "")) + prefixed("[rank1]: ", loops)
	_, _, ds := Import("d.txt", log, nil)
	for _, want := range []string{"dump 1: 3 lines, incomplete: the file ends before",
		"--define dump=2"} {
		if !strings.Contains(ds.String(), want) || ds[0].Kind != usageKind {
			t.Errorf("want %q, got %s", want, ds)
		}
	}
	// If one dump is the beginning of another, the two are not considered different.
	last := lines[4][:len(lines[4])/2]
	ofLog(t, prefixed("[rank0]: ", strings.Join(lines[:4], "")+last)+"\n"+prefixed("[rank1]: ", loops), loops, nil)
	log = prefixed("[rank0]: ", strings.Join(lines[:4], "")) + prefixed("[rank1]: ", strings.Join(lines[:4], "")+last)
	_, _, ds = Import("d.txt", log, nil)
	if want := "d.txt:9:10: error: the dump ends without"; !strings.Contains(ds.String(), want) || ds[0].Kind != inputKind {
		t.Errorf("want %q, got %s", want, ds)
	}
	// The beginning of one dump is missing.
	_, _, ds = Import("d.txt", strings.Join(other[2:], "")+"tests/a.py::test_row\n"+loops, nil)
	if want := "2:1: warning: this line ends a dump whose beginning is not in the file; only the dump in line 4, of " +
		"tests/a.py::test_row, is checked"; ds.HasErrors() || !strings.Contains(ds.String(), want) {
		t.Errorf("want %q, got %s", want, ds)
	}
	_, _, ds = Import("d.txt", strings.Join(lines[:5], ""), nil)
	if want := "the dump ends without"; !strings.Contains(ds.String(), want) {
		t.Errorf("want %q, got %s", want, ds)
	}
}

// TestDefinesOfTheImport checks that a name or value that the import does not accept is an error about the command
// line.
func TestDefinesOfTheImport(t *testing.T) {
	for _, x := range []struct{ name, value, want, help string }{
		{"dump", "one", "--define dump=one: the file has one dump", "from 1 to 1"},
		{"dump", "0", "--define dump=0: the file has one dump", "from 1 to 1"},
		{"dmp", "1", "--define dmp: the dump has no index or dim", "allocation_cache, dump, indentation, i0, numberOfStreams"},
		{cacheDefine, "7", "--define allocation_cache=7: it is 0 or 1", "use_allocation_cache"},
		{cacheDefine, "yes", "--define allocation_cache=yes: it is 0 or 1", "use_allocation_cache"},
	} {
		_, _, ds := Import("d.txt", loops, map[string]string{x.name: x.value})
		if len(ds) != 1 || ds[0].Kind != usageKind || !strings.Contains(ds[0].Message, x.want) ||
			!strings.Contains(ds[0].Help, x.help) {
			t.Errorf("%s=%s: %s", x.name, x.value, ds)
		}
	}
}

// TestNoDump checks that a text that only mentions a dump is not read as one.
func TestNoDump(t *testing.T) {
	for _, text := range []string{
		"", "%HostIrContainer", "the closing } // %HostIrContainer of a dump\n",
		"// %HostIrContainer { (T0) }\nfunc f(%x: f32[4]) -> f32[4] {\n  return %x\n}\n",
	} {
		if IsDump(text) && !strings.HasPrefix(text, headWord) {
			t.Errorf("%q is taken for a dump", text)
		}
	}
}

// TestOldForm checks that a dump in the form of pull request 2518, whose last line is "END.", gives the same program as
// the same dump in the current form. Earlier forms are refused.
func TestOldForm(t *testing.T) {
	const body = `(T0_g[ iS0{4}, iS1{8} ]) -> (T2_g[ iS6{4}, rS7{8} ]) :
  PostOnStream (HostUnit0, Inputs:{T0_g[ iS0{4}, iS1{8} ]}, Outputs:{T2_g[ iS6{4}, rS7{8} ]})

HostUnit0: Inputs={T0_g[ iS0{4}, iS1{8} ]} -> Outputs={T2_g[ iS6{4}, rS7{8} ]}
%kernel {
T1_l[ iS3{4}, iS4{8} ]
   = T0_g[ iS0{4}, iS1{8} ]
   + T0_g[ iS0{4}, iS1{8} ];
T2_g[ iS6{4}, rS7{8} ]
   = reduction( T1_l[ iS3{4}, iS4{8} ], op = add, initial value = float(0), allreduce = false )
}
`
	ofLog(t, "Examples:\n\n```\n%HostIrContainer {\n\nHOST IRS: "+body+"END.\n```\nThe end.\n",
		"%HostIrContainer { "+body+"} // %HostIrContainer\n", nil)
	_, _, ds := Import("d.txt", "%HostIrContainer {\n\nHOST FUSION "+body+"END.\n", nil)
	if !strings.Contains(ds.String(), "d.txt:3:6: error: dumps before pull request 2518") {
		t.Errorf("got %s", ds)
	}
}
