package checker

import "hocket.example/hocket/ir"

// Read parses and checks a program, and says all that is wrong with it: where
// the text has errors, what does not depend on the parts that have them is
// checked all the same. Diagnostics are sorted, at most 50. The Info is complete
// only when no error is reported.
func Read(file, src string) (*ir.Info, ir.Diagnostics) {
	p, lost, ds := ir.ParseLost(file, src)
	in, more := checkBeside(p, lost)
	ds = append(ds, more...)
	ds = ds[:min(len(ds), ir.MaxDiagnostics)]
	ds.Sort()
	return in, ds
}
