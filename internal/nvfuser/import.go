package nvfuser

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Import reads a dump and returns a program. defines sets the indices that the dump uses but does not define, in the
// notation of the dump: "i84": "(rank+streamIdx)%8". Definitions whose names do not occur in the dump are returned,
// since they may set dims of the program. If src contains several dumps, "dump": "2" selects the second. If the dump
// has lost its indentation and can be read as several programs, "indentation": "2" selects the second reading. If there
// are errors, the program is nil.
func Import(file, src string, defines map[string]string) (prog *ir.Program, rest map[string]string, ds ir.Diagnostics) {
	raws, warnings, ds := chooseDump(file, src, defines)
	if len(ds) > 0 {
		return nil, defines, ds
	}
	if cached, ok := defines[cacheDefine]; ok && cached != "0" && cached != "1" {
		return nil, defines, ir.Diagnostics{usage(file, "--define "+cacheDefine+"="+cached+": it is 0 or 1",
			"1 says that nvFuser's use_allocation_cache is set, 0 that it is not")}
	}
	defines = without(defines, dumpDefine)
	defer func() {
		ds = append(warnings, ds...)
		ds.Sort()
	}()
	lines := splitLines(raws)
	if len(lines) > maxLines {
		r := &reader{prog: &ir.Program{File: file, Source: src}}
		r.errorf(lines[maxLines].start(), "a dump has at most %d statements", maxLines)
		return nil, defines, r.ds
	}
	if unindented(lines) {
		return importUnindented(file, src, lines, defines)
	}
	return importLines(file, src, lines, defines)
}

// usage returns an error about the command line. Its kind distinguishes it from errors about the dump.
func usage(file, message, help string) *ir.Diagnostic {
	return &ir.Diagnostic{Kind: usageKind, File: file, Message: message, Help: help}
}

// These kinds of errors do not refute a program: the command line is wrong, or the dump is incomplete.
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

// takeDefines parses the definitions of the names that the dump uses as indices.
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
				Message: "--define " + name + ": it is what each device knows of itself",
				Help:    "-n sets how many ranks there are"})
			continue
		}
		if dims[name] {
			rest[name] = text
			continue
		}
		if !used[name] {
			known := slices.Concat([]string{cacheDefine, dumpDefine, indentDefine}, slices.Sorted(maps.Keys(dims)))
			ds = append(ds, usage(file, "--define "+name+": the dump has no index or dim of this name",
				"--define takes the dump's indices, and "+strings.Join(known, ", ")))
			continue
		}
		s, errs := parseDefine(fmt.Sprintf("--define %s", name), text)
		ds = append(ds, errs...)
		given[name] = s
	}
	return given, rest, ds
}

// everyScalar calls see for every name in an expression of the dump.
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
