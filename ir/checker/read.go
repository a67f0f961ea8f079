package checker

import "hocket.example/hocket/ir"

// Read parses and checks a program, and reports all of its errors. If the text has syntax errors, Read still checks
// everything that does not depend on the parts with these errors. Diagnostics are sorted, and there are at most 50. The
// Info is complete only if no error is reported.
func Read(file, src string) (*ir.Info, ir.Diagnostics) {
	p, lost, ds := ir.ParseLost(file, src)
	in, more := checkBeside(p, lost)
	ds = append(ds, more...)
	ds = ds[:min(len(ds), ir.MaxDiagnostics)]
	ds.Sort()
	return in, ds
}
