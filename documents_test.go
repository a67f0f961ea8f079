package hocket_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/golden"
)

// block is a marker comment with the fenced block behind it.
var block = regexp.MustCompile("(?s)<!-- ([a-z]+):? ?(.*?) -->\n```\n(.*?)```\n")

// TestDocuments holds the real output in the documents to what the programs
// print. Where times were measured everything else of it is compared.
func TestDocuments(t *testing.T) {
	hk := buildCommand(t)
	for _, file := range []string{"README.md", "ARCHITECTURE.md", "docs/tutorial.md", "docs/trace.md"} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			out := block.ReplaceAllStringFunc(string(text), func(s string) string {
				n++
				m := block.FindStringSubmatch(s)
				got, timed := document(t, hk, m[1], m[2])
				shown, is := m[3], got
				if timed {
					shown, is = untimed(shown), untimed(is)
				}
				if shown != is && !golden.Update() {
					t.Errorf("<!-- %s: %s -->: the document shows\n%s\nbut it is\n%s(go test . -run Documents -update)",
						m[1], m[2], shown, is)
				}
				if timed && !golden.Update() {
					got = m[3]
				}
				return strings.Replace(s, "```\n"+m[3]+"```\n", "```\n"+got+"```\n", 1)
			})
			if n == 0 {
				t.Fatal("no blocks of real output")
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
	// drawn is a line of a timeline, with its marks above and the letters below it.
	drawn = regexp.MustCompile(`(?m)^.*[│┌┬┐].*\n|^ +[nµm]?s +\d.*\n|^. [a-z_+]+   .*\n`)
	// measured is a time, or a share of one.
	measured = regexp.MustCompile(`\d[\d.]* ?([nµm]?s\b|%)`)
)

// untimed leaves out what differs from run to run.
func untimed(s string) string {
	return measured.ReplaceAllString(drawn.ReplaceAllString(s, ""), "T")
}

// document makes the text of one block; timed says that it differs from run to run.
func document(t *testing.T, hk, kind, arg string) (text string, timed bool) {
	t.Helper()
	switch kind {
	case "file":
		b, err := os.ReadFile(arg)
		if err != nil {
			t.Fatal(err)
		}
		return string(b), false
	case "stage":
		pass, file, _ := strings.Cut(arg, " ")
		return stage(t, pass, file), false
	case "lowered":
		strategy, file, _ := strings.Cut(arg, " ")
		return lowered(t, strategy, file), false
	case "plan":
		return planText(t, strings.Fields(arg)), false
	case "run":
		args := strings.Fields(arg)
		return command(t, hk, true, args...), args[0] == "run"
	case "mutant":
		return mutant(t, hk), true
	}
	t.Fatalf("unknown block %q", kind)
	return "", false
}

func stage(t *testing.T, pass, file string) string {
	t.Helper()
	l, err := parseFile(t, file).Lower(hocket.LowerOptions{StopAfter: pass})
	if err != nil {
		t.Fatal(err)
	}
	return l.Program.String()
}

func lowered(t *testing.T, strategy, file string) string {
	t.Helper()
	l, err := parseFile(t, file).Lower(hocket.LowerOptions{Strategy: strategy})
	if err != nil {
		t.Fatal(err)
	}
	return l.Program.String()
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

// planText plans a file: "FILE DIM=N … ranks=N"; a mesh of a fixed size is rewritten.
func planText(t *testing.T, words []string) string {
	t.Helper()
	src, err := os.ReadFile(words[0])
	if err != nil {
		t.Fatal(err)
	}
	b := hocket.Binding{Dims: map[string]int64{}}
	text := string(src)
	for _, w := range words[1:] {
		name, val, _ := strings.Cut(w, "=")
		n, err := strconv.ParseInt(val, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if name == "ranks" {
			text = strings.Replace(text, "mesh tp[4]", fmt.Sprintf("mesh tp[%d]", n), 1)
		} else {
			b.Dims[name] = n
		}
	}
	p, err := hocket.Parse(words[0], text)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(context.Background(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model, err := m.Load(p, b, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := model.Plan(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// command runs the command line and returns what it prints; ok says whether it
// must succeed.
func command(t *testing.T, hk string, ok bool, args ...string) string {
	t.Helper()
	c := exec.Command(hk, args...)
	c.Env = append(os.Environ(), "HOCKET_CACHE="+t.TempDir()) // no table of this machine
	out, err := c.CombinedOutput()
	if (err == nil) != ok {
		t.Fatalf("hocket %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimPrefix(string(out), "\n")
}

// mutant removes the wait that keeps workers behind the caller's upload.
func mutant(t *testing.T, hk string) string {
	t.Helper()
	src, err := os.ReadFile("examples/row_parallel_chunked.hkt")
	if err != nil {
		t.Fatal(err)
	}
	wait := regexp.MustCompile(`(?m)^.*on %s\[%j\] \{ wait main \}.*\n`)
	if !wait.Match(src) {
		t.Fatal("the example has no wait to remove")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mutant.hkt"), wait.ReplaceAll(src, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	out := command(t, hk, false, "check", filepath.Join(dir, "mutant.hkt")) +
		"$ hocket run --no-prove --compare --schedules 20 mutant.hkt\n" +
		command(t, hk, false, "run", "--no-prove", "--compare", "--schedules", "20", filepath.Join(dir, "mutant.hkt"))
	out = strings.ReplaceAll(out, dir+string(filepath.Separator), "")
	return "$ sed '/wait main/d' examples/row_parallel_chunked.hkt > mutant.hkt\n$ hocket check mutant.hkt\n" + out
}
