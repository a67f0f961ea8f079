package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"hocket.example/hocket/internal/testcorpus"
)

const (
	screenLines, screenColumns = 40, 100
)

// everyCommand lists the root command and all its subcommands.
func everyCommand() []*cobra.Command {
	a, _, _ := testApp(strings.NewReader(""))
	root := a.rootCommand(nil)
	refuseShells(root)
	root.InitDefaultHelpCmd()
	list := []*cobra.Command{root}
	for i := 0; i < len(list); i++ {
		list = append(list, list[i].Commands()...)
	}
	return list
}

// TestHelpFitsAScreen checks that the help text of every command has at most 40 lines of 100 columns, and that help
// --all shows every flag.
func TestHelpFitsAScreen(t *testing.T) {
	for _, c := range everyCommand() {
		var short, all strings.Builder
		writeHelp(&short, c, false)
		writeHelp(&all, c, true)
		if n := strings.Count(short.String(), "\n"); n > screenLines {
			t.Errorf("%s --help has %d lines", c.CommandPath(), n)
		}
		for _, text := range []string{short.String(), all.String()} {
			for line := range strings.Lines(text) {
				if utf8.RuneCountInString(line) > screenColumns+1 {
					t.Errorf("%s --help is wider than %d columns: %s", c.CommandPath(), screenColumns, line)
				}
			}
		}
		for _, name := range flagNames(c) {
			if name != "help" && !strings.Contains(all.String(), "--"+name) {
				t.Errorf("hocket help %s --all does not tell of --%s", c.Name(), name)
			}
		}
	}
	for line := range strings.Lines(startHelp + inputsHelp) {
		if utf8.RuneCountInString(line) > screenColumns+1 {
			t.Errorf("too wide: %s", line)
		}
	}
}

// TestHelpExamplesWork runs every example in the help of every command, and in the text that hocket prints without
// arguments, except those that need a GPU. Each command must have an example that needs no GPU.
func TestHelpExamplesWork(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many processes")
	}
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(examples, filepath.Join(dir, "examples")); err != nil {
		t.Fatal(err)
	}
	const printed = "B200\nTP=2\nTensor Shape  Tensor Size  ca_1stage  pynccl\n(1, 8192)  0.02 MB  0.004  0.006\n"
	if err := os.WriteFile(filepath.Join(dir, "printed.txt"), []byte(printed), 0o644); err != nil {
		t.Fatal(err)
	}
	models := testcorpus.Folder(t, "models") // "" without the corpus
	if models != "" {
		for name, file := range map[string]string{"model.pt2": "static.pt2", "tp_plan.json": "tp_plan.json"} {
			if err := os.Symlink(filepath.Join(models, "llama", file), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := func(t *testing.T, text string) (ran int) {
		for line := range strings.Lines(text) {
			line, indented := strings.CutPrefix(line, "  ")
			line, _, _ = strings.Cut(strings.TrimRight(line, "\n"), "   ") // without the explanation
			if !indented || !strings.HasPrefix(line, "hocket ") || strings.Contains(line, "-m cuda") ||
				models == "" && strings.Contains(line, ".pt2") {
				continue
			}
			c := exec.Command("sh", "-c", line)
			c.Dir, c.Env = dir, append(os.Environ(), "HOCKET_CACHE="+filepath.Join(dir, "cache"))
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			ran++
		}
		return ran
	}
	for _, c := range everyCommand() {
		if c.HasParent() && c.Parent().HasParent() { // completion's, by shell: cobra's own
			continue
		}
		t.Run(c.Name(), func(t *testing.T) {
			if run(t, c.Example) == 0 {
				t.Errorf("no example of %s runs without a GPU", c.CommandPath())
			}
		})
	}
	t.Run("start", func(t *testing.T) {
		if n := run(t, startHelp); n < 5 {
			t.Errorf("hocket alone shows %d commands", n)
		}
	})
	t.Run("inputs", func(t *testing.T) {
		if run(t, inputsHelp) == 0 {
			t.Error("no example of --in")
		}
	})
}
