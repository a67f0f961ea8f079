package planner

import (
	"slices"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// bindInputs binds every parameter to its buffer and emits the commands that upload the caller's inputs.
func (u *unroller) bindInputs(f *ir.Func) error {
	for i, par := range f.Params {
		if i == len(u.w.p.Inputs) {
			if err := u.addInput(par); err != nil {
				return err
			}
		}
		io := &u.w.p.Inputs[i]
		if !u.w.b.Holds(par.Type, u.rank) {
			io.Parts = append(io.Parts, plan.IOPart{Ref: plan.Absent()})
			u.frame.tensors[par.Name] = []tensor{absent()}
			continue
		}
		local, err := u.w.b.LocalShape(par.Type, u.env)
		if err != nil {
			return u.errf("bind", par.Pos, "", "%%%s: %v", par.Name, err)
		}
		buf := &u.w.p.Buffers[i] // parameters come first
		r := plan.Ref{Rank: int32(u.rank), Buf: int32(i), DType: par.Type.DType, Shape: local, Strides: rowMajor(local)}
		if buf.Bytes = max(buf.Bytes, r.Bytes()); buf.Bytes > maxBytes {
			return u.errf("limit", par.Pos, "", "%%%s would need %d bytes, but a buffer can have at most %d", par.Name, buf.Bytes, int64(maxBytes))
		}
		io.Parts = append(io.Parts, plan.IOPart{Ref: r, Lo: u.w.b.Offset(par.Type, local, u.rank)})
		u.frame.tensors[par.Name] = []tensor{{Ref: r}}
		if err := u.emit(nil, plan.Cmd{Kind: plan.Input, IO: int32(i), Site: buf.Site}); err != nil {
			return err
		}
	}
	return nil
}

func (u *unroller) addInput(par *ir.Param) error {
	shape, err := u.w.b.GlobalShape(par.Type, u.env)
	if err != nil {
		return u.errf("bind", par.Pos, "", "%%%s: %v", par.Name, err)
	}
	u.w.p.Inputs = append(u.w.p.Inputs, plan.IO{
		Name: par.Name, DType: par.Type.DType, Shape: shape, Inout: par.Inout, Parts: slices.Repeat([]plan.IOPart{{Ref: plan.Absent()}}, u.rank),
	})
	u.w.p.Buffers = append(u.w.p.Buffers, plan.Buffer{
		Name: "%" + par.Name, Site: u.w.paramSite(par), Role: plan.RoleInput, First: -1, Last: -1,
	})
	return nil
}

// emitOutputs emits on main the commands that copy outputs back to the caller: first the results, then the inout
// parameters.
func (u *unroller) emitOutputs(f *ir.Func, results []tensor) error {
	if len(u.w.p.Outputs) == 0 {
		if err := u.addOutputs(f); err != nil {
			return err
		}
	}
	for i, t := range results {
		typ := f.Results[i]
		if !u.w.b.Holds(typ, u.rank) {
			t = absent()
		} else if !t.Present() {
			return u.errf("bind", t.at.Pos, "", "%s is returned as result %s, but this rank has no part of it", t.at.Args[i], typ)
		}
		if err := u.emitOutput(i, typ, t); err != nil {
			return err
		}
	}
	next := len(results)
	for i, par := range f.Params {
		if !par.Inout {
			continue
		}
		t := tensor{Ref: u.w.p.Inputs[i].Parts[u.rank].Ref}
		if err := u.emitOutput(next, par.Type, t); err != nil {
			return err
		}
		next++
	}
	return nil
}

func (u *unroller) emitOutput(i int, typ *ir.Type, t tensor) error {
	io := &u.w.p.Outputs[i]
	if !t.Present() {
		io.Parts = append(io.Parts, plan.IOPart{Ref: plan.Absent()})
		return nil
	}
	if b := &u.w.p.Buffers[t.Buf]; b.Role != plan.RoleInput {
		b.Role = plan.RoleOutput
	}
	io.Parts = append(io.Parts, plan.IOPart{Ref: t.Ref, Lo: u.w.b.Offset(typ, t.Shape, u.rank)})
	c := plan.Cmd{Kind: plan.Output, IO: int32(i)}
	if t.at == nil {
		c.Site = u.w.p.Buffers[t.Buf].Site
	}
	u.cur = u.main
	return u.emit(t.at, c)
}

func (u *unroller) addOutputs(f *ir.Func) error {
	names := ir.OutputNames(f)
	add := func(t *ir.Type, inout bool) error {
		shape, err := u.w.b.GlobalShape(t, u.env)
		if err != nil {
			return u.errf("bind", t.Pos, "", "%v", err)
		}
		name := names[len(u.w.p.Outputs)]
		u.w.p.Outputs = append(u.w.p.Outputs, plan.IO{Name: name, DType: t.DType, Shape: shape, Inout: inout})
		return nil
	}
	for _, t := range f.Results {
		if err := add(t, false); err != nil {
			return err
		}
	}
	for _, par := range f.Params {
		if !par.Inout {
			continue
		}
		if err := add(par.Type, true); err != nil {
			return err
		}
	}
	return nil
}
