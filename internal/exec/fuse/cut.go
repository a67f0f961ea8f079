package fuse

import "slices"

// The limits of chains. Longer chains would need too many registers.
const (
	membersMost  = 16
	operandsMost = 8
	resultsMost  = 4
)

// Step is one of a sequence of elementwise operations on tensors of one shape.
type Step struct {
	// Args identifies the operands: an entry i ≥ 0 means tensor i, and an entry ^i means the result of step i.
	Args []int
	// Bytes is the size of the step's result in bytes.
	Bytes int64
	// Uses is the number of reads of the result by all commands. A result is stored unless all its reads are in its own
	// chain.
	Uses int
	// From is the first step with which a chain that contains this step may begin.
	From int
}

// Segment is a part of a sequence of steps that one kernel computes.
type Segment struct {
	Steps  int   // number of steps
	Stored []int // positions, in the segment, of the steps whose results are stored, without the last step
	Bytes  int64 // number of bytes that the kernel reads and writes
}

// Cut divides steps into segments such that their kernels together read and write the fewest bytes; of several such
// divisions it chooses one with the fewest kernels. sizes holds the bytes of the tensors that Args refer to. The steps
// of a segment are connected: each step shares an operand with another step, or reads the result of another step. Cut
// uses a segment of several steps, which begins with step first, only if fits returns true; fits may be nil.
func Cut(steps []Step, sizes []int64, fits func(first int, s Segment) bool) []Segment {
	type rest struct { // the best division of the steps from a given step on
		Segment
		bytes   int64
		kernels int
	}
	best := make([]rest, len(steps)+1)
	for i := len(steps) - 1; i >= 0; i-- {
		w := window{all: steps, first: i}
		from := 0
		for n := 1; n <= min(membersMost, len(steps)-i); n++ {
			from = max(from, steps[i+n-1].From)
			w.add(sizes)
			if n > 1 && (from > i || len(w.outside) > operandsMost) {
				break
			}
			s := w.segment()
			after, b := &best[i+n], &best[i]
			r := rest{s, s.Bytes + after.bytes, 1 + after.kernels}
			better := n == 1 || r.bytes < b.bytes || r.bytes == b.bytes && r.kernels <= b.kernels
			if better && (n == 1 || len(s.Stored) < resultsMost && w.connected() && (fits == nil || fits(i, s))) {
				*b = r
			}
		}
	}
	var all []Segment
	for i := 0; i < len(steps); i += best[i].Steps {
		all = append(all, best[i].Segment)
	}
	return all
}

// window is a range of consecutive steps.
type window struct {
	all     []Step
	first   int              // index in all of the window's first step
	n       int              // number of steps
	outside []outsider       // values that the window's steps read and do not compute
	reads   [membersMost]int // by step: the number of times that later steps of the window read its result
	group   [membersMost]int // by step: the first step that it is connected with
	bytes   int64            // of outside
}

// outsider is a value as in Step.Args, and the first step that reads it.
type outsider struct{ value, reader int }

// add adds the next step to the window. sizes is the same as in Cut.
func (w *window) add(sizes []int64) {
	last := w.n
	w.n++
	w.group[last] = last
	for _, a := range w.all[w.first+last].Args {
		if k := ^a - w.first; a < 0 && k >= 0 {
			w.reads[k]++
			w.connect(k, last)
			continue
		}
		if i := slices.IndexFunc(w.outside, func(o outsider) bool { return o.value == a }); i >= 0 {
			w.connect(w.outside[i].reader, last)
			continue
		}
		w.outside = append(w.outside, outsider{a, last})
		if a >= 0 {
			w.bytes += sizes[a]
		} else {
			w.bytes += w.all[^a].Bytes
		}
	}
}

// connect records that two steps are connected.
func (w *window) connect(a, b int) {
	one, other := w.group[a], w.group[b]
	for i := range w.group[:w.n] {
		if g := &w.group[i]; *g == max(one, other) {
			*g = min(one, other)
		}
	}
}

// connected reports whether all steps are connected with the first step.
func (w *window) connected() bool {
	return !slices.ContainsFunc(w.group[:w.n], func(g int) bool { return g != 0 })
}

// segment returns the window as a Segment.
func (w *window) segment() Segment {
	last := w.n - 1
	s := Segment{Steps: w.n, Bytes: w.bytes + w.all[w.first+last].Bytes}
	for i := range last {
		if step := &w.all[w.first+i]; w.reads[i] < max(step.Uses, 1) {
			s.Stored = append(s.Stored, i)
			s.Bytes += step.Bytes
		}
	}
	return s
}
