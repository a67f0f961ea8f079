package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// claim is a command in docs/sources.md, with claims of that page about its output.
type claim struct {
	command string
	page    string // the document that is PAGE.txt
	more    string // further arguments, such as dims, that the page omits
	code    int
	// prints lists texts that the output must contain. A text in double quotes must be in the page, too.
	prints []string
}

const nvfuserPage, vllmPage = "nvfuser-%s.txt", "vllm-24111-symmetric-memory-all-reduce.txt"

// claims returns all commands in docs/sources.md.
func claims() []claim {
	document := func(name string) string { return fmt.Sprintf(nvfuserPage, name) }
	cache, ipc, loops := document("4466-allocation-cache"), document("5325-ipc-handle-exchange"),
		document("5751-stream-parallelize-loops")
	forum := "hocket memory examples/forum.hkt --dim L=8 --dim B=4096 --dim D=8192"
	return []claim{
		{command: "hocket check PAGE.txt", page: cache, prints: []string{"proved: 576 commands on 8 ranks"}},
		{command: "hocket check PAGE.txt", page: ipc, prints: []string{"proved: 576 commands on 8 ranks"}},
		{command: "hocket check PAGE.txt", page: loops, more: "--dim i0=18", prints: []string{"proved: ", "only one way to indent it gives a program"}},
		{command: "hocket check job.log", page: cache, prints: []string{"proved: 576 commands on 8 ranks"}},
		{command: "hocket check PAGE.txt --define allocation_cache=0", page: cache, code: exitProgram,
			prints: []string{"hang: in the second run", "rank 0 waits in ShareMemHandles for a handle of rank 1"}},
		{command: "hocket check examples/host_ir_ring_get.txt", code: exitProgram, prints: []string{"may run at the same time"}},
		{command: "hocket check examples/host_ir_ring_put.txt", prints: []string{"proved: "}},
		{command: "hocket trace rows.txt", prints: []string{"2 collectives of 8 ranks", `"261"`, `"267 µs"`, "for rank 5"}},
		{command: "hocket trace sums.txt", code: exitUsage, prints: []string{`"53.3 %"`, "cuda_gpu_trace"}},
		{command: "hocket opt columnwise.hkt --explain --machine h100x8",
			prints: []string{`"690 TFLOP/s"`, `"783"`, "extrapolated", `"within 17 %"`}},
		{command: forum + " --policy deferred-free,garbage_collection_threshold:0.6,memory_mb:3000",
			prints: []string{"reserves 2.7 GiB"}},
		{command: "hocket memory columnwise.hkt --policy deferred-free --viz trace.pickle", prints: []string{`"5.9 GiB"`,
			`"1.9"`}},
		{command: "hocket memory columnwise.hkt --policy deferred-free", more: "--dim M=1024 --dim K=1024 --dim N=1024",
			prints: []string{"each of five runs: 1 0 0 0 0"}},
		{command: "hocket memory trace.pickle", prints: []string{"columnwise.hkt:6 %g"}},
		{command: "hocket tune --export vllm --peers 'PAGE.txt#B200'", page: vllmPage,
			prints: []string{`"CUSTOM_ALL_REDUCE_MAX_SIZES"`, `"SYMM_MEM_ALL_REDUCE_MAX_SIZES"`}},
		{command: "hocket bench allreduce -m cuda -n 4 --sizes 512K,2M,16M --peers 'PAGE.txt#H100'", page: vllmPage,
			code: exitMachine, prints: []string{"machine cuda"}},
		{command: "hocket tune -m cuda", code: exitMachine, prints: []string{"machine cuda"}},
		{command: "hocket run row.hkt --strategy exchange --compare --dim T=30", prints: []string{"row on 8 ranks, T=30",
			"matches row"}},
		{command: "hocket memory SNAPSHOT.pickle", prints: []string{"waiting    1.6 GiB", "TORCH_NCCL_AVOID_RECORD_STREAMS=1"}},
		{command: "hocket memory examples/forum.hkt", prints: []string{"peak"}},
		{command: "hocket memory forum.pt2 -n 2 --policy deferred-free", prints: []string{"peak        1.2 GiB"}},
		{command: "hocket memory plain.pt2 --shard 'layers.*=rowwise' -n 2", prints: []string{"peak"}},
	}
}

// TestSourcesPage runs the commands of docs/sources.md on the documents. The test runs each command in the page that
// begins with hocket and has operands. The numbers in its output must be those in the page.
func TestSourcesPage(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	documents := filepath.Join(root, "..", "shared", "sources")
	if _, err := os.Stat(documents); err != nil {
		t.Skip("the documents are not next to the repository")
	}
	read := func(path ...string) string {
		text, err := os.ReadFile(filepath.Join(path...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read(root, "docs", "sources.md")
	t.Chdir(t.TempDir())
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range regexp.MustCompile("(?s)`(\\w+\\.hkt)` [^`]*(?:`\\w+` [^`]*)?:\n\n```\n(dim .*?)```").FindAllStringSubmatch(page,
		-1) {
		write(m[1], m[2])
	}
	if err := os.Symlink(filepath.Join(root, "examples"), "examples"); err != nil {
		t.Fatal(err)
	}
	cache := read(documents, fmt.Sprintf(nvfuserPage, "4466-allocation-cache"))
	_, dump, _ := strings.Cut(cache, "%HostIrContainer {")
	dump, _, _ = strings.Cut(dump, "} // %HostIrContainer")
	log := "collected 1 item\n"
	for line := range strings.Lines("%HostIrContainer {" + strings.ReplaceAll(dump, "\n    ", "\n") + "} // %HostIrContainer\n") {
		log += "[1,0]<stdout>:" + line + "[1,1]<stdout>:" + line
	}
	write("job.log", log+"[1,0]<stdout>:PASSED\n")
	loops := read(documents, fmt.Sprintf(nvfuserPage, "5751-stream-parallelize-loops"))
	at := strings.Index(loops, "Time (%)")
	write("sums.txt", loops[at:at+strings.Index(loops[at:], "Previous comment")])
	at = strings.Index(loops, "\nConfig 1\n")
	write("rows.txt", loops[at:at+strings.Index(loops[at:], "\nConfig 2\n")])
	snapshot := read(documents, "..", "corpus", "memory", "forum-record-stream.rank0.pickle.gz")
	write("SNAPSHOT.pickle", snapshot)
	write("forum.pt2", read(forumArchive(t, 8, 4096, 8192, true)))
	write("plain.pt2", read(forumArchive(t, 8, 4096, 8192, false)))

	shown := map[string]bool{}
	for _, c := range claims() {
		shown[c.command] = true
		if !strings.Contains(page, "`"+c.command+"`") && c.more == "" {
			t.Errorf("the page has no command %s", c.command)
		}
		if c.page != "" {
			write("PAGE.txt", read(documents, c.page))
		}
		line := strings.ReplaceAll(strings.TrimPrefix(c.command, "hocket "), "'", "")
		out, errs, code := hocketHere(append(strings.Fields(line), strings.Fields(c.more)...)...)
		if code == 0 && c.code == exitMachine {
			continue // there are GPUs
		}
		if code != c.code {
			t.Errorf("%s %s: exit code %d, want %d\n%s%s", c.command, c.page, code, c.code, out, errs)
		}
		for _, want := range c.prints {
			claimed := strings.Trim(want, `"`)
			if claimed != want && !strings.Contains(page, claimed) {
				t.Errorf("the page does not say %q", claimed)
			}
			if !strings.Contains(out+errs, claimed) {
				t.Errorf("%s %s: want %q in\n%s%s", c.command, c.page, claimed, out, errs)
			}
		}
	}
	for _, m := range regexp.MustCompile("`(hocket [a-z]+ [^`]+)`").FindAllStringSubmatch(page, -1) {
		if command := m[1]; !shown[command] && !strings.HasPrefix(command, "hocket launch ") { // testdata/script/launch.txtar
			t.Errorf("the test does not run %s", command)
		}
	}
}
