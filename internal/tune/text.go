package tune

import (
	"fmt"
	"io"
	"strings"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
)

// TunedFrom returns an existing table and the file that contains it.
func TunedFrom(f comm.Found) *Tuned {
	u := &Tuned{Table: f.Table.Clone(), Hash: f.Table.Hash(), File: f.From}
	for i := range u.Table.Entries {
		u.Table.Entries[i].Shipped = u.Table.Entries[i].Shipped || f.Shipped()
	}
	if f.Ignored != "" {
		u.Notes = append(u.Notes, f.Ignored)
	}
	if s := contest.UnknownText(f.Unknown); s != "" {
		u.Notes = append(u.Notes, s)
	}
	return u
}

// WriteText writes the table: for each collective, the size brackets with the chosen tuning and the next best tunings.
func (u *Tuned) WriteText(w io.Writer) error {
	t := &tableText{contest.Lines{W: w}}
	t.Line("machine  %s", u.Table.Identity)
	t.Line("made     %s", u.Table.Made)
	t.Line("hash     %s", u.Hash)
	t.Line("file     %s", u.File)
	if u.Fresh {
		t.Line("took     %.1f s: %s", u.Took, u.Phases)
	}
	for _, n := range u.Notes {
		t.Line("note     %s", n)
	}
	for _, e := range u.Table.Entries {
		t.entry(&e)
	}
	return t.Err
}

func (t *tableText) entry(e *comm.Entry) {
	fixed := ""
	if e.Fixed != nil {
		fixed = "; fixed: " + contest.TuningText(*e.Fixed)
	}
	what := ""
	if e.Reduction != "" {
		what = e.Reduction + " of "
	}
	from := ""
	switch {
	case e.Shipped:
		from = "; from the shipped table, not measured on this machine"
	case e.Checked != nil:
		from = "; from the shipped table, checked on this machine at " + sizesText(e.Checked)
	}
	t.Line("\n%s, %d members, %selements of %d bytes%s%s", e.Op, e.Members, what, e.Elem, fixed, from)
	rows := [][]string{{"to", "algorithm", "µs", "then"}}
	for _, b := range e.Brackets {
		to := "∞"
		if b.UpTo > 0 {
			to = contest.BytesText(b.UpTo)
		}
		row := []string{to, "", "", ""}
		for i, x := range b.Best {
			if i == 0 {
				row[1] = contest.TuningText(x.Tuning)
				if x.Micros > 0 {
					row[2] = fmt.Sprintf("%.2f", x.Micros)
				}
				continue
			}
			next := x.Algo
			if x.Micros > 0 {
				next += fmt.Sprintf(" %.2f", x.Micros)
			}
			row[3] += strings.Repeat(", ", min(i-1, 1)) + next
		}
		rows = append(rows, row)
	}
	t.Rows(rows)
}

func sizesText(list []int64) string {
	var words []string
	for _, n := range list {
		words = append(words, contest.BytesText(n))
	}
	return strings.Join(words, ", ")
}

// KeptTable describes a tuned table for hocket doctor.
type KeptTable struct {
	File    string `json:"file"`
	Machine string `json:"machine,omitempty"`
	Ranks   int    `json:"ranks,omitempty"`
	Hash    string `json:"hash,omitempty"`
	Broken  string `json:"broken,omitempty"` // why it is not used
}

// KeptTables returns descriptions of the tuned tables that are stored on this host.
func KeptTables() []KeptTable {
	var list []KeptTable
	for _, f := range comm.Kept() {
		k := KeptTable{File: f.From, Broken: f.Ignored}
		if f.Table != nil {
			k.Machine, k.Ranks, k.Hash = f.Table.Identity, f.Table.Ranks, f.Table.Hash()
		}
		list = append(list, k)
	}
	return list
}

// String describes the table in one line.
func (k KeptTable) String() string {
	if k.Broken != "" {
		return fmt.Sprintf("%s is not used: %s", k.File, k.Broken)
	}
	return fmt.Sprintf("%s, %d ranks: %s", k.Machine, k.Ranks, k.File)
}

// tableText writes tables as text.
type tableText struct{ contest.Lines }
