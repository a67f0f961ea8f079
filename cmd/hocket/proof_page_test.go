package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hocket.example/hocket/internal/golden"
)

var (
	pageProgram = regexp.MustCompile("(?s)<!-- program: ([a-z]+\\.hkt) -->\n```\n(.*?)```\n")
	pageEdited  = regexp.MustCompile(`<!-- program: ([a-z]+\.hkt) = (\S+) (without|with) "([^"]+)"(?: as "([^"]+)")? -->`)
	pageCommand = regexp.MustCompile("(?s)```\n\\$ hocket ([^\n]*)\n.*?```\n")
)

// TestProofPage runs the commands in docs/proof.md on the programs in that page, and compares their output with the
// page. -update rewrites the page.
func TestProofPage(t *testing.T) {
	page, err := filepath.Abs("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	writePrograms(t, string(text), examples)
	ran := 0
	got := pageCommand.ReplaceAllStringFunc(string(text), func(block string) string {
		ran++
		line := pageCommand.FindStringSubmatch(block)[1]
		a, out, errs := testApp(strings.NewReader(""))
		ctx := context.Background()
		a.finish(ctx, a.execute(ctx, strings.Fields(line)))
		return "```\n$ hocket " + line + "\n" + out.String() + errs.String() + "```\n"
	})
	if ran < 8 {
		t.Errorf("the page has only %d commands", ran)
	}
	if got == string(text) {
		return
	}
	if !golden.Update() {
		t.Errorf("docs/proof.md shows other output than the commands give (-update rewrites it)")
		return
	}
	if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
		t.Fatal(err)
	}
}

// writePrograms writes the programs that a page contains, and those that its commands derive from the examples.
func writePrograms(t *testing.T, page, examples string) {
	t.Helper()
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range pageProgram.FindAllStringSubmatch(page, -1) {
		write(m[1], m[2])
	}
	for _, m := range pageEdited.FindAllStringSubmatch(page, -1) {
		from := m[2]
		if name, shipped := strings.CutPrefix(from, "examples/"); shipped {
			from = filepath.Join(examples, name)
		}
		src, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(src), m[4]) {
			t.Fatalf("%s has no %q", m[2], m[4])
		}
		write(m[1], strings.Replace(string(src), m[4], m[5], 1))
	}
}
