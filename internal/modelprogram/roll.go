package modelprogram

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// part is a sequence of instructions, or a loop of several sequences that are equal except for their weights.
type part struct {
	list []*inst // the instructions of the part, or of the first iteration if it is a loop
	loop *loop
}

// carried lists the values that a loop carries. A part that is no loop carries none.
func (p part) carried() []carry {
	if p.loop == nil {
		return nil
	}
	return p.loop.carried
}

// loop holds several iterations of equal instructions.
type loop struct {
	iterations [][]*inst
	carried    []carry
	stacks     map[*param]*param // maps a parameter of the first iteration to the stack that replaces it
	steps      map[*inst]int64   // maps a select of the first iteration to the increase of its row per iteration
}

// carry is a value that one iteration passes to the next.
type carry struct {
	at    int     // the instruction that yields it
	first operand // initial value
}

// roll replaces repeated instructions by loops, the longest repetition first. The instructions in list are in the order
// of the program. The argument pairs limits the number of pairs of instructions that are compared.
func roll(list []*inst, pairs int) []part {
	if len(list) == 0 {
		return nil
	}
	if pairs -= len(list) * len(list) / 2; pairs < 0 {
		return []part{{list: list}}
	}
	l, at, n := repetition(list)
	if l == nil {
		return []part{{list: list}}
	}
	parts := roll(list[:at], pairs/2)
	parts = append(parts, part{list: l.iterations[0], loop: l})
	return append(parts, roll(list[at+n:], pairs/2)...)
}

// rowsApart inserts a separate select before each instruction that uses a row of a stack. The select can then be moved
// into a loop, even if other loops use the same row.
func rowsApart(list []*inst) []*inst {
	out := make([]*inst, 0, len(list))
	for _, in := range list {
		if in.selects && in.name == "" {
			continue
		}
		for i, a := range in.args {
			if row := a.in; row != nil && row.selects && row.name == "" {
				own := *row
				in.args[i].in = &own
				out = append(out, &own)
			}
		}
		out = append(out, in)
	}
	return out
}

// maxCompared is the maximum number of pairs of instructions that are compared. The limit suffices for programs of
// 65,536 instructions.
const maxCompared = 1 << 33

// repetition returns the repetition that covers the most instructions. The repetition begins at list[at] and covers n
// instructions.
func repetition(list []*inst) (best *loop, at, n int) {
	keys := keysOf(list)
	work := maxTries
	for period := 2; period <= len(list)/2; period++ {
		for i := 0; i+2*period <= len(list); {
			run := 0
			for i+run+period < len(list) && keys[i+run] == keys[i+run+period] {
				run++
			}
			if run < period {
				i += run + 1
				continue
			}
			end := i + run + period
			for from := i; from < i+period && from+2*period <= end; from++ {
				count := (end - from) / period
				if count*period <= n && (best == nil || count*period < n) {
					continue
				}
				if work -= count * period; work < 0 {
					return best, at, n
				}
				l := tryLoop(list, from, period, count)
				if l != nil && (count*period > n || len(l.carried) < len(best.carried)) {
					best, at, n = l, from, count*period
				}
			}
			i = end - period + 1
		}
	}
	return best, at, n
}

// keysOf returns a number for each instruction, which is equal for instructions with equal keys.
func keysOf(list []*inst) []int {
	keys, numbers := make([]int, len(list)), map[string]int{}
	scans := slices.ContainsFunc(list, func(in *inst) bool { return in.selects })
	for i, in := range list {
		key := in.key(scans)
		if _, ok := numbers[key]; !ok {
			numbers[key] = len(numbers)
		}
		keys[i] = numbers[key]
	}
	return keys
}

// maxTries is the maximum number of instructions that the search for loops examines.
const maxTries = 1 << 26

// key returns a text that is equal for instructions that differ only in their operands. If scans is set, an input is
// treated like a carried value, because a carried value may have an input as its initial value.
func (in *inst) key(scans bool) string {
	var b strings.Builder
	fmt.Fprint(&b, in.op, " ", in.attrs, typeText(in.dt, in.shape, in.split), in.whole, in.typed, in.into, in.layout,
		in.reduce)
	for _, a := range in.args {
		begins := scans && a.p != nil && a.p.value != nil && a.p.value.Leaf == graph.Input && !a.p.state
		fmt.Fprint(&b, a.p != nil && !begins, typeText(a.dtype(), a.shape(), a.splitDim()))
	}
	return b.String()
}

// trial checks whether instructions form a loop.
type trial struct {
	*loop
	period  int
	place   map[*inst]int    // index of an instruction among those of all iterations
	yielded map[int]int      // index in loop.carried, by the index of the instruction that yields the value
	same    map[operand]bool // operands that are the same in every iteration
	number  int              // the number of the first layer in the names of weights; -1 if it is not known yet
}

// tryLoop returns the loop with count iterations of period instructions each, beginning at list[from]. It returns nil
// if the instructions do not form a loop.
func tryLoop(list []*inst, from, period, count int) *loop {
	end := from + count*period
	t := &trial{loop: &loop{stacks: map[*param]*param{}, steps: map[*inst]int64{}}, period: period,
		place: map[*inst]int{}, yielded: map[int]int{}, same: map[operand]bool{}, number: -1}
	for i, in := range list[from:end] {
		t.place[in] = i
	}
	t.iterations = slices.Collect(slices.Chunk(list[from:end], period))
	for k := 1; k < count; k++ {
		for i := range period {
			if !t.repeats(k, i) {
				return nil
			}
		}
	}
	if !t.closed() || !t.yields(list[end:]) {
		return nil
	}
	return t.loop
}

// repeats records that instruction i of iteration k repeats instruction i of the first iteration, and reports whether
// this is possible.
func (t *trial) repeats(k, i int) bool {
	zero, in := t.iterations[0][i], t.iterations[k][i]
	if k == 1 {
		t.steps[zero] = in.row - zero.row
	}
	if in.row != zero.row+int64(k)*t.steps[zero] {
		return false
	}
	for j, b := range in.args {
		if !t.operand(k, zero.args[j], b) {
			return false
		}
	}
	return true
}

// operand records that iteration k uses operand b where the first iteration uses operand a.
func (t *trial) operand(k int, a, b operand) bool {
	if b.p != nil {
		if a.p == nil || !t.stacked(a.p, b.p, k, &t.number) {
			return false
		}
		t.same[a] = t.same[a] || a == b
		return true
	}
	at, inside := t.place[b.in]
	first, firstInside := t.place[a.in]
	switch {
	case !inside:
		t.same[a] = true
		return a == b
	case at/t.period == k:
		return firstInside && first == at%t.period
	case at/t.period == k-1:
		return !firstInside && t.carries(at%t.period, a)
	}
	return false
}

// closed reports whether each stack has a parameter of every iteration, and no operand of the loop's body would be
// confused with a carried value.
func (t *trial) closed() bool {
	for _, s := range t.stacks {
		if len(s.stack) != len(t.iterations) {
			return false
		}
	}
	return len(t.carried) > 0 &&
		!slices.ContainsFunc(t.carried, func(c carry) bool { return t.same[c.first] })
}

// yields reports whether the instructions after the loop, and the program's results, use only values that the last
// iteration yields.
func (t *trial) yields(after []*inst) bool {
	for _, in := range after {
		for _, a := range in.args {
			i, inside := t.place[a.in]
			if _, ok := t.yielded[i%t.period]; inside && (!ok || i/t.period != len(t.iterations)-1) {
				return false
			}
		}
	}
	for in, i := range t.place {
		if _, ok := t.yielded[i%t.period]; in.name != "" && !ok {
			return false
		}
	}
	return true
}

// carries records a value that the loop carries: the instruction with index at yields it, and first is its initial
// value. The result is false if this is not possible.
func (t *trial) carries(at int, first operand) bool {
	l := t.loop
	if c, ok := t.yielded[at]; ok {
		return l.carried[c].first == first
	}
	in := l.iterations[0][at]
	if in.dt != first.dtype() || !slices.Equal(in.shape, first.shape()) {
		return false
	}
	if slices.ContainsFunc(l.carried, func(c carry) bool { return c.first == first }) {
		return false // the first iteration would confuse the two carried values
	}
	t.yielded[at] = len(l.carried)
	l.carried = append(l.carried, carry{at, first})
	return true
}

// stacked records that iteration k uses parameter b where the first iteration uses parameter a. It returns false unless
// b equals a or, according to its name, is the weight of layer k. The argument number is the number of the first layer.
func (l *loop) stacked(a, b *param, k int, number *int) bool {
	s := l.stacks[a]
	if a == b {
		return s == nil
	}
	if a.value == nil || b.value == nil || a.parts != b.parts || a.packed != b.packed {
		return false
	}
	if a.value.Leaf == graph.Input || b.value.Leaf == graph.Input { // both are inputs of the model
		return false
	}
	if a.state != b.state || !slices.Equal(a.perm, b.perm) {
		return false
	}
	if !a.state && (a.value.Path != "" || b.value.Path != "") {
		n, step := layerOf(a.value.Path, b.value.Path)
		if step == 0 || *number >= 0 && n != *number || step%k != 0 {
			return false
		}
		*number = n
	}
	if s == nil {
		if k != 1 {
			return false
		}
		s = &param{value: a.value, dt: a.dt, split: a.split, parts: a.parts, packed: a.packed, number: a.number,
			state: a.state, perm: a.perm, quantized: a.quantized, stack: []*param{a}}
		l.stacks[a] = s
	}
	switch len(s.stack) {
	case k:
		s.stack = append(s.stack, b)
	case k + 1:
		return s.stack[k] == b
	default:
		return false
	}
	return true
}

// layerOf returns the number in the only component in which two paths differ, and the difference of the two numbers.
// The difference is 0 if the paths differ in any other way.
func layerOf(a, b string) (n, step int) {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	if len(as) != len(bs) {
		return 0, 0
	}
	for i := range as {
		if as[i] == bs[i] {
			continue
		}
		var x, y int
		if _, err := fmt.Sscanf(as[i]+" "+bs[i], "%d %d", &x, &y); err != nil || step != 0 {
			return 0, 0
		}
		n, step = x, y-x
	}
	return n, step
}
