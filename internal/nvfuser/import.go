package nvfuser

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Import reads a dump and returns a program.
//
// The argument defines maps names to values. The argument defines sets the indices that the dump uses but does not
// define, in the notation of the dump, for example "i84": "(rank+streamIdx)%8". If src contains several dumps, "dump":
// "2" selects the second. If the dump has lost its indentation and can be read as several programs, "indentation": "2"
// selects the second of these. Import returns the definitions whose names do not occur in the dump, since they may set
// dims of the program.
//
// If there are errors, the returned program is nil.
func Import(file, src string, defines map[string]string) (prog *ir.Program, rest map[string]string, ds ir.Diagnostics) {
	raws, warnings, ds := chooseDump(file, src, defines)
	if len(ds) > 0 {
		return nil, defines, ds
	}
	if cached, ok := defines[cacheDefine]; ok && cached != "0" && cached != "1" {
		return nil, defines, ir.Diagnostics{usage(file, "--define "+cacheDefine+"="+cached+": it is 0 or 1",
			"write 1 if nvFuser's use_allocation_cache is set, and 0 if it is not")}
	}
	defines = without(defines, dumpDefine)
	defer func() {
		ds = append(warnings, ds...)
		ds.Sort()
	}()
	lines := splitLines(raws)
	if len(lines) > maxLines {
		r := &reader{prog: &ir.Program{File: file, Source: src}}
		r.errorf(lines[maxLines].start(), "the dump has more than %d statements, which is the limit", maxLines)
		return nil, defines, r.ds
	}
	if unindented(lines) {
		return importUnindented(file, src, lines, defines)
	}
	return importLines(file, src, lines, defines)
}

// usage returns an error in the command line. The error's kind distinguishes it from errors in the dump.
func usage(file, message, help string) *ir.Diagnostic {
	return &ir.Diagnostic{Kind: usageKind, File: file, Message: message, Help: help}
}

// An error of one of these kinds does not refute the dump's program: the command line is wrong, or the dump is
// incomplete.
const (
	usageKind = "usage"
	inputKind = "input"
)

// importLines is like Import for a dump that has been split into lines.
func importLines(file, src string, lines []line, defines map[string]string) (prog *ir.Program, rest map[string]string,
	ds ir.Diagnostics) {
	r := &reader{prog: &ir.Program{File: file, Source: src}, lines: lines}
	d := r.read()
	if len(r.ds) > 0 {
		r.ds.Sort()
		return nil, defines, r.ds
	}
	cached := defines[cacheDefine]
	given, rest, ds := d.takeDefines(file, without(defines, cacheDefine))
	if len(ds) > 0 {
		return nil, rest, ds
	}
	t := newTranslator(r, d, given)
	if t.elided(); len(r.ds) == 0 {
		t.inferIndices()
		t.translate()
		if !r.ds.HasErrors() {
			t.checkHandles(cached)
		}
	}
	if r.ds.Sort(); r.ds.HasErrors() {
		return nil, rest, r.ds
	}
	return r.prog, rest, r.ds
}

// takeDefines parses those definitions whose names the dump uses as indices. It returns the other definitions as
// rest.
func (d *dump) takeDefines(file string, defines map[string]string) (given map[string]*scalar, rest map[string]string,
	ds ir.Diagnostics) {
	given, rest = map[string]*scalar{}, map[string]string{}
	if len(defines) == 0 {
		return given, rest, nil
	}
	used := map[string]bool{}
	d.everyScalar(func(s *scalar) { used[s.name] = true })
	dims := map[string]bool{numberOfStreams: true}
	for _, x := range d.inputs {
		for _, a := range x.axes {
			a.extent.names(func(s *scalar) { dims[s.name] = dims[s.name] || isSymbol(s.name) && d.defs[s.name] == nil })
		}
	}
	for name, text := range defines {
		if name == "rank" || name == deviceIndex {
			ds = append(ds, &ir.Diagnostic{Kind: "import", File: file,
				Message: "--define " + name + ": its value differs between devices, so it cannot be set",
				Help:    "-n sets the number of ranks"})
			continue
		}
		if dims[name] {
			rest[name] = text
			continue
		}
		if !used[name] {
			known := slices.Concat([]string{cacheDefine, dumpDefine, indentDefine}, slices.Sorted(maps.Keys(dims)))
			ds = append(ds, usage(file, "--define "+name+": the dump has no index or dim with this name",
				"the names that --define accepts are the indices of the dump, and "+strings.Join(known, ", ")))
			continue
		}
		s, errs := parseDefine(fmt.Sprintf("--define %s", name), text)
		ds = append(ds, errs...)
		given[name] = s
	}
	return given, rest, ds
}

// everyScalar calls the function see with every name in the dump's expressions.
func (d *dump) everyScalar(see func(*scalar)) {
	d.everyStmt(func(s *stmt) {
		s.index.names(see)
		s.hi.names(see)
		s.stream.index.names(see)
		for _, r := range s.ranges {
			r.lo.names(see)
			r.hi.names(see)
		}
		for _, x := range s.tensors() {
			for _, a := range x.axes {
				a.extent.names(see)
			}
		}
	})
	for _, s := range d.defs {
		s.names(see)
	}
}
