package comm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Table says what is fastest on one machine, as measured. It is data: it prints
// as JSON, and may be edited and shared.
type Table struct {
	Version int `json:"version"`
	// Identity is the machine that it was measured on, Ranks how many ranks
	// its world had.
	Identity string `json:"identity"`
	Ranks    int    `json:"ranks"`
	// Made says by what.
	Made string `json:"made"`
	// Algorithms describe those that entries may name, for readers that have not opened the machine. Those that no
	// field of device.Algorithm but the name is to be said of are left out.
	Algorithms []device.Algorithm `json:"algorithms,omitempty"`
	Entries    []Entry            `json:"entries"`
}

// Describe has the table describe algorithms.
func (t *Table) Describe(list []device.Algorithm) {
	for _, a := range list {
		// The same as in JSON.
		a = device.Algorithm{Name: a.Name, Formerly: a.Formerly, FreeOrder: a.FreeOrder, HostLink: a.HostLink, Library: a.Library}
		same := func(o device.Algorithm) bool { return o.Name == a.Name }
		if t.Algorithms = slices.DeleteFunc(slices.Clone(t.Algorithms), same); a.Formerly != nil || a.FreeOrder || a.HostLink || a.Library {
			t.Algorithms = append(t.Algorithms, a)
		}
	}
}

// info describes an algorithm that the table names, as far as that is known: tables of old do not say it, and the
// shipped one does for all.
func (t *Table) info(name string) device.Algorithm {
	lists := [][]device.Algorithm{Shipped().Algorithms}
	if t != nil {
		lists = [][]device.Algorithm{t.Algorithms, Shipped().Algorithms}
	}
	for _, list := range lists {
		if i := slices.IndexFunc(list, func(a device.Algorithm) bool { return a.Name == name }); i >= 0 {
			return list[i]
		}
	}
	return device.Algorithm{Name: name}
}

// Library reports whether an algorithm that the table names is of the machine's vendor.
func (t *Table) Library(name string) bool { return t.info(name).Library }

// TableVersion is that of tables that this program reads.
const TableVersion = 1

// Entry is a kind of collective.
type Entry struct {
	Op string `json:"op"`
	// Reduction is "sum" (and avg), "minmax", or empty where nothing is reduced.
	Reduction string `json:"reduction,omitempty"`
	Elem      int64  `json:"element_bytes"`
	Members   int    `json:"members"`
	// Full says that it was measured at every power of two and by grids of each
	// kernel; Shipped, that it is the shipped table's, and was not measured on the
	// machine whose table this is.
	Full    bool `json:"full,omitempty"`
	Shipped bool `json:"shipped,omitempty"`
	// Checked are the sizes, in bytes, at which a quick tuning looked whether the
	// shipped table is right here: between them the entry is that table's. Empty for
	// an entry that is all measured, or all shipped.
	Checked []int64 `json:"checked,omitempty"`
	// Brackets by size, ascending. What is chosen is not interpolated between them; what
	// it is predicted to take is (see Found.Points).
	Brackets []Bracket `json:"brackets"`
	// Fixed is what suits all sizes best, among those that sum in order; nil
	// where nothing takes all sizes.
	Fixed *device.Tuning `json:"fixed,omitempty"`
}

// Bracket is a range of sizes: those above the bracket before, up to UpTo.
type Bracket struct {
	// UpTo is in bytes of the message; 0, of the last, for no end.
	UpTo int64 `json:"up_to,omitempty"`
	// At is the size in bytes at which the first of Best was measured, and the others but
	// for those that a quick tuning left as shipped; 0 where that is not known.
	At int64 `json:"at,omitempty"`
	// Best lists what was measured, the best first.
	Best []Timed `json:"best"`
}

// Timed is a tuning with the microseconds that it took at the size at which the bracket
// was measured.
type Timed struct {
	device.Tuning
	Micros float64 `json:"us,omitempty"`
}

// ReductionOf is the key of an op's reduction.
func ReductionOf(red ir.Red, op ir.Op) string {
	switch op {
	case ir.OpAllReduce, ir.OpReduceScatter, ir.OpReduce:
	default:
		return ""
	}
	if red == ir.Max || red == ir.Min {
		return "minmax"
	}
	return "sum"
}

// best returns the tunings for in, the best first; nil for a nil table. If fixed
// the entry's own comes first, then those that give the same bits: not those that add in a free order.
func (t *Table) best(in *Instance, fixed bool) []device.Tuning {
	e := t.find(in)
	if e == nil {
		return nil
	}
	var list []device.Tuning
	if fixed && e.Fixed != nil {
		list = append(list, *e.Fixed)
	}
	for _, b := range e.Bracket(in.Message()).Best {
		if !fixed || !t.info(b.Algo).FreeOrder {
			list = append(list, b.Tuning)
		}
	}
	return list
}

// Best returns the tunings that the table has for in, the best first.
func (t *Table) Best(in *Instance) []device.Tuning { return t.best(in, false) }

// Entry returns the entry with the key that e has; nil where there is none.
func (t *Table) Entry(e Entry) *Entry {
	for i := range t.Entries {
		if x := &t.Entries[i]; x.Op == e.Op && x.Reduction == e.Reduction && x.Elem == e.Elem && x.Members == e.Members {
			return x
		}
	}
	return nil
}

// Put adds an entry, in the place of that with the same key if there is one.
func (t *Table) Put(e Entry) {
	if old := t.Entry(e); old != nil {
		*old = e
		return
	}
	t.Entries = append(t.Entries, e)
}

// kin are ops that move data alike: one without an entry takes that of its kin.
var kin = map[ir.Op]ir.Op{ir.OpGather: ir.OpAllGather, ir.OpScatter: ir.OpAllToAll, ir.OpPermute: ir.OpBroadcast, ir.OpReduce: ir.OpReduceScatter}

// Clone returns a table that shares nothing with t that can be changed.
func (t *Table) Clone() *Table {
	c := *t
	c.Entries = make([]Entry, len(t.Entries))
	for i := range t.Entries {
		c.Entries[i] = t.Entries[i].Clone()
	}
	return &c
}

// Clone returns an entry that shares nothing with e that can be changed.
func (e *Entry) Clone() Entry {
	c := *e
	c.Brackets = slices.Clone(e.Brackets)
	for i := range c.Brackets {
		c.Brackets[i].Best = slices.Clone(c.Brackets[i].Best)
	}
	if e.Fixed != nil {
		fixed := *e.Fixed
		c.Fixed = &fixed
	}
	c.Checked = slices.Clone(e.Checked)
	return c
}

// find returns the entry for in, or else the nearest of its op, or of its kin.
func (t *Table) find(in *Instance) *Entry {
	if t == nil {
		return nil
	}
	e := t.nearest(in.Op, in)
	if other, ok := kin[in.Op]; ok && e == nil {
		e = t.nearest(other, in)
	}
	return e
}

// nearest returns the entry of an op that is the nearest to in: first by the
// number of members, then by reduction, then by element.
func (t *Table) nearest(op ir.Op, in *Instance) *Entry {
	var found *Entry
	least := math.Inf(1)
	red, elem := ReductionOf(in.Red, in.Op), in.dtype().Size()
	for i := range t.Entries {
		e := &t.Entries[i]
		if e.Op != op.String() {
			continue
		}
		away := 100 * math.Abs(math.Log2(float64(e.Members)/float64(len(in.Parts))))
		if e.Reduction != red {
			away += 10
		}
		if e.Elem != elem {
			away += math.Abs(math.Log2(float64(e.Elem) / float64(max(elem, 1))))
		}
		if away < least {
			found, least = e, away
		}
	}
	return found
}

// Bracket returns the one that a size falls in; a table that was checked has it.
func (e *Entry) Bracket(bytes int64) *Bracket {
	i, _ := slices.BinarySearchFunc(e.Brackets, bytes, func(b Bracket, n int64) int {
		if b.UpTo != 0 && b.UpTo < n {
			return -1
		}
		return 1
	})
	return &e.Brackets[i]
}

// Hash is a number by which two tables can be told apart, whatever they say of
// where they come from.
func (t *Table) Hash() string {
	if t == nil {
		return ""
	}
	data, err := json.Marshal(t.Entries)
	if err != nil { // numbers that are no JSON; a table that was checked has none
		return "?"
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}
