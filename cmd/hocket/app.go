package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"hocket.example/hocket"

	"hocket.example/hocket/internal/terminal"
)

// app holds the state that commands share during one run of the process.
type app struct {
	measurements
	columns int // width of the timeline
	// bounded is set by a command that ends within a bounded time after an interrupt, so that main can wait until the
	// command has ended.
	bounded atomic.Bool
}

func newApp(args []string, stdin io.Reader, stdout, stderr *os.File) *app {
	out := &checkedWriter{w: stdout}
	if terminal.Is(stdout) {
		out.w = terminal.Harmless(stdout)
	}
	a := &app{}
	a.stdin, a.stdout, a.text, a.stderr, a.columns = stdin, out, out, stderr, terminal.Columns(stdout)
	a.progress, a.expired = terminal.NewProgress(stderr), make(chan struct{})
	a.colour = terminal.Is(stderr) && terminal.Colours()
	// JSON output must be known before flags are parsed, so that an error about an invalid flag is written as JSON,
	// too.
	a.json = wantsJSON(args)
	a.out.Hocket = version()
	return a
}

// session holds the input and output of one invocation, and shows its results.
type session struct {
	stdout   *checkedWriter // receives the result: text, or one JSON object
	text     io.Writer      // receives the text output: stdout, or nothing if JSON is requested
	stderr   io.Writer
	json     bool
	colour   bool // whether diagnostics are coloured
	out      result
	progress *terminal.Progress
	// expired is closed when the duration limit, which --timeout sets, has passed.
	expired chan struct{}
	limit   time.Duration
	// warnings are shown before the final result or error.
	warnings hocket.Diagnostics
	// ofPlan holds the warnings about --plan and --shard, which are shown before all others.
	ofPlan hocket.Diagnostics
}

// mute makes the process print errors only.
func (a *session) mute() {
	a.text = io.Discard
	a.stdout = &checkedWriter{w: io.Discard}
}

func wantsJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

// execute runs the command. If the command panics, execute returns an error that asks the user to report the bug.
func (a *app) execute(ctx context.Context, args []string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &failure{code: exitHocket, kind: "internal", err: fmt.Errorf("internal error: %v", p),
				help: "this is a bug in hocket: please report it with the program and the text below\n" +
					string(debug.Stack())}
		}
	}()
	root := a.rootCommand(args)
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	refuseShells(root)
	if err := a.mistyped(root, args); err != nil {
		return err
	}
	return root.ExecuteContext(ctx)
}

// mistyped detects two mistakes that cobra misinterprets: an unknown command followed by --help, for which cobra prints
// the help of another command, and a long flag with a single dash, which cobra reads as several short flags.
func (a *session) mistyped(root *cobra.Command, args []string) error {
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(args)
	if err != nil || len(args) > 0 && strings.HasPrefix(args[0], "__") { // the shell's completion
		return nil
	}
	if i := slices.Index(rest, "--"); i >= 0 {
		rest = rest[:i]
	}
	if c == root || c.Name() == "completion" {
		asked := slices.Contains(rest, "--help") || slices.Contains(rest, "-h")
		i := slices.IndexFunc(rest, func(s string) bool { return !strings.HasPrefix(s, "-") })
		switch {
		case asked && i >= 0 && c == root:
			return a.noSuchCommand(root, rest[i:])
		case asked && i >= 0:
			return noSuchShell(rest[i])
		}
	}
	for i, word := range rest {
		name := oneDash(c, word)
		if name == "" || i > 0 && takesValue(c, rest[i-1]) {
			continue
		}
		if c.HasParent() {
			a.out.Command = c.Name()
		}
		return usagef("there is no flag %s", word).helping("did you mean --%s? see %s --help", name, c.CommandPath())
	}
	return nil
}

// takesValue reports whether the word is a flag of c whose value is the next word of the command line.
func takesValue(c *cobra.Command, word string) bool {
	f := c.Flags().Lookup(strings.TrimPrefix(word, "--"))
	if len(word) == 2 && word[0] == '-' && word[1] != '-' {
		f = c.Flags().ShorthandLookup(word[1:])
	}
	return f != nil && strings.HasPrefix(word, "-") && f.NoOptDefVal == ""
}

// finish reports the outcome of the command and returns the exit code.
func (a *session) finish(ctx context.Context, err error) int {
	a.progress.End()
	f := classify(ctx, err)
	if a.stdout.err != nil {
		f = a.lostOutput()
	}
	a.out.Exit = f.code
	ds := slices.Concat(a.warnings, f.diagnostics())
	if !a.json {
		if !f.said {
			a.showDiagnostics(ds)
		}
		return f.code
	}
	if err := a.writeResult(ds); err != nil {
		f = a.writeUnsaid(err)
	}
	if a.stdout.err != nil {
		f = a.lostOutput()
		a.showDiagnostics(f.diagnostics())
	}
	return f.code
}

// lostOutput returns the failure that reports that standard output cannot be written.
func (a *session) lostOutput() *failure {
	return &failure{code: exitMachine, kind: "output", err: fmt.Errorf("standard output: %w", a.stdout.err)}
}

// checkedWriter records the first write error, since the code that prints does not check for errors.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(p)
	c.err = err
	return n, err
}

// rootCommand returns the tree of commands for a command line that consists of words. If the command line has no
// command, the root command suggests commands.
func (a *app) rootCommand(words []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "hocket COMMAND",
		Short: "Compile and run multi-GPU host programs",
		Long: `Hocket checks, lowers and runs multi-GPU host programs: what runs on which
stream of which device, with communication hidden under computation.

The exit code is 0 on success; 1 if a program is invalid, refuted or deadlocks;
2 if the command line or a file is wrong; 3 if the machine fails or
lacks something; 4 if a result differs from its reference, or hocket fails; 5
if check or a comparison cannot decide; and 130 after an interrupt.`,
		Example: `  hocket run examples/mlp.hkt --compare
  hocket check examples/mlp.hkt -n 4
  hocket opt examples/mlp.hkt --print-after all`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          a.noSuchCommand,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(a.stdout, startHelp)
			return err
		},
	}
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { writeHelp(a.stdout, c, false) })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c.HasParent() {
			a.out.Command = c.Name()
		} else if len(words) > 0 && !strings.HasPrefix(words[0], "-") {
			return a.noSuchCommand(root, words) // the flags of an unknown command are not known either
		}
		return &failure{code: exitUsage, kind: "usage", err: flagError(err), help: flagHelp(c, err.Error())}
	})
	root.SetVersionTemplate(versionText())
	root.PersistentFlags().SortFlags = false
	commands := []*cobra.Command{
		a.runCommand(), a.checkCommand(), a.optCommand(), a.gradCommand(), a.planCommand(), a.importCommand(),
		a.exportCommand(),
		a.fmtCommand(),
		a.benchCommand(),
		a.tuneCommand(),
		a.traceCommand(),
		a.memoryCommand(),
		a.launchCommand(),
		a.doctorCommand(), a.versionCommand(),
	}
	for _, c := range commands {
		c.Flags().SortFlags = false
		c.DisableFlagsInUseLine = true
		root.AddCommand(a.named(c))
	}
	root.SetHelpCommand(a.helpCommand(root))
	return root
}

// refuseShells makes a request for completions of an unknown shell an error. Without this error cobra would print its
// help, which users would redirect to a file that the shell executes.
func refuseShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	i := slices.IndexFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == "completion" })
	c := root.Commands()[i]
	c.Example = "  hocket completion bash > hocket.bash"
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return noSuchShell(args[0])
	}
}

func noSuchShell(shell string) error {
	return usagef("unknown shell %q",
		shell).helping("completions exist for bash, fish, powershell and zsh: hocket completion bash")
}

// named wraps the command so that, after its flags are parsed, JSON output contains its name, and its text output is
// suppressed if JSON is requested.
func (a *session) named(c *cobra.Command) *cobra.Command {
	args := c.Args
	c.Args = func(c *cobra.Command, list []string) error {
		a.out.Command = c.Name()
		if a.json {
			a.text = io.Discard
		}
		if err := cmp.Or(emptyFlag(c), replacedInput(c, list)); err != nil {
			return err
		}
		return args(c, list)
	}
	return c
}

func (a *session) noSuchCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	help := "see hocket --help"
	var names []string
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() || c.Name() == "completion" {
			names = append(names, c.Name())
		}
		if slices.Contains(c.SuggestFor, strings.ToLower(args[0])) {
			help = "did you mean hocket " + c.Name() + "?"
		}
	}
	if s := nearest(args[0], append(names, "help")); s != "" {
		help = "did you mean hocket " + s + "?"
	} else if filepath.Ext(args[0]) == ".hkt" {
		help = "did you mean hocket run " + args[0] + "?"
	} else if notProgram(args[0]) != "" {
		help = "did you mean hocket memory " + args[0] + "?"
	}
	return &failure{code: exitUsage, kind: "usage", err: fmt.Errorf("unknown command %q", args[0]), help: help}
}

// onePROGRAM returns an error for a command line that does not name exactly one program.
func onePROGRAM(c *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	takes := "PROGRAM: a .hkt or .pt2 file, a schedule (.json or .xml), or - for standard input"
	if c.Name() == "memory" {
		takes += "; or one SNAPSHOT.pickle of torch's allocator, or FILE.csv"
	}
	err := errors.New("it takes one " + takes)
	if len(args) > 1 {
		more := ""
		if len(args) > 2 {
			more = " …"
		}
		err = fmt.Errorf("%w; found %d: %q%s", err, len(args), args[:2], more)
	}
	return &failure{code: exitUsage, kind: "usage", err: err, help: "see " + c.CommandPath() + " --help"}
}
