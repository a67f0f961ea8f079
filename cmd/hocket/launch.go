package main

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket/internal/launch"
	"hocket.example/hocket/internal/terminal"
	"hocket.example/hocket/internal/world"
)

func (a *app) launchCommand() *cobra.Command {
	var n, nodes int
	c := &cobra.Command{
		Use:        "launch -n N -- COMMAND [ARGS]",
		SuggestFor: []string{"mpirun", "torchrun"},
		Short:      "Start several processes that run one program together",
		Long: `Starts N processes of this host, each of which drives some of a program's ranks, and
waits for them. With --nodes they are in as many groups, which share no memory and talk over
TCP, as processes of several hosts would. COMMAND is one of hocket's, as run, or a program, by its
path or by its name on PATH. Each process learns who it is from HOCKET_RANK and HOCKET_WORLD_SIZE,
and from the variables that torchrun sets, RANK, LOCAL_RANK and MASTER_ADDR among them.

Standard output is that of process 0. What the others print, on either output, goes to
standard error with the process's number in front. The exit code is that of the process that
failed first, and 3 where it was killed; the others are ended then. A process that is stopped
(SIGSTOP) ends the launch once others have reported it, or have exited and HOCKET_STALL_TIMEOUT
(30s) is over. Whatever the processes have started, and left running, ends with them.

torchrun --no-python, mpirun and srun start such processes, too.`,
		Example: `  hocket launch -n 2 -- run examples/mlp.hkt --compare
  hocket launch --nodes 2 -n 4 -- run examples/dp_tp_mlp.hkt --compare
  hocket launch -n 2 -- run -m cuda --graph examples/mlp.hkt
  hocket launch -n 4 -- printenv LOCAL_RANK`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("a COMMAND is required after --").helping("see %s --help", c.CommandPath())
			}
			return nil
		},
	}
	c.Flags().IntVarP(&n, "processes", "n", 2, "start `N` processes")
	c.Flags().IntVar(&nodes, "nodes", 1, "divide the processes into `M` nodes, which share no memory")
	c.RunE = func(c *cobra.Command, args []string) error {
		if n < 1 || n > 256 {
			return usagef("-n is %d, but must be from 1 to 256", n)
		}
		if nodes < 1 || nodes > n {
			return usagef("--nodes is %d, but must be from 1 to %d, the number of processes (-n)", nodes, n)
		}
		if err := alone(); err != nil {
			return err
		}
		words, err := commandOf(c.Root(), args)
		if err != nil {
			return err
		}
		env, err := world.FromEnv(os.Getenv)
		if err != nil {
			return usagef("%w", err)
		}
		a.bounded.Store(true)
		return ofLaunch(launch.Run(c.Context(), launch.Options{Command: words, Processes: n, Nodes: nodes,
			SameErrors: words[0] == self(), StallTimeout: env.StallTimeout, Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
			WholeLines: terminal.SameFile(os.Stdout, os.Stderr)}))
	}
	return c
}

// commandOf returns the command line for the words after --, which are either a hocket command or a program with its
// arguments.
func commandOf(root *cobra.Command, words []string) ([]string, error) {
	own := strings.HasPrefix(words[0], "-") || slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool {
		return c.Name() == words[0] || c.HasAlias(words[0])
	})
	if !own {
		_, err := exec.LookPath(words[0])
		switch {
		case err == nil:
			return words, nil
		case strings.ContainsRune(words[0], filepath.Separator):
			return nil, usagef("%w", err)
		}
		var names []string
		for _, c := range root.Commands() {
			names = append(names, c.Name())
		}
		wrong := usagef("%q is neither a command of hocket nor a program on PATH", words[0])
		if _, err := os.Stat(words[0]); err == nil && filepath.Ext(words[0]) == ".py" {
			return nil, wrong.helping("a program of Python is run by python3 %s", words[0])
		}
		if _, err := strconv.Atoi(words[0]); err == nil {
			return nil, wrong.helping("the number of processes is a flag: -n %s", words[0])
		}
		if near := nearest(words[0], names); near != "" {
			return nil, wrong.helping("did you mean %s?", near)
		}
		return nil, wrong
	}
	if self() == "" {
		return nil, &failure{code: exitMachine, kind: "machine",
			err: errors.New("the path of hocket's own program is unknown")}
	}
	return append([]string{self()}, words...), nil
}

// self returns the path of this executable, or "" if it is unknown.
func self() string {
	if path, err := exec.LookPath(os.Args[0]); err == nil {
		return path
	}
	path, _ := os.Executable()
	return path
}

// ofLaunch returns the command's failure for an error of launch.Run.
func ofLaunch(err error) error {
	var l *launch.Error
	switch {
	case !errors.As(err, &l):
		return err
	case l.Kind == launch.Interrupted:
		return &failure{code: exitInterrupted, kind: l.Kind, err: err}
	}
	return &failure{code: cmp.Or(l.Code, exitMachine), kind: l.Kind, err: err, said: l.Printed}
}
