package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/buckets"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/exec/contents"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// feedKind is the rule by which a run sets the elements of an integer parameter.
type feedKind uint8

const (
	feedZeros     feedKind = iota // no operation limits the elements
	feedRandom                    // ids, indices and counts: random within the limit
	feedPositions                 // the positions of the run's tokens
	feedLengths                   // the number of keys that each of the run's tokens sees: its position plus one
)

// feed is an integer parameter that each run uploads.
type feed struct {
	param *ir.Param
	kind  feedKind
	uses  []contents.Use
	axis  int // the dimension that counts the run's tokens; -1 if none does
}

// parameters are the parameters of a program, by the way in which they get their values.
type parameters struct {
	fixed  []string // bound as weights
	state  []string // inout, in bound device tensors
	feeds  []feed   // integers that each run uploads
	varied []string // in device tensors that are written once for a case
}

// parametersOf sorts the parameters of f. given are the names of parameters for which the caller has a tensor. prompt
// and batch are the dims that vary; either may be empty.
func parametersOf(info *ir.Info, f *ir.Func, given map[string]*hocket.Tensor, prompt, batch string) (out parameters,
	err error) {
	uses := contents.Uses(info, f)
	for _, p := range f.Params {
		varies := buckets.Counts(p, prompt) || buckets.Counts(p, batch)
		switch has := given[p.Name] != nil; {
		case has && varies:
			return out, contest.Usagef("--in %s: its shape, %s, depends on a dim that --prompt or --batch varies, so "+
				"it cannot have one value", p.Name, p.Type)
		case p.Inout:
			out.state = append(out.state, p.Name)
		case has:
			out.fixed = append(out.fixed, p.Name)
		case p.Type.DType.IsInt():
			fed, err := feedOf(p, uses[p.Name], prompt)
			if err != nil {
				return out, err
			}
			out.feeds = append(out.feeds, fed)
		case varies:
			out.varied = append(out.varied, p.Name)
		default:
			out.fixed = append(out.fixed, p.Name)
		}
	}
	return out, nil
}

// feedOf returns the rule for an integer parameter, which follows from the operations that use it.
func feedOf(p *ir.Param, uses []contents.Use, prompt string) (feed, error) {
	f := feed{param: p, uses: uses, axis: -1}
	by := func(ops ...ir.Op) bool {
		return slices.ContainsFunc(uses, func(u contents.Use) bool { return slices.Contains(ops, u.Op) })
	}
	positions, lengths := by(ir.OpIndexCopy, ir.OpRope), by(ir.OpAttention, ir.OpAttentionLSE)
	switch {
	case positions && lengths:
		return f, contest.Usagef("%%%s contains both positions and lengths of attention: --prompt needs a parameter "+
			"for each", p.Name)
	case positions:
		f.kind = feedPositions
	case lengths:
		f.kind = feedLengths
	case len(uses) > 0:
		f.kind = feedRandom
	}
	for i, d := range p.Type.Dims {
		if d.Extent.Kind == ir.ExprName && d.Extent.Name == prompt {
			f.axis = i
		}
	}
	if f.axis < 0 && f.kind >= feedPositions && prompt != "" && buckets.Counts(p, prompt) {
		return f, contest.Usagef("%%%s, %s, has positions or lengths, but %s is only a part of an extent: --prompt "+
			"needs a dimension of %[3]s elements", p.Name, p.Type, prompt)
	}
	return f, nil
}

// tensor returns the elements for a run of n tokens, the first of which is at position from. port has the shape.
func (f *feed) tensor(port hocket.Port, from, n int64) (*hocket.Tensor, error) {
	t, err := tensor.New(port.DType, port.Shape)
	if err != nil {
		return nil, fmt.Errorf("%%%s: %w", port.Name, err)
	}
	switch f.kind {
	case feedRandom:
		spec := tensor.Spec{Kind: tensor.SpecRand, Seed: uint64(from) + 1, Below: port.Below}
		if port.Below == 0 { // no use of the parameter has a limit with a value
			spec.Kind = tensor.SpecZeros
		}
		err = tensor.Fill(t, port.Name, spec)
	case feedPositions, feedLengths:
		inner := int64(1) // elements of one index of the dimension that counts tokens
		if f.axis >= 0 {
			for _, extent := range port.Shape[f.axis+1:] {
				inner *= extent
			}
		}
		for i := range t.Len() {
			at := from
			switch {
			case f.axis >= 0:
				at += i / inner % n
			case f.kind == feedLengths: // one length for all tokens of a sequence
				at += n - 1
			}
			if f.kind == feedLengths {
				at++
			}
			t.SetInt64(i, at)
		}
	}
	return (*hocket.Tensor)(t), err
}

// room returns the number of positions that the parameter allows, and the dim that limits it, if one does. n is 0 if
// there is no limit.
func (f *feed) room(port hocket.Port, dims map[string]int64) (n int64, dim string) {
	n, more := port.Below, int64(0)
	if f.kind == feedLengths { // a length may equal the number of keys
		more = 1
	}
	if n > 0 {
		n -= more
	}
	for _, u := range f.uses {
		if u.Below == nil {
			continue
		}
		u.Below.Walk(func(e *ir.Expr) {
			if v, known := dims[e.Name]; e.Kind == ir.ExprName && known && v == n {
				dim = e.Name
			}
		})
	}
	return n, dim
}

// note describes the values of the integer parameters.
func (p *parameters) note() string {
	kinds := map[feedKind]string{feedPositions: "positions", feedLengths: "positions plus one, as lengths",
		feedRandom: "random within the limit of the operation that uses them",
		feedZeros:  "0, because no operation limits them"}
	by := map[feedKind][]string{}
	for _, f := range p.feeds {
		by[f.kind] = append(by[f.kind], "%"+f.param.Name)
	}
	var parts []string
	for _, k := range slices.Backward(slices.Sorted(maps.Keys(by))) {
		parts = append(parts, strings.Join(by[k], ", ")+": "+kinds[k])
	}
	return strings.Join(parts, "; ")
}
