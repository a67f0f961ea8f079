package ir

// Ops whose results are indices, or that take elements by them.

// inferIota takes everything but the numbers from the annotation or destination.
func inferIota(in *inference) *Type {
	t := in.s.Type
	if in.s.Into != nil {
		t = in.in.Into[in.s].Type
	}
	switch {
	case t == nil:
		in.errorf("type", in.s.Pos, "iota needs to know its type").
			help("annotate the result: %i: i32[T] = iota, or write into a buffer")
		return nil
	case len(t.Partial) > 0:
		in.errorf("layout", t.Pos, "iota makes no partial value").help("leave the partial out")
		return nil
	case len(t.Dims) == 0:
		in.errorf("type", in.s.Pos, "a scalar has no dimension to count along").help("fill makes a scalar")
		return nil
	}
	if _, ok := in.axisAttr("axis", len(t.Dims)-1, len(t.Dims)); !ok || !in.constant("start", t.DType) {
		return nil
	}
	return t
}
