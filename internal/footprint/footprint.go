// Package footprint explains the use of memory. The package reports the memory that a plan needs, compared with a lower
// bound for any plan. It also analyses snapshots of torch's caching allocator, and simulates the caching allocator for
// the program of a plan.
package footprint

import (
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner"
)

// Report is the memory that a plan needs on each rank, in bytes.
type Report struct {
	// Peak is the largest end offset of all buffers, parameters included.
	Peak int64 `json:"peak"`
	// Bound is the largest number of bytes that can be live at once in some interleaving of the streams. No layout is
	// smaller.
	Bound int64 `json:"bound"`
	// Sequential is the largest number of bytes that are live at once if the program runs in text order.
	Sequential int64 `json:"sequential"`
	// Reserved is the size of the arena, the memory reserved on the device.
	Reserved   int64   `json:"reserved"`
	GapPercent float64 `json:"gap_percent"` // percentage by which Peak exceeds Bound
	Buffers    int     `json:"buffers"`
	// AtPeak lists the buffers that can be live at the same time and together need Bound.
	AtPeak []Held `json:"at_peak"`
}

// Held is a buffer in a Report.
type Held struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Line  int32  `json:"line"` // line of the program text that defines the buffer; 0 if unknown
}

// OfPlan reports on a plan.
func OfPlan(p *plan.Plan) (*Report, error) {
	f, err := planner.Measure(p)
	if err != nil {
		return nil, err
	}
	r := &Report{Peak: p.ArenaBytes, Bound: f.Bound, Sequential: f.Sequential, Reserved: max(p.ArenaBytes,
		plan.Align), Buffers: len(p.Buffers)}
	r.GapPercent = gap(r.Peak, r.Bound)
	for _, b := range f.BoundAt {
		buf := &p.Buffers[b]
		r.AtPeak = append(r.AtPeak, Held{buf.Name, plan.Aligned(buf.Bytes), p.Sites[buf.Site].Pos.Line})
	}
	return r, nil
}

func gap(peak, bound int64) float64 {
	if bound == 0 {
		return 0
	}
	return 100 * float64(peak-bound) / float64(bound)
}

// Life is the offset and lifetime of a buffer on a rank: the buffer is live from the rank's command Begin to its
// command End, inclusive.
type Life struct {
	plan.Buffer
	Line       int32
	Begin, End int32
}

// Lives returns a rank's buffers in the arena, parameters included, and a description of each of
// its commands.
func Lives(p *plan.Plan, rank int32) (lives []Life, ops []Op) {
	at := map[int32]int{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Rank == rank {
			s := &p.Sites[c.Site]
			ops = append(ops, Op{Line: s.Pos.Line, Text: s.Text, Stream: p.Streams[c.Stream].Name})
		}
		now := int32(max(len(ops)-1, 0))
		for _, r := range p.Touches(c) {
			b := &p.Buffers[r.Buf]
			if r.Rank != rank || b.Space != plan.Arena {
				continue
			}
			k, seen := at[r.Buf]
			if !seen {
				k = len(lives)
				at[r.Buf] = k
				lives = append(lives, Life{Buffer: *b, Line: p.Sites[b.Site].Pos.Line, Begin: now})
			}
			lives[k].End = now
		}
	}
	for i := range lives {
		if lives[i].Role == plan.RoleInput {
			lives[i].Begin, lives[i].End = 0, int32(len(ops)-1)
		}
	}
	return lives, ops
}

// Op is one command of a rank.
type Op struct {
	Line         int32
	Text, Stream string
}
