package account

import (
	"io"
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace/flight"
)

// FuzzCondition checks that a condition consists of a metric and a limit and has the same meaning without spaces, and
// that errors quote the text.
func FuzzCondition(f *testing.F) {
	for _, s := range []string{"exposed > 10%", "skew>80us", " wait > 1.5ms ", "problems > 0", "span > 2s", "skew > 1%",
		"x > 1", "step > 1.2.3us", "idle > .5µs"} {
		f.Add(s)
	}
	r := &Report{Ranks: 2, SpanUS: 10, Untold: "a test"}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCondition(text)
		if err != nil {
			return
		}
		if !(c.limit >= 0 && c.limit <= math.MaxFloat64) {
			t.Errorf("%q: limit %v", text, c.limit)
		}
		if _, _, err := c.Holds(r); err != nil && !strings.Contains(err.Error(), c.metric) &&
			!strings.Contains(err.Error(), "a test") {
			t.Errorf("%q: %v", text, err)
		}
		again, err := ParseCondition(strings.Join(strings.Fields(text), ""))
		if err != nil || again.limit != c.limit || again.metric != c.metric || again.share != c.share {
			t.Errorf("%q: %+v, without spaces %+v, %v", text, c, again, err)
		}
	})
}

// FuzzFlight computes reports for the flight records of two ranks. Every call must be in one collective, and the
// members must be existing ranks.
func FuzzFlight(f *testing.F) {
	one := `{"entries":[{"process_group":["0","x"],"collective_seq_id":1,"profiling_name":"nccl:all_reduce","input_sizes":[[4]],"output_sizes":[[4]],"input_dtypes":["Float"],"state":"completed","time_created_ns":100},{"process_group":["0","x"],"collective_seq_id":2,"profiling_name":"nccl:barrier","state":"scheduled"},{"process_group":["0","x"],"collective_seq_id":2,"profiling_name":"nccl:send 0->1","state":"started"}],"pg_config":{"0":{"desc":"x","ranks":"[0, 1, 7]"}}}`
	f.Add([]byte(one), []byte(`{"rank":1,`+one[1:]))
	f.Add([]byte(one), []byte(`{"entries":[]}`))
	f.Add([]byte("{\"entries\":[{}]}"), []byte("\x80\x02}X\x07\x00\x00\x00entries]}X\x0b\x00\x00\x00input_sizes]](J\xff\xff\xff\xffK\x02eassas."))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var records []*flight.Record
		calls := 0
		for _, text := range []string{string(a), string(b)} {
			read := flight.ReadJSON
			if strings.HasPrefix(text, "\x80") {
				read = flight.ReadPickle
			}
			r, err := read(strings.NewReader(text))
			if err != nil {
				return
			}
			for _, e := range r.Entries {
				if e.In < -1 || e.Out < -1 {
					t.Errorf("%+v", e)
				}
				if !e.P2P {
					calls++
				}
			}
			records = append(records, r)
		}
		if flight.Number(records) != nil {
			return
		}
		r := OfFlight(records)
		for _, c := range r.Collectives {
			calls -= len(c.ByRank)
			for _, m := range c.ByRank {
				if m.Rank != records[0].Rank && m.Rank != records[1].Rank {
					t.Errorf("rank %d of ranks %d and %d", m.Rank, records[0].Rank, records[1].Rank)
				}
			}
			if c.SkewUS != nil && !(*c.SkewUS >= 0) {
				t.Errorf("skew %v", *c.SkewUS)
			}
		}
		if calls != 0 {
			t.Errorf("%d calls are in no collective", calls)
		}
		if err := r.WriteText(io.Discard); err != nil {
			t.Error(err)
		}
	})
}
