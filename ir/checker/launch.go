package checker

import (
	"hocket.example/hocket/ir"
	"path/filepath"
	"slices"
	"strings"
)

// checkLaunch checks a launch, which runs a kernel on the local tensors of one rank.
func (c *checker) checkLaunch(s *ir.Stmt) {
	l := s.Launch
	if !filepath.IsLocal(filepath.FromSlash(l.File)) || strings.ContainsAny(l.File, "\"\n\\") {
		c.errorf("structure", l.Pos, "%q does not name a file below the program's directory", l.File).
			help("write a path relative to that directory, with / and without .., such as kernels/scale.cu")
	} else if !slices.Contains(ir.KernelEndings, filepath.Ext(l.File)) {
		c.errorf("structure", l.Pos, "the name %q does not end like that of a file with kernels", l.File).
			help("use a file with CUDA C++ (.cu), PTX (.ptx) or a cubin (.cubin)")
	}
	c.checkLaunchShape(s)
	syms, ok := c.tensors(s)
	writes := false
	for _, par := range l.Params {
		if par.Kind == ir.LaunchNumber {
			c.checkLaunchNumber(s, par)
			continue
		}
		sym := syms[par.At]
		switch {
		case sym == nil || sym.Type == nil:
		case par.Kind.Writes():
			ok = c.writable(sym, par.Pos) && ok
		case len(sym.Type.Partial) > 0:
			c.errorf("layout", par.Pos, "%s cannot use the partial value %%%s: each rank has only a contribution to it",
				l.Name(), sym.Name).at(sym.Pos, "it is %s", ir.Brief(sym.Type)).help("reduce it first")
		}
		writes = writes || par.Kind.Writes()
	}
	if !writes {
		c.errorf("structure", l.Pos, "the kernel %s has no argument to write to", l.Name()).
			help("write into or inout before each tensor that the kernel writes: " + ir.LaunchForm)
	}
	if ok {
		c.checkLaunchOverlap(s, syms)
	}
}

func (c *checker) checkLaunchNumber(s *ir.Stmt, par ir.LaunchParam) {
	switch {
	case par.DType != ir.I32 && par.DType != ir.I64 && par.DType != ir.F32 && par.DType != ir.F64:
		c.errorf("type", par.Pos, "a kernel's number cannot have the type %s", par.DType).help("i32, i64, f32 or f64")
	case par.At < 0 && par.DType.IsInt():
		c.errorf("type", par.Pos, "%v is not a number of type %s", par.Num, par.DType).help("write f32 or f64 " +
			"before the number")
	}
}

// checkLaunchShape requires one to three extents of the grid and of a block.
func (c *checker) checkLaunchShape(s *ir.Stmt) {
	for _, name := range []string{"grid", "block"} {
		if a := s.Attr(name); a != nil && (len(a.Exprs) < 1 || len(a.Exprs) > 3) {
			c.errorf("structure", a.Pos, "%s= has %d extents, but must have one to three", name,
				len(a.Exprs)).help("write, for example, " + name + "=(4, 2)")
		}
	}
}

// checkLaunchOverlap reports an error if the kernel writes memory that belongs to two arguments. For two parts of one
// buffer, the planner compares the byte ranges.
func (c *checker) checkLaunchOverlap(s *ir.Stmt, syms []*ir.Sym) {
	for _, par := range s.Launch.Params {
		if par.Kind == ir.LaunchNumber || !par.Kind.Writes() {
			continue
		}
		for j, o := range syms {
			x := syms[par.At]
			if j == par.At || x.Root() != o.Root() || x != o && x.Base != nil && o.Base != nil ||
				x.Root().Count != nil && !samePlaces(&s.Args[par.At], &s.Args[j]) {
				continue
			}
			c.errorf("alias", par.Pos, "the kernel %s writes %%%s, which is passed to it twice", s.Launch.Name(),
				x.Root().Name).
				help("pass a tensor that the kernel reads and writes as one argument: inout %" + x.Name)
			return
		}
	}
}
