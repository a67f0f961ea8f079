package mscclpp

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"hocket.example/hocket/internal/schedule"
)

// list returns the list of operations that contains the place at, and the index of the place in the list. It returns
// nil if there is no such place.
func (f *File) list(at schedule.Place) (*[]Op, int) {
	if at.Rank < 0 || at.Rank >= len(f.GPUs) || at.Block < 0 || at.Block >= len(f.GPUs[at.Rank].Threadblocks) {
		return nil, 0
	}
	ops := &f.GPUs[at.Rank].Threadblocks[at.Block].Ops
	i := at.Index
	if at.Inner > 0 {
		if i < 0 || i >= len(*ops) {
			return nil, 0
		}
		ops, i = &(*ops)[i].Ops, at.Inner-1
	}
	if i < 0 || i > len(*ops) {
		return nil, 0
	}
	return ops, i
}

// Without returns a copy of f without the operation at a place, or nil if there is no such operation.
func (f *File) Without(at schedule.Place) schedule.File {
	out := f.Clone()
	ops, i := out.list(at)
	if ops == nil || i >= len(*ops) {
		return nil
	}
	*ops = slices.Delete(*ops, i, i+1)
	return out
}

// insert returns a copy of f with additional operations before the one at a place, or nil if there is no such place.
func (f *File) insert(at schedule.Place, more ...Op) *File {
	out := f.Clone()
	ops, i := out.list(at)
	if ops == nil {
		return nil
	}
	*ops = slices.Insert(*ops, i, more...)
	return out
}

var syncs = []string{"nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait", "flush", "sem_acquire", "sem_release"}

// walk calls do for each operation, including those in pipelines, until do returns false.
func (f *File) walk(do func(at schedule.Place, o *Op) bool) {
	for r := range f.GPUs {
		for t := range f.GPUs[r].Threadblocks {
			for i := range f.GPUs[r].Threadblocks[t].Ops {
				o := &f.GPUs[r].Threadblocks[t].Ops[i]
				at := schedule.Place{Rank: r, Block: t, Index: i, Name: o.Name}
				if !do(at, o) {
					return
				}
				for j := range o.Ops {
					at.Inner, at.Name = j+1, o.Ops[j].Name
					if !do(at, &o.Ops[j]) {
						return
					}
				}
			}
		}
	}
}

// Syncs lists the places of operations that only order other operations.
func (f *File) Syncs() []schedule.Place {
	var out []schedule.Place
	f.walk(func(at schedule.Place, o *Op) bool {
		if slices.Contains(syncs, o.Name) {
			out = append(out, at)
		}
		return true
	})
	return out
}

// gaps lists the places at which an operation can be inserted in a thread block: before each operation and at the end
// of each list.
func (f *File) gaps(rank, block int) []schedule.Place {
	var out []schedule.Place
	ops := f.GPUs[rank].Threadblocks[block].Ops
	for i := range len(ops) + 1 {
		if i < len(ops) && ops[i].Name == "pipeline" {
			for j := range len(ops[i].Ops) + 1 {
				out = append(out, schedule.Place{Rank: rank, Block: block, Index: i, Inner: j + 1})
			}
		}
		out = append(out, schedule.Place{Rank: rank, Block: block, Index: i})
	}
	return out
}

// Repairs proposes plans with one additional synchronization, in this order: a signal that a block of a deadlock
// awaits, or a wait for a signal that remains; a barrier in a block of the finding; a rank whose relaxed signals and
// waits are replaced by ones that order memory; a double scratch buffer; each signal and wait for which the blocks of
// the finding have channels and semaphores; a new semaphore between two blocks of a rank; a barrier at any place; and
// signals and waits in other blocks. Signals are tried from the beginning of a block, and the others from the finding
// backwards, since an operation that waits delays all later operations of its block.
func (f *File) Repairs(refuted *schedule.Report) iter.Seq[schedule.Repair] {
	return func(yield func(schedule.Repair) bool) {
		found := refuted.Findings[0]
		near := f.near(found)
		others := f.others(near)
		insert := func(blocks [][2]int, ops func(rank, block int) []Op) bool {
			for _, b := range blocks {
				for _, o := range ops(b[0], b[1]) {
					for _, at := range f.places(b[0], b[1], &o, found) {
						if !yield(f.repair(at, o)) {
							return false
						}
					}
				}
			}
			return true
		}
		barrier := func(rank, block int) []Op {
			if found.Kind == schedule.Deadlock {
				return nil // a barrier does not end the wait of a block
			}
			return []Op{{Name: "nop"}}
		}
		_ = insert(slices.Concat(near, others), f.unmatched(refuted)) && insert(near, barrier) &&
			f.strengthened(yield) &&
			f.doubled(found, yield) && insert(near, f.available) && f.semaphore(found, yield) &&
			insert(others, barrier) && insert(others, f.available)
	}
}

// unmatched returns a function that lists, for a block, the missing signals for which a deadlock's blocks wait, and the
// missing waits for signals that remain.
func (f *File) unmatched(refuted *schedule.Report) func(rank, block int) []Op {
	b, err := f.build()
	if err != nil {
		return func(rank, block int) []Op { return nil }
	}
	wanted := map[string][]counterKey{} // by name of the operation
	for key, c := range b.counters {
		peer, connected := b.other[key]
		awaited, left := slices.Contains(refuted.Awaited, c), slices.Contains(refuted.Left, c)
		switch semaphore := key.kind == "semaphore"; {
		case awaited && semaphore:
			wanted["sem_release"] = append(wanted["sem_release"], key)
		case left && semaphore:
			wanted["sem_acquire"] = append(wanted["sem_acquire"], key)
		case left:
			wanted["wait"] = append(wanted["wait"], key)
		case awaited && connected:
			wanted["signal"] = append(wanted["signal"], peer)
		}
	}
	return func(rank, block int) (out []Op) {
		b.tb = &f.GPUs[rank].Threadblocks[block]
		for _, o := range f.available(rank, block) {
			all := len(o.ChannelIDs)+len(o.Semaphores) > 0
			for _, i := range o.Semaphores {
				all = all && slices.Contains(wanted[o.Name], counterKey{"semaphore", rank, i})
			}
			b.op = &o
			for _, i := range o.ChannelIDs {
				c, err := b.channel(o.ChannelType, i)
				all = all && err == nil && slices.Contains(wanted[o.Name], counterKey{o.ChannelType, rank, c})
			}
			if all {
				out = append(out, o)
			}
		}
		return out
	}
}

// doubled proposes a double scratch buffer for a race.
func (f *File) doubled(found *schedule.Finding, yield func(schedule.Repair) bool) bool {
	if f.DoubleScratch || found.Kind != schedule.Race {
		return true
	}
	out := f.Clone()
	out.DoubleScratch = true
	return yield(schedule.Repair{File: out,
		Text: "use_double_scratch_buffer is set, so successive launches use different halves of a scratch of double size"})
}

// places lists the gaps of a block in the order in which insertions of operation o are tried.
func (f *File) places(rank, block int, o *Op, found *schedule.Finding) []schedule.Place {
	gaps := f.gaps(rank, block)
	if strings.HasSuffix(o.Name, "signal") || o.Name == "sem_release" {
		return gaps
	}
	before := func(a, b schedule.Place) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Inner, b.Inner))
	}
	last := schedule.Place{Index: -1} // the last operation of the finding in this block
	for _, p := range found.Places {
		if p.Rank == rank && p.Block == block && before(p, last) > 0 {
			last = p
		}
	}
	if last.Index < 0 {
		last.Index = len(f.GPUs[rank].Threadblocks[block].Ops)
	}
	slices.SortFunc(gaps, func(a, b schedule.Place) int {
		switch x, y := before(a, last) > 0, before(b, last) > 0; {
		case x != y && x:
			return 1
		case x != y:
			return -1
		case x:
			return before(a, b)
		}
		return before(b, a)
	})
	return gaps
}

func (f *File) repair(at schedule.Place, o Op) schedule.Repair {
	where := fmt.Sprintf("rank %d, tb %d, before op %d", at.Rank, at.Block, at.Index)
	if at.Inner > 0 {
		where += fmt.Sprintf(".%d", at.Inner-1)
	}
	what, waits := o.Name, slices.Contains([]string{"wait", "rlxwait", "sem_acquire", "barrier"}, o.Name)
	switch {
	case len(o.ChannelIDs) == 1:
		what += fmt.Sprintf(" of %s channel %d", o.ChannelType, o.ChannelIDs[0])
	case len(o.ChannelIDs) > 1:
		what += fmt.Sprintf(" of all %s channels", o.ChannelType)
	case len(o.Semaphores) > 0:
		what += fmt.Sprintf(" of semaphore %d", o.Semaphores[0])
	}
	if n := len(f.GPUs[at.Rank].Threadblocks[at.Block].Ops); waits {
		what += fmt.Sprintf(", which delays %d of the block's %d operations", n-at.Index, n)
	}
	return schedule.Repair{Text: where + ": " + what, File: f.insert(at, o)}
}

// near lists the blocks that a finding names, as pairs of rank and block index.
func (f *File) near(found *schedule.Finding) [][2]int {
	var out [][2]int
	for _, p := range found.Places {
		if b := [2]int{p.Rank, p.Block}; !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	return out
}

func (f *File) others(blocks [][2]int) [][2]int {
	var out [][2]int
	for r := range f.GPUs {
		for t := range f.GPUs[r].Threadblocks {
			if b := [2]int{r, t}; !slices.Contains(blocks, b) {
				out = append(out, b)
			}
		}
	}
	return out
}

// available lists the signal and wait operations for which a block has channels and semaphores.
func (f *File) available(rank, block int) []Op {
	var out []Op
	for _, c := range f.GPUs[rank].Threadblocks[block].Channels {
		if c.Type != "memory" && c.Type != "port" {
			continue
		}
		names := []string{"wait", "signal"}
		if c.Type == "memory" {
			names = append(names, "rlxwait", "rlxsignal")
		}
		all := make([]int, len(c.IDs))
		for i := range all {
			all[i] = i
		}
		for _, name := range names {
			if len(all) > 1 {
				out = append(out, Op{Name: name, ChannelIDs: all, ChannelType: c.Type})
			}
			for i := range c.IDs {
				out = append(out, Op{Name: name, ChannelIDs: []int{i}, ChannelType: c.Type})
			}
		}
	}
	for i := range f.GPUs[rank].Semaphores {
		out = append(out, Op{Name: "sem_acquire", Semaphores: []int{i}}, Op{Name: "sem_release", Semaphores: []int{i}})
	}
	known := map[int]bool{}
	f.walk(func(at schedule.Place, o *Op) bool {
		if at.Rank == rank && o.Name == "barrier" && o.BarrierID != nil && !known[*o.BarrierID] {
			known[*o.BarrierID] = true
			out = append(out, *o)
		}
		return true
	})
	return out
}

// strengthened proposes one plan for each pair of ranks. In the plan, the relaxed signals and waits between the two
// ranks are replaced by signals and waits that order memory.
func (f *File) strengthened(yield func(schedule.Repair) bool) bool {
	strong := map[string]string{"rlxsignal": "signal", "rlxwait": "wait"}
	for r := range f.GPUs {
		out := f.Clone()
		var changed []string
		out.walk(func(at schedule.Place, o *Op) bool {
			if s := strong[o.Name]; s != "" {
				if at.Rank == r || f.reaches(at, o, r) {
					changed = append(changed, fmt.Sprintf("%s becomes %s", at, s))
					o.Name = s
				}
			}
			return true
		})
		text := strings.Join(changed, "; ")
		if n := len(changed); n > 3 {
			text = fmt.Sprintf("the %d relaxed signals and waits between rank %d and its peers become signals and waits", n, r)
		}
		if text != "" && !yield(schedule.Repair{Text: text, File: out}) {
			return false
		}
	}
	return true
}

// reaches reports whether an operation uses a channel to rank r.
func (f *File) reaches(at schedule.Place, o *Op, r int) bool {
	b := &builder{f: f}
	b.tb, b.op = &f.GPUs[at.Rank].Threadblocks[at.Block], o
	peers := b.peers(at.Rank, o.ChannelType)
	for _, i := range o.ChannelIDs {
		if ch, err := b.channel(o.ChannelType, i); err == nil && ch >= 0 && ch < len(peers) && peers[ch] == r {
			return true
		}
	}
	return false
}

// semaphore proposes plans in which a new semaphore orders the two operations of a race within one rank, one plan for
// each order.
func (f *File) semaphore(found *schedule.Finding, yield func(schedule.Repair) bool) bool {
	if found.Kind != schedule.Race || len(found.Places) != 2 {
		return true
	}
	for _, order := range [][2]int{{1, 0}, {0, 1}} {
		first, second := found.Places[order[0]], found.Places[order[1]]
		if first.Rank != second.Rank || first.Block == second.Block || first.Inner > 0 || second.Inner > 0 {
			return true
		}
		out := f.Clone()
		g := &out.GPUs[first.Rank]
		id := len(g.Semaphores)
		g.Semaphores = append(g.Semaphores, Semaphore{Init: new(0)})
		after := first
		after.Index++
		out = out.insert(after, Op{Name: "nop"}, Op{Name: "sem_release", Semaphores: []int{id}})
		out = out.insert(second, Op{Name: "sem_acquire", Semaphores: []int{id}}, Op{Name: "nop"})
		text := fmt.Sprintf("semaphore %d of rank %d: released after tb %d's op %d, acquired before tb %d's op %d",
			id, first.Rank, first.Block, first.Index, second.Block, second.Index)
		if !yield(schedule.Repair{Text: text, File: out}) {
			return false
		}
	}
	return true
}
