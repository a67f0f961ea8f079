package ir

import "strconv"

// OutputNames returns the names of f's outputs: first its results in signature order, then its inout parameters. A
// result has the name of the returned place, without "%". A result is called "out", or "out.i" if there are several
// results, in these cases: two results have the same name, the name is that of an inout parameter, or no place is
// returned for the result. The number i counts all results from 0.
func OutputNames(f *Func) []string {
	names := make([]string, len(f.Results))
	if ret := f.returnStmt(); ret != nil {
		for i := range min(len(names), len(ret.Args)) {
			names[i] = ret.Args[i].Name
		}
	}
	uses := map[string]int{}
	for _, n := range names {
		uses[n]++
	}
	var inout []string
	for _, p := range f.Params {
		if p.Inout {
			inout = append(inout, p.Name)
			uses[p.Name]++
		}
	}
	for i, n := range names {
		if n != "" && uses[n] == 1 {
			continue
		}
		names[i] = "out." + strconv.Itoa(i)
		if len(names) == 1 && uses["out"] == 0 {
			names[i] = "out"
		}
	}
	return append(names, inout...)
}

// returnStmt returns the first return statement in text order, or nil.
func (f *Func) returnStmt() *Stmt {
	var ret *Stmt
	f.Body.Walk(func(s *Stmt) {
		if s.Op == OpReturn && ret == nil {
			ret = s
		}
	})
	return ret
}
