package kernels

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/device"
)

// attention is softmax(Value · q·kᵀ)·v for each leading index and head:
// q[…, Tq, Hq, Dh], k and v[…, Tk, Hkv, Dh].
func attention(j *job) ([]launch, error) {
	if err := j.count(3, 3); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	if err := j.floats(); err != nil {
		return nil, err
	}
	out, q, k, v := j.Out, j.Ins[0], j.Ins[1], j.Ins[2]
	b := len(q.Shape) - 3
	if b < 0 || len(k.Shape) != b+3 || !slices.Equal(k.Shape, v.Shape) || !slices.Equal(q.Shape, out.Shape) ||
		!slices.Equal(q.Shape[:b], k.Shape[:b]) || q.Shape[b+2] != k.Shape[b+2] || k.Shape[b+1] == 0 || q.Shape[b+1]%k.Shape[b+1] != 0 {
		return nil, fmt.Errorf("q%v, k%v and v%v into %v", q.Shape, k.Shape, v.Shape, out.Shape)
	}
	if j.Causal && q.Shape[b] > k.Shape[b] {
		return nil, fmt.Errorf("the first of %d queries see none of %d keys", q.Shape[b], k.Shape[b])
	}
	if out.elements() == 0 {
		return nil, nil
	}
	tq, heads, dh := q.Shape[b], q.Shape[b+1], q.Shape[b+2]
	per := int64(1)
	for per*threads < dh {
		per *= 2
	}
	if per > 4 {
		return nil, fmt.Errorf("%w: heads of %d dimensions, at most %d", device.ErrUnsupported, dh, 4*threads)
	}
	lead, err := padded(shared(q.Shape[:b], out.Strides[:b], q.Strides[:b], k.Strides[:b], v.Strides[:b]), 4)
	if err != nil {
		return nil, err
	}
	var args words
	args.addr(out.Addr, q.Addr, k.Addr, v.Addr)
	args.float(j.Value)
	args.ints(tq, k.Shape[b], heads, heads/k.Shape[b+1], dh, truth(j.Causal))
	for _, o := range []Operand{out, q, k, v} {
		args.ints(o.Strides[b:]...)
	}
	args.ints(extents(lead)...)
	for o := range 4 {
		args.ints(column(lead, o)...)
	}
	dt := ctype(out.DType)
	if onTensorCores(j, lead) {
		rows := tq * (heads / k.Shape[b+1])
		grid, err := exactGrid(out.elements() / (tq * heads * dh) * k.Shape[b+1] * ((rows + flashRows - 1) / flashRows))
		return []launch{{blocks: grid, args: args, code: code{
			files:  []string{"map", "rows", "attention", "warp", "flash"},
			symbol: symbol("flash", dt, fmt.Sprintf("b%dd%d", len(lead), dh)),
			args:   fmt.Sprintf("AttentionArgs<%d>", len(lead)),
			body:   fmt.Sprintf("flash<%s, %d, %d>", dt, len(lead), dh),
		}}}, err
	}
	grid, err := exactGrid(out.elements() / dh)
	return []launch{{blocks: grid, args: args, code: code{
		files:  []string{"map", "rows", "attention"},
		symbol: symbol("attention", dt, fmt.Sprintf("b%dp%d", len(lead), per)),
		args:   fmt.Sprintf("AttentionArgs<%d>", len(lead)),
		body:   fmt.Sprintf("attention<%s, %d, %d>", dt, len(lead), per),
	}}}, err
}

// flashRows are the queries, of all heads that share keys and values, of a block.
const flashRows = 128

// before80 reports whether a GPU lacks what flash is made of, which came with sm_80.
func before80(arch string) bool {
	n, err := strconv.Atoi(strings.TrimRight(strings.TrimPrefix(arch, "sm_"), "af"))
	return err == nil && n < 80
}

// onTensorCores reports whether an attention is one for tensor cores: of 2-byte floats, with
// heads that fit into registers and rows that move by 16 bytes.
func onTensorCores(j *job, lead []axis) bool {
	dh := j.Out.Shape[len(j.Out.Shape)-1]
	if j.Out.DType.Size() != 2 || dh%16 != 0 || dh > 128 || before80(j.arch) {
		return false
	}
	all := []Operand{j.Out, j.Ins[0], j.Ins[1], j.Ins[2]}
	for n, o := range all {
		b := len(o.Shape) - 3
		if o.Strides[b+2] != 1 || uint64(o.Addr)%16 != 0 || o.Shape[b] > 1 && o.Strides[b]%8 != 0 || o.Shape[b+1] > 1 && o.Strides[b+1]%8 != 0 ||
			slices.ContainsFunc(lead, func(a axis) bool { return a.s[n]%8 != 0 }) {
			return false
		}
	}
	return true
}
