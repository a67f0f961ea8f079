package hocket

import (
	"hocket.example/hocket/internal/nvfuser"
	"hocket.example/hocket/ir"
)

// Import makes a program of a Host IR dump of nvFuser, or of the dump within the log src; diagnostics call the dump
// name and give places in it. defines give indices that
// the dump uses and does not define, in its own notation ("i84":
// "(rank+streamIdx)%8"); rest are those that name no such index: they may be
// meant for Binding.Defines, as numberOfStreams is. If src has several different
// dumps, defines must choose one by its number ("dump": "2"). The error is Diagnostics.
func Import(name, src string, defines map[string]string) (p *Program, rest map[string]string, err error) {
	prog, rest, ds := nvfuser.Import(name, src, defines)
	if ds.HasErrors() {
		return nil, rest, ds
	}
	info, more := ir.Check(prog)
	if ds = append(ds, more...); ds.HasErrors() {
		return nil, rest, ds
	}
	return &Program{info: info, warnings: ds}, rest, nil
}
