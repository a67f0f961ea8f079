package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hocket.example/hocket/internal/names"
)

// nearest returns the name that is most similar to a word, or "".
var nearest = names.Nearest

// flagNames lists the long flags of a command.
func flagNames(c *cobra.Command) []string {
	names := []string{"help"}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			names = append(names, f.Name)
		}
	})
	return names
}

// flagHelp returns advice about a flag that c does not have. The advice names a flag of c with a similar name. If no
// flag of c has a similar name, the advice names the commands that have the unknown flag.
func flagHelp(c *cobra.Command, text string) string {
	if strings.HasPrefix(text, `invalid argument "p" for "-n, --processes"`) {
		return "the number of processes is -n N; -np is a flag of mpirun"
	}
	see := "see " + c.CommandPath() + " --help"
	name, ok := strings.CutPrefix(text, "unknown flag: --")
	if !ok {
		return see
	}
	if name == "version" {
		return "hocket --version prints the version"
	}
	if name == "report" && slices.Contains(flagNames(c), "html") {
		return "pages are written by --html FILE; " + see
	}
	if s := nearest(name, flagNames(c)); s != "" {
		return "did you mean --" + s + "? " + see
	}
	var have []string
	for _, other := range c.Root().Commands() {
		if other != c && other.IsAvailableCommand() && slices.Contains(flagNames(other), name) && name != "help" {
			have = append(have, other.Name())
		}
	}
	switch {
	case len(have) == 1:
		return "hocket " + have[0] + " has --" + name + "; " + see
	case len(have) > 1:
		return "hocket " + strings.Join(have[:len(have)-1],
			", ") + " and " + have[len(have)-1] + " have --" + name + "; " + see
	}
	return see
}

// oneDash returns the long flag of c that the word names with a single dash, or "" if there is none.
func oneDash(c *cobra.Command, word string) string {
	if len(word) < 4 || word[0] != '-' || word[1] == '-' {
		return ""
	}
	name, _, _ := strings.Cut(word[1:], "=")
	if slices.Contains(flagNames(c), name) {
		return name
	}
	return ""
}
