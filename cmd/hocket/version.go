package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version returns the version of the module, or the commit from which it was built.
var version = func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	if rev := set["vcs.revision"]; v == "(devel)" && rev != "" {
		v += " " + rev[:min(len(rev), 12)]
		if set["vcs.modified"] == "true" {
			v += "+dirty"
		}
	}
	return v
}

func versionText() string {
	return fmt.Sprintf("hocket %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "version [--json]",
		Short:   "Print the version",
		Example: "  hocket version",
		Args:    nothing,
		RunE: func(*cobra.Command, []string) error {
			io.WriteString(a.text, versionText())
			return nil
		},
	}
	c.Flags().BoolVar(&a.json, "json", a.json, "print one JSON object")
	return c
}

func nothing(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("no argument is allowed; found %q", args[0])
	}
	return nil
}
