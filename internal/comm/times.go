package comm

import (
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// FindOn is like Find for a world of the given number of ranks that is not opened. FindOn finds no table on machines
// without dry runs.
func FindOn(m device.Machine, ranks int) Found {
	w, err := m.DryRun(ranks)
	if err != nil {
		return Found{Ignored: err.Error()}
	}
	return Find(m.Name(), w)
}

// FindFor is like Find for a GPU model that need not be in this machine. gpu is the prefix of identities that names
// the model (see Table.Of). FindFor returns the most recently written tuned table for the number of ranks. If there is
// none, it returns the shipped table if the model is of the same maker.
func FindFor(gpu string, ranks int) Found {
	f := Found{Identity: gpu}
	if gpu == "" {
		return f
	}
	if maker, _, _ := strings.Cut(Shipped().Identity, " "); strings.HasPrefix(gpu, maker+" ") {
		f.Table, f.From = shippedFor(gpu), shippedFrom
	}
	var latest time.Time
	for _, k := range Kept() {
		if k.Table == nil || k.Table.Ranks != ranks || !strings.HasPrefix(k.Table.Identity, gpu) {
			continue
		}
		if s, err := os.Stat(k.From); err == nil && s.ModTime().After(latest) {
			f, latest = Found{Identity: k.Table.Identity, Table: k.Table, From: k.From}, s.ModTime()
		}
	}
	return f
}

// Points implements machine.Times. Points uses only an entry for exactly this kind of collective: the same op, number
// of members and reduction and, if it reduces, the same element size. Each bracket contributes the time of the
// algorithm that the dispatcher uses there, at the size at which it was measured. A bracket without such a measurement
// contributes nothing.
func (f *Found) Points(c *machine.Collective) []machine.Point {
	e := f.Table.just(c)
	if e == nil {
		return nil
	}
	var list []machine.Point
	for i := range e.Brackets {
		x, size := f.taken(&e.Brackets[i], c), e.measuredAt(i)
		if x != nil && x.Micros > 0 && size > 0 {
			list = append(list, machine.Point{size, x.Micros})
		}
	}
	return list
}

// just returns the entry for exactly the kind of collective c; nil if there is none.
func (t *Table) just(c *machine.Collective) *Entry {
	if t == nil {
		return nil
	}
	red := ReductionOf(c.Red, c.Op)
	i := slices.IndexFunc(t.Entries, func(e Entry) bool {
		return e.Op == c.Op.String() && int64(e.Members) == c.Members && e.Reduction == red && (red == "" || e.Elem == c.DType.Size())
	})
	if i < 0 {
		return nil
	}
	return &t.Entries[i]
}

// taken returns the tuning of bracket b that the dispatcher would select for c, as far as this can be decided without
// the operands. It returns nil if the dispatcher would select none.
func (f *Found) taken(b *Bracket, c *machine.Collective) *Timed {
	i := slices.IndexFunc(b.Best, func(x Timed) bool {
		switch {
		case c.Algorithm != "":
			return x.Algo == c.Algorithm
		case slices.Contains(f.Unknown, x.Algo):
			return false
		}
		return anyOrder(c) || !f.Table.info(x.Algo).FreeOrder
	})
	if i < 0 {
		return nil
	}
	return &b.Best[i]
}

// anyOrder reports whether c may add in any order, or gives the same bits in every order.
func anyOrder(c *machine.Collective) bool {
	if c.AnyOrder || c.DType.IsInt() || ReductionOf(c.Red, c.Op) == "" {
		return true
	}
	return c.Red == ir.Sum && c.Members == 2
}

// measuredAt returns the message size in bytes at which bracket i was measured. It returns 0 if that size is outside
// the bracket, because the bracket's range was reduced after the measurement. Old tables do not record the size. For an
// old table it returns the size at which a quick tuning checked the bracket, or else the bracket's geometric middle,
// which is right if the ratio of successive measured sizes was constant. The first and the last bracket are assumed to
// be as wide as their neighbours.
func (e *Entry) measuredAt(i int) float64 {
	b := e.Brackets
	inside := func(n int64) bool {
		return n > 0 && (i == 0 || n > b[i-1].UpTo) && (b[i].UpTo == 0 || n <= b[i].UpTo)
	}
	if n := b[i].At; n != 0 {
		if !inside(n) {
			return 0
		}
		return float64(n)
	}
	if k := slices.IndexFunc(e.Checked, inside); k >= 0 {
		return float64(e.Checked[k])
	}
	end := func(k int) float64 { return float64(b[k].UpTo) }
	switch last := len(b) - 1; {
	case last == 0:
		return 0
	case last == 1: // with two brackets the ratio of sizes is unknown: assume a factor of 4
		return []float64{end(0) / 2, end(0) * 2}[i]
	case i == 0:
		return end(0) * math.Sqrt(end(0)/end(1))
	case i == last:
		return end(i-1) * math.Sqrt(end(i-1)/end(i-2))
	}
	return math.Sqrt(end(i-1) * end(i))
}
