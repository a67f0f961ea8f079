package main

import (
	"fmt"
	"io"
	"strings"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
)

// writeAlgorithms writes descriptions of the collective algorithms: the algorithms that every machine has, those of
// each kind of machine, and those between nodes.
func writeAlgorithms(w io.Writer) error {
	inside, between := comm.Describe()
	var b strings.Builder
	b.WriteString("These are the algorithms for --algorithm and algorithm=. On every machine, as schedules of copies, reductions,\n" +
		"signals and waits:\n")
	describe(&b, inside)
	for _, k := range device.Kinds() {
		if len(k.Algorithms) > 0 {
			fmt.Fprintf(&b, "\nOnly on machine %s:\n", k.Name)
			describe(&b, k.Algorithms)
		}
	}
	b.WriteString("\nBetween nodes:\n")
	describe(&b, between)
	_, err := io.WriteString(w, b.String())
	return err
}

// describe writes one paragraph for each algorithm.
func describe(b *strings.Builder, list []device.Algorithm) {
	for _, a := range list {
		fmt.Fprintf(b, "\n  %s\n", a.Name)
		lines := []string{"takes " + a.What(), a.How}
		if a.MostBytes > 0 {
			lines[0] += fmt.Sprintf("; operands of at most %d MiB", a.MostBytes>>20)
		}
		if a.Sparing() {
			lines = append(lines, map[device.MemoryUse]string{device.MemoryFlags: "staging memory: only flags",
				device.MemoryFixed: "staging memory: a few MiB for operands of any size"}[a.Memory])
		}
		if a.FreeOrder {
			lines = append(lines, "order: not by rank; used only for sums whose bits do not depend on the order, or with order=any")
		}
		if a.Formerly != nil {
			lines = append(lines, "also selected by the former name "+strings.Join(a.Formerly, " and "))
		}
		for _, l := range lines {
			for _, part := range wrapped(l, 92) {
				fmt.Fprintf(b, "      %s\n", part)
			}
		}
	}
}

// wrapped breaks a text at spaces into lines of at most width letters, and indents all lines but the first.
func wrapped(s string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > width {
			lines, line = append(lines, line), " "
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
