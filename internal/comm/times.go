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

// FindOn is Find for worlds of so many ranks that need not be opened yet, on machines
// that have dry runs; on others it finds nothing.
func FindOn(m device.Machine, ranks int) Found {
	w, err := m.DryRun(ranks)
	if err != nil {
		return Found{Ignored: err.Error()}
	}
	return Find(m.Name(), w)
}

// FindFor is Find for worlds of a model of GPUs, named as identities begin (see
// Table.Of), that need not be here: the tuned table for as many ranks that was written
// last, or else the shipped one, if it is a model of the same maker.
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

// Points implements machine.Times. They are of the entry for just such collectives,
// not of one near: of as many members, and where something is reduced of elements of
// that size. Each bracket gives the time of what the dispatcher takes there, at the
// size at which it was measured; none where that one was not.
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

// just returns the entry for collectives like c alone; nil for none.
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

// taken is what the dispatcher takes of a bracket for c, as far as that can be told
// without its operands; nil for nothing.
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

// anyOrder reports whether the order in which c adds shows in no bit, or may.
func anyOrder(c *machine.Collective) bool {
	if c.AnyOrder || c.DType.IsInt() || ReductionOf(c.Red, c.Op) == "" {
		return true
	}
	return c.Red == ir.Sum && c.Members == 2
}

// measuredAt is the size in bytes at which bracket i was measured; 0 where it was not
// within the bracket, which was cut since. Tables of old do not say: then it is where
// they looked whether the shipped one is right, or the bracket's geometric middle,
// which is right for sizes in equal ratios. The first and the last bracket are taken
// to be as wide as their neighbours.
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
	case last == 1: // of two sizes nothing says how far they are apart: take a factor of 4
		return []float64{end(0) / 2, end(0) * 2}[i]
	case i == 0:
		return end(0) * math.Sqrt(end(0)/end(1))
	case i == last:
		return end(i-1) * math.Sqrt(end(i-1)/end(i-2))
	}
	return math.Sqrt(end(i-1) * end(i))
}
