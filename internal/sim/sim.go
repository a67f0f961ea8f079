// Package sim predicts how long programs take on a described machine: a pair of communication and GEMM under each
// strategy, for any number of ranks, or a whole plan.
package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/machine"
)

// class says which resource a task needs.
type class uint8

const (
	instant    class = iota // nothing: order only, or a delay
	compute                 // the device's multiprocessors
	transfer                // a copy engine
	collective              // multiprocessors and links
)

// task is one operation on one stream of one rank.
type task struct {
	rank, stream int
	class        class
	// work is how many microseconds it takes alone.
	work float64
	// deps are tasks that must have ended; the one before on the stream is
	// among them.
	deps []int
	// group is the collective that it is a part of, counted from 1; all parts
	// start together.
	group int
	// contested is how many times longer a collective takes that starts beside a running
	// GEMM, and that GEMM with it; see machine.Description.Contested.
	contested float64
	// span is what it is called in the timeline; nil for none.
	span *Span
}

// Span is one bar of a timeline, in microseconds.
type Span struct {
	Name string `json:"name"`
	// Comm: it moves data between ranks, or waits for them.
	Comm   bool    `json:"comm"`
	Rank   int     `json:"rank"`
	Stream string  `json:"stream"`
	Start  float64 `json:"start_us"`
	End    float64 `json:"end_us"`
}

// graph collects tasks. Tasks of one stream follow each other; a wait is one of them, so what a later
// event captures includes it.
type graph struct {
	tasks []task
	last  map[[2]int]int // (rank, stream) → its last task
}

func newGraph() *graph { return &graph{last: map[[2]int]int{}} }

// add appends a task to its stream and returns its number.
func (g *graph) add(t task) int {
	at := [2]int{t.rank, t.stream}
	if p, ok := g.last[at]; ok {
		t.deps = append(t.deps, p)
	}
	g.last[at] = g.free(t)
	return g.last[at]
}

// free appends a task of no stream and returns its number.
func (g *graph) free(t task) int {
	g.tasks = append(g.tasks, t)
	return len(g.tasks) - 1
}

// join makes a stream wait for a task of another stream of its device, whose end it learns of so
// much later.
func (g *graph) join(rank, stream, on int, late float64) {
	g.add(task{rank: rank, stream: stream, deps: []int{g.free(task{rank: rank, work: late, deps: []int{on}})}})
}

// tail returns the last task of a stream, and whether there is one.
func (g *graph) tail(rank, stream int) (int, bool) {
	i, ok := g.last[[2]int{rank, stream}]
	return i, ok
}

// runner executes a graph: every running task makes progress at a rate that
// depends on what runs beside it.
type runner struct {
	*graph
	machine *machine.Description
	waiting []int       // deps of each task that have not ended
	users   [][]int     // tasks that wait for each
	parts   map[int]int // of each collective, that are not ready yet
	members map[int][]int
	left    []float64
	start   []float64
	end     []float64
	running []int
	now     float64
	// late says of each collective whether a GEMM was running when it started.
	late []bool
}

// run returns when each task starts and ends.
func (g *graph) run(m *machine.Description) (start, end []float64, err error) {
	n := len(g.tasks)
	r := &runner{graph: g, machine: m, waiting: make([]int, n), users: make([][]int, n), parts: map[int]int{},
		members: map[int][]int{}, left: make([]float64, n), start: make([]float64, n), end: make([]float64, n),
		late: make([]bool, n)}
	for i := range g.tasks {
		t := &g.tasks[i]
		r.left[i] = t.work
		r.waiting[i] = len(t.deps)
		for _, d := range t.deps {
			r.users[d] = append(r.users[d], i)
		}
		if t.group > 0 {
			r.parts[t.group]++
			r.members[t.group] = append(r.members[t.group], i)
		}
	}
	for i := range g.tasks {
		if r.waiting[i] == 0 {
			r.ready(i)
		}
	}
	done := 0
	for len(r.running) > 0 {
		over := r.step()
		if over == 0 { // nor would any in the next step
			return nil, nil, fmt.Errorf("none of %d operations ends: their times are beyond all numbers", len(r.running))
		}
		done += over
	}
	if done < n {
		return nil, nil, fmt.Errorf("%d of %d operations wait for ever", n-done, n)
	}
	return r.start, r.end, nil
}

// ready starts a task, or, of a collective, all parts once the last is ready.
func (r *runner) ready(i int) {
	g := r.tasks[i].group
	if g == 0 {
		r.begin(i)
		return
	}
	if r.parts[g]--; r.parts[g] > 0 {
		return
	}
	for _, j := range r.members[g] {
		r.begin(j)
	}
}

func (r *runner) begin(i int) {
	r.start[i] = r.now
	r.late[i] = r.tasks[i].class == collective && slices.ContainsFunc(r.running, func(j int) bool {
		return r.tasks[j].class == compute && r.tasks[j].rank == r.tasks[i].rank && r.left[j] > 0
	})
	r.running = append(r.running, i)
}

// step advances to the next end of a task and returns how many end there.
func (r *runner) step() int {
	rates := r.rates()
	next := math.Inf(1)
	for k, i := range r.running {
		next = min(next, r.left[i]/rates[k])
	}
	r.now += next
	var still, over []int
	for k, i := range r.running {
		if r.left[i] -= next * rates[k]; r.left[i] <= 1e-9*(1+r.tasks[i].work) {
			over = append(over, i)
		} else {
			still = append(still, i)
		}
	}
	r.running = still
	for _, i := range over {
		r.end[i] = r.now
		for _, u := range r.users[i] {
			if r.waiting[u]--; r.waiting[u] == 0 {
				r.ready(u)
			}
		}
	}
	return len(over)
}

// rates returns how fast each running task goes, against alone.
func (r *runner) rates() []float64 {
	busy, beside := map[int]load{}, map[int]float64{}
	for _, i := range r.running {
		t := &r.tasks[i]
		b := busy[t.rank]
		b[t.class]++
		busy[t.rank] = b
		if t.class == collective {
			slow := r.machine.GEMMBesideCollective
			if r.late[i] {
				slow = max(slow, t.contested)
			}
			beside[t.rank] = max(beside[t.rank], slow)
		}
	}
	out := make([]float64, len(r.running))
	slowest := map[int]float64{} // of each collective
	for k, i := range r.running {
		t := &r.tasks[i]
		out[k] = 1 / r.slowdown(t.class, busy[t.rank], beside[t.rank])
		if t.group > 0 {
			if s, ok := slowest[t.group]; !ok || out[k] < s {
				slowest[t.group] = out[k]
			}
		}
	}
	for k, i := range r.running {
		if g := r.tasks[i].group; g > 0 {
			out[k] = slowest[g]
		}
	}
	return out
}

// load counts what runs on one rank, by class.
type load [4]int

// slowdown says how many times longer a task takes beside the others of its
// rank: those of its class share what they need. mixed is what a collective and a
// GEMM cost each other there.
func (r *runner) slowdown(c class, beside load, mixed float64) float64 {
	if c == instant {
		return 1
	}
	slow := float64(beside[c])
	switch {
	case c == compute && beside[collective] > 0, c == collective && beside[compute] > 0:
		slow *= mixed
	case c == compute && beside[transfer] > 0:
		slow *= r.machine.GEMMBesideCopy
	}
	return slow
}

// spans returns the timeline of tasks that have a name.
func (g *graph) spans(start, end []float64) []Span {
	var out []Span
	for i := range g.tasks {
		if s := g.tasks[i].span; s != nil {
			b := *s
			b.Rank, b.Comm, b.Start, b.End = g.tasks[i].rank, g.tasks[i].class != compute, start[i], end[i]
			out = append(out, b)
		}
	}
	return out
}

// byStart returns the tasks' numbers by the time they start.
func byStart(start []float64) []int {
	order := make([]int, len(start))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(start[a], start[b]) })
	return order
}
