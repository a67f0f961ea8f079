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

// class is the resource that a task needs.
type class uint8

const (
	instant    class = iota // the task needs no resource; it only orders or delays other tasks
	compute                 // the device's multiprocessors
	transfer                // a copy engine
	collective              // multiprocessors and links
)

// task is one operation on one stream of one rank.
type task struct {
	rank, stream int
	class        class
	// work is the task's duration in microseconds when it runs alone.
	work float64
	// deps are the tasks that must end before this one starts. deps include the previous task on its stream.
	deps []int
	// group is the number, counted from 1, of the collective of which the task is a part, or 0. All parts of a
	// collective start together.
	group int
	// contested is the factor by which a collective and a GEMM slow each other down if the
	// collective starts while the GEMM runs; see machine.Description.Contested.
	contested float64
	// span is the task's bar in the timeline; nil if it has none.
	span *Span
}

// Span is one bar of a timeline, in microseconds.
type Span struct {
	Name string `json:"name"`
	// Comm reports that the bar represents a transfer of data between ranks, or a wait for other ranks.
	Comm   bool    `json:"comm"`
	Rank   int     `json:"rank"`
	Stream string  `json:"stream"`
	Start  float64 `json:"start_us"`
	End    float64 `json:"end_us"`
}

// graph collects tasks. Tasks of one stream run one after another. A wait is also a task, so an event that is recorded
// after a wait includes the wait.
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

// free appends a task that belongs to no stream and returns its number.
func (g *graph) free(t task) int {
	g.tasks = append(g.tasks, t)
	return len(g.tasks) - 1
}

// join makes a stream wait for a task of another stream of its device. late is the delay until the
// stream sees that the task has ended.
func (g *graph) join(rank, stream, on int, late float64) {
	g.add(task{rank: rank, stream: stream, deps: []int{g.free(task{rank: rank, work: late, deps: []int{on}})}})
}

// tail returns the last task of a stream. It returns false if the stream has no task.
func (g *graph) tail(rank, stream int) (int, bool) {
	i, ok := g.last[[2]int{rank, stream}]
	return i, ok
}

// runner executes a graph. Every running task progresses at a rate that depends on the other
// running tasks.
type runner struct {
	*graph
	machine *machine.Description
	waiting []int       // for each task, the number of its deps that have not ended
	users   [][]int     // for each task, the tasks that wait for it
	parts   map[int]int // for each collective, the number of parts that are not ready yet
	members map[int][]int
	left    []float64
	start   []float64
	end     []float64
	running []int
	now     float64
	// late says, for each task of a collective, whether a GEMM was running on its rank when it
	// started.
	late []bool
}

// run returns the times at which each task starts and ends.
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
		if over == 0 { // no task can end, so no later step would end a task either
			return nil, nil, fmt.Errorf("none of %d operations ends: their predicted times are infinite or not numbers", len(r.running))
		}
		done += over
	}
	if done < n {
		return nil, nil, fmt.Errorf("%d of %d operations wait for ever", n-done, n)
	}
	return r.start, r.end, nil
}

// ready starts a task. A collective starts, with all its parts, when its last part is ready.
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

// step advances time until the next tasks end, and returns their number.
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

// rates returns the rate of each running task; 1 is the rate of a task that runs alone.
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
	slowest := map[int]float64{} // rate of each collective's slowest part
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

// load counts the running tasks of one rank, by class.
type load [4]int

// slowdown returns the factor by which the other tasks on the rank slow down a task. Tasks of one class share its
// resource. mixed is the factor by which a collective and a GEMM slow each other down.
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

// spans returns the bars of the named tasks.
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

// byStart returns the task numbers in order of start time.
func byStart(start []float64) []int {
	order := make([]int, len(start))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(start[a], start[b]) })
	return order
}
