package hocket_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/golden"
)

// block is a fenced block that begins with a command.
var block = regexp.MustCompile("(?s)\n```\n(\\$ .*?)```\n")

// TestDocuments runs the commands of the documents, which stand above what they print: a block
// that begins with "$ COMMAND" shows what its commands print, one after the other. Where times
// were measured everything else is compared. -update rewrites the documents.
func TestDocuments(t *testing.T) {
	hk := buildCommand(t)
	for _, file := range []string{"README.md", "ARCHITECTURE.md", "docs/tutorial.md", "docs/trace.md"} {
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
	for _, name := range []string{"examples", "internal"} {
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
