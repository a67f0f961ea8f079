package kernelfile

import (
	"regexp"
	"strings"
)

var (
	comments = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	global   = regexp.MustCompile(`__global__`)
	attrs    = regexp.MustCompile(`__launch_bounds__|__cluster_dims__|__attribute__|__maxnreg__`)
	named    = regexp.MustCompile(`([A-Za-z_]\w*)\s*$`)
)

// source returns the kernels of a CUDA C++ file: the functions that follow __global__. Only a compiler can resolve
// macros and templates, so parameters that are not plain types remain unknown.
func source(text string) Kernels {
	text = comments.ReplaceAllString(text, " ")
	found := Kernels{}
	all := global.FindAllStringIndex(text, -1)
	for i, at := range all {
		rest := text[at[1]:]
		if i+1 < len(all) { // stop at the next __global__, so that no text is scanned twice
			rest = text[at[1]:all[i+1][0]]
		}
		for {
			open := strings.IndexByte(rest, '(')
			if open < 0 {
				break
			}
			inner, after, ok := bracketed(rest[open:])
			if !ok {
				break
			}
			head := rest[:open]
			if strings.ContainsAny(head, ";{}") {
				break
			}
			if attrs.MatchString(head) { // the parentheses belong to an attribute, not to parameters
				rest = after
				continue
			}
			if m := named.FindStringSubmatch(head); m != nil {
				found[m[1]] = parameters(inner)
			}
			break
		}
	}
	return found
}

// bracketed splits "(inner)after" at the matching parenthesis.
func bracketed(s string) (inner, after string, ok bool) {
	depth := 0
	for i, c := range s {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return s[1:i], s[i+1:], true
			}
		}
	}
	return "", "", false
}

// parameters parses a comma-separated list of parameters.
func parameters(list string) []Param {
	out := []Param{}
	depth, from := 0, 0
	if list = strings.TrimSpace(list); list == "" || list == "void" {
		return out
	}
	for i, c := range list + "," {
		switch {
		case strings.ContainsRune("(<[{", c):
			depth++
		case strings.ContainsRune(")>]}", c):
			depth--
		case c == ',' && depth == 0:
			out = append(out, parameter(list[from:i]))
			from = i + 1
		}
	}
	return out
}

// sizes are the sizes of built-in types and of types with a fixed size, by name.
var sizes = map[string]int{
	"char": 1, "bool": 1, "short": 2, "int": 4, "unsigned": 4, "float": 4, "double": 8, "size_t": 8,
	"int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
}

func parameter(text string) Param {
	if strings.ContainsAny(text, "*[") {
		return Param{Size: 8, Pointer: true}
	}
	words := strings.Fields(text)
	if len(words) > 1 {
		words = words[:len(words)-1] // without the parameter's name
	}
	longs, size := 0, 0
	for _, w := range words {
		switch {
		case w == "long":
			longs++
		case w == "const" || w == "signed" || w == "__grid_constant__":
		case sizes[w] == 0:
			return Param{}
		case size == 0 || w != "int" && w != "unsigned":
			size = sizes[w]
		}
	}
	if longs > 0 {
		size = 8
	}
	return Param{Size: size, Value: size != 0}
}
