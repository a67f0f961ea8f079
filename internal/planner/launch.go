package planner

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Limits that hold on every GPU.
var (
	mostGrid  = [3]int64{math.MaxInt32, 65535, 65535}
	mostBlock = [3]int64{1024, 1024, 64}
)

const (
	mostThreads = 1024    // maximum number of threads of a block
	mostShared  = 1 << 20 // maximum bytes of dynamic shared memory; every GPU has less
)

// launch emits the launch of a kernel. The tensors of a launch must have no gaps, because strides are not passed to the
// kernel.
func (u *computing) launch(s *ir.Stmt) error {
	if d := u.w.b.CheckStmt(s, u.env); d != nil {
		d.Message += u.where()
		return d
	}
	kernel, err := u.kernel(s)
	if err != nil {
		return err
	}
	l := plan.Launch{Kernel: kernel}
	c := plan.Cmd{Kind: plan.Compute, Op: ir.OpLaunch}
	for _, par := range s.Launch.Params {
		p := plan.LaunchParam{In: -1, Out: -1, DType: par.DType}
		if par.Kind == ir.LaunchNumber {
			p.Bits, err = u.launchNumber(s, par)
		} else {
			err = u.launchTensor(s, par, &c, &p)
		}
		if err != nil {
			return err
		}
		l.Params = append(l.Params, p)
	}
	if !slices.ContainsFunc(c.Outs, func(r plan.Ref) bool { return r.Elements() > 0 }) {
		return nil // a grid without blocks does nothing
	}
	if l.Grid, err = u.extents(s, "grid", mostGrid); err != nil {
		return err
	}
	if l.Block, err = u.extents(s, "block", mostBlock); err != nil {
		return err
	}
	if n := l.Block[0] * l.Block[1] * l.Block[2]; n > mostThreads {
		return u.errf("bind", s.Attr("block").Pos, "", "a block of %d threads is too large: a block can have at most %d", n, mostThreads)
	}
	if a := s.Attr("shared"); a != nil {
		if l.Shared, err = u.eval(s, a.Exprs[0]); err == nil && (l.Shared < 0 || l.Shared > mostShared) {
			err = u.errf("bind", a.Pos, "", "shared=%d is not in 0..%d", l.Shared, mostShared)
		}
		if err != nil {
			return err
		}
	}
	c.Launch = u.w.launch(l)
	return u.emit(s, c)
}

// launch returns one more than the index of l in the plan's launches. Equal launches share one entry; usually the
// launches of all ranks are equal.
func (w *world) launch(l plan.Launch) int32 {
	key := fmt.Sprint(l)
	i, ok := w.launches[key]
	if !ok {
		w.p.Launches = append(w.p.Launches, l)
		if w.launches == nil {
			w.launches = map[string]int32{}
		}
		i = int32(len(w.p.Launches))
		w.launches[key] = i
	}
	return i
}

func (u *computing) launchTensor(s *ir.Stmt, par ir.LaunchParam, c *plan.Cmd, p *plan.LaunchParam) error {
	place := &s.Args[par.At]
	r, err := u.present(place)
	if err != nil {
		return err
	}
	if err := u.wantDense(s, place, r); err != nil {
		return err
	}
	if par.Kind.Reads() {
		p.In, c.Ins = int32(len(c.Ins)), append(c.Ins, r)
	}
	if par.Kind.Writes() {
		p.Out, c.Outs = int32(len(c.Outs)), append(c.Outs, r)
	}
	return nil
}

// launchNumber returns the value of a numeric argument: an integer, or the bits of an f64.
func (u *computing) launchNumber(s *ir.Stmt, par ir.LaunchParam) (uint64, error) {
	if par.At < 0 {
		return math.Float64bits(par.Num), nil
	}
	v, err := u.eval(s, s.Exprs[par.At])
	switch {
	case err != nil:
		return 0, err
	case !par.DType.IsInt():
		return math.Float64bits(float64(v)), nil
	case par.DType == ir.I32 && v != int64(int32(v)):
		return 0, u.errf("bind", par.Pos, "write i64 before the number if the kernel's parameter has 64 bits", "%d does not fit i32", v)
	}
	return uint64(v), nil
}

// extents returns the three extents of a grid or a block. Extents that the attribute does not give are 1.
func (u *computing) extents(s *ir.Stmt, name string, most [3]int64) ([3]int64, error) {
	out, a := [3]int64{1, 1, 1}, s.Attr(name)
	for i, e := range a.Exprs {
		v, err := u.eval(s, e)
		if err == nil && (v < 1 || v > most[i]) {
			err = u.errf("bind", e.Pos, "", "extent %d of %s= is %d, but must be between 1 and %d", i, name, v, most[i])
		}
		if err != nil {
			return out, err
		}
		out[i] = v
	}
	return out, nil
}

// kernel returns the index of the kernel that s launches.
func (u *computing) kernel(s *ir.Stmt) (int32, error) {
	l := s.Launch
	for i := range u.w.p.Kernels {
		if k := &u.w.p.Kernels[i]; k.File == l.File && k.Name == l.Kernel.Text {
			return int32(i), nil
		}
	}
	code, ok := u.w.b.Info.Prog.Files[l.File]
	if !ok {
		return 0, u.errf("bind", l.Pos, "read the program with hocket.Parse, which also reads the files of kernels",
			"the file %q was not read", l.File)
	}
	u.w.p.Kernels = append(u.w.p.Kernels, plan.Kernel{File: l.File, Name: l.Kernel.Text, Code: code})
	return int32(len(u.w.p.Kernels) - 1), nil
}
