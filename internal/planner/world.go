package planner

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// world holds the state that all unrolled ranks share: the plan under construction, and tables that find, on every
// rank, the same buffer or counter for the same execution of a statement.
type world struct {
	b     *ir.Bound
	p     *plan.Plan
	stats *Stats

	cmds [][]plan.Cmd // for each rank, its commands in issue order; merge joins them into one list

	sites    map[*ir.Stmt]int32
	launches map[string]int32 // launches of kernels by their contents
	paths    map[pathKey]int32
	buffers  map[instance]int32
	counters map[instance]int32
	raisers  [][]int32 // for each counter: the rank that raises each element rank·Len+elem, or -1

	tails    []tail  // for each stream: the commands issued so far
	slotFrom []int32 // for each event slot: the stream on which the slot is recorded

	teams   []*team
	teamIDs map[string]int32 // teams by their ranks
	seats   map[seatKey]seat // seats by axes and rank
	lanes   []*lane          // lanes of sends and recvs, in order of first use
	laneIDs map[laneKey]int32

	room         func() int64 // see Options
	mostCommands int64
	pathBytes    int64 // bytes of iteration paths so far

	stop  func() error // see Options
	asked int          // number of calls of goOn

	commands, iterations, calls, statements, instances, counterElems int64
}

// pathKey is the map key of one step of an execution path: a loop iteration or a call.
type pathKey struct {
	parent int32
	stmt   *ir.Stmt
	iter   int64
}

// instance identifies one execution of a declaration. An instance is equal on all ranks that take the same path. elem
// is the index of an element of the declared array.
type instance struct {
	path int32
	stmt *ir.Stmt
	elem int64
}

// tail records how many commands have been issued to a stream, and how many of them before an event was last
// recorded on the stream.
type tail struct {
	issued   int32 // commands other than records
	recorded int32 // value of issued at the last record, or -1 if there was none
	slot     int32
}

func newWorld(b *ir.Bound, stats *Stats) *world {
	p := &plan.Plan{Program: b.Info.Prog.File, Func: b.Func.Name, Ranks: b.Ranks}
	for name, v := range b.Dims {
		p.Dims = append(p.Dims, plan.Dim{Name: name, Value: v})
	}
	slices.SortFunc(p.Dims, func(x, y plan.Dim) int { return strings.Compare(x.Name, y.Name) })
	return &world{
		b: b, p: p, stats: stats, mostCommands: maxCommands,
		cmds:     make([][]plan.Cmd, b.Ranks),
		sites:    map[*ir.Stmt]int32{},
		paths:    map[pathKey]int32{},
		buffers:  map[instance]int32{},
		counters: map[instance]int32{},
		teamIDs:  map[string]int32{},
		seats:    map[seatKey]seat{},
		laneIDs:  map[laneKey]int32{},
	}
}

// path returns the number of the execution path that consists of the path with the number parent and one more step.
// The empty path has the number 0.
func (w *world) path(parent int32, s *ir.Stmt, iter int64) int32 {
	k := pathKey{parent, s, iter}
	id, ok := w.paths[k]
	if !ok {
		id = int32(len(w.paths)) + 1
		w.paths[k] = id
	}
	return id
}

// site returns the index of s in the plan's list of source statements.
func (w *world) site(s *ir.Stmt) int32 {
	id, ok := w.sites[s]
	if !ok {
		id = int32(len(w.p.Sites))
		w.sites[s] = id
		w.p.Sites = append(w.p.Sites, plan.Site{Pos: s.Pos, Op: s.Op, Text: s.String()})
	}
	return id
}

// paramSite returns the site for commands that belong to no statement, namely the uploads of a parameter.
func (w *world) paramSite(par *ir.Param) int32 {
	text := "%" + par.Name
	for i, s := range w.p.Sites {
		if s.Pos == par.Pos && s.Text == text {
			return int32(i)
		}
	}
	w.p.Sites = append(w.p.Sites, plan.Site{Pos: par.Pos, Text: text})
	return int32(len(w.p.Sites)) - 1
}

// diag returns an error about command c that was found after unrolling.
func (w *world) diag(kind string, c *plan.Cmd, format string, args ...any) *ir.Diagnostic {
	return w.b.Info.Prog.Diag(kind, w.p.Sites[c.Site].Pos, format, args...)
}

// note returns a note about command c, to be added to a diagnostic.
func (w *world) note(c *plan.Cmd, format string, args ...any) ir.Note {
	return ir.Note{Pos: w.p.Sites[c.Site].Pos, Message: fmt.Sprintf(format, args...)}
}

// where returns the rank, the stream and the iteration of a command as text.
func (w *world) where(c *plan.Cmd) string {
	s := fmt.Sprintf("rank %d, %s", c.Rank, w.p.Streams[c.Stream].Name)
	if len(c.Iter) > 0 {
		s += ", iteration " + iterPath(c.Iter)
	}
	return s
}

// iterPath returns the text of an iteration path: "3" or "0.3".
func iterPath(iter []int64) string {
	words := make([]string, len(iter))
	for i, v := range iter {
		words[i] = strconv.FormatInt(v, 10)
	}
	return strings.Join(words, ".")
}
