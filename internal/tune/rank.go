package tune

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
)

// alike is how much slower than the fastest a tuning may be and win by taking
// fewer multiprocessors.
const alike = 1.02

// ranked orders what was measured: first the most modest of all, then that of
// each other algorithm. blocks is how many blocks a tuning is known to take.
func ranked(list []timed, blocks func(device.Tuning) int) []timed {
	if len(list) == 0 {
		return nil
	}
	list = within(list, math.Inf(1))
	out := []timed{modest(list, blocks)}
	for _, x := range list {
		if !slices.ContainsFunc(out, func(o timed) bool { return o.Algo == x.Algo }) {
			out = append(out, modest(slices.DeleteFunc(slices.Clone(list), func(o timed) bool { return o.Algo != x.Algo }), blocks))
		}
	}
	return out
}

// modest is, of those as fast as the first, the fastest, the one with the fewest
// blocks.
func modest(list []timed, blocks func(device.Tuning) int) timed {
	best := list[0]
	for _, x := range list {
		if x.Micros <= alike*list[0].Micros && blocks(x.Tuning) < blocks(best.Tuning) {
			best = x
		}
	}
	return best
}

// blocks returns how many blocks a tuning is known to take.
func (u *tuner) blocks(a *contest.Arena) func(device.Tuning) int {
	return func(t device.Tuning) int {
		switch {
		case t.Blocks > 0:
			return t.Blocks
		case a.Dispatch.Info(t.Algo).CopyEngines:
			return 0
		}
		return math.MaxInt
	}
}

// kept is how many algorithms a bracket lists, one that sums in order among
// them.
const kept = 4

// entryOf makes the entry of a kind from what was measured at ascending sizes. A
// bracket reaches halfway, in ratio, to the next size.
func entryOf(k kind, list []measured) comm.Entry {
	e := k.entry()
	e.Fixed = fixedOf(list)
	for i, m := range list {
		b := comm.Bracket{At: m.call.Bytes, Best: bestOf(m.best)}
		if i < len(list)-1 {
			b.UpTo = halfway(m, list[i+1])
		}
		e.Brackets = append(e.Brackets, b)
	}
	return e
}

// bestOf is what a bracket lists of what was measured, the best first.
func bestOf(list []timed) (best []comm.Timed) {
	inOrder := false
	for _, x := range list {
		if len(best) < kept-1 || len(best) < kept && (inOrder || x.ordered) {
			best = append(best, comm.Timed{Tuning: x.Tuning, Micros: rounded(x.Micros)})
			inOrder = inOrder || x.ordered
		}
	}
	return best
}

// halfway is, in ratio, between the sizes of two calls.
func halfway(a, b measured) int64 {
	return int64(math.Sqrt(float64(a.call.Bytes) * float64(b.call.Bytes)))
}

// rounded are microseconds as tables have them.
func rounded(us float64) float64 { return math.Round(us*100) / 100 }

// fixedOf returns the algorithm that takes all sizes in order and is, in the
// geometric mean, the least slower than the best.
func fixedOf(list []measured) *device.Tuning {
	var found *device.Tuning
	least := math.Inf(1)
	for _, x := range list[0].best {
		sum, all := 0.0, true
		for _, m := range list {
			i := slices.IndexFunc(m.best, func(o timed) bool { return o.Algo == x.Algo && o.ordered })
			if all = all && i >= 0; all {
				sum += math.Log(m.best[i].Micros / m.best[0].Micros)
			}
		}
		if all && sum < least {
			found, least = &device.Tuning{Algo: x.Algo}, sum
		}
	}
	return found
}
