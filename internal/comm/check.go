package comm

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// check returns an error unless in is well-formed for a team of n members, so that algorithms may rely on its shapes,
// types and indices.
func (in *Instance) check(n int) error {
	if len(in.Parts) != n {
		return fmt.Errorf("%s: %d parts for a team of %d", in.Op, len(in.Parts), n)
	}
	if in.Op == ir.OpBarrier {
		return nil
	}
	checks := map[ir.Op]func(int) error{
		ir.OpAllReduce: in.checkAllReduce, ir.OpAllGather: in.checkGather, ir.OpGather: in.checkGather,
		ir.OpReduceScatter: in.checkScatter, ir.OpScatter: in.checkScatter, ir.OpAllToAll: in.checkAllToAll,
		ir.OpBroadcast: in.checkBroadcast, ir.OpReduce: in.checkReduce, ir.OpPermute: in.checkPermute,
		ir.OpAllGatherV: in.checkUneven, ir.OpReduceScatterV: in.checkUneven, ir.OpAllToAllV: in.checkUneven,
	}
	f := checks[in.Op]
	if f == nil {
		return fmt.Errorf("%s is not a collective", in.Op)
	}
	for i := range in.Parts {
		if err := in.checkPart(i); err != nil {
			return fmt.Errorf("%s, member %d: %w", in.Op, i, err)
		}
	}
	if err := f(n); err != nil {
		return fmt.Errorf("%s: %w", in.Op, err)
	}
	return nil
}

// needs reports whether member i must have an input, and whether it must have an output.
func (in *Instance) needs(i int) (read, write bool) {
	switch in.Op {
	case ir.OpBroadcast:
		return i == in.Root, i != in.Root
	case ir.OpScatter:
		return i == in.Root, true
	case ir.OpReduce, ir.OpGather:
		return true, i == in.Root
	case ir.OpPermute:
		return in.Parts[i].To >= 0, in.Parts[i].From >= 0
	}
	return true, true
}

func (in *Instance) checkPart(i int) error {
	p, dt := &in.Parts[i], in.dtype()
	read, write := in.needs(i)
	switch {
	case read && !p.Reads:
		return fmt.Errorf("it has no input")
	case write && !p.Writes:
		return fmt.Errorf("it has no output")
	case p.Reads && p.In.DType != dt, p.Writes && p.Out.DType != dt:
		return fmt.Errorf("the operands of the team differ in element type")
	case p.Reads && !wellFormed(p.In), p.Writes && !wellFormed(p.Out):
		return fmt.Errorf("an operand has a negative extent, or strides that do not fit its shape")
	}
	return nil
}

func wellFormed(v device.View) bool {
	return len(v.Shape) == len(v.Strides) && !slices.ContainsFunc(v.Shape, func(e int64) bool { return e < 0 })
}

func (in *Instance) checkRoot(n int) error {
	if in.Root < 0 || in.Root >= n {
		return fmt.Errorf("root %d is outside the team of %d", in.Root, n)
	}
	return nil
}

// rooted reports whether the op has a root.
func (in *Instance) rooted() bool {
	switch in.Op {
	case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter:
		return true
	}
	return false
}

// checkRed returns an error if red is not a reduction.
func checkRed(red ir.Red) error {
	if red < ir.Sum || red > ir.Avg {
		return fmt.Errorf("it names no valid reduction (sum, max, min or avg)")
	}
	return nil
}

func (in *Instance) checkAllReduce(n int) error {
	for i := range in.Parts {
		if err := sameShape(in.Parts[i].Out.Shape, in.Parts[0].In.Shape, i); err != nil {
			return err
		}
		if err := sameShape(in.Parts[i].In.Shape, in.Parts[0].In.Shape, i); err != nil {
			return err
		}
	}
	return checkRed(in.Red)
}

// lead returns the index of the member whose input determines the collective's shape: the root if the op has one, or
// else member 0.
func (in *Instance) lead() int {
	if in.rooted() {
		return in.Root
	}
	return 0
}

// checkGather checks all_gather and gather.
func (in *Instance) checkGather(n int) error {
	if in.rooted() {
		if err := in.checkRoot(n); err != nil {
			return err
		}
	}
	part := in.Parts[in.lead()].In.Shape
	for i := range in.Parts {
		if err := sameShape(in.Parts[i].In.Shape, part, i); err != nil {
			return err
		}
		if _, write := in.needs(i); write {
			if err := joins(in.Parts[i].Out.Shape, part, in.Axis, n, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkScatter checks reduce_scatter and scatter.
func (in *Instance) checkScatter(n int) error {
	if in.rooted() {
		if err := in.checkRoot(n); err != nil {
			return err
		}
	} else if err := checkRed(in.Red); err != nil {
		return err
	}
	whole := in.Parts[in.lead()].In.Shape
	for i := range in.Parts {
		if read, _ := in.needs(i); read {
			if err := sameShape(in.Parts[i].In.Shape, whole, i); err != nil {
				return err
			}
		}
		if err := joins(whole, in.Parts[i].Out.Shape, in.Axis, n, i); err != nil {
			return err
		}
	}
	return nil
}

func (in *Instance) checkAllToAll(n int) error {
	first := in.Parts[0].In.Shape
	if in.Split < 0 || in.Split >= len(first) || first[in.Split]%int64(n) != 0 {
		return fmt.Errorf("dimension %d of shape %v cannot be split into %d equal parts", in.Split, first, n)
	}
	cut := slices.Clone(first)
	cut[in.Split] /= int64(n)
	for i := range in.Parts {
		if err := sameShape(in.Parts[i].In.Shape, first, i); err != nil {
			return err
		}
		if err := joins(in.Parts[i].Out.Shape, cut, in.Axis, n, i); err != nil {
			return err
		}
	}
	return nil
}

func (in *Instance) checkBroadcast(n int) error {
	if err := in.checkRoot(n); err != nil {
		return err
	}
	for i := range in.Parts {
		if !in.Parts[i].Writes {
			continue
		}
		if err := sameShape(in.Parts[i].Out.Shape, in.Parts[in.Root].In.Shape, i); err != nil {
			return err
		}
	}
	return nil
}

func (in *Instance) checkReduce(n int) error {
	if err := in.checkRoot(n); err != nil {
		return err
	}
	for i := range in.Parts {
		if err := sameShape(in.Parts[i].In.Shape, in.Parts[in.Root].Out.Shape, i); err != nil {
			return err
		}
	}
	return checkRed(in.Red)
}

func (in *Instance) checkPermute(n int) error {
	for i := range in.Parts {
		p := &in.Parts[i]
		if p.To >= n || p.From >= n {
			return fmt.Errorf("member %d sends to or receives from a member outside the team of %d", i, n)
		}
		if p.To >= 0 && in.Parts[p.To].From != i {
			return fmt.Errorf("member %d sends to %d, which does not receive from it", i, p.To)
		}
		if p.From < 0 {
			continue
		}
		if in.Parts[p.From].To != i {
			return fmt.Errorf("member %d receives from %d, which does not send to it", i, p.From)
		}
		if err := sameShape(p.Out.Shape, in.Parts[p.From].In.Shape, i); err != nil {
			return err
		}
	}
	return nil
}

func sameShape(got, want []int64, member int) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("member %d has an operand of shape %v, want %v", member, got, want)
	}
	return nil
}

// joins returns an error unless n parts, concatenated along axis, have the shape whole.
func joins(whole, part []int64, axis, n, member int) error {
	if axis < 0 || axis >= len(part) {
		return fmt.Errorf("there is no dimension %d in shape %v", axis, part)
	}
	want := slices.Clone(part)
	want[axis] *= int64(n)
	return sameShape(whole, want, member)
}
