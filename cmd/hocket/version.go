package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"hocket.example/hocket/internal/release"
)

// version returns the version, with the commit if it is known.
var version = func() string { return release.This().String() }

func versionText() string {
	return fmt.Sprintf("hocket %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionInfo is what version --json prints.
type versionInfo struct {
	Number string `json:"number"`
	release.Build
	Library *release.PythonLibrary `json:"library,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "version [--json]",
		Short: "Print the version, and whether Python's library agrees",
		Long: `Print the version, the commit if it is known, the version of Go and the platform. If
Python's library is installed with this command, or HOCKET_LIBRARY names a file, a
second line says whether both are of one commit.`,
		Example: "  hocket version",
		Args:    nothing,
		RunE: func(*cobra.Command, []string) error {
			v := &versionInfo{Number: release.Version, Build: release.This(), Library: release.FindLibrary()}
			a.out.Version = v
			io.WriteString(a.text, versionText())
			if v.Library != nil {
				fmt.Fprintf(a.text, "library %s: %s\n", v.Library.Path, v.Library)
			}
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
