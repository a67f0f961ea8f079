package hocket_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/golden"
)

// block matches a fenced block of a page that begins with a command.
var block = regexp.MustCompile("(?s)\n```\n(\\$ .*?)```\n")

// quoted matches a fenced block that quotes a file, of Go or Python.
var quoted = regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```([a-z]+)\n(.*?)```\n")

// TestDocuments runs the commands of the pages and compares their output with the pages: a block that begins with "$
// COMMAND" shows each command and, below it, its output. Measured times are not compared. -update rewrites the pages.
func TestDocuments(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs every command of the documents")
	}
	hk := buildCommand(t)
	for _, file := range []string{"README.md", "ARCHITECTURE.md", "docs/tutorial.md", "docs/trace.md", "docs/hangs.md",
		"docs/commands.md", "docs/collectives.md", "docs/training.md", "docs/stablehlo.md", "docs/schedules.md",
		"docs/start-model.md",
		"docs/pytorch.md", "docs/memory.md", "docs/start-all-reduce.md", "docs/start-profile.md",
		"docs/start-schedule.md", "docs/start-server.md", "docs/step.md"} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			shell := newShell(t, hk)
			n := 0
			out := block.ReplaceAllStringFunc(string(text), func(s string) string {
				n++
				shown := block.FindStringSubmatch(s)[1]
				is := shell.transcript(t, shown)
				same := shown == is
				if timed := strings.Contains(shown, "$ hocket run"); timed {
					same = untimed(shown) == untimed(is)
				}
				if same {
					return s
				}
				if !golden.Update() {
					t.Errorf("the document shows\n%s\nbut it is\n%s(go test . -run Documents -update)", shown, is)
				}
				return "\n```\n" + is + "```\n"
			})
			out = quoted.ReplaceAllStringFunc(out, func(s string) string {
				n++
				m := quoted.FindStringSubmatch(s)
				is, err := os.ReadFile(m[1])
				if err != nil {
					t.Fatal(err)
				}
				if m[3] != string(is) && !golden.Update() {
					t.Errorf("the document shows %s, and the file is another (go test . -run Documents -update)", m[1])
				}
				return "<!-- file: " + m[1] + " -->\n```" + m[2] + "\n" + string(is) + "```\n"
			})
			if n == 0 {
				t.Fatal("no blocks of real output, and no file")
			}
			if golden.Update() && out != string(text) {
				if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// buildCommand builds the command line.
func buildCommand(t *testing.T) string {
	t.Helper()
	hk := filepath.Join(t.TempDir(), "hocket")
	if out, err := exec.Command("go", "build", "-o", hk, "./cmd/hocket").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return hk
}

var (
	// drawn matches a line of a timeline, the scale above the timeline, and the legend below it.
	drawn = regexp.MustCompile(`(?m)^.*[│┌┬┐].*\n|^ +[nµm]?s +\d.*\n|^. [a-z_+]+   .*\n`)
	// measured matches a time, or a percentage of a time.
	measured = regexp.MustCompile(`\d[\d.]* ?([nµm]?s\b|%)`)
)

// untimed replaces the times in s, and removes timelines, because they differ from run to run.
func untimed(s string) string {
	return measured.ReplaceAllString(drawn.ReplaceAllString(s, ""), "T")
}

// shell runs the commands of a document in a folder of its own that has the repository's
// examples, with hocket on its path.
type shell struct {
	dir string
	env []string
}

func newShell(t *testing.T, hk string) *shell {
	t.Helper()
	s := &shell{dir: t.TempDir()}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"examples", "internal", "testdata"} {
		if err := os.Symlink(filepath.Join(here, name), filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.env = append(os.Environ(), "PATH="+filepath.Dir(hk)+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"HOCKET_CACHE="+t.TempDir()) // no table of this machine
	return s
}

// transcript runs the commands of a block and returns the block as it should be.
func (s *shell) transcript(t *testing.T, block string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(block) {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		c := exec.Command("sh", "-c", strings.TrimSuffix(command, "\n"))
		c.Dir, c.Env = s.dir, s.env
		out, err := c.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s%s", line, out)
	}
	return b.String()
}

func parseFile(t *testing.T, file string) *hocket.Program {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := hocket.Parse(file, string(src))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestReadme checks that the README is short, and that its first two sh blocks are commands that .ci/run executes.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 8<<10 {
		t.Errorf("README.md has %d bytes; more than 8 KiB are too long to read first", len(text))
	}
	commands := regexp.MustCompile("(?m)^```sh\n(.*)\n").FindAllStringSubmatch(string(text), -1)
	if len(commands) < 2 || !strings.HasPrefix(commands[0][1], "go run ./cmd/hocket run ") ||
		commands[1][1] != "go test ./..." {
		t.Errorf("the commands are %q", commands)
	}
}

// TestPicture checks that the command below the README's picture draws that picture. -update redraws it.
func TestPicture(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("`(hocket opt .* --svg) docs/overlap.svg`").FindSubmatch(text)
	if m == nil {
		t.Fatal("README.md does not say how its picture is drawn")
	}
	shell := newShell(t, buildCommand(t))
	shell.transcript(t, "$ "+string(m[1])+" overlap.svg\n")
	got, err := os.ReadFile(filepath.Join(shell.dir, "overlap.svg"))
	if err != nil {
		t.Fatal(err)
	}
	golden.File(t, filepath.Join("docs", "overlap.svg"), string(got))
}

// TestEvidence checks that the README contains each claim of docs/evidence.md, that the tests and files that support
// the claim exist, and that the numbers in the README's table equal the measured data.
func TestEvidence(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	plain := func(s string) string {
		return strings.Join(strings.Fields(strings.NewReplacer("**", "", "*", "").Replace(s)), " ")
	}
	readme := plain(read("README.md"))
	tests := testNames(t)
	rows := 0
	for line := range strings.Lines(read("docs/evidence.md")) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "claim" {
			continue
		}
		rows++
		if claim := plain(cells[1]); !strings.Contains(readme, claim) {
			t.Errorf("the README does not claim %q", claim)
		}
		for _, name := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(cells[2], -1) {
			if len(tests[name[1]]) == 0 {
				t.Errorf("there is no test %s", name[1])
			}
		}
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(cells[2], -1) {
			if _, err := os.Stat(filepath.Join("docs", link[1])); err != nil {
				t.Error(err)
			}
		}
	}
	if rows < 10 {
		t.Errorf("only %d claims have evidence", rows)
	}
	layers, collectives := read("docs/measured/layers.md"), read("docs/measured/collectives.md")
	for _, x := range []struct {
		page, row     string // file of the page; beginning of the row in it
		readme        string // beginning of the row in the README's table
		wants, digits int    // number of values in the row, and of digits after the decimal point
	}{
		{layers, "| ag-gemm | 8192 | 8192 | 28672 | 4 | eager |", "| all-gather, then GEMM 8192×8192×28672 |", 3, 0},
		{layers, "| gemm-rs | 8192 | 8192 | 28672 | 4 | eager |", "| GEMM, then reduce-scatter 8192×8192×28672 |", 3,
			0},
		{layers, "| gemm-ar | 8192 | 8192 | 28672 | 4 | eager |", "| GEMM, then all-reduce 8192×8192×28672 |", 3, 0},
		{collectives, "| all_reduce | bf16 | 4 | 64 KiB | graph |", "| all-reduce of 64 KiB, by graph |", 3, 1},
		{collectives, "| all_reduce | bf16 | 4 | 64 MiB | graph |", "| all-reduce of 64 MiB, by graph |", 3, 0},
	} {
		shown := lineOf(t, strings.ReplaceAll(read("README.md"), "**", ""), x.readme)
		measured := map[string]bool{}
		for _, n := range regexp.MustCompile(`\d+\.?\d*`).FindAllString(lineOf(t,
			x.page[strings.Index(x.page, "## 4xH200"):], x.row), -1) {
			v, err := strconv.ParseFloat(n, 64)
			if err != nil {
				t.Fatal(err)
			}
			measured[strconv.FormatFloat(v, 'f', x.digits, 64)] = true
		}
		numbers := regexp.MustCompile(`\d+\.?\d*`).FindAllString(shown, -1)
		if len(numbers) != x.wants {
			t.Errorf("%s has the numbers %v, want %d", x.readme, numbers, x.wants)
		}
		for _, n := range numbers {
			if !measured[n] {
				t.Errorf("%s: %s is not what was measured", x.readme, n)
			}
		}
	}
}

// TestOperations checks that the tests that docs/operations.md names exist in the folders that it names, and that every
// fault in the page's last table has a test.
func TestOperations(t *testing.T) {
	text, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	// check checks that the tests that a text names exist, and returns their number. A folder in the text applies to
	// all test names before it.
	check := func(text string) int {
		var names []string
		found := 0
		for _, word := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatchIndex(text, -1) {
			name := text[word[2]:word[3]]
			switch {
			case strings.HasPrefix(name, "Test"):
				if names = append(names, name); len(tests[name]) == 0 {
					t.Errorf("there is no test %s", name)
				}
				found++
			case strings.HasPrefix(name, "testdata/script/"):
				if _, err := os.Stat(filepath.Join("cmd/hocket", name)); err != nil {
					t.Error(err)
				}
				found++
			case strings.HasSuffix(text[:word[0]], " in "):
				for _, of := range names {
					if !slices.Contains(tests[of], name) {
						t.Errorf("test %s is not in %s, but in %q", of, name, tests[of])
					}
				}
				names = nil
			}
		}
		return found
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|") // the first and the last cell are empty
		if len(cells) != 7 || cells[1] == "---" || cells[1] == " fault " {
			continue
		}
		if rows++; check(cells[5]) == 0 {
			t.Errorf("no test covers the fault%s", cells[1])
		}
	}
	if rows < 15 {
		t.Errorf("only %d faults have a test", rows)
	}
	_, prose, _ := strings.Cut(string(text), "\nTests: ")
	prose, _, _ = strings.Cut(prose, "\n\n")
	if check(strings.Join(strings.Fields(prose), " ")) < 10 {
		t.Errorf("of faults between processes only few tests are named: %q", prose)
	}
}

// lineOf returns what follows the start of a row in it.
func lineOf(t *testing.T, text, start string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, start)
	if !ok {
		t.Fatalf("there is no row %q", start)
	}
	row, _, _ := strings.Cut(rest, "\n")
	return row
}

// testNames returns the tests of the repository, each with the folders that contain it.
func testNames(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
			names[string(m[1])] = append(names[string(m[1])], filepath.ToSlash(filepath.Dir(path)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
