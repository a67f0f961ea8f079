package eval

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/standin"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// launch issues the launch of a user's kernel. The Go function that is registered for the kernel (see package standin)
// computes the outputs. If no function is registered, the outputs are unknown.
func (r *rank) launch(s *ir.Stmt) error {
	var call standin.Call
	views := make([]view, len(s.Launch.Params)) // views of the tensor arguments
	var uses []view
	for i, par := range s.Launch.Params {
		a := standin.Arg{Writes: par.Kind.Writes()}
		switch {
		case par.Kind != ir.LaunchNumber:
			v, err := r.tensor(&s.Args[par.At])
			if err != nil {
				return err
			}
			views[i], uses = v, append(uses, v)
		case par.At < 0:
			a.Float = par.Num
		default:
			v, err := r.eval(s.Exprs[par.At])
			if err != nil {
				return err
			}
			a.Int, a.Float = v, float64(v)
		}
		if par.DType == ir.F32 {
			a.Float = float64(float32(a.Float))
		}
		call.Args = append(call.Args, a)
	}
	var err error
	if call.Grid, err = r.extents(s, "grid"); err == nil {
		call.Block, err = r.extents(s, "block")
	}
	if err == nil {
		call.Shared, err = r.integer(s, "shared", 0)
	}
	if err != nil {
		return err
	}
	r.issue(s, func() error { return r.launched(s, call, views) }, uses...)
	return nil
}

func (r *scope) extents(s *ir.Stmt, name string) (out [3]int64, err error) {
	out = [3]int64{1, 1, 1}
	for i, e := range s.Attr(name).Exprs {
		if out[i], err = r.eval(e); err != nil {
			break
		}
	}
	return out, err
}

// launched computes the kernel's outputs.
func (r *rank) launched(s *ir.Stmt, call standin.Call, views []view) error {
	params, exact := s.Launch.Params, true
	call.Args = slices.Clone(call.Args)
	for i, par := range params {
		a := &call.Args[i]
		if par.Kind == ir.LaunchNumber {
			continue
		}
		if !par.Kind.Reads() {
			t, err := tensor.New(views[i].st.dt, views[i].shape)
			if err != nil {
				return err
			}
			standin.Poison(t)
			a.Tensor = t
			continue
		}
		x, err := views[i].read()
		if err != nil {
			return err
		}
		if a.Tensor, err = x.toTensor(); err != nil {
			return err
		}
		a.Err = slices.Clone(x.e)
		exact = exact && !slices.ContainsFunc(x.e, func(e float64) bool { return e != 0 })
	}
	for i, par := range params {
		if par.Kind.Writes() {
			call.Args[i].Err = nil
		}
	}
	name := s.Launch.Name()
	f := standin.Find(name)
	if f != nil {
		if err := f.Run(name, &call); err != nil {
			return &finding{"launch", err.Error(), ""}
		}
	} else {
		for i, par := range params {
			if par.Kind == ir.LaunchWrites { // the kernel does not read the tensor, so its initial contents may be any numbers
				clear(call.Args[i].Tensor.Data)
			}
		}
	}
	for i, par := range params {
		if par.Kind.Writes() {
			if err := views[i].write(found(&call.Args[i], f != nil, exact)); err != nil {
				return err
			}
		}
	}
	return nil
}

// found returns the contents that the registered function has written in place of the kernel. The function may return
// error bounds. If the function returns no error bounds, the bound is 2 units in the last place if all operands that
// the kernel reads are exact, and infinite otherwise.
func found(a *standin.Arg, known, exact bool) *array {
	out := fromTensor(a.Tensor)
	for i := range out.e {
		switch {
		case known && len(a.Err) == len(out.e):
			out.e[i] = a.Err[i]
		case !known || !exact:
			out.e[i] = inf
		case out.f != nil && !math.IsNaN(out.f[i]) && !math.IsInf(out.f[i], 0):
			out.e[i] = 2 * ulp(out.dt, out.f[i])
		}
		if math.IsNaN(out.e[i]) || out.e[i] < 0 {
			out.e[i] = inf
		}
	}
	return out
}
