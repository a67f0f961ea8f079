package hocket

import (
	"slices"
	"strings"

	"hocket.example/hocket/internal/nvfuser"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// hint adds to what a proof found the notes of the importer.
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

// Import makes a program from a Host IR dump of nvFuser, or from the dump within the log src. Diagnostics call the
// dump name and give positions in it.
//
// defines gives indices that the dump uses but does not define, in nvFuser's notation ("i84": "(rank+streamIdx)%8").
// rest returns the definitions that name no such index; they may be meant for Binding.Defines, as numberOfStreams is.
// If src has several different dumps, defines must choose one by number ("dump": "2"). The error is Diagnostics.
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
