package hocket

import (
	"slices"
	"strings"

	"hocket.example/hocket/internal/nvfuser"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// hint adds the notes of the importer to the diagnostics that a proof has found.
func (p *Program) hint(ds Diagnostics) {
	for _, d := range ds {
		for _, h := range p.hints {
			at := func(n ir.Note) bool { return n.Pos == h.Pos }
			if h.Kind == d.Kind+nvfuser.Hint && (d.Pos == h.Pos || slices.ContainsFunc(d.Notes, at)) {
				d.Notes = append(d.Notes, h.Notes...)
			}
		}
	}
}

// Import converts a Host IR dump of nvFuser to a program. src is the dump, or a log that contains it. Diagnostics use
// name for the dump and give positions in it.
//
// defines sets the indices that the dump uses but does not define, in nvFuser's notation ("i84": "(rank+streamIdx)%8").
// rest returns the definitions that name no such index; they may be meant for Binding.Defines, as the definition of
// numberOfStreams is. If src contains several different dumps, defines must select one by its number ("dump": "2"). The
// error is Diagnostics.
func Import(name, src string, defines map[string]string) (p *Program, rest map[string]string, err error) {
	prog, rest, ds := nvfuser.Import(name, src, defines)
	if ds.HasErrors() {
		return nil, rest, ds
	}
	info, more := checker.Check(prog)
	if ds = append(ds, more...); ds.HasErrors() {
		return nil, rest, ds
	}
	p = &Program{info: info}
	for _, d := range ds {
		if strings.HasSuffix(d.Kind, nvfuser.Hint) {
			p.hints = append(p.hints, d)
		} else {
			p.warnings = append(p.warnings, d)
		}
	}
	return p, rest, nil
}
