package tune

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
)

// alike limits the time of a tuning that is preferred because it uses fewer multiprocessors, as a multiple of the
// shortest time.
const alike = 1.02

// ranked returns the preferred tuning of each algorithm (see modest). The preferred one of all tunings comes first. The
// argument blocks is a function that returns the number of thread blocks that a tuning is known to use.
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

// modest returns the preferred tuning of a list that begins with the fastest one: among the tunings that are nearly as
// fast, the one with the fewest thread blocks.
func modest(list []timed, blocks func(device.Tuning) int) timed {
	best := list[0]
	for _, x := range list {
		if x.Micros <= alike*list[0].Micros && blocks(x.Tuning) < blocks(best.Tuning) {
			best = x
		}
	}
	return best
}

// blocks returns a function that returns the number of thread blocks that a tuning is known to use.
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

// kept is the largest number of tunings that a size bracket lists. One of these tunings adds in the order of the
// members, if any tuning does.
const kept = 4

// entryOf makes the entry of a kind from measurements at ascending sizes. Each measured size leads to one size bracket,
// an interval that ends at the geometric mean of this size and the next one.
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

// bestOf returns the tunings that a size bracket lists, the best first.
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

// halfway returns the geometric mean of the sizes of two calls.
func halfway(a, b measured) int64 {
	return int64(math.Sqrt(float64(a.call.Bytes) * float64(b.call.Bytes)))
}

// rounded rounds microseconds to the precision of tables.
func rounded(us float64) float64 { return math.Round(us*100) / 100 }

// fixedOf returns the best algorithm for all sizes. fixedOf considers the algorithms that support all sizes and add in
// the order of the members. The best one has the smallest geometric mean of the ratios of its time to the shortest
// time.
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
