package kernelfile

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	entry = regexp.MustCompile(`\.entry\s+([A-Za-z_$%][\w$]*)\s*`)
	param = regexp.MustCompile(`^\s*\.param\s+(?:\.align\s+\d+\s+)?\.([bsuf])(\d+)`)
	array = regexp.MustCompile(`\[(\d+)\]\s*$`)
)

// ptx returns the kernels of a PTX file with their parameters.
func ptx(text string) Kernels {
	text = comments.ReplaceAllString(text, " ")
	found := Kernels{}
	for _, at := range entry.FindAllStringSubmatchIndex(text, -1) {
		name, rest := text[at[2]:at[3]], text[at[1]:]
		list := []Param{}
		if strings.HasPrefix(rest, "(") {
			inner, _, ok := bracketed(rest)
			if !ok {
				continue
			}
			for one := range strings.SplitSeq(inner, ",") {
				if m := param.FindStringSubmatch(one); m != nil {
					list = append(list, ptxParam(m, one))
				}
			}
		}
		found[name] = list
	}
	return found
}

func ptxParam(m []string, text string) Param {
	bits, _ := strconv.Atoi(m[2])
	p := Param{Size: bits / 8}
	if n := array.FindStringSubmatch(strings.TrimSpace(text)); n != nil {
		count, _ := strconv.Atoi(n[1])
		p.Size *= count
	}
	p.Pointer = strings.Contains(text, ".ptr")
	p.Value = p.Size != 8
	return p
}
