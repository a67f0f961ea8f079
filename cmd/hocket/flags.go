package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hocket.example/hocket/internal/files"
)

// onlyFlags returns an error for a flag that is set but does not apply to the argument arg, whose kind is described by
// what. names lists the flags that apply. A flag without effect is an error, because the user expects an effect.
func onlyFlags(c *cobra.Command, arg, what string, names ...string) error {
	return unusedFlag(c, arg, what, func(name string) bool { return !slices.Contains(names, name) })
}

// notFlags is like onlyFlags, but names lists the flags that do not apply.
func notFlags(c *cobra.Command, arg, what string, names ...string) error {
	return unusedFlag(c, arg, what, func(name string) bool { return slices.Contains(names, name) })
}

func unusedFlag(c *cobra.Command, arg, what string, unused func(name string) bool) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && unused(f.Name) {
			err = usagef("--%s does not apply to %s, which is %s", f.Name, arg,
				what).helping("remove it; see %s --help", c.CommandPath())
		}
	})
	return err
}

// emptyFlag returns an error for a flag that is given an empty value, for example because a variable of a shell is not
// set. A flag with an empty value would have no effect.
func emptyFlag(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values := list.GetSlice()
			empty = len(values) == 0 || slices.Contains(values, "")
		}
		if err == nil && empty {
			err = usagef("--%s is given without a value", f.Name).helping("see %s --help", c.CommandPath())
		}
	})
	return err
}

// outputFiles lists the flags that name files which are written.
const outputFiles = "html svg trace viz flight save certificate output"

// replacedInput returns an error if the command would write a file twice, or if it also reads the file, or files of
// weights in the file's folder.
func replacedInput(c *cobra.Command, args []string) error {
	inputs, outputs := slices.Clone(args), map[string]string{}
	c.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		list, many := f.Value.(pflag.SliceValue)
		switch {
		case f.Name == "save":
			outputs[f.Name] = filepath.Join(value, "outputs.safetensors")
		case slices.Contains(strings.Fields(outputFiles), f.Name) && (f.Name != "certificate" || c.Name() != "run"):
			outputs[f.Name] = value
		case many:
			for _, in := range list.GetSlice() {
				_, file, _ := strings.Cut(in, "=")
				file, _, _ = strings.Cut(file, "#")
				inputs = append(inputs, in, file)
			}
		default:
			inputs = append(inputs, value)
		}
	})
	if a, b := files.WrittenTwice(outputs); a != b {
		return usagef("--%s and --%s would both write %s", a, b, outputs[b]).helping("write to another file")
	}
	for name, out := range outputs {
		written, err := os.Stat(out)
		if err != nil || !written.Mode().IsRegular() {
			continue
		}
		folder, _ := os.Stat(filepath.Dir(out)) // exists, as the file does
		weights := strings.HasSuffix(out, ".safetensors")
		for _, in := range inputs {
			if read, err := os.Stat(in); err == nil && (os.SameFile(read, written) || weights && os.SameFile(read, folder)) {
				return usagef("--%s would replace %s, which is also an input", name, out).helping("write to another file")
			}
		}
	}
	return nil
}
