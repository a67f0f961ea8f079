package nvfuser

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// CUDA transfers copy through a handle of the peer's buffer. The statement ShareMemHandles exchanges these handles on
// the host. If the handle for a communication in the statement is not in a rank's cache, the rank publishes a handle of
// its buffer and waits for the peer's handle. The cache is keyed by communication, peer and buffer. A rank that has
// published a handle then waits for all ranks, in a barrier. A rank whose cache has all handles returns without
// waiting.
//
// handleCheck executes the host program of every rank twice. It reports transfers without a handle, and ranks that
// wait for a handle that no rank publishes.

// cacheDefine is the name in --define with which the user says whether nvFuser's allocation cache is in use.
const cacheDefine = "allocation_cache"

// maxHandleSteps is the largest number of statements that handleCheck executes.
const maxHandleSteps = 1 << 18

type handleCheck struct {
	t     *scalars
	eval  *inference
	steps int
	// unknown is the first name or expression whose value the dump does not determine.
	unknown *scalar

	rank  int64
	moved bool                // set if every ALLOCATE of the current rank returns new memory
	bound map[string]string   // maps a tensor to the memory that it refers to, for example "T4[2]"
	cache map[string]bool     // keys of the handles in the current rank's cache
	calls []exchange          // exchanges of the current rank
	wrong *ir.Diagnostic      // the first transfer without a handle
	all   []map[string]bool   // the caches of all ranks after their last run
	roots map[string]struct{} // buffers that an ALLOCATE made and whose handles were exchanged
}

// exchange describes one execution of a ShareMemHandles that publishes handles.
type exchange struct {
	at    *stmt
	wants []want
}

// want is a handle that a rank waits for.
type want struct {
	comm *stmt
	peer int64
}

// checkHandles reports transfers without a handle and exchanges of handles that hang. The argument cached is what
// the user says about nvFuser's allocation cache: "1" if it is in use, "0" if it is not, or "" if unknown.
func (t *scalars) checkHandles(cached string) {
	cuda, first := false, (*stmt)(nil)
	t.d.everyStmt(func(s *stmt) {
		cuda = cuda || s.kind == stP2P && s.backend == backendCUDA
		if s.kind == stShareHandles && first == nil {
			first = s
		}
	})
	if !cuda {
		return
	}
	h := &handleCheck{t: t, eval: &inference{t: t, values: map[string]int64{}, byName: map[string]*missingIndex{}},
		roots: map[string]struct{}{}}
	for range t.world {
		h.all = append(h.all, map[string]bool{})
	}
	calls, ok := h.run(-1)
	if ok {
		h.meet(calls, "")
	}
	if !ok || h.wrong != nil {
		return
	}
	if first == nil || len(h.roots) == 0 || cached == "1" {
		return
	}
	// In the second run, ALLOCATE returns new memory on rank 0, and the memory of the first run on all other ranks.
	calls, ok = h.run(0)
	if !ok || cached != "0" {
		d := t.errorf(first.pos, "without nvFuser's allocation cache, ShareMemHandles hangs in the first run in "+
			"which ALLOCATE returns new memory on some ranks but not on others")
		d.Severity = ir.Warning
		d.Help = "set use_allocation_cache in nvFuser's MultiDeviceExecutorParams; then import with --define " +
			"allocation_cache=1 (=0 shows the hang)"
		return
	}
	h.meet(calls, "in the second run, if ALLOCATE returns new memory on rank 0 only, ")
}

// run executes the host program of each rank once. On the rank moved, ALLOCATE returns other memory than in the
// previous run; on other ranks it returns the same memory.
func (h *handleCheck) run(moved int64) ([][]exchange, bool) {
	var out [][]exchange
	for rank := range h.t.world {
		h.rank, h.moved, h.calls, h.cache = rank, rank == moved, nil, h.all[rank]
		h.bound = map[string]string{}
		clear(h.eval.values)
		h.eval.values["rank"] = rank
		for _, x := range h.t.d.inputs {
			h.bound[x.id] = x.id
		}
		for _, x := range h.t.d.outputs {
			if !h.t.d.allocates(x.id) {
				h.bound[x.id] = x.id // the caller, and not an ALLOCATE, provides the memory of inputs
			}
		}
		for _, x := range slices.Concat(h.t.d.inputs, h.t.d.outputs) {
			for _, a := range x.axes {
				if a.device() && x.mesh != nil && a.extent.op == "" && a.extent.name != "" {
					h.eval.values[a.extent.name] = int64(len(x.mesh.devices))
				}
			}
		}
		if !h.walk(h.t.d.body) {
			if h.wrong == nil {
				h.notKnown()
			}
			return nil, false
		}
		out = append(out, h.calls)
	}
	return out, true
}

// notKnown adds the warning that handles were not checked.
func (h *handleCheck) notKnown() {
	pos, what := h.t.d.pos, "its loops have too many iterations"
	if h.unknown != nil {
		pos, what = h.unknown.pos, "the dump does not contain the value of "+brief(h.unknown.text())
	}
	d := h.t.errorf(pos, "the dump was not checked for transfers without a memory handle: %s", what)
	d.Severity = ir.Warning
}

func (h *handleCheck) value(s *scalar) (int64, bool) {
	v, ok := h.eval.eval(s, 0)
	if !ok {
		h.unknown = s
	}
	return v, ok
}

// holds evaluates a condition. ok is false if its value is unknown.
func (h *handleCheck) holds(s *scalar) (yes, ok bool) {
	cmp, compares := comparisons[s.op]
	if !compares {
		v, ok := h.value(s)
		return v != 0, ok
	}
	a, ok1 := h.value(s.args[0])
	b, ok2 := h.value(s.args[1])
	return cmp.Holds(a, b), ok1 && ok2
}

// walk executes a list of statements on the current rank. It returns false if the execution must end, because of an
// error or because the dump does not determine a value.
func (h *handleCheck) walk(list []*stmt) bool {
	for _, s := range list {
		if h.steps++; h.steps > maxHandleSteps {
			return false
		}
		if !h.step(s) {
			return false
		}
	}
	return true
}

func (h *handleCheck) step(s *stmt) bool {
	switch s.kind {
	case stFor:
		lo, ok1 := h.value(s.index)
		hi, ok2 := h.value(s.hi)
		if !ok1 || !ok2 {
			return !usesHandles(s.body) // a loop without transfers has no effect on handles
		}
		for i := lo; i < hi; i++ {
			h.eval.values[s.id] = i
			if !h.walk(s.body) {
				return false
			}
		}
		delete(h.eval.values, s.id)
	case stIf:
		yes, ok := h.holds(s.index)
		switch {
		case !ok:
			return !usesHandles(s.body) && !usesHandles(s.alt)
		case yes:
			return h.walk(s.body)
		}
		return h.walk(s.alt)
	case stAllocate:
		if s.out != nil && (h.bound[s.out.id] == "" || !strings.Contains(h.bound[s.out.id], "[")) {
			h.bound[s.out.id] = s.out.id + "+"
			if h.moved {
				h.bound[s.out.id] += "+"
			}
		}
	case stAlias:
		from := h.bound[s.in[0].t.id]
		v, ok := h.eval.eval(s.index, 0)
		if h.bound[s.out.id] = fmt.Sprintf("%s[%d:%d]", from, s.axis, v); !ok {
			h.bound[s.out.id] = from + "[" + s.index.text() + "]"
		}
		if from == "" {
			delete(h.bound, s.out.id)
		}
	case stShard, stSlice:
		if from := h.bound[s.in[0].t.id]; from != "" {
			v := int64(0)
			if s.index != nil {
				v, _ = h.eval.eval(s.index, 0)
			}
			h.bound[s.out.id] = fmt.Sprintf("%s[%s:%d]", from, s.out.id, v)
		}
	case stShareHandles:
		return h.share(s)
	case stP2P:
		if s.backend == backendCUDA {
			return h.use(s)
		}
	case stCompute, stComm:
		if s.out != nil && h.bound[s.out.id] == "" {
			h.bound[s.out.id] = s.out.id + "+" // the operation allocates its result
		}
	case stPost:
		for _, x := range s.outs {
			if h.bound[x.id] == "" {
				h.bound[x.id] = x.id + "+"
			}
		}
	}
	return true
}

// allocates reports whether the dump contains an ALLOCATE for a tensor.
func (d *dump) allocates(id string) bool {
	found := false
	d.everyStmt(func(s *stmt) { found = found || s.kind == stAllocate && s.out != nil && s.out.id == id })
	return found
}

// usesHandles reports whether statements exchange handles or copy through handles.
func usesHandles(list []*stmt) bool {
	return slices.ContainsFunc(list, func(s *stmt) bool {
		return s.kind == stShareHandles || s.kind == stP2P && s.backend == backendCUDA || usesHandles(s.body) ||
			usesHandles(s.alt)
	})
}

// key returns the cache key of the handle that a communication uses on the current rank. It returns "" if no memory
// is bound to the communication's buffer.
func (h *handleCheck) key(s *stmt) (key string, peer int64, ok bool) {
	if peer, ok = h.value(s.index); !ok {
		return "", 0, false
	}
	memory := h.bound[s.out.id]
	if memory == "" {
		return "", peer, true
	}
	return fmt.Sprintf("%s to %d of %s", s.id, peer, memory), peer, true
}

func (h *handleCheck) share(s *stmt) bool {
	call := exchange{at: s}
	for _, c := range s.shared {
		key, peer, ok := h.key(c)
		switch {
		case !ok:
			return false
		case key == "":
			h.fail(c.pos, "rank %d exchanges a handle of %s before the ALLOCATE of that tensor", h.rank,
				c.out.id).Help =
				"above the ShareMemHandles, ALLOCATE the tensor or select it from an allocated one"
			return false
		case peer == h.rank || peer < 0 || peer >= h.t.world:
			h.fail(c.pos, "rank %d exchanges a handle with rank %d, which is not another rank of the program", h.rank,
				peer).Help = "the peer of a communication in ShareMemHandles must be another rank of the program"
			return false
		case h.cache[key]:
			continue
		}
		h.cache[key] = true
		if root, _, made := strings.Cut(h.bound[c.out.id], "+"); made {
			h.roots[root] = struct{}{}
		}
		call.wants = append(call.wants, want{c, peer})
	}
	if len(call.wants) > 0 {
		h.calls = append(h.calls, call)
	}
	return true
}

func (h *handleCheck) use(s *stmt) bool {
	key, peer, ok := h.key(s)
	if ok && key != "" && !h.cache[key] {
		h.fail(s.pos, "communication %s has no handle of rank %d's buffer: rank %d executes no ShareMemHandles "+
			"with this communication, peer and buffer before it",
			s.id, peer, h.rank).Help = "nvFuser throws \"No remote buffer found\" here: name the communication in a ShareMemHandles above"
		return false
	}
	return ok
}

func (h *handleCheck) fail(pos ir.Pos, format string, args ...any) *ir.Diagnostic {
	d := h.t.errorf(pos, format, args...)
	if h.wrong == nil {
		h.wrong = d
	}
	return d
}

// meet compares the exchanges of all ranks. Each exchange ends with a barrier, so the n-th exchange of one rank
// takes place together with the n-th exchange of every other rank.
func (h *handleCheck) meet(calls [][]exchange, when string) {
	const help = "all ranks must execute ShareMemHandles equally often, and both ranks of a transfer must " +
		"exchange its handles in the same one"
	for n := 0; ; n++ {
		waits, absent := -1, -1
		for rank, list := range calls {
			if n >= len(list) {
				absent = rank
				continue
			}
			waits = rank
			for _, w := range list[n].wants {
				peers := calls[w.peer]
				if n < len(peers) && slices.ContainsFunc(peers[n].wants,
					func(o want) bool { return o.peer == int64(rank) && o.comm.op != w.comm.op }) {
					continue
				}
				why := "which does not publish a handle for communication"
				if when != "" {
					why = "which does not publish it again because its cache has the handle of communication"
				}
				h.fail(w.comm.pos, "hang: %srank %d waits in ShareMemHandles for a handle of rank %d, %s %s", when,
					rank, w.peer, why, w.comm.id).Help = help
				return
			}
		}
		if waits < 0 {
			return
		}
		if absent >= 0 {
			h.fail(calls[waits][n].at.pos,
				"hang: %srank %d waits in the barrier of ShareMemHandles for rank %d, which has no handles to "+
					"exchange and does not enter it", when,
				waits, absent).Help = help
			return
		}
	}
}
