package lower

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/ir"
)

// This file finds the operations that form a region with a collective: the users of an all_gather's result, or the
// producers of a reduction's operand.

// maxSpan is the maximum distance, in statements, between statements of one region.
const maxSpan = 4096

// maxFollow is the maximum distance, in statements, between a reduction and the operations that follow it in its
// region. The distance is limited because the statements in between that are not in the region are executed first.
const maxFollow = 64

func newPairFinder(o *overlapper, b *ir.Block, at when) *pairFinder {
	f := &pairFinder{unit: o.unit, fn: o.fn, carried: o.carried, users: usesIn(b), stmts: b.Stmts, when: at,
		def: map[string]*ir.Stmt{}, at: map[*ir.Stmt]int{}, owned: map[*ir.Stmt]*region{}, shared: map[*ir.Stmt]*region{},
		taken: map[*ir.Stmt]*region{}, pending: map[string]*ir.Stmt{}}
	for i, s := range b.Stmts {
		f.at[s] = i
		for _, r := range s.Results {
			f.def[r.Text] = s
		}
	}
	return f
}

// take records that r will be replaced by statements at the position of its collective.
func (f *pairFinder) take(r *region) {
	for s := range r.in {
		f.taken[s] = r
		f.pending[s.Results[0].Text] = r.comm
	}
}

// emitted records that the replacement of the region of the collective comm has been emitted.
func (f *pairFinder) emitted(comm *ir.Stmt) {
	for s := range f.taken[comm].in {
		delete(f.pending, s.Results[0].Text)
	}
}

// producers returns the region whose last operation is the reduction s. If there is no such region, it returns the
// reason.
func (f *pairFinder) producers(s *ir.Stmt) (*region, string) {
	why := ""
	for _, rows := range f.newRegion(s).rowsCandidates() {
		r := f.newRegion(s)
		r.Before = s.Op == ir.OpAllGather
		r.cut(rows)
		if why = f.backward(r); why == "" {
			if r.Before {
				f.finish(r)
				return r, ""
			}
			f.follow(r)
			f.finish(r)
			if x := f.across(s); x != nil && r.comm.Op == ir.OpReduceScatter && !r.blocked {
				r.other = x
				delete(r.Refused, Exchange)
			}
			return r, ""
		}
	}
	if x := f.across(s); x != nil && s.Op != ir.OpAllGather {
		x.Refused[Chunked] = "the strategy divides rows into chunks, but the reduced blocks are not rows of the operands"
		return x, ""
	}
	return nil, why
}

// across returns the region that ends in the reduction s and whose pieces are not rows of its operands, or nil if there
// is no such region.
func (f *pairFinder) across(s *ir.Stmt) *region {
	r := f.newRegion(s)
	r.across = true
	r.cut(r.Axis)
	if f.backward(r) != "" {
		return nil
	}
	f.follow(r)
	f.finish(r)
	return r
}

// backward adds to r the operations that compute the collective's operand. It starts at the operand and stops at the
// GEMMs. If these operations cannot form a region, it returns the reason; otherwise it returns "".
func (f *pairFinder) backward(r *region) string {
	end := f.at[r.comm]
	needed := map[string]bool{r.comm.Args[0].Name: true}
	given := map[string]bool{} // operands from outside the region that are needed by rows
	for i := end - 1; i >= 0 && end-i <= maxSpan && len(needed) > 0 && pure(f.stmts[i]); i-- {
		s := f.stmts[i]
		name := s.Results[0].Text
		if !needed[name] {
			continue
		}
		delete(needed, name)
		byRow, _, ok := f.operandsOf(s, r.Rows, r.across)
		switch {
		case !ok:
			return notByRows(s, r.Rows)
		case slices.ContainsFunc(f.users[name], func(u *ir.Stmt) bool { return !r.in[u] }):
			return "%" + name + " also has other uses"
		}
		r.body, r.in[s] = append(r.body, s), true
		for _, x := range byRow {
			if isGEMM(s) {
				given[x] = true
			} else {
				needed[x] = true
			}
		}
	}
	slices.Reverse(r.body)
	return f.whyNot(r, append(slices.Collect(maps.Keys(needed)), slices.Collect(maps.Keys(given))...))
}

// follow adds to r the operations that follow the reduction and can be computed by rows, for example a bias, a residual
// or an activation. It adds an operation only if the result before it has no other user. No statement outside the
// region then depends on the intermediate results, so the operations can run piece by piece.
func (f *pairFinder) follow(r *region) {
	for s := r.comm; ; {
		users := f.users[s.Results[0].Text]
		if len(users) != 1 {
			return
		}
		next := users[0]
		for i := f.at[s] + 1; i <= f.at[next]; i++ {
			if i-f.at[r.comm] > maxFollow || !pure(f.stmts[i]) {
				return
			}
		}
		byRow, whole, ok := f.operandsOf(next, r.Rows, r.across)
		if !ok || isGEMM(next) || f.owned[next] != nil || !slices.Contains(byRow, s.Results[0].Text) || slices.Contains(whole, s.Results[0].Text) {
			return
		}
		r.post, r.in[next], r.last = append(r.post, next), true, next
		s = next
	}
}

// whyNot returns the reason why a region cannot be lowered as a pair, or "" if it can. given lists the operands from
// outside the region that are needed by rows.
func (f *pairFinder) whyNot(r *region, given []string) string {
	slices.Sort(given)
	switch {
	case !r.hasGEMM() && r.gathers():
		return "no linear or matmul uses its result by rows"
	case !r.hasGEMM() && r.Before:
		return "no linear or matmul next to it computes its operand"
	case !r.hasGEMM():
		return "no linear or matmul next to it computes its operand"
	}
	for _, x := range given {
		if !r.across && !f.dense(x) {
			return "%" + x + " is a view, whose rows may not be contiguous"
		}
	}
	return ""
}

func notByRows(s *ir.Stmt, rows int) string {
	return fmt.Sprintf("%s cannot be computed in parts along dimension %d", s.Op, rows)
}

// consumed returns the set of the gathers whose results are operands of GEMMs, and of these GEMMs.
func (f *pairFinder) consumed() map[*ir.Stmt]bool {
	out := map[*ir.Stmt]bool{}
	for _, s := range f.stmts {
		if s.Op != ir.OpAllGather || !f.overMain(s) {
			continue
		}
		if r, _ := f.consumersBut(s, nil); r != nil {
			for x := range r.in {
				out[x] = true
			}
		}
	}
	return out
}

// consumers returns the region that starts with the all_gather s. If there is no such region, consumers returns the
// reason. The region contains GEMMs of a reduction's region only if it would otherwise have no GEMM.
func (f *pairFinder) consumers(s *ir.Stmt) (*region, string) {
	if r, _ := f.consumersBut(s, f.shared); r != nil {
		return r, ""
	}
	return f.consumersBut(s, nil)
}

// consumersBut is the same as consumers, but leaves out the statements in except.
func (f *pairFinder) consumersBut(s *ir.Stmt, except map[*ir.Stmt]*region) (*region, string) {
	first := ""
	for _, rows := range f.newRegion(s).rowsCandidates() {
		r := f.newRegion(s)
		r.cut(rows)
		f.forward(r, except)
		why := f.whyNot(r, nil)
		if why == "" {
			f.finish(r)
			return r, ""
		}
		if first == "" {
			first = why
		}
	}
	return nil, first
}

// forward adds to r the operations that can be computed by rows: the users of the gathered value, their users, and so
// on. An operand from outside the region must not depend on a value that is available only after the whole region.
func (f *pairFinder) forward(r *region, except map[*ir.Stmt]*region) {
	inside := map[string]bool{r.comm.Results[0].Text: true}
	late := map[string]bool{}
	open := map[*ir.Stmt]bool{} // users of the region's values that the search has not reached yet
	see := func(name string) {
		for _, u := range f.users[name] {
			open[u] = true
		}
	}
	see(r.comm.Results[0].Text)
	for i := f.at[r.comm] + 1; i < len(f.stmts) && i-f.at[r.comm] <= maxSpan && len(open) > 0; i++ {
		s := f.stmts[i]
		if !pure(s) {
			break
		}
		delete(open, s)
		name := s.Results[0].Text
		if f.owned[s] == nil && except[s] == nil && f.absorbs(s, r.Rows, inside, late) {
			r.body, r.in[s], r.last = append(r.body, s), true, s
			inside[name] = true
			see(name)
			continue
		}
		depends := false
		mentions(s, func(n string) { depends = depends || inside[n] || late[n] || f.pending[n] != nil })
		late[name] = depends
	}
	for s := range f.trim(r) {
		late[s.Results[0].Text] = true
	}
	f.pull(r, except, late)
}

// pull adds to r, the region of an all_gather, the elementwise operations between its statements whose results only
// elementwise operations of the region use, by rows, and whose operands are available before the region. Each piece
// then computes these operations together with their users.
func (f *pairFinder) pull(r *region, except map[*ir.Stmt]*region, late map[string]bool) {
	for i := f.at[r.last] - 1; i > f.at[r.comm]; i-- {
		s := f.stmts[i]
		if r.in[s] || f.owned[s] != nil || except[s] != nil || f.taken[s] != nil || !pure(s) || len(s.Results) != 1 ||
			!s.Op.Info().Elementwise || !f.onlyByRows(r, s) {
			continue
		}
		byRow, whole, ok := f.operandsOf(s, r.Rows, false)
		if !ok || slices.ContainsFunc(append(byRow[:len(byRow):len(byRow)], whole...), func(n string) bool {
			return late[n] || f.pending[n] != nil || slices.Contains(byRow, n) && !f.dense(n)
		}) {
			continue
		}
		r.body, r.in[s] = append(r.body, s), true
	}
	slices.SortStableFunc(r.body, func(a, b *ir.Stmt) int { return f.at[a] - f.at[b] })
}

// onlyByRows reports whether only elementwise operations of r use the result of s, all by rows.
func (f *pairFinder) onlyByRows(r *region, s *ir.Stmt) bool {
	name := s.Results[0].Text
	return len(f.users[name]) > 0 && !slices.ContainsFunc(f.users[name], func(u *ir.Stmt) bool {
		byRow, whole, ok := f.operandsOf(u, r.Rows, false)
		return !r.in[u] || !ok || !u.Op.Info().Elementwise || !slices.Contains(byRow, name) || slices.Contains(whole, name)
	})
}

// trim removes from r, the region of an all_gather, the elementwise operations that compute a result from values that
// the region has as results anyway, and at most one other value of the region, which becomes a result instead. This
// takes no more memory. It removes only operations that have an elementwise user, because one kernel can compute both
// after the region. In the region, these operations would read the values once more, and write a result that only this
// user reads. An example is the derivative of an activation, which a backward pass multiplies with a gradient. trim
// returns the removed operations.
func (f *pairFinder) trim(r *region) map[*ir.Stmt]bool {
	all := map[*ir.Stmt]bool{}
	for i := len(r.body) - 1; i >= 0; i-- {
		if i >= len(r.body) || f.usedBy(r.body[i], r.in) { // only a result that the region does not use can be removed
			continue
		}
		joins := func(u *ir.Stmt) bool { return u.Op.Info().Elementwise }
		if !slices.ContainsFunc(f.users[r.body[i].Results[0].Text], joins) {
			continue
		}
		removed, from := f.onlyFor(r, r.body[i])
		stays, others := false, 0 // whether the region still computes with one of the values, and how many become results
		for s := range from {
			stays = stays || slices.ContainsFunc(f.users[s.Results[0].Text], func(u *ir.Stmt) bool { return r.in[u] && !removed[u] })
			if !f.usedOutside(r, s) {
				others++
			}
		}
		if !stays || others > 1 {
			continue
		}
		for s := range removed {
			delete(r.in, s)
			all[s] = true
		}
		r.body = slices.DeleteFunc(r.body, func(s *ir.Stmt) bool { return removed[s] })
	}
	r.last = r.comm
	if n := len(r.body); n > 0 {
		r.last = r.body[n-1]
	}
	return all
}

// usedBy reports whether one of the statements in set uses the result of s.
func (f *pairFinder) usedBy(s *ir.Stmt, set map[*ir.Stmt]bool) bool {
	return slices.ContainsFunc(f.users[s.Results[0].Text], func(u *ir.Stmt) bool { return set[u] })
}

// onlyFor returns the operations of r that only the result of end, a statement of r, needs, and the statements of r
// outside them whose values they use. onlyFor returns nothing if one of the operations is not elementwise, or uses the
// gathered tensor.
func (f *pairFinder) onlyFor(r *region, end *ir.Stmt) (only, from map[*ir.Stmt]bool) {
	only, from = map[*ir.Stmt]bool{end: true}, map[*ir.Stmt]bool{}
	for i := slices.Index(r.body, end); i >= 0; i-- {
		s := r.body[i]
		if s != end && (isGEMM(s) || !f.usedBy(s, only) ||
			slices.ContainsFunc(f.users[s.Results[0].Text], func(u *ir.Stmt) bool { return !only[u] })) {
			continue
		}
		if !s.Op.Info().Elementwise {
			return nil, nil
		}
		only[s] = true
	}
	for s := range only {
		for _, a := range s.Args {
			switch d := f.def[a.Name]; {
			case d == r.comm:
				return nil, nil
			case d != nil && r.in[d] && !only[d]:
				from[d] = true
			}
		}
	}
	return only, from
}

// scalesLater moves gathers of scales. If only linears use the gathered scales, the gather is moved after the first
// gather whose result one of these linears multiplies with the scales. The region then begins with the gather of the
// values and can include the gather of the scales.
func scalesLater(b *ir.Block) {
	users, at := usesIn(b), map[string]int{}
	for i, s := range b.Stmts {
		for _, r := range s.Results {
			at[r.Text] = i
		}
	}
	after := map[int][]*ir.Stmt{} // maps a gather of values, by position, to the gathers of scales that move after it
	for i, s := range b.Stmts {
		if s.Op != ir.OpAllGather || len(s.Results) != 1 {
			continue
		}
		name, first := s.Results[0].Text, len(b.Stmts)
		only := !slices.ContainsFunc(users[name], func(u *ir.Stmt) bool {
			if !scaled(u) || len(u.Results) != 1 || u.Args[2].Name != name || u.Args[3].Name == name {
				return true
			}
			x, made := at[u.Args[0].Name]
			if made && b.Stmts[x].Op == ir.OpAllGather && slices.Equal(b.Stmts[x].Over(), s.Over()) {
				first = min(first, x)
			}
			return false
		})
		if only && first > i && first < len(b.Stmts) &&
			!slices.ContainsFunc(users[name], func(u *ir.Stmt) bool { return at[u.Results[0].Text] < first }) {
			after[first] = append(after[first], s)
		}
	}
	if len(after) == 0 {
		return
	}
	var out []*ir.Stmt
	moved := slices.Concat(slices.Collect(maps.Values(after))...)
	for i, s := range b.Stmts {
		if !slices.Contains(moved, s) {
			out = append(out, s)
		}
		out = append(out, after[i]...)
	}
	b.Stmts = out
}

// takeScales adds gathers of scales to r, the region of an all_gather. takeScales adds a gather if only linears of r
// use the gathered scales, if they use them by rows, and if the scales are available before r begins.
func (f *pairFinder) takeScales(r *region) {
	for _, s := range f.stmts[f.at[r.comm]+1 : f.at[r.last]] {
		if s.Op != ir.OpAllGather || !f.overMain(s) || !slices.Equal(s.Over(), r.Axes) || f.newRegion(s).Axis != r.Rows || !r.blocked ||
			f.owned[s] != nil || f.shared[s] != nil || f.taken[s] != nil {
			continue
		}
		from, name := s.Args[0].Name, s.Results[0].Text
		if d := f.def[from]; f.pending[from] != nil || !f.dense(from) || d != nil && f.at[d] > f.at[r.comm] {
			continue
		}
		if !slices.ContainsFunc(f.users[name], func(u *ir.Stmt) bool {
			return !r.in[u] || !scaled(u) || u.Args[2].Name != name || u.Args[3].Name == name
		}) {
			r.with, r.in[s] = append(r.with, s), true
		}
	}
}

// absorbs reports whether s can be added to a region that computes the values in inside.
func (f *pairFinder) absorbs(s *ir.Stmt, rows int, inside, late map[string]bool) bool {
	byRow, whole, ok := f.operandsOf(s, rows, false)
	notYet := func(n string) bool { return late[n] || f.pending[n] != nil }
	if !ok || f.taken[s] != nil || slices.ContainsFunc(whole, func(n string) bool { return inside[n] || notYet(n) }) {
		return false
	}
	some := false
	for _, n := range byRow {
		some = some || inside[n]
		if notYet(n) || !inside[n] && !f.dense(n) {
			return false
		}
	}
	return some
}
