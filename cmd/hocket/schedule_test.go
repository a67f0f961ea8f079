package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/terminal"
	"hocket.example/hocket/internal/testcorpus"
)

// pairOf writes a file with an algorithm of MSCCL that uses the given protocol, and returns the file's name.
func pairOf(t *testing.T, proto string) string {
	t.Helper()
	text, err := os.ReadFile("../../internal/schedule/testdata/pair.xml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pair.xml")
	text = bytes.Replace(text, []byte(`proto="Simple"`), []byte(`proto="`+proto+`"`), 1)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// exchangeWithout writes a copy of the example schedule in which the text old is replaced by new, and returns the
// file's name.
func exchangeWithout(t *testing.T, old, new string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/schedules/exchange.json")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), old, new, 1)
	if changed == string(text) {
		t.Fatalf("the example has no %q", old)
	}
	path := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(path, []byte(changed), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// hocketRun runs one command line and returns its exit code and what it prints.
func hocketRun(t *testing.T, words ...string) (code int, out, errs string) {
	t.Helper()
	a, stdout, stderr := testApp(strings.NewReader(""))
	a.progress, a.json = terminal.NewProgress(nil), wantsJSON(words)
	if a.json {
		a.text = io.Discard
	}
	err := a.execute(t.Context(), words)
	return a.finish(t.Context(), err), stdout.String(), stderr.String()
}

// TestCheckSchedule checks the exit code, the verdict and the reported position for collective schedules, and that a
// repaired schedule is written and proved.
func TestCheckSchedule(t *testing.T) {
	const nop, signal = `"name": "nop"`, `"name": "signal"`
	race := exchangeWithout(t, nop, `"name": "copy", "src_buff": [{"type":"s","index":0,"size":1}], "dst_buff": [{"type":"s","index":0,"size":1}]`)
	for _, c := range []struct {
		path    string
		code    int
		verdict string
		says    string
	}{
		{"../../examples/schedules/exchange.json", exitDone, "ok", ""},
		{race, exitProgram, "race", "rank 0, tb 0, op 1 (copy)"},
		{exchangeWithout(t, signal, `"name": "wait"`), exitProgram, "deadlock", "waits for ever"},
		{exchangeWithout(t, `"name": "re"`, `"name": "xyz"`), exitUsage, "",
			`rank 0, tb 0, op 5 (xyz): unknown operation "xyz": the known ones are barrier, copy, `},
		{exchangeWithout(t, `"gpus"`, `"gpu"`), exitUsage, "", `unknown key "gpu"`},
		{exchangeWithout(t, `"reuse_resources"`, `"reuse_resurces"`), exitUsage, "", `unknown key "reuse_resurces"`},
		{exchangeWithout(t, `"src_buff"`, `"src_buf"`), exitUsage, "", `unknown key "src_buf"`},
		{exchangeWithout(t, `"allreduce"`, `"alreduce"`), exitUsage, "",
			`unknown collective "alreduce": the known ones are allgather, `},
		{exchangeWithout(t, `"allreduce"`, `"custom"`), exitDone, "ok", ""},
		{exchangeWithout(t, `"Simple"`, `"Simpel"`), exitDone, "ok", `unknown protocol "Simpel"`},
		{pairOf(t, "Fancy"), exitUsage, "", `unknown proto "Fancy": the known ones are Simple, LL and LL128`},
		{exchangeWithout(t, `{`, `[`), exitUsage, "", "execution plan"},
	} {
		code, out, _ := hocketRun(t, "check", "--json", c.path)
		var got struct {
			Verdict     string
			Diagnostics []diagnostic
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err, out)
		}
		if code != c.code || got.Verdict != c.verdict || !strings.Contains(out, strings.ReplaceAll(c.says, `"`, `\"`)) {
			t.Errorf("exit %d, verdict %q, want %d, %q, %q\n%s", code, got.Verdict, c.code, c.verdict, c.says, out)
		}
	}
	fixed := filepath.Join(t.TempDir(), "fixed.json")
	broken := exchangeWithout(t, "{\n       \"name\": \"nop\"\n      },\n", "")
	if code, out, _ := hocketRun(t, "check", broken); code != exitProgram {
		t.Fatal(code, out)
	}
	if code, out, errs := hocketRun(t, "check", broken, "--fix", "-o", fixed); code != exitDone ||
		!strings.Contains(errs, "repaired: rank 0, tb 0, before op 1: nop") {
		t.Error(code, out, errs)
	}
	if code, out, _ := hocketRun(t, "check", fixed, "--redundant"); code != exitDone ||
		!strings.Contains(out, "2 of 16 tried synchronizations") {
		t.Error(code, out)
	}
	if code, out, errs := hocketRun(t, "run", fixed, "--schedules", "30"); code != exitDone ||
		!strings.Contains(out, "30 random interleavings from seed 0 on, equal to plain arithmetic\n") {
		t.Error(code, out, errs)
	}
	for _, words := range [][]string{{"check", fixed, "--dim", "T=1"}, {"check", fixed, "--launches", "3"},
		{"run", fixed, "--save", "x"}, {"check", fixed, "-o", "x"}, {"check", fixed, "--max-time", "1ns"},
		{"check", fixed, "--fix", "--redundant"},
		{"import", fixed, "--dim", "T=1"}, {"import", fixed, "-n", "2"}} {
		if code, _, errs := hocketRun(t, words...); code != exitUsage {
			t.Error(words, code, errs)
		}
	}
}

// TestRefutedSchedule checks that hocket check prints every finding with the state of its thread blocks before the
// warnings, and limits the number of both. hocket run --no-prove must report that nothing was proved, and name the seed
// that repeats a wrong result.
func TestRefutedSchedule(t *testing.T) {
	hasty := exchangeWithout(t, `"name": "wait"`, `"name": "nop"`)
	code, out, errs := hocketRun(t, "check", hasty, "--launches", "1")
	if code != exitProgram || strings.Count(errs, ": error: ") != 2 ||
		strings.LastIndex(errs, ": error: ") > strings.Index(errs, ": warning: ") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	for _, says := range []string{"rank 1, tb 0 has completed no operation, and a thread of it is at op 0 (put), the first access",
		"rank 0, tb 0 has completed ops 0 to 4, and a thread of it is at op 6 (put), the second access"} {
		if !strings.Contains(errs, says) {
			t.Errorf("%s\nwant %s", errs, says)
		}
	}
	_, out, _ = hocketRun(t, "check", "--json", hasty, "--launches", "1")
	var got struct {
		Schedule struct {
			Findings []struct {
				Counterexample []struct {
					Rank, Completed, Op int
					Access              string
				}
			}
			Warnings []struct{ Kind string }
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if list := got.Schedule.Findings[0].Counterexample; len(list) != 2 || list[1].Completed != 5 || list[1].Op != 6 ||
		list[1].Access != "second" {
		t.Error(out)
	}
	if list := got.Schedule.Warnings; list[len(list)-1].Kind != "left" {
		t.Error(out)
	}
	code, out, _ = hocketRun(t, "run", hasty, "--no-prove")
	if code != exitDone || !strings.Contains(out, "1 random interleaving from seed 0 on") ||
		!strings.Contains(out, "nothing was proved") {
		t.Errorf("exit %d, %s", code, out)
	}
	code, _, errs = hocketRun(t, "run", hasty, "--no-prove", "--schedules", "300")
	_, again, found := strings.Cut(errs, "this repeats it: hocket ")
	if code != exitHocket || !found || !strings.Contains(errs, " of 300: ") {
		t.Fatalf("exit %d, %s", code, errs)
	}
	code, _, repeated := hocketRun(t, strings.Fields(again)...)
	_, want, _ := strings.Cut(errs, " of 300: ")
	if _, is, _ := strings.Cut(repeated, " of 1: "); code != exitHocket || is != want {
		t.Errorf("exit %d, %s, want %s", code, repeated, want)
	}
	code, out, _ = hocketRun(t, "check", "../../examples/schedules/exchange.json", "--redundant", "--max-time", "1ns")
	if code != exitDone || !strings.Contains(out, "the schedule has 16 synchronizations") {
		t.Errorf("exit %d, %s", code, out)
	}
	many := testcorpus.Need(t, "schedules") + "/plans/sn_allgather_ring_n8.json"
	if code, _, errs := hocketRun(t, "check", many, "--launches", "1"); code != exitDone ||
		strings.Count(errs, ": warning: ") != 5 ||
		!strings.Contains(errs, "and 60 more warnings: --json lists all") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// TestScheduleCertificate runs a schedule with its certificate. A certificate that does not prove the schedule must be
// refused, with the cause.
func TestScheduleCertificate(t *testing.T) {
	const schedule = "../../examples/schedules/exchange.json"
	file := filepath.Join(t.TempDir(), "exchange.cert")
	if code, _, errs := hocketRun(t, "check", schedule, "--certificate", file); code != exitDone {
		t.Fatal(errs)
	}
	if code, _, errs := hocketRun(t, "run", schedule, "--certificate", file); code != exitDone {
		t.Error(errs)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := exchangeWithout(t, `"name": "nop"`,
		`"name": "copy", "src_buff": [{"type":"s","index":0,"size":1}], "dst_buff": [{"type":"s","index":0,"size":1}]`)
	for _, c := range []struct{ schedule, certificate, says string }{
		{other, string(text), "is for another plan: its digest begins with "},
		{schedule, "", "end of JSON input"},
		{schedule, string(text[:99]), "byte 99 of 99: unexpected end of JSON input"},
		{schedule, strings.Repeat("[", 1<<20), "exceeded max depth"},
		{schedule, strings.Replace(string(text), `"order":[[0,`, `"order":[[-1,`, 1), "chain -1"},
		{schedule, strings.Replace(string(text), `{"format"`, `{"plan":"","format"`, 1),
			"not in the form of a certificate"},
	} {
		if err := os.WriteFile(file, []byte(c.certificate), 0o644); err != nil {
			t.Fatal(err)
		}
		code, _, errs := hocketRun(t, "run", c.schedule, "--certificate", file)
		if code != exitProgram || !strings.Contains(errs, file+" is rejected: ") || !strings.Contains(errs, c.says) {
			t.Errorf("%.40q: exit %d, %q, want %q", c.certificate, code, errs, c.says)
		}
	}
}

// TestRunScheduleCompare checks that run --compare adds the verdict to the output for a schedule, as it does for
// programs.
func TestRunScheduleCompare(t *testing.T) {
	schedule := "../../examples/schedules/exchange.json"
	if code, out, errs := hocketRun(t, "run", schedule); code != exitDone || strings.Contains(out, "result:") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	code, out, errs := hocketRun(t, "run", schedule, "--compare")
	if code != exitDone || !strings.HasSuffix(out, "\nresult: equal to all_reduce, exactly\n") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	code, out, _ = hocketRun(t, "run", schedule, "--compare", "--json")
	var got struct {
		Compare struct{ Verdict, Against string }
	}
	err := json.Unmarshal([]byte(out), &got)
	if err != nil || code != exitDone || got.Compare.Verdict != "exact" || got.Compare.Against != "all_reduce" {
		t.Errorf("exit %d, %v, %s", code, err, out)
	}
}

// TestLaunchesOfSchedules checks that hocket check by default proves a schedule for any number of launches. If a
// schedule is correct for a single launch only, the line of its verdict must say so.
func TestLaunchesOfSchedules(t *testing.T) {
	const double = "../../internal/schedule/testdata/double_broadcast.json"
	// If the last wait is missing, a kernel ends while its peer still writes the output.
	text, err := os.ReadFile("../../examples/schedules/exchange.json")
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.LastIndex(text, []byte(`"name": "wait"`))
	early := filepath.Join(t.TempDir(), "early.json")
	text = append(text[:i:i], bytes.Replace(text[i:], []byte(`"wait"`), []byte(`"nop"`), 1)...)
	if err := os.WriteFile(early, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words []string
		code  int
		says  string
	}{
		{[]string{"check", "../../examples/schedules/exchange.json"}, exitDone,
			"ok: exchange on 2 ranks, any number of launches: all_reduce in every interleaving\n"},
		{[]string{"check", double}, exitProgram, "race: bc_double on 2 ranks, any number of launches: refuted\n"},
		{[]string{"check", double, "--launches", "1"}, exitDone,
			"ok: bc_double on 2 ranks, one launch: broadcast in every interleaving\n"},
		{[]string{"check", early}, exitProgram, "race: exchange on 2 ranks, any number of launches: refuted\n"},
		{[]string{"check", early, "--launches", "1"}, exitDone,
			"ok: exchange on 2 ranks, one launch: all_reduce in every interleaving that begins and ends on all ranks at once\n"},
	} {
		if code, out, errs := hocketRun(t, c.words...); code != c.code || out != c.says {
			t.Errorf("%s: exit %d, %s%s", c.words, code, out, errs)
		}
	}
	// hocket run and hocket import prove one launch, and warn if several launches are not proved.
	for _, words := range [][]string{{"run", double}, {"import", double, "-o", filepath.Join(t.TempDir(), "d.hkt")}} {
		code, _, errs := hocketRun(t, words...)
		const says = "warning: one launch is proved, but launches after each other are not: race: rank "
		if code != exitDone || !strings.Contains(errs, says) {
			t.Errorf("%s: exit %d, %s, want %s", words, code, errs, says)
		}
	}
	if _, _, errs := hocketRun(t, "run", "../../examples/schedules/exchange.json"); errs != "" {
		t.Error(errs)
	}
	empty := filepath.Join(t.TempDir(), "empty.xml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := hocketRun(t, "check", empty); code != exitUsage ||
		!strings.Contains(errs, "algorithm of MSCCL, line 1: the text is empty") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// TestScheduleByContent: check, run and import recognize a schedule by its content if the suffix is not that of a
// schedule, and ignore the byte order mark that some editors write.
func TestScheduleByContent(t *testing.T) {
	dir := t.TempDir()
	for name, file := range map[string]string{"plan": "../../examples/schedules/exchange.json",
		"plan.JSON":   "../../examples/schedules/exchange.json",
		"plan.txt":    "../../internal/schedule/testdata/pair.xml",
		"marked.json": "../../examples/schedules/exchange.json"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if name == "marked.json" {
			text = append([]byte("\xef\xbb\xbf"), text...)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, words := range [][]string{{"check", path}, {"run", path},
			{"import", path, "-o", filepath.Join(dir, "p.hkt")}} {
			if code, _, errs := hocketRun(t, words...); code != exitDone {
				t.Errorf("%s: exit %d, %s", words, code, errs)
			}
		}
	}
}

// TestEndedScheduleRun checks that a run of a schedule that is interrupted, or exceeds --timeout, fails like that of a
// program. A single interleaving of a small schedule is too short to check its context.
func TestEndedScheduleRun(t *testing.T) {
	const schedule = "../../examples/schedules/exchange.json"
	code, out, errs := hocketRun(t, "run", schedule, "--schedules", "1000000000", "--timeout", "1ns")
	if code != exitMachine || out != "" ||
		!strings.Contains(errs, "the command did not end within 1ns: it was running interleavings") {
		t.Errorf("--timeout: exit %d, %s%s", code, out, errs)
	}
	a, stdout, stderr := testApp(strings.NewReader(""))
	a.progress = terminal.NewProgress(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code = a.finish(ctx, a.execute(ctx, []string{"run", schedule, "--schedules", "1000000000"}))
	if code != exitInterrupted || stdout.String() != "" || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("interrupted: exit %d, %s%s", code, stdout, stderr)
	}
}

// TestImportCorpus imports the schedules of the corpus. If a schedule is proved, its program must be proved and compute
// the collective; otherwise the import must be refused, or the program refuted or wrong. One schedule reads scratch
// memory that is never written, so it has no defined result.
func TestImportCorpus(t *testing.T) {
	dir := testcorpus.Need(t, "schedules")
	var files []string
	for _, pattern := range []string{"plans/*.json", "xml/*.xml"} {
		list, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, list...)
	}
	program, computed, rejected := filepath.Join(t.TempDir(), "program.hkt"), 0, 0
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Size() > int64(longtest.Of(12<<10, 1<<30)) {
			continue
		}
		proved, _, _ := hocketRun(t, "check", file, "--launches", "1") // programs wait for all ranks at both ends
		failed := ""
		for _, words := range [][]string{{"import", file, "-o", program}, {"check", program},
			{"run", program, "--compare"}} {
			if text, err := os.ReadFile(program); words[0] == "run" &&
				(err != nil || !strings.Contains(string(text), "refines")) {
				words = words[:2]
			}
			if code, _, errs := hocketRun(t, words...); code != exitDone {
				failed = fmt.Sprintf("%s: exit %d, %s", words[0], code, errs)
				break
			}
		}
		switch name := filepath.Base(file); {
		case (failed == "") != (proved == exitDone) && name != "ut_switch_broadcast_test.json":
			t.Errorf("%s: check ends with %d, its program: %s", name, proved, cmp.Or(failed, "right"))
		case failed == "":
			computed++
		default:
			rejected++
		}
	}
	t.Logf("%d right, %d rejected", computed, rejected)
	if computed < 20 || rejected < 5 {
		t.Errorf("%d right, %d rejected", computed, rejected)
	}
}

// TestImportSchedule checks that the program of an imported schedule is proved and computes the collective. Operations
// that programs cannot express must be refused with their position.
func TestImportSchedule(t *testing.T) {
	program := filepath.Join(t.TempDir(), "exchange.hkt")
	for _, schedule := range []string{"../../examples/schedules/exchange.json",
		"../../internal/schedule/testdata/pair.xml"} {
		for _, words := range [][]string{{"import", schedule, "-o", program}, {"check", program},
			{"run", program, "--compare"}} {
			if code, _, errs := hocketRun(t, words...); code != exitDone {
				t.Errorf("%s: exit %d, %s", words, code, errs)
			}
		}
	}
	code, _, errs := hocketRun(t, "import", "../../internal/schedule/testdata/shared_port.json")
	if code != exitProgram || !strings.Contains(errs,
		"rank 0, tb 1, op 0 (put): blocks 0 and 1 both use port channel 0") {
		t.Errorf("exit %d, %s", code, errs)
	}
	alone := exchangeWithout(t, `"name": "nop"`, `"name": "barrier", "barrier_id": 0, "num_threadblocks": 2`)
	code, _, errs = hocketRun(t, "import", alone)
	if code != exitProgram ||
		!strings.Contains(errs, "op 1 (barrier): the barrier is for 2 blocks, but the number of blocks that use it is 1, so it never ends") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// TestFixDropsComments checks that --fix says that the comments of an algorithm in XML are not written, but only if it
// has comments.
func TestFixDropsComments(t *testing.T) {
	for _, comment := range []string{"", "<!-- by hand -->"} {
		path := pairOf(t, "Simple")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.Replace(text, []byte(`hasdep="1"/>`), []byte(`hasdep="0"/>`+comment), 1)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := hocketRun(t, "check", path, "--fix")
		if code != exitDone || strings.Contains(errs, "comments of the file are not written") != (comment != "") ||
			strings.Contains(out, "by hand") || !strings.Contains(out, `hasdep="1"/>`) {
			t.Errorf("%q: %d\n%s%s", comment, code, out, errs)
		}
	}
}
