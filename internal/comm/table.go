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

// Table lists the fastest algorithms for the collectives of one machine, as measured. It is plain data that is stored
// as JSON, and users may edit and share it.
type Table struct {
	Version int `json:"version"`
	// Identity identifies the machine on which the table was measured; Ranks is the number of ranks of the world in
	// which it was measured.
	Identity string `json:"identity"`
	Ranks    int    `json:"ranks"`
	// Made describes the program and version that measured the table.
	Made string `json:"made"`
	// Algorithms describes the algorithms that entries may name, for readers that have not opened the machine. It omits
	// algorithms for which every recorded field except the name is empty.
	Algorithms []device.Algorithm `json:"algorithms,omitempty"`
	Entries    []Entry            `json:"entries"`
}

// Describe stores the descriptions of algorithms in the table.
func (t *Table) Describe(list []device.Algorithm) {
	for _, a := range list {
		// Keep only the fields that are stored in JSON.
		a = device.Algorithm{Name: a.Name, Formerly: a.Formerly, FreeOrder: a.FreeOrder, HostLink: a.HostLink, Library: a.Library}
		same := func(o device.Algorithm) bool { return o.Name == a.Name }
		if t.Algorithms = slices.DeleteFunc(slices.Clone(t.Algorithms), same); a.Formerly != nil || a.FreeOrder || a.HostLink || a.Library {
			t.Algorithms = append(t.Algorithms, a)
		}
	}
}

// info returns the description of an algorithm that the table names. Old tables do not describe their algorithms, so it
// also consults the shipped table, which describes all of them.
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

// Library reports whether an algorithm that the table names comes from the machine's vendor.
func (t *Table) Library(name string) bool { return t.info(name).Library }

// TableVersion is the version of tables that this program reads.
const TableVersion = 1

// Entry holds the measurements of one kind of collective.
type Entry struct {
	Op string `json:"op"`
	// Reduction is "sum" (for sum and avg), "minmax", or empty for collectives that reduce nothing.
	Reduction string `json:"reduction,omitempty"`
	Elem      int64  `json:"element_bytes"`
	Members   int    `json:"members"`
	// Full reports whether the entry was measured at every power of two and with all combinations of each kernel's
	// parameters. Shipped reports whether the entry was copied from the shipped table instead of being measured on
	// this table's machine.
	Full    bool `json:"full,omitempty"`
	Shipped bool `json:"shipped,omitempty"`
	// Checked lists the message sizes, in bytes, at which a quick tuning compared the shipped table with measurements.
	// Between the checked sizes the entry equals that of the shipped table. Checked is empty for an entry that is
	// entirely measured or entirely shipped.
	Checked []int64 `json:"checked,omitempty"`
	// Brackets lists ranges of message sizes in ascending order. The choice of algorithms is not interpolated between
	// brackets, but predicted times are (see Found.Points).
	Brackets []Bracket `json:"brackets"`
	// Fixed is the tuning that is best over all sizes and adds in the order of the members; nil if no such tuning
	// supports all sizes.
	Fixed *device.Tuning `json:"fixed,omitempty"`
}

// Bracket is a range of message sizes: the sizes above the previous bracket's UpTo, up to and including UpTo.
type Bracket struct {
	// UpTo is the largest message size in bytes; 0 for the last bracket, which has no upper bound.
	UpTo int64 `json:"up_to,omitempty"`
	// At is the message size in bytes at which the first of Best was measured. The other tunings were measured at that
	// size too, except those that a quick tuning copied from the shipped table. At is 0 if the size is not known.
	At int64 `json:"at,omitempty"`
	// Best lists the measured tunings, the fastest first.
	Best []Timed `json:"best"`
}

// Timed is a tuning with the time in microseconds that was measured at the size Bracket.At.
type Timed struct {
	device.Tuning
	Micros float64 `json:"us,omitempty"`
}

// ReductionOf returns the value of Entry.Reduction for a reduction and an op.
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

// best returns the tunings for the instance, the best one first; nil if t is nil or has no entry for it. If fixed is
// set, the entry's Fixed tuning is first, and the others are tunings that compute the same bits because they add in the
// order of the members.
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

// Best returns the tunings of the table for the instance, the best one first.
func (t *Table) Best(in *Instance) []device.Tuning { return t.best(in, false) }

// Entry returns the entry with the same key as e; nil if there is none.
func (t *Table) Entry(e Entry) *Entry {
	for i := range t.Entries {
		if x := &t.Entries[i]; x.Op == e.Op && x.Reduction == e.Reduction && x.Elem == e.Elem && x.Members == e.Members {
			return x
		}
	}
	return nil
}

// Put adds an entry, or replaces the entry with the same key.
func (t *Table) Put(e Entry) {
	if old := t.Entry(e); old != nil {
		*old = e
		return
	}
	t.Entries = append(t.Entries, e)
}

// kin maps an op to another op that moves data in the same way. If the table has no entry for the op, the entry of the
// other op is used.
var kin = map[ir.Op]ir.Op{ir.OpGather: ir.OpAllGather, ir.OpScatter: ir.OpAllToAll, ir.OpPermute: ir.OpBroadcast, ir.OpReduce: ir.OpReduceScatter}

// Clone returns a copy of t that shares no mutable data with t.
func (t *Table) Clone() *Table {
	c := *t
	c.Entries = make([]Entry, len(t.Entries))
	for i := range t.Entries {
		c.Entries[i] = t.Entries[i].Clone()
	}
	return &c
}

// Clone returns a copy of e that shares no mutable data with e.
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

// find returns the entry for the instance: the nearest entry for its op, or, if there is none, for the related op that
// the function kin returns.
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

// nearest returns the entry for an op that is closest to the instance, first in the number of members, then in the
// reduction, then in the element size.
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

// Bracket returns the bracket that contains the given size. The table must have passed Check.
func (e *Entry) Bracket(bytes int64) *Bracket {
	i, _ := slices.BinarySearchFunc(e.Brackets, bytes, func(b Bracket, n int64) int {
		if b.UpTo != 0 && b.UpTo < n {
			return -1
		}
		return 1
	})
	return &e.Brackets[i]
}

// Hash returns a hash of the table's entries. It does not depend on the fields that describe the table's source.
func (t *Table) Hash() string {
	if t == nil {
		return ""
	}
	data, err := json.Marshal(t.Entries)
	if err != nil { // encoding fails for a number that JSON cannot represent; Check refuses such tables
		return "?"
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}
