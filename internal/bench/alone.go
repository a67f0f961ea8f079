package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Alone is one of so many parts of a layer's rows: its GEMM and its collective, each by itself. Times are
// microseconds, the slowest rank's.
type Alone struct {
	Parts           int64           `json:"parts"`
	GEMM            contest.Figure  `json:"gemm_us"`
	Collective      contest.Figure  `json:"collective_us"`
	GraphGEMM       *contest.Figure `json:"graph_gemm_us,omitempty"`
	GraphCollective *contest.Figure `json:"graph_collective_us,omitempty"`
}

// aloneParts are the parts that are timed.
var aloneParts = []int64{1, 2, 4}

// alone is the program that times them: for each number of parts GEMMs, a barrier, and collectives. The first of
// each is not timed.
type alone struct {
	candidate
	parts  []alonePart
	inputs map[string]*tensor.Tensor
}

type alonePart struct {
	parts int64
	// Lines of the first GEMM and collective, and of those that are timed.
	gemmFirst, gemm, wireFirst, wire [2]int32
	eager, graph                     aloneTimes
}

type aloneTimes struct{ gemm, wire []float64 }

// aloneOf writes the program. Rows that do not divide into some number of parts are not timed in it.
func (k *layerKind) aloneOf(s Shape, ranks int) *alone {
	a := &alone{candidate: candidate{strategy: "sequential"}}
	for _, n := range aloneParts {
		if s.M%(n*int64(ranks)) == 0 {
			a.parts = append(a.parts, alonePart{parts: n})
		}
	}
	of := func(typ string, parts int64) string { return strings.Replace(typ, "M", fmt.Sprintf("M%d", parts), 1) }
	var b lineWriter
	b.add("dim N = %d", s.N)
	b.add("dim K = %d", s.K)
	params := fmt.Sprintf("%%b: bf16[%s, %d], %%c: bf16[%s, %[2]d], %%d: bf16[%[4]s, %[2]d]", cols(k.x), inner,
		rows(k.w), cols(k.w))
	for _, p := range a.parts {
		b.add("dim M%d = %d", p.parts, s.M/p.parts)
		params += fmt.Sprintf(", %%a%d: bf16[%s, %d], %%aw%[1]d: bf16[M%[1]d, %[3]d]", p.parts,
			of(rows(k.x), p.parts), inner)
	}
	gathered, product, sample, axis := fmt.Sprintf("bf16[M, %s]", cols(k.x)), k.y, "bf16[1, K]", 0
	if k.partial {
		gathered, product, sample, axis = k.y, "bf16[M, N] partial(tp, sum)", of(k.sample, 1), 1
	}
	b.add("mesh tp[%d]", ranks)
	b.add("func bench(%s) -> %s {", params, sample)
	b.add("  %%w: %s = linear %%c, %%d", k.w)
	for i := range a.parts {
		p := &a.parts[i]
		n := p.parts
		for r := range 2 { // GEMMs next to each other have different operands, or one launch might do both
			b.add("  %%whole%d_%d: %s = linear %%aw%[1]d, %%b", n, r, of(fmt.Sprintf("bf16[M, %s]", cols(k.x)), n))
		}
		from := "g"
		if !k.partial {
			from = "x"
			for r := range 1 + layerRepeats {
				b.add("  %%x%d_%d: %s = linear %%a%[1]d, %%b", n, r, of(k.x, n))
			}
		}
		p.gemmFirst, p.gemm = b.chain(func(r int) {
			b.add("  %%g%d_%d: %s = linear %%whole%[1]d_%[4]d, %%w", n, r, of(product, n), r%2)
		})
		b.add("  barrier over=tp")
		p.wireFirst, p.wire = b.chain(func(r int) {
			b.add("  %%z%d_%d: %s = reshard %%%s%[1]d_%[2]d", n, r, of(gathered, n), from)
		})
		b.add("  barrier over=tp")
		a.timed = append(a.timed, p.gemmFirst, p.gemm, p.wireFirst, p.wire)
	}
	b.add("  %%s = slice %%z%d_%d, axis=%d, 0..1", a.parts[0].parts, layerRepeats, axis)
	b.add("  return %%s")
	b.add("}")
	a.text = strings.Join(b, "\n") + "\n"
	return a
}

// chain writes a line and layerRepeats more like it, and returns the first and the last of each.
func (b *lineWriter) chain(line func(r int)) (first, rest [2]int32) {
	at := b.next()
	for r := range 1 + layerRepeats {
		line(r)
	}
	return [2]int32{at, at}, [2]int32{at + 1, at + layerRepeats}
}

// round runs the program once each way; rounds to warm up do not count.
func (a *alone) round(ctx context.Context, counts bool) (err error) {
	if a.inputs == nil {
		if a.inputs, err = randomInputs(a.plan); err != nil {
			return err
		}
	}
	for _, way := range []struct {
		prog *exec.Program
		into func(*alonePart) *aloneTimes
	}{{a.replayed, func(p *alonePart) *aloneTimes { return &p.graph }},
		{a.prog, func(p *alonePart) *aloneTimes { return &p.eager }}} {
		if way.prog == nil {
			continue
		}
		if err := a.run(ctx, way.prog, counts, way.into); err != nil {
			return err
		}
	}
	return nil
}

func (a *alone) run(ctx context.Context, p *exec.Program, counts bool, into func(*alonePart) *aloneTimes) error {
	time.Sleep(a.rest)
	res, err := p.Run(ctx, a.inputs)
	if err != nil || !counts {
		return err
	}
	for i := range a.parts {
		part := &a.parts[i]
		gemm, err := a.between(res.Trace, part.gemmFirst, part.gemm)
		if err != nil {
			return err
		}
		wire, err := a.between(res.Trace, part.wireFirst, part.wire)
		if err != nil {
			return err
		}
		t := into(part)
		t.gemm, t.wire = append(t.gemm, gemm), append(t.wire, wire)
	}
	return nil
}

func (a *alone) figures() []Alone {
	var out []Alone
	for _, p := range a.parts {
		f := Alone{Parts: p.parts, GEMM: contest.FigureOf(p.eager.gemm), Collective: contest.FigureOf(p.eager.wire)}
		if len(p.graph.gemm) > 0 {
			gemm, wire := contest.FigureOf(p.graph.gemm), contest.FigureOf(p.graph.wire)
			f.GraphGEMM, f.GraphCollective = &gemm, &wire
		}
		out = append(out, f)
	}
	return out
}

// Auto returns what the strategy auto takes for a layer, such as "gemm-ar", of a shape, on the machine and ranks of o.
func Auto(layer string, s Shape, o Options) (string, error) {
	kinds := []*layerKind{agGEMM, gemmRS, gemmAR, gemmAG}
	i := slices.IndexFunc(kinds, func(k *layerKind) bool { return k.name == layer })
	if i < 0 {
		return "", contest.Usagef("there is no layer %q", layer)
	}
	if err := s.fits(o.Ranks); err != nil {
		return "", err
	}
	m, err := contest.Open(o.Machine)
	if err != nil {
		return "", err
	}
	j := &job{Options: o, machine: m}
	chosen, _, err := j.expected(kinds[i].textOf(s, o.Ranks, layerRepeats).text)
	return chosen, err
}

// expected returns what auto takes for the last layer of a program, and what it expects of every strategy.
func (j *job) expected(text string) (chosen string, us map[string]float64, err error) {
	info, ds := checker.Read("bench", text)
	if err := ds.Err(); err != nil {
		return "", nil, err
	}
	u, err := compile.Build(info, compile.Options{Strategy: compile.Auto, Device: j.machine})
	if err != nil {
		return "", nil, err
	}
	x, err := u.Explain(ir.Binding{Ranks: j.Ranks})
	if err != nil {
		return "", nil, err
	}
	if len(x.Pairs) == 0 {
		return "", nil, fmt.Errorf("auto finds no pair")
	}
	last := x.Pairs[len(x.Pairs)-1] // the first goes ahead of nothing
	us = map[string]float64{}
	for _, e := range last.Strategies {
		if e.Refused == "" {
			us[e.Strategy] = e.Time
		}
	}
	return last.Chosen, us, nil
}
