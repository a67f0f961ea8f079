package nvfuser

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// A dump is often part of a log. Launchers put the rank in front of each line, tests print their names before the
// dump on the same line, and libraries print messages between its lines. findDumps extracts the dumps. Within a
// dump, it omits a line only if the line has the form of another program's message. Import warns about each omitted
// line.

// rawLine is a line of the file, without the tag with which a launcher names the rank.
type rawLine struct {
	text string
	pos  ir.Pos // position of text
}

// excerpt is one dump, with the lines of the file that contain it.
type excerpt struct {
	lines []rawLine
	noise []rawLine // lines between the lines of the dump that are omitted, since other programs printed them
	key   string    // a text that is equal for dumps with the same contents
	times int       // how often the file contains a dump with the same contents
	cut   bool      // set if the next dump begins before the end of this one
	open  bool      // set if the file ends before the end of the dump
	test  string    // name of the test that printed the dump first; "" if unknown
}

// dumpTag matches the tag that launchers and web pages put before each line of a rank. The submatch is the part of
// the tag that identifies the rank; times are not in it.
var dumpTag = regexp.MustCompile(`^(?:` +
	`\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)? ?` + // a time, as CI prints it
	`|(\[[^\]\s]*\d+,\d+\]<std\w+>: ?` + // mpirun --tag-output
	`|\[(?:rank|default)?\d+\]:? ?` + // torch, torchrun, mpiexec -l
	`|\d+: ?` + // srun -l
	`|>|#|//|\|)` + // the start of a line in a quotation, a comment or a table
	`)`)

// messages matches lines that other programs print between the lines of a dump.
var messages = regexp.MustCompile(`^(?:` + "```" + `|~~~` +
	`|\S+:\d+:\d+ \[\d+\] NCCL ` +
	`|(?:\[rank\d+\]: ?)?\[?[WEFI]\d{4,8} ?\d\d:\d\d` + // c10 and glog
	`|(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|PASSED|FAILED|SKIPPED)\b` +
	`|\d{4}-\d\d-\d\d[T ]\d\d:\d\d` +
	`|\[[A-Z =-]{10}\]` + // GoogleTest
	`|\S+\.(?:py|cpp|cu|h):\d+: |warnings\.warn\(` +
	`|\S+\.py::\S` + // pytest
	`|[-=]{4,}` +
	`)`)

// testName matches a line with which GoogleTest or pytest begins a test. A dump may follow on the same line. testEnd
// matches a line that ends a test.
var (
	testName = regexp.MustCompile("^\\[ RUN +\\] (\\S+)$|^([\\w./-]+\\.py::[^\\s`]+)(?:$| +%)")
	testEnd  = regexp.MustCompile(`^\[ +(?:OK|FAILED) +\]|\b(?:PASSED|FAILED|SKIPPED|ERROR)$`)
)

// endLine matches the last line of a dump.
var endLine = regexp.MustCompile(`^} *// *` + regexp.QuoteMeta(headWord))

// cutTags returns the tags at the beginning of a line, without times, and the offset at which the rest of the line
// begins.
func cutTags(line string) (tags string, at int) {
	for {
		blank := len(line[at:]) - len(strings.TrimLeft(line[at:], " \t"))
		m := dumpTag.FindStringSubmatchIndex(line[at+blank:])
		if m == nil {
			return tags, at
		}
		if m[2] >= 0 {
			tags += strings.TrimSpace(line[at+blank+m[2]:at+blank+m[3]]) + "\n"
		}
		at += blank + m[1]
	}
}

// headAt returns the offset at which a dump begins on a line, and the tags before it. The offset is -1 if no dump
// begins on the line.
func headAt(line string) (tags string, at int) {
	at = strings.Index(line, headWord)
	if at < 0 || !strings.HasPrefix(strings.TrimLeft(line[at+len(headWord):], " "), "{") {
		return "", -1
	}
	tags, end := cutTags(line)
	if end > at {
		return "", -1
	}
	return tags, at
}

// findDumps returns the dumps in a file, in the order of the file. Dumps with the same contents are returned once. It
// also returns the positions of the ends of dumps whose beginnings are not in the file.
func findDumps(src string) (list []excerpt, ends []ir.Pos) {
	if !strings.Contains(src, headWord) {
		return nil, nil
	}
	open := map[string]*cutter{} // maps the tag of lines to the dump with that tag that has not ended
	finish := func(c *cutter) {
		e := c.excerpt()
		i := slices.IndexFunc(list, func(x excerpt) bool { return x.key == e.key })
		if i < 0 {
			i, list = len(list), append(list, e)
		}
		list[i].times++
	}
	var order []*cutter
	n, test := int32(0), ""
	for raw := range strings.Lines(src) {
		n++
		raw = strings.TrimRight(raw, "\r\n")
		_, tagged := cutTags(raw)
		if text := strings.TrimSpace(raw[tagged:]); testEnd.MatchString(text) {
			test = ""
		} else if m := testName.FindStringSubmatch(text); m != nil {
			test = m[1] + m[2]
		}
		if tags, at := headAt(raw); at >= 0 {
			c := &cutter{tags: tags, tagged: tagged > 0, test: test}
			if strings.TrimSpace(raw[tagged:at]) == "" {
				at = tagged
			}
			if last := open[tags]; last != nil && !last.closed {
				last.cut = true
			}
			open[tags], order = c, append(order, c)
			c.take(rawLine{raw[at:], ir.Pos{Line: n, Col: int32(at + 1)}})
			continue
		}
		tags, at := cutTags(raw)
		c := open[tags]
		if text := strings.TrimSpace(raw[at:]); (c == nil || c.closed) && endLine.MatchString(text) {
			if other := open[""]; other == nil || other.closed || other.tagged {
				ends = append(ends, ir.Pos{Line: n, Col: int32(at + 1)})
			}
		}
		if c == nil || !c.tagged {
			c, at = open[""], 0
		}
		if c != nil && c.tagged == (at > 0) && !c.take(rawLine{raw[at:], ir.Pos{Line: n, Col: int32(at + 1)}}) {
			delete(open, c.tags)
		}
	}
	for _, c := range order {
		finish(c)
	}
	return withoutPrefixes(list), ends
}

// withoutPrefixes removes each dump that is the beginning of another dump and is incomplete because the file ends.
func withoutPrefixes(list []excerpt) []excerpt {
	return slices.DeleteFunc(slices.Clone(list), func(e excerpt) bool {
		return e.open && !e.cut && slices.ContainsFunc(list, func(of excerpt) bool {
			return (!of.open || len(of.key) > len(e.key)) && strings.HasPrefix(of.key, strings.TrimSuffix(e.key, "\n"))
		})
	})
}

// cutter collects the lines of one dump.
type cutter struct {
	tags   string
	tagged bool
	lines  []rawLine
	noise  []rawLine
	closed bool // the closing "}" was read
	unit   bool // set while the current line is in a HostUnit, which follows the closing "}"
	defs   bool // set while the current line is in the definitions of indices, which follow the closing "}"
	cut    bool // set if another dump begins before the end of this one
	test   string
}

// take adds a line to the dump. If the dump has ended, it returns false.
func (c *cutter) take(l rawLine) bool {
	text := strings.TrimSpace(l.text)
	switch {
	case text == "":
		return true
	case c.closed && strings.HasPrefix(text, unitWord):
		c.unit, c.defs = true, false
	case c.closed && strings.HasPrefix(text, defsWord):
		c.unit, c.defs = false, true
	case c.defs && !definition.MatchString(text):
		return false
	case c.closed && !c.unit && !c.defs:
		return false
	case messages.MatchString(text):
		c.noise = append(c.noise, l)
		return true
	}
	c.lines = append(c.lines, l)
	if strings.HasPrefix(text, "}") && (strings.Contains(text, headWord) || c.unit) || text == endWord {
		c.closed, c.unit = true, false
	}
	return true
}

// definition matches a line with an index definition, or the rest of such a line if it was broken.
var definition = regexp.MustCompile(`^(?:\w+ *= *\S|[-+*/%=()]|\w+;$)`)

var address = regexp.MustCompile(`0x[0-9a-f]+`)

func (c *cutter) excerpt() excerpt {
	e := excerpt{lines: c.lines, noise: c.noise, cut: c.cut, open: !c.closed, test: c.test}
	for len(e.noise) > 0 && e.noise[len(e.noise)-1].pos.Line > e.lines[len(e.lines)-1].pos.Line {
		e.noise = e.noise[:len(e.noise)-1] // omitted lines after the last line of the dump do not count
	}
	var key strings.Builder
	// ranks have different stream addresses, so addresses are renumbered before dumps are compared
	names := map[string]string{}
	for _, l := range e.lines {
		key.WriteString(address.ReplaceAllStringFunc(strings.TrimSpace(l.text), func(a string) string {
			if names[a] == "" {
				names[a] = fmt.Sprintf("0x%d", len(names))
			}
			return names[a]
		}) + "\n")
	}
	e.key = key.String()
	return e
}

// dumpDefine is the name in --define that selects one of several dumps in a file.
const dumpDefine = "dump"

// chooseDump returns the lines of the dump that Import reads. The file has only one dump, or the user gives the number
// of the dump with --define.
func chooseDump(file, src string, defines map[string]string) (lines []rawLine, warn ir.Diagnostics,
	err ir.Diagnostics) {
	dumps, ends := findDumps(src)
	r := &reader{prog: &ir.Program{File: file, Source: src}}
	given, chosen := defines[dumpDefine]
	n, e := strconv.Atoi(given)
	switch {
	case chosen && (e != nil || n < 1 || n > max(len(dumps), 1)):
		d := usage(file, fmt.Sprintf("--define dump=%s: the file has %s", given, countDumps(len(dumps))),
			fmt.Sprintf("give a number from 1 to %d", max(len(dumps), 1)))
		d.Notes = notesOf(dumps)
		return nil, nil, ir.Diagnostics{d}
	case len(dumps) == 0:
		return rawLines(src), nil, nil
	case chosen:
		dumps = dumps[n-1:]
	case len(dumps) > 1:
		d := r.errorf(dumps[0].lines[0].pos, "the file has %s", countDumps(len(dumps)))
		whole := slices.IndexFunc(dumps, func(e excerpt) bool { return !e.open })
		d.Kind, d.Help = usageKind, fmt.Sprintf("choose one by its number: --define dump=%d", max(whole, 0)+1)
		if slices.ContainsFunc(dumps, func(e excerpt) bool { return e.cut }) {
			d.Help = "lines of ranks that print at the same time are mixed: run mpirun with --tag-output, which " +
				"marks each line with its rank; " +
				fmt.Sprintf("--define dump=%d imports one dump as it is", max(whole, 0)+1)
		}
		d.Notes = notesOf(dumps)
		return nil, nil, r.ds
	}
	brace := func(l rawLine) bool { return strings.HasPrefix(strings.TrimSpace(l.text), "}") }
	if e := dumps[0]; e.open && !e.cut && !slices.ContainsFunc(e.lines, brace) {
		last := e.lines[len(e.lines)-1].pos
		d := r.errorf(last, "the dump ends without \"} // %%HostIrContainer\": the file ends after this line, within the dump")
		d.Kind, d.Help = inputKind, "copy the dump with its end"
		return nil, nil, r.ds
	}
	if len(ends) > 0 {
		d := r.errorf(ends[0], "this line ends a dump whose beginning is not in the file; only %s is checked",
			dumps[0].named())
		d.Severity = ir.Warning
		d.Help = "import the whole log"
		warn = r.ds
	}
	if e := dumps[0]; len(e.noise) > 0 {
		d := r.errorf(e.noise[0].pos,
			"%d lines within the dump look like messages of other programs, and are ignored", len(e.noise))
		if len(e.noise) == 1 {
			d.Message = "this line looks like a message of another program, and is ignored"
		}
		d.Severity = ir.Warning
		for _, l := range e.noise[1:min(len(e.noise), 4)] {
			d.Notes = append(d.Notes, ir.Note{Pos: l.pos, Message: "and this"})
		}
		warn = r.ds
	}
	return dumps[0].lines, warn, nil
}

// countDumps describes the number of different dumps in a file.
func countDumps(n int) string {
	if n <= 1 {
		return "one dump"
	}
	return fmt.Sprintf("%d different dumps", n)
}

// notesOf returns notes that describe the dumps in a file.
func notesOf(dumps []excerpt) (list []ir.Note) {
	for i, e := range dumps {
		list = append(list, ir.Note{Pos: e.lines[0].pos, Message: e.describe(i + 1)})
	}
	return list
}

// named describes where a dump begins and which test printed it.
func (e *excerpt) named() string {
	name := fmt.Sprintf("the dump in line %d", e.lines[0].pos.Line)
	if e.test != "" {
		name += ", of " + e.test + ","
	}
	return name
}

// describe describes the n-th dump: the test that printed it, its length, and how often it was printed.
func (e *excerpt) describe(n int) string {
	of := ""
	if e.test != "" {
		of = " of " + e.test
	}
	switch {
	case e.cut:
		return fmt.Sprintf("dump %d%s: %d lines, incomplete: the next dump begins before its end", n, of, len(e.lines))
	case e.open:
		return fmt.Sprintf("dump %d%s: %d lines, incomplete: the file ends before the end of the dump", n, of,
			len(e.lines))
	case e.times == 1:
		return fmt.Sprintf("dump %d%s: %d lines, printed once", n, of, len(e.lines))
	}
	return fmt.Sprintf("dump %d%s: %d lines, printed %d times", n, of, len(e.lines), e.times)
}

// rawLines returns the lines of src.
func rawLines(src string) []rawLine {
	var list []rawLine
	for raw := range strings.Lines(src) {
		list = append(list, rawLine{strings.TrimRight(raw, "\r\n"), ir.Pos{Line: int32(len(list) + 1), Col: 1}})
	}
	return list
}
