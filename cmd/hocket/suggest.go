package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// nearest returns the name that is most similar to word, or "" if no name is similar enough.
func nearest(word string, names []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, name := range names {
		d := distance(strings.ToLower(word), name)
		if len(word) >= 3 && strings.HasPrefix(name, word) {
			d = 1
		}
		if d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns the edit distance between a and b: the number of wrong, missing, superfluous or swapped letters.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			d[i][j] = min(change, d[i-1][j]+1, d[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

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

// flagHelp returns advice about a flag that c does not have. The advice names a flag of c
// with a similar name. If there is none, it names the commands that have the unknown flag.
func flagHelp(c *cobra.Command, text string) string {
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
