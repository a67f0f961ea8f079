package acceptance_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// explicitWriter writes random host programs that are correct by construction: before a stream
// accesses a buffer, it waits for the events of all conflicting accesses on other streams, and
// accesses by peers are enclosed by barriers.
type explicitWriter struct {
	*rand.Rand
	text          strings.Builder
	ranks         int64
	rows, cols    int64
	dtype         string
	streams       int
	bufs          []*writerBuf // the shards of the parameters come first
	names, events int
	counters      int
	waited        map[[2]int]bool // stream, event
}

// params is the number of bufs that are read-only.
const params = 2

type writerBuf struct {
	name      string
	symmetric bool
	wrote     touch
	read      []touch // reads since the last write
}

// touch is an access to a buffer: its stream, and the event recorded after it.
type touch struct{ stream, event int }

// randomExplicit writes the program for a seed.
func randomExplicit(seed uint64) string {
	w := &explicitWriter{Rand: rand.New(rand.NewPCG(seed, 11)), waited: map[[2]int]bool{}}
	w.ranks = 1 + w.Int64N(4)
	w.rows, w.cols = w.ranks*(1+w.Int64N(3)), 1+w.Int64N(4)
	w.dtype = []string{"i32", "i64", "f64"}[w.IntN(3)]
	w.streams = 1 + w.IntN(3)
	for i := range params {
		w.line("%%l%d = local %%p%d", i, i)
		w.bufs = append(w.bufs, &writerBuf{name: fmt.Sprintf("%%l%d", i), wrote: touch{-1, -1}})
	}
	for i := range w.streams {
		w.line("on %%s[%d] { wait main }", i)
	}
	w.alloc()
	w.alloc()
	for range 2 + w.IntN(12) {
		w.step()
	}
	for i := range w.streams {
		w.line("wait %%s[%d]", i)
	}
	shard := fmt.Sprintf("%s[%d/tp, %d]", w.dtype, w.ranks*w.rows, w.cols)
	return fmt.Sprintf("mesh tp[%d]\nfunc f(%%p0: %[2]s, %%p1: %[2]s) -> (%[2]s, %[2]s) {\n", w.ranks, shard) +
		fmt.Sprintf("%%s = stream[%d]\n%%e = event[%d]\n%%c = counter[%d]\n", w.streams, w.events, w.counters+1) +
		w.text.String() + fmt.Sprintf("return %s, %s\n}\n", w.bufs[params].name, w.bufs[params+1].name)
}

func (w *explicitWriter) line(format string, args ...any) {
	fmt.Fprintf(&w.text, format+"\n", args...)
}

func (w *explicitWriter) name() string {
	w.names++
	return fmt.Sprintf("%%v%d", w.names)
}

func (w *explicitWriter) any() *writerBuf      { return w.bufs[w.IntN(len(w.bufs))] }
func (w *explicitWriter) writable() *writerBuf { return w.bufs[params+w.IntN(len(w.bufs)-params)] }

// peer returns expressions for two ranks: the rank at a random distance after the current one, and the rank at the same
// distance before it.
func (w *explicitWriter) peer() (to, from string) {
	k := w.Int64N(w.ranks)
	return fmt.Sprintf("(rank(tp) + %d) mod %d", k, w.ranks), fmt.Sprintf("(rank(tp) + %d) mod %d", w.ranks-k, w.ranks)
}

// on writes body on a random stream, after waits for all conflicting accesses.
func (w *explicitWriter) on(reads, writes []*writerBuf, body func()) {
	s := w.IntN(w.streams+1) - 1
	if s >= 0 {
		w.line("on %%s[%d] {", s)
		defer w.line("}")
	}
	for _, b := range append(append([]*writerBuf{}, reads...), writes...) {
		w.wait(s, b.wrote)
	}
	for _, b := range writes {
		for _, t := range b.read {
			w.wait(s, t)
		}
	}
	body()
	w.line("record %%e[%d]", w.events)
	t := touch{s, w.events}
	w.events++
	for _, b := range reads {
		b.read = append(b.read, t)
	}
	for _, b := range writes {
		b.wrote, b.read = t, nil
	}
}

func (w *explicitWriter) wait(stream int, t touch) {
	if key := [2]int{stream, t.event}; t.event >= 0 && t.stream != stream && !w.waited[key] {
		w.waited[key] = true
		w.line("wait %%e[%d]", t.event)
	}
}

func (w *explicitWriter) alloc() {
	b := &writerBuf{name: w.name(), symmetric: w.IntN(2) == 0, wrote: touch{-1, -1}}
	flag := ""
	if b.symmetric {
		flag = " symmetric"
	}
	w.line("%s = alloc %s[%d, %d]%s", b.name, w.dtype, w.rows, w.cols, flag)
	w.on(nil, []*writerBuf{b}, func() {
		w.line("fill into %s, value=%s", b.name, []string{"-1", "0", "1", "rank(tp)"}[w.IntN(4)])
	})
	w.bufs = append(w.bufs, b)
}

// parts returns the names of the same part of several buffers, or of the whole buffers.
func (w *explicitWriter) parts(bufs ...*writerBuf) []any {
	lo, c := w.Int64N(w.rows), 1+w.Int64N(3)
	i := w.Int64N(c)
	kind := w.IntN(3)
	var names []any
	for _, b := range bufs {
		if kind == 0 {
			names = append(names, b.name)
			continue
		}
		v := w.name()
		if kind == 1 {
			w.line("%s = slice %s, axis=0, %d..%d", v, b.name, lo, w.rows)
		} else {
			w.line("%s = chunk %s, axis=0, %d of %d", v, b.name, i, c)
		}
		names = append(names, v)
	}
	return names
}

// step writes one operation, or nothing if the randomly chosen buffers do not allow it.
func (w *explicitWriter) step() {
	x, y, z := w.any(), w.any(), w.writable()
	kind := w.IntN(10)
	if kind > 2 && (x == z || y == z) {
		return
	}
	to, from := w.peer()
	one, both, into := []*writerBuf{x}, []*writerBuf{x, y}, []*writerBuf{z}
	switch kind {
	case 0:
		w.alloc()
	case 1:
		w.on(both, into, func() { w.line("add %s, %s into %s", w.parts(x, y, z)...) })
	case 2:
		w.on(one, into, func() { w.line("neg %s into %s", w.parts(x, z)...) })
	case 3:
		w.on(one, into, func() { w.line("all_reduce %s into %s, over=tp, op=max", w.parts(x, z)...) })
	case 4:
		w.on(one, into, func() { w.line("permute %s into %s, over=tp, to=%s, from=%s", x.name, z.name, to, from) })
	case 5:
		w.on(one, into, func() {
			w.line("group {\nsend %s to tp[%s]\nrecv %s from tp[%s]\n}", x.name, to, z.name, from)
		})
	case 6:
		if z.symmetric {
			w.on(one, into, func() { w.put(x, z, to) })
		}
	case 7:
		if x.symmetric { // a rank may write x only after its peer has read it
			w.on(nil, append(one, z), func() {
				w.line("barrier over=tp\nget %s at tp[%s] into %s%s\nbarrier over=tp", x.name, to, z.name, w.engine())
			})
		}
	case 8:
		w.on(both, into, func() { w.loop(x, y, z) })
	case 9:
		w.on(one, into, func() { w.uneven(x, z) })
	}
}

// uneven writes an uneven collective with valid counts, as literals or in memory.
func (w *explicitWriter) uneven(x, z *writerBuf) {
	op, most := "all_gatherv", w.rows/w.ranks
	switch w.IntN(3) {
	case 1:
		op = "all_to_allv"
	case 2:
		op = "reduce_scatterv"
	}
	var counts []string
	for range w.ranks {
		counts = append(counts, fmt.Sprint(w.Int64N(most+1)))
	}
	attrs := ", over=tp"
	if op == "reduce_scatterv" {
		attrs += ", op=sum"
	}
	if w.IntN(2) == 0 {
		w.line("%s %s into %s%s, counts=(%s)", op, x.name, z.name, attrs, strings.Join(counts, ", "))
		return
	}
	n := w.name()
	w.line("%s = alloc i32[%d]", n, w.ranks)
	for i, c := range counts {
		v := w.name()
		w.line("%s = slice %s, axis=0, %d..%d\nfill into %[1]s, value=%[5]s", v, n, i, i+1, c)
	}
	w.line("%s %s, %s into %s%s", op, x.name, n, z.name, attrs)
}

// engine draws which engine copies.
func (w *explicitWriter) engine() string {
	return []string{"", ", engine=ce", ", engine=sm", ", engine=sm, ctas=1 + size(tp)"}[w.IntN(4)]
}

// put writes a put statement between two synchronizations. After the first, a barrier, the peer's buffer may be
// written. After the second, a barrier or a signal, the peer may read it.
func (w *explicitWriter) put(x, z *writerBuf, to string) {
	w.line("barrier over=tp")
	p := w.parts(x, z)
	w.line("put %s into %s at tp[%s]%s", p[0], p[1], to, w.engine())
	if w.IntN(2) == 0 {
		w.line("barrier over=tp")
		return
	}
	w.line("signal %%c[%d] at tp[%s]\nwait %%c[%[1]d] >= 1", w.counters, to)
	w.counters++
}

// loop writes a loop over chunks, each with a separate buffer.
func (w *explicitWriter) loop(x, y, z *writerBuf) {
	i, t, c := w.name(), w.name(), 1+w.Int64N(4)
	w.line("for %s in 0..%d stream(%d) {", i, c, 1+w.IntN(3))
	var parts []any
	for _, b := range []*writerBuf{x, y, z} {
		v := w.name()
		w.line("%s = chunk %s, axis=0, %s of %d", v, b.name, i, c)
		parts = append(parts, v)
	}
	w.line("%s = alloc %s[extent(%s, 0), %d]\nadd %s, %s into %s", t, w.dtype, parts[0], w.cols, parts[0], parts[1], t)
	w.line([]string{"copy %s into %s", "all_reduce %s into %s, over=tp, op=min"}[w.IntN(2)]+"\n}", t, parts[2])
}

// broken deletes a statement of a program, moves it, or lets only one rank execute it. The changed program may compute
// wrong results, or be invalid.
func broken(src string, r *rand.Rand) string {
	lines := strings.Split(src, "\n")
	simple := func() int {
		for {
			i := 2 + r.IntN(len(lines)-3)
			if !strings.ContainsAny(lines[i], "{}") && !strings.Contains(lines[i], "return") {
				return i
			}
		}
	}
	i, j := simple(), simple()
	switch r.IntN(4) {
	case 0:
		lines[i], lines[j] = lines[j], lines[i]
	case 1:
		lines[i] = "if rank(tp) == 0 { " + lines[i] + " }"
	default:
		lines[i] = ""
	}
	return strings.Join(lines, "\n")
}
