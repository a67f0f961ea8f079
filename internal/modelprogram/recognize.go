package modelprogram

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// recognizers holds functions that recognize a group of operations, by its result, that one instruction can replace. A
// recognizer returns nil if it does not recognize the value.
var recognizers []func(l *lowerer, v *graph.Value) (*val, error)

// recognize tries all recognizers.
func (l *lowerer) recognize(v *graph.Value) (*val, error) {
	for _, r := range recognizers {
		if x, err := r(l, v); x != nil || err != nil {
			return x, err
		}
	}
	return nil, nil
}

func init() {
	recognizers = append(recognizers, rmsNorm, geluTanh, rope, partialRope, attention,
		eagerAttention)
}

// uncast returns the value from which v was cast.
func uncast(v *graph.Value) *graph.Value {
	for v.Made(graph.Cast) != nil {
		v = v.Node.In[0]
	}
	return v
}

// either returns the two operands of a node, in an order in which fits returns true for the first.
func either(n *graph.Node, fits func(*graph.Value) bool) (a, b *graph.Value, ok bool) {
	if n == nil || len(n.In) != 2 {
		return nil, nil, false
	}
	if fits(n.In[0]) {
		return n.In[0], n.In[1], true
	}
	return n.In[1], n.In[0], fits(n.In[1])
}

// recognition finds known patterns in the graph.
type recognition struct {
	g        *graph.Graph
	folder   *graph.Folder
	users    map[*graph.Value][]*graph.Node
	given    int                      // number of nodes in the graph before conversion
	places   map[*graph.Node]int      // positions of the nodes that were added during conversion
	uniforms map[*graph.Value]uniform // by constant
	masks    map[maskKey]mask         // masks that were recognized
}

// number returns the operand of n that is a single number, and the other operand.
func (l *recognition) number(n *graph.Node) (c float64, other *graph.Value, ok bool) {
	_, other, ok = either(n, func(v *graph.Value) bool { _, is := l.uniform(v); return is })
	if !ok {
		return 0, nil, false
	}
	for _, v := range n.In {
		if v != other {
			c, _ = l.uniform(v)
		}
	}
	return c, other, true
}

// normalized returns x and eps if v is x · rsqrt(mean(x²) + eps).
func (l *recognition) normalized(v *graph.Value) (x *graph.Value, eps float64, ok bool) {
	root, x, ok := either(v.Made(graph.Mul), func(v *graph.Value) bool { return v.Made(graph.Rsqrt) != nil })
	if !ok {
		return nil, 0, false
	}
	eps, mean, ok := l.number(root.Node.In[0].Made(graph.AddOp))
	if !ok || mean.Made(graph.Mean) == nil {
		return nil, 0, false
	}
	m := mean.Node
	if len(m.Attrs.Axes) != 1 || int(m.Attrs.Axes[0]) != len(x.Shape)-1 || !m.Attrs.Keep {
		return nil, 0, false
	}
	square := m.In[0]
	if p := square.Made(graph.Pow); p != nil {
		two, is := l.uniform(p.In[1])
		return x, eps, is && two == 2 && p.In[0] == x
	}
	p := square.Made(graph.Mul)
	return x, eps, p != nil && p.In[0] == x && p.In[1] == x
}

// rmsNorm recognizes x · rsqrt(mean(x²) + eps) · w, with casts between types.
func rmsNorm(l *lowerer, v *graph.Value) (*val, error) {
	n := v.Node
	inner := v
	if n.Op == graph.Cast {
		inner = uncast(v)
	}
	m := inner.Made(graph.Mul)
	if m == nil {
		return nil, nil
	}
	var eps float64
	var x *graph.Value
	found := func(v *graph.Value) (ok bool) { x, eps, ok = l.normalized(uncast(v)); return ok }
	var params []*graph.Value
	if _, w, ok := either(m, found); ok && isVector(w, graph.Last(v.Shape)) {
		params = []*graph.Value{w}
	} else if x, eps, ok = l.normalized(inner); !ok {
		return nil, nil
	}
	// The intermediate values have a wider type, as in rms_norm.
	if u := uncast(x); u.DType == v.DType {
		x = u
	}
	if x.DType != v.DType {
		return nil, nil
	}
	return l.norm(n, x, params, eps)
}

// isVector reports whether a value has n elements, all along its last dimension.
func isVector(v *graph.Value, n int64) bool {
	return len(v.Shape) > 0 && graph.Last(v.Shape) == n && v.Count() == n
}

// geluTanh recognizes x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
func geluTanh(l *lowerer, v *graph.Value) (*val, error) {
	_, half, ok := either(v.Made(graph.Mul), func(v *graph.Value) bool {
		one, t, ok := l.number(v.Made(graph.AddOp))
		return ok && one == 1 && t.Made(graph.Tanh) != nil
	})
	if !ok {
		return nil, nil
	}
	c, x, ok := l.number(half.Made(graph.Mul))
	if !ok || c != 0.5 {
		return nil, nil
	}
	var sum *graph.Value
	for _, w := range v.Node.In {
		if w != half {
			_, sum, _ = l.number(w.Node)
		}
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-5 }
	c, inner, ok := l.number(sum.Node.In[0].Made(graph.Mul))
	if !ok || !near(c, math.Sqrt(2/math.Pi)) {
		return nil, nil
	}
	_, scaled, ok := either(inner.Made(graph.AddOp), func(v *graph.Value) bool { return v == x })
	if !ok {
		return nil, nil
	}
	c, cube, ok := l.number(scaled.Made(graph.Mul))
	p := cube.Made(graph.Pow)
	if !ok || !near(c, 0.044715) || p == nil || p.In[0] != x {
		return nil, nil
	}
	if three, is := l.uniform(p.In[1]); !is || three != 3 {
		return nil, nil
	}
	y, err := l.lower(x)
	if err != nil {
		return nil, err
	}
	return l.mapped(v.Node, y, "gelu_tanh", ""), nil
}

// rope recognizes x·cos + rotate(x)·sin, where rotate swaps the halves of the last dimension and negates the first.
func rope(l *lowerer, v *graph.Value) (*val, error) {
	r, err := l.turned(v)
	if r == nil || err != nil {
		return nil, err
	}
	return l.rope(v, r.x, r)
}

// partialRope recognizes a rotary embedding that rotates only a part of each head and concatenates it with the
// unrotated part.
func partialRope(l *lowerer, v *graph.Value) (*val, error) {
	c := v.Made(graph.Concat)
	if c == nil || len(c.In) != 2 || c.Attrs.Axis != len(v.Shape)-1 {
		return nil, nil
	}
	rest := c.In[1].Made(graph.SliceOp)
	if rest == nil || rest.Attrs.Axis != c.Attrs.Axis {
		return nil, nil
	}
	r, err := l.turned(c.In[0])
	if r == nil || err != nil {
		return nil, err
	}
	part, width := r.x.Made(graph.SliceOp), graph.Last(r.x.Shape)
	if part == nil || part.In[0] != rest.In[0] || part.Attrs.Axis != c.Attrs.Axis || part.Attrs.Lo != 0 ||
		part.Attrs.Step != 1 || rest.Attrs.Step != 1 || rest.Attrs.Lo != width ||
		graph.Last(v.Shape) != graph.Last(rest.In[0].Shape) {
		return nil, nil
	}
	return l.rope(v, part.In[0], r)
}

// turn describes a rotary embedding of x at given positions. The frequencies of the embedding are powers of theta, or
// are listed if they are not powers of a number.
type turn struct {
	x *graph.Value
	angle
	at operand
}

// turned returns the rotary embedding of which v is the result, if v = x·cos + rotate(x)·sin. Otherwise it returns nil.
func (l *lowerer) turned(v *graph.Value) (*turn, error) {
	n := v.Made(graph.AddOp)
	if n == nil {
		return nil, nil
	}
	var x, cos, sin *graph.Value
	for i, term := range n.In {
		other := n.In[1-i]
		m, o := term.Made(graph.Mul), other.Made(graph.Mul)
		if m == nil || o == nil {
			return nil, nil
		}
		turned, s, ok := either(m, func(v *graph.Value) bool { return rotated(v) != nil })
		if !ok {
			continue
		}
		x, sin = rotated(turned), s
		if _, c, ok := either(o, func(v *graph.Value) bool { return v == x }); ok {
			cos = c
		}
	}
	if cos == nil || len(x.Shape) != 4 {
		return nil, nil
	}
	r := &turn{x: x}
	var ok bool
	var err error
	if r.angle, r.at, ok, err = l.phase(cos, sin, graph.Last(x.Shape)); err != nil {
		return nil, err
	}
	if !ok && l.folder.IsConstant(cos) && l.folder.IsConstant(sin) {
		if r.angle, ok, err = l.angles(cos, sin, graph.Last(x.Shape)); ok {
			n := int64(len(r.positions))
			r.at.in = l.iota(graph.I32, []int64{n}, 0)
		}
	}
	if !ok || err != nil {
		return nil, err
	}
	return r, nil
}

// rope emits the instruction for v, which is the rotary embedding r of x.
func (l *lowerer) rope(v, x *graph.Value, r *turn) (*val, error) {
	// Positions are along dimension 2 of x[B, H, T, D], or along dimension 1 of x[B, T, H, D].
	tokens := graph.Last(r.at.shape())
	turn := r.shape[1] == 1 && r.shape[2] == tokens && x.Shape[2] == tokens
	settled := l.plain
	if turn {
		settled = l.byToken
	}
	o, err := settled(x)
	if err != nil {
		return nil, err
	}
	args, attrs := []operand{o, r.at}, ""
	if width := int64(2 * len(r.freqs)); r.theta == 0 || width != graph.Last(x.Shape) {
		t := &graph.Tensor{DType: graph.F32, Shape: []int64{width / 2}, Elems: r.freqs}
		args = append(args, operand{p: l.constantParam(t.As(graph.F32), "freqs")})
	} else {
		attrs = "theta=" + number(r.theta, graph.F32)
	}
	if r.scale != 1 {
		if attrs != "" {
			attrs += ", "
		}
		attrs += "scale=" + number(r.scale, graph.F32)
	}
	z := l.emitted(v.Node, "rope", attrs, v.DType, o.shape(), o.splitDim(), args...)
	if turn {
		z = permuted(z, headsAfterTokens)
	}
	return z, nil
}

// rotated returns x if v is the concatenation of -x[half:] and x[:half] along the last dimension.
func rotated(v *graph.Value) *graph.Value {
	c := v.Made(graph.Concat)
	if c == nil || len(c.In) != 2 || c.Attrs.Axis != len(v.Shape)-1 {
		return nil
	}
	neg := c.In[0].Made(graph.Neg)
	if neg == nil {
		return nil
	}
	hi, lo := neg.In[0].Made(graph.SliceOp), c.In[1].Made(graph.SliceOp)
	half := graph.Last(v.Shape) / 2
	if hi == nil || lo == nil || hi.In[0] != lo.In[0] || hi.Attrs.Axis != c.Attrs.Axis ||
		lo.Attrs.Axis != c.Attrs.Axis ||
		lo.Attrs.Lo != 0 || lo.Attrs.Hi != half || hi.Attrs.Lo != half || hi.Attrs.Hi != 2*half ||
		graph.Last(lo.In[0].Shape) != 2*half {
		return nil
	}
	return lo.In[0]
}

// angle describes tables of cosines and sines. The tables' elements are scale·cos(t·f) and scale·sin(t·f) for each
// position t and frequency f, repeated for the two halves of a head. If the frequencies are theta^(-2i/D), theta is not
// 0.
type angle struct {
	theta, scale float64
	freqs        []float64
	positions    []float64
	shape        []int64 // shape of the tables
}

// angles determines the frequencies and the scale from the elements of constant tables of cosines and sines, whose
// positions are 0, 1, ….
func (l *recognition) angles(cos, sin *graph.Value, d int64) (a angle, ok bool, err error) {
	c, err := l.folder.Value(wider(cos))
	if err != nil {
		return a, false, err
	}
	s, err := l.folder.Value(wider(sin))
	if err != nil {
		return a, false, err
	}
	a.shape = cos.Shape
	if graph.Last(a.shape) != d || len(c.Elems) != len(s.Elems) || int64(len(c.Elems))%max(d, 1) != 0 || d%2 != 0 ||
		d == 0 ||
		len(a.shape) != 4 || int64(len(c.Elems)) < 2*d {
		return a, false, nil
	}
	tokens, half := int64(len(c.Elems))/d, d/2
	for t := range tokens {
		a.positions = append(a.positions, float64(t))
	}
	a.scale = c.Elems[0]
	if math.Abs(a.scale-1) < 1e-6 {
		a.scale = 1
	}
	// The angle at position 1 is the frequency. The angles at positions 2, 4, … determine it with more digits.
	a.freqs = make([]float64, half)
	for i := range half {
		f := math.Atan2(s.Elems[d+i], c.Elems[d+i])
		for t := int64(2); t < tokens; t *= 2 {
			at := math.Atan2(s.Elems[t*d+i], c.Elems[t*d+i])
			f = (at + 2*math.Pi*math.Round((f*float64(t)-at)/(2*math.Pi))) / float64(t)
		}
		a.freqs[i] = f
	}
	a.base()
	for t := range tokens {
		for i := range d {
			at := float64(t) * a.freqs[i%half]
			bound := (1e-5 + float64(t)*1e-6) * max(a.scale, 1)
			if !(math.Abs(c.Elems[t*d+i]-a.scale*math.Cos(at)) <= bound &&
				math.Abs(s.Elems[t*d+i]-a.scale*math.Sin(at)) <= bound) {
				return a, false, nil
			}
		}
	}
	return a, true, nil
}

// base determines theta from the frequencies, if they are powers of theta up to rounding, and replaces them by the
// exact powers.
func (a *angle) base() {
	half := len(a.freqs)
	theta := baseOf(a.freqs[half-1], int64(half))
	exact := make([]float64, half)
	for i, f := range a.freqs {
		exact[i] = math.Pow(theta, -float64(i)/float64(half))
		if !(math.Abs(f-exact[i]) <= 1e-6*exact[i]) {
			return
		}
	}
	a.theta, a.freqs = theta, exact
}

// baseOf returns theta, given the last of half frequencies, theta^(-2i/D).
func baseOf(slowest float64, half int64) float64 {
	if half < 2 {
		return 10000
	}
	theta := math.Pow(slowest, -float64(half)/float64(half-1))
	// Bases are round numbers.
	if scale := math.Pow(10, math.Floor(math.Log10(theta))-4); scale > 0 {
		if r := math.Round(theta/scale) * scale; math.Abs(r-theta) < 1e-4*theta {
			return r
		}
	}
	return theta
}

// phase determines the frequencies, the scale and the positions of tables of cosines and sines from the operations that
// compute them: products of positions and frequencies, repeated for the two halves of a head.
func (l *lowerer) phase(cos, sin *graph.Value, d int64) (a angle, at operand, ok bool, err error) {
	angles, scale := unscaled(&l.recognition, cos, graph.Cos)
	if other, same := unscaled(&l.recognition, sin, graph.Sin); angles == nil || angles != other || scale != same ||
		!slices.Equal(cos.Shape, sin.Shape) || len(cos.Shape) != 4 {
		return a, at, false, nil
	}
	both := angles.Made(graph.Concat)
	if both == nil || len(both.In) != 2 || both.In[0] != both.In[1] || graph.Last(angles.Shape) != d {
		return a, at, false, nil
	}
	product, half := both.In[0], d/2
	tokens, order := product.Count()/half, 1
	if t := product.Made(graph.Transpose); t != nil && swapsLast(t.Attrs.Axes) {
		product, order = t.In[0], 0
	}
	var pos, freqs *graph.Value
	if n := product.Made(graph.MatMul); n != nil && graph.Last(n.In[0].Shape) == 1 {
		pos, freqs = n.In[1-order], n.In[order]
	} else if n := product.Made(graph.Mul); n != nil && order == 1 {
		freqs, pos, _ = either(n, l.folder.IsConstant)
		if graph.Last(pos.Shape) != 1 {
			return a, at, false, nil
		}
	}
	if pos == nil || pos.Count() != tokens || !l.folder.IsConstant(freqs) || freqs.Count() != half &&
		freqs.Count() != half*product.Shape[0] {
		return a, at, false, nil
	}
	t, err := l.folder.Value(freqs)
	if err != nil || int64(len(t.Elems))%half != 0 || len(t.Elems) == 0 {
		return a, at, false, err
	}
	if pos = wider(pos); pos.DType != graph.I32 && pos.DType != graph.I64 {
		return a, at, false, nil
	}
	if !repeats(t.Elems, half) {
		return a, at, false, nil
	}
	a.shape, a.scale, a.freqs = cos.Shape, scale, slices.Clone(t.Elems[:half])
	a.base()
	at, ok, err = l.positions(pos, cos.Shape[0], tokens)
	return a, at, ok, err
}

// positions converts the positions of tokens, which are those of all sequences of a batch.
func (l *lowerer) positions(v *graph.Value, batch, tokens int64) (at operand, ok bool, err error) {
	if !l.folder.IsConstant(v) {
		x, err := l.lower(v)
		if err != nil {
			return at, false, err
		}
		return l.shaped(v, x, []int64{batch, tokens / batch}), tokens%batch == 0, nil
	}
	t, err := l.folder.Value(v)
	if err != nil || int64(len(t.Elems)) != tokens || batch != 1 {
		return at, false, err
	}
	t = (&graph.Tensor{DType: graph.I32, Shape: []int64{tokens}, Elems: t.Elems}).As(graph.I32)
	if start, ok := counts(t); ok {
		at.in = l.iota(graph.I32, t.Shape, start)
	} else {
		at.p = l.constantParam(t, "positions")
	}
	return at, true, nil
}

// repeats reports whether a list consists of repetitions of its first n elements.
func repeats(list []float64, n int64) bool {
	for i, x := range list {
		if x != list[int64(i)%n] {
			return false
		}
	}
	return true
}

// unscaled returns x and c if v is c·op(x), where op is the cosine or sine. Reshapes and casts in between are ignored.
func unscaled(l *recognition, v *graph.Value, op graph.Op) (*graph.Value, float64) {
	scale := 1.0
	for v.Node != nil {
		switch v.Node.Op {
		case graph.Cast, graph.Reshape:
			v = v.Node.In[0]
			continue
		case graph.Mul:
			if c, other, ok := l.number(v.Node); ok {
				scale *= c
				v = other
				continue
			}
		case op:
			return v.Node.In[0], scale
		}
		return nil, 0
	}
	return nil, 0
}

// wider returns the value from which v was computed by reshapes and casts to a smaller type.
func wider(v *graph.Value) *graph.Value {
	for v.Node != nil && (v.Node.Op == graph.Cast || v.Node.Op == graph.Reshape) {
		v = v.Node.In[0]
	}
	return v
}

// repeated returns k and n if v[B, H·n, T, D] contains each head of k[B, H, T, D] n times.
func repeated(v *graph.Value) *graph.Value {
	r := v.Made(graph.Reshape)
	if r == nil || len(v.Shape) != 4 {
		return v
	}
	b := r.In[0].Made(graph.Broadcast)
	if b == nil || len(b.Out[0].Shape) != 5 {
		return v
	}
	u := b.In[0].Made(graph.Reshape)
	if u == nil || len(u.In[0].Shape) != 4 {
		return v
	}
	k := u.In[0].Shape
	wide := b.Out[0].Shape
	if !slices.Equal(u.Out[0].Shape, []int64{k[0], k[1], 1, k[2], k[3]}) ||
		!slices.Equal(wide, []int64{k[0], k[1], wide[2], k[2], k[3]}) ||
		!slices.Equal(v.Shape, []int64{k[0], k[1] * wide[2], k[2], k[3]}) {
		return v
	}
	return u.In[0]
}

// attention converts the operation attention. Heads that are repeated for groups of queries are used without the
// repetition, and a known mask becomes attributes.
func attention(l *lowerer, v *graph.Value) (*val, error) {
	n := v.Made(graph.Attention)
	if n == nil {
		return nil, nil
	}
	if x, err := l.attentionOfShape(n); x != nil || err != nil {
		return x, err
	}
	q, k, w := n.In[0], n.In[1], n.In[2]
	if rk, rw := repeated(k), repeated(w); rk.Shape[1] == rw.Shape[1] {
		k, w = rk, rw
	}
	if x, err := l.keptAttention(n, k, w); x != nil || err != nil {
		return x, err
	}
	causal := n.Attrs.Causal && k.Shape[2] > 1 // all queries use an only key
	var attrs []string
	if len(n.In) == 4 {
		m, ok, err := l.mask(n.In[3], q.Shape[2], k.Shape[2])
		if err != nil {
			return nil, err
		}
		if !ok {
			return l.attentionByParts(n)
		}
		causal = causal || m.causal
		if m.window > 0 {
			attrs = append(attrs, fmt.Sprintf("window=%d", m.window))
		}
	} else if causal && q.Shape[2] != k.Shape[2] {
		return l.attentionByParts(n)
	}
	if causal {
		attrs = append([]string{"causal=true"}, attrs...)
	}
	attrs = append(attrs, scoreAttrs(n)...)
	var args []operand
	for _, x := range []*graph.Value{q, k, w} {
		y, err := l.byToken(x)
		if err != nil {
			return nil, err
		}
		args = append(args, y)
	}
	y := l.emitted(n, "attention", strings.Join(attrs, ", "), v.DType, graph.Pick(v.Shape, headsAfterTokens),
		args[0].splitDim(), args...)
	return permuted(y, headsAfterTokens), nil
}

// headsAfterTokens is the permutation from [B, H, T, D] to [B, T, H, D], which the language's attention and rope
// require. It is its own inverse.
var headsAfterTokens = []int64{0, 2, 1, 3}

// byToken converts x[B, H, T, D] to an operand of shape [B, T, H, D].
func (l *lowerer) byToken(x *graph.Value) (operand, error) {
	y, err := l.lower(x)
	if err != nil {
		return operand{}, err
	}
	if y.shape != nil {
		l.settle(x, y)
	}
	turned := &graph.Value{Shape: graph.Pick(x.Shape, headsAfterTokens), Node: x.Node}
	return l.settle(turned, permuted(y, headsAfterTokens)), nil
}

// scoreAttrs lists the attributes that determine how attention computes scores.
func scoreAttrs(n *graph.Node) (attrs []string) {
	if n.Attrs.Softcap != 0 {
		attrs = append(attrs, "softcap="+number(n.Attrs.Softcap, graph.F32))
	}
	if d := float64(graph.Last(n.In[0].Shape)); math.Abs(n.Attrs.Scale*math.Sqrt(d)-1) > 1e-7 {
		attrs = append(attrs, "scale="+number(n.Attrs.Scale, graph.F32))
	}
	return attrs
}

// mask describes the keys that a query uses. If causal is set, they are the keys up to the query's position; otherwise
// all keys. If window is not 0, only the last window keys among them are used.
type mask struct {
	causal bool
	window int64
}

// maskKey is the map key of a constant mask for given numbers of queries and keys.
type maskKey struct {
	v      *graph.Value
	tq, tk int64
}

// mask determines the mask that a constant represents. If it represents none, ok is false.
func (l *recognition) mask(v *graph.Value, tq, tk int64) (m mask, ok bool, err error) {
	key := maskKey{v, tq, tk}
	if m, ok := l.masks[key]; ok {
		return m, true, nil
	}
	if !l.folder.IsConstant(v) {
		return m, false, nil
	}
	t, err := l.folder.Value(v)
	if err != nil {
		return m, false, err
	}
	d := len(t.Shape)
	if d < 2 || t.Shape[d-1] != tk || t.Shape[d-2] != tq && t.Shape[d-2] != 1 {
		return m, false, nil
	}
	rows := t.Shape[d-2]
	if !repeats(t.Elems, rows*tk) { // the mask differs between heads or sequences
		return m, false, nil
	}
	if t.DType != graph.Bool && slices.ContainsFunc(t.Elems, func(x float64) bool { return x != 0 && x > -1e4 }) {
		return m, false, nil // the mask is a bias
	}
	sees := func(i, j int64) bool { return (t.Elems[min(i, rows-1)*tk+j] != 0) == (t.DType == graph.Bool) }
	if m, ok = maskOf(tq, tk, sees); ok {
		l.masks[key] = m
	}
	return m, ok, nil
}

// maskOf returns the mask in which query i uses key j if sees(i, j). If it is neither causal nor a sliding window, ok is
// false.
func maskOf(tq, tk int64, sees func(i, j int64) bool) (m mask, ok bool) {
	all := true
	for i := range tq {
		first := int64(-1)
		for j := range tk {
			all = all && sees(i, j)
			if sees(i, j) && first < 0 {
				first = j
			}
		}
		if first > 0 {
			m.window = i + tk - tq - first + 1
		}
	}
	if all {
		return mask{}, true
	}
	m.causal = true
	for i := range tq {
		at := i + tk - tq
		for j := range tk {
			if sees(i, j) != (j <= at && (m.window == 0 || j > at-m.window)) {
				return m, false
			}
		}
	}
	return m, true
}
