package devicetest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// testLengths tests attention to the first keys only, with a number of keys for each sequence or query. The other keys
// are NaN.
func testLengths(r *rig) {
	r.types(1, func(r *rig, dt ir.DType) {
		if dt.IsInt() {
			return
		}
		const batches, tq, tk, heads, dh = 3, 2, 5, 4, 3
		lengths := []float64{0, 3, 5}
		rng := seeded(dt, "lengths")
		q := random(rng, dt, batches, tq, heads, dh)
		k, v := random(rng, dt, batches, tk, 2, dh), random(rng, dt, batches, tk, 2, dh)
		for _, mode := range []string{"sequence", "causal", "query"} {
			want := answer{vals: make([]float64, len(q.vals)), size: make([]float64, len(q.vals)), terms: tk + dh + 16}
			at := given(ir.I32, []int64{batches}, lengths...)
			if mode == "query" {
				at = given(ir.I64, []int64{batches, tq}, 5, 0, 1, 2, 4, 3)
			}
			for b := range batches {
				for t := range tq {
					n := int(lengths[b])
					switch mode {
					case "causal":
						n = max(0, t+1+n-tq)
					case "query":
						n = int(at.vals[b*tq+t])
					}
					if n == 0 {
						continue
					}
					one := attended{lead: nil, tq: 1, tk: int64(n), hq: heads, hkv: 2, dim: dh}
					row := (b*tq + t) * heads * dh
					a := one.answer(false, dt, q.vals[row:row+heads*dh], k.vals[b*tk*2*dh:][:n*2*dh],
						v.vals[b*tk*2*dh:][:n*2*dh])
					copy(want.vals[row:], a.vals)
					copy(want.size[row:], a.size)
				}
			}
			hidden := func(h host) host {
				h.vals = append([]float64{}, h.vals...)
				for b := range batches {
					for j := range tk {
						if mode != "query" && j >= int(lengths[b]) {
							for i := range 2 * dh {
								h.vals[(b*tk+j)*2*dh+i] = math.NaN()
							}
						}
					}
				}
				return h
			}
			kernel := device.Kernel{Op: device.Attention{Scale: 0.125, Causal: mode == "causal"}}
			for _, l := range layouts {
				r.check("attention with one length for each "+mode, kernel, l, want, dt, q.shape, q, hidden(k), hidden(v),
					at)
			}
		}
	})
	for _, n := range []float64{-1, 3} {
		r.open(1)
		x := r.put(0, random(seeded(n), ir.F32, 2, 1, 2))
		r.launch(r.mainOf(0), 0, device.Kernel{Op: device.Attention{Scale: 1},
			Ins:  []device.View{x, x, x, r.put(0, given(ir.I32, nil, n))},
			Outs: []device.View{r.empty(0, ir.F32, 2, 1, 2)}})
		r.faults(fmt.Sprintf("length %v of 2 keys", n), "length")
	}
}

// faults checks that the issued work fails on rank 0 with an error whose text contains says.
func (r *rig) faults(what, says string) {
	r.Helper()
	var fault *device.Fault
	if err := r.syncs(); !errors.As(err, &fault) || fault.Rank != 0 || !strings.Contains(err.Error(), says) {
		r.Errorf("%s: %v", what, err)
	}
	_ = r.w.Close()
}

// testIndexCopy writes rows to positions of a tensor in place; an invalid position must be reported as a fault.
func testIndexCopy(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, c := range []struct {
			rows, cache []int64
			axis        int
			at          host
		}{
			{[]int64{2}, []int64{4}, 0, given(ir.I32, []int64{2}, 3, 0)},
			{[]int64{3, 2}, []int64{5, 2}, 0, given(ir.I64, []int64{3}, 4, -1, 1)},
			{[]int64{2, 3, 2}, []int64{2, 4, 2}, 1, given(ir.I32, []int64{2, 3}, 0, 2, -1, 3, 1, 2)},
			{[]int64{2, 3, 2}, []int64{2, 4, 2}, 1, given(ir.I32, []int64{3}, 3, -1, 0)},
			{[]int64{0, 2}, []int64{4, 2}, 0, given(ir.I32, []int64{0})},
		} {
			rng := seeded(dt, c.rows, c.axis)
			rows, cache := random(rng, dt, c.rows...), random(rng, dt, c.cache...)
			want := append([]float64{}, cache.vals...)
			count, room, inner := c.rows[c.axis], c.cache[c.axis], elements(c.cache[c.axis+1:])
			for i := range elements(c.rows[:c.axis+1]) {
				at := c.at.vals[i%int64(len(c.at.vals))]
				for j := range inner {
					if at >= 0 {
						want[(i/count*room+int64(at))*inner+j] = rows.vals[i*inner+j]
					}
				}
			}
			out := r.put(0, cache, l)
			k := device.Kernel{Op: device.IndexCopy{Axis: c.axis},
				Ins: []device.View{r.put(0, rows, l), r.put(0, c.at), out}, Outs: []device.View{out}}
			r.launch(r.mainOf(0), 0, k)
			r.equal(fmt.Sprintf("rows %v to %v of %s%v", c.rows, c.at.vals, dt, c.cache), r.contents(0, out), want)
		}
	})
	for _, at := range [][]float64{{0, 4}, {0, -2}, {2, 2}} {
		r.open(1)
		cache := r.put(0, given(ir.F32, []int64{4}, 1, 2, 3, 4))
		k := device.Kernel{Op: device.IndexCopy{Axis: 0}, Outs: []device.View{cache},
			Ins: []device.View{r.put(0, given(ir.F32, []int64{2}, 7, 8)), r.put(0, given(ir.I32, []int64{2}, at...)),
				cache}}
		r.launch(r.mainOf(0), 0, k)
		r.faults(fmt.Sprintf("positions %v of 4", at), "element 1 of the positions")
	}
}

// testRope compares rope with rotations by angles that the test computes itself.
func testRope(r *rig) {
	r.floating(func(r *rig, dt ir.DType, l layout) {
		const batches, steps, heads, dh = 2, 3, 2, 8
		x := random(seeded(dt, "rope"), dt, batches, steps, heads, dh)
		for _, at := range []host{
			given(ir.I32, []int64{batches, steps}, 0, 1, 100, 7, -1, 30), given(ir.I64, []int64{steps}, 5, 0, 9),
		} {
			for _, factor := range []float64{0, 8} {
				rope := ir.Rope{Theta: 1000, Factor: factor, Low: 1, High: 4, Original: 64}
				want := answer{vals: make([]float64, len(x.vals)), size: make([]float64, len(x.vals)), terms: 400}
				for i := range x.vals {
					t, d := i/(heads*dh), i%dh
					pair := d % (dh / 2)
					freq := 1 / math.Pow(1000, float64(2*pair)/dh)
					if wave := 2 * math.Pi / freq; factor != 0 && wave > 64 {
						freq /= factor
					} else if factor != 0 && wave >= 64.0/4 {
						smooth := (64/wave - 1) / (4 - 1)
						freq = (1-smooth)*freq/factor + smooth*freq
					}
					s, c := math.Sincos(freq * at.vals[t%len(at.vals)])
					a, b := x.vals[i-d+pair], x.vals[i-d+pair+dh/2]
					if want.vals[i] = a*c - b*s; d >= dh/2 {
						want.vals[i] = b*c + a*s
					}
					want.size[i] = math.Abs(a) + math.Abs(b)
				}
				r.check("rope", device.Kernel{Op: device.Rope{Rope: rope}}, l, want, dt, x.shape, x, at)
			}
			freqs := given(ir.F32, []int64{3}, 1, 0.25, 0.0078125)
			want := answer{vals: make([]float64, len(x.vals)), size: make([]float64, len(x.vals)), terms: 400}
			for i, v := range x.vals {
				want.vals[i] = v
				pair := i % dh % 3
				if i%dh >= 6 {
					continue
				}
				s, c := math.Sincos(freqs.vals[pair] * at.vals[i/(heads*dh)%len(at.vals)])
				a, b := x.vals[i-i%dh+pair], x.vals[i-i%dh+pair+3]
				if want.vals[i] = 1.5 * (a*c - b*s); i%dh >= 3 {
					want.vals[i] = 1.5 * (b*c + a*s)
				}
				want.size[i] = 1.5 * (math.Abs(a) + math.Abs(b))
			}
			r.check("rope by frequencies", device.Kernel{Op: device.Rope{Rope: ir.Rope{Scale: 1.5}}}, l, want, dt,
				x.shape, x, at, freqs)
		}
	})
}

// testRopes computes ropes and index_copies in one kernel, and in one kernel for each: all bits must be equal. An
// invalid position must be reported as a fault. The results must not overlap an operand or each other.
func testRopes(r *rig) {
	if !r.m.Caps().Chains {
		r.Skip("the machine has no kernels with several results")
	}
	const tokens, room, dh = 5, 7, 16
	at := given(ir.I32, []int64{tokens}, 3, 0, 1, 2, 9)
	op := device.Ropes{Rope: device.Rope{Rope: ir.Rope{Theta: 1000}},
		Parts: []device.RopePart{{Rotates: true}, {Rotates: true, Keeps: true}, {Keeps: true}}}
	draw := func(r *rig, dt ir.DType, l layout) (ins []device.View, outs [2][]device.View) {
		rng := seeded(dt, "ropes")
		for i, heads := range []int64{4, 2, 2} {
			ins = append(ins, r.put(0, random(rng, dt, tokens, heads, dh), l))
			rows := int64(room)
			if i == 0 {
				rows = tokens
			}
			before := random(rng, dt, rows, heads, dh)
			for k := range outs {
				outs[k] = append(outs[k], r.put(0, before, l))
			}
		}
		return ins, outs
	}
	r.floating(func(r *rig, dt ir.DType, l layout) {
		freqs := r.put(0, given(ir.F32, []int64{3}, 1, 0.5, 0.01))
		for _, angles := range [][]device.View{{r.put(0, at)}, {r.put(0, at), freqs}} {
			ins, outs := draw(r, dt, l)
			rows := r.put(0, given(ir.I64, []int64{tokens}, 6, 0, -1, 2, 1))
			all := slices.Concat(ins, angles, []device.View{rows})
			r.launch(r.mainOf(0), 0, device.Kernel{Op: op, Ins: all, Outs: outs[0]})
			k := r.empty(0, dt, tokens, 2, dh)
			for i, out := range []device.View{outs[1][0], k} {
				r.launch(r.mainOf(0), 0, device.Kernel{Op: op.Rope, Ins: append(ins[i:i+1:i+1], angles...),
					Outs: []device.View{out}})
			}
			for i, in := range []device.View{k, ins[2]} {
				out := outs[1][1+i]
				r.launch(r.mainOf(0), 0, device.Kernel{Op: device.IndexCopy{}, Ins: []device.View{in, rows, out},
					Outs: []device.View{out}})
			}
			for i := range ins {
				r.equal(fmt.Sprintf("part %d of %s with %d operands for angles", i, dt, len(angles)),
					r.contents(0, outs[0][i]), r.contents(0, outs[1][i]))
			}
		}
	})
	r.open(1)
	ins, outs := draw(r, ir.F32, layouts[0])
	all := append(ins, r.put(0, at), r.put(0, at))
	for what, change := range map[string]func(k *device.Kernel){
		"a result in an operand's memory": func(k *device.Kernel) { k.Outs[0] = k.Ins[0] },
		"two results in one place":        func(k *device.Kernel) { k.Outs[1] = k.Outs[2] },
	} {
		k := device.Kernel{Op: op, Ins: slices.Clone(all), Outs: slices.Clone(outs[0])}
		change(&k)
		if _, err := r.w.Device(0).Prepare(k); !errors.Is(err, device.ErrUnsupported) {
			r.Errorf("%s: %v, want %v", what, err, device.ErrUnsupported)
		}
	}
	r.launch(r.mainOf(0), 0, device.Kernel{Op: op, Ins: all, Outs: outs[0]})
	r.faults(fmt.Sprintf("positions %v of %d", at.vals, room), "element 4 of the positions")
}

// testArgmax finds the first of the largest elements.
func testArgmax(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		x := given(dt, []int64{2, 3, 2}, 1, 5, 3, 5, 3, -1, -4, -3, -2, -6, -9, -3)
		for axis, want := range [][]float64{{0, 0, 0, 0, 0, 0}, {1, 0, 1, 0}, {1, 1, 0, 1, 0, 1}} {
			shape := append(append([]int64{}, x.shape[:axis]...), x.shape[axis+1:]...)
			k := device.Kernel{Op: device.Argmax{Axis: axis}}
			r.exactly(fmt.Sprintf("argmax of %s along %d", dt, axis), k, l, ir.I32, shape, want, x)
		}
	})
}

// testKeptInGraph records a decoding step as a graph: it stores a row and attends to all stored rows. It replays the
// graph with other positions and lengths. A query of zeros gives the mean of the rows.
func testKeptInGraph(r *rig) {
	r.open(1)
	g := r.capturer()
	row, cache := r.empty(0, ir.F32, 1, 1, 2), r.put(0, given(ir.F32, []int64{4, 1, 2}, 9, 9, 9, 9, 9, 9, 9, 9))
	query, out := r.put(0, given(ir.F32, []int64{1, 1, 2}, 0, 0)), r.empty(0, ir.F32, 1, 1, 2)
	at, length := r.empty(0, ir.I32, 1), r.empty(0, ir.I32)
	s := r.mainOf(0)
	step := func(position float64) {
		r.must(s.Upload(row, given(ir.F32, nil, position, 2*position).bytes()))
		r.must(s.Upload(at, given(ir.I32, nil, position).bytes()))
		r.must(s.Upload(length, given(ir.I32, nil, min(position, 3)+1).bytes()))
		r.sync()
	}
	keep, err := r.w.Device(0).Prepare(device.Kernel{Op: device.IndexCopy{Axis: 0}, Ins: []device.View{row, at, cache},
		Outs: []device.View{cache}})
	r.must(err)
	attend, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Attention{Scale: 1},
		Ins: []device.View{query, cache, cache, length}, Outs: []device.View{out}})
	r.must(err)
	issue := func() error { return errors.Join(s.Begin(7), s.Launch(keep), s.End(7), s.Launch(attend)) }
	step(0)
	r.must(issue())
	r.sync()
	graph, err := g.Capture(issue)
	r.must(err)
	for position := range 4 {
		step(float64(position))
		r.must(graph.Launch(r.Context()))
		mean := float64(position) / 2
		r.near(fmt.Sprintf("after row %d", position), r.contents(0, out), []float64{mean, 2 * mean},
			[]float64{1e-5, 1e-5})
	}
	step(4)
	r.must(graph.Launch(r.Context()))
	r.isFault("a position in a graph", r.syncs())
}
