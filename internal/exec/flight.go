package exec

import (
	"errors"
	"slices"
	"sync"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
)

// Flight is a record of a program's recent and current activity, in its JSON form.
type Flight struct {
	Func    string           `json:"func"`
	Dims    map[string]int64 `json:"dims"`
	Ranks   int              `json:"ranks"`
	Batches []FlightBatch    `json:"batches"` // the last batches, oldest first
	Streams []FlightStream   `json:"streams"` // streams that have work
	Failure string           `json:"failure,omitempty"`
}

// FlightBatch describes one batch of runs.
type FlightBatch struct {
	First int64     `json:"first_run"`
	Runs  int       `json:"runs"`
	Began time.Time `json:"began"`
	// Seconds is the duration; nil while the batch runs.
	Seconds *float64 `json:"seconds,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// FlightStream describes a stream that has work.
type FlightStream struct {
	Rank   int        `json:"rank"`
	Stream string     `json:"stream"`
	Does   string     `json:"does"`
	Since  *time.Time `json:"since,omitempty"` // nil if unknown
	// In is the command that the stream executes. If Until is set, it is one of the commands from In to Until.
	In    *FlightCommand `json:"in,omitempty"`
	Until *FlightCommand `json:"until,omitempty"`
	// WaitsFor lists the ranks that the stream waits for.
	WaitsFor []int `json:"waits_for,omitempty"`
	// Before lists the last commands that the stream has completed, and Collectives the last collectives that it has
	// completed; both begin with the oldest.
	Before      []FlightCommand `json:"before,omitempty"`
	Collectives []FlightCommand `json:"collectives,omitempty"`
}

// FlightCommand describes a command of a run.
type FlightCommand struct {
	Index int    `json:"index"` // in the plan
	Run   int64  `json:"run"`
	Text  string `json:"text"` // text of the command, with its position in the program
}

// The following constants are the largest lengths of the lists in a Flight.
const (
	flightBatches     = 16
	flightBefore      = 8
	flightCollectives = 4
)

// flightRecorder stores the data for flight records that other types do not store already. Its cost is two readings of
// the clock for each batch.
type flightRecorder struct {
	im        *image.Image
	onFailure func(*Flight) // the callback Options.Failed, which is called when the program fails

	mu      sync.Mutex
	batches []FlightBatch
	failure string
	at      []FlightStream // the streams at the time of the failure
}

func (r *flightRecorder) begin(first int64, runs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.batches) == flightBatches {
		copy(r.batches, r.batches[1:])
		r.batches = r.batches[:flightBatches-1]
	}
	r.batches = append(r.batches, FlightBatch{First: first, Runs: runs, Began: time.Now()})
}

func (r *flightRecorder) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := &r.batches[len(r.batches)-1]
	took := time.Since(b.Began).Seconds()
	if b.Seconds = &took; err != nil {
		b.Error = err.Error()
	}
}

// record returns the program's recent and current activity.
func (r *flightRecorder) record() *Flight {
	pl := r.im.Plan
	r.mu.Lock()
	f := &Flight{Func: pl.Func, Dims: map[string]int64{}, Ranks: pl.Ranks, Batches: slices.Clone(r.batches),
		Failure: r.failure, Streams: r.at}
	r.mu.Unlock()
	for _, d := range pl.Dims {
		f.Dims[d.Name] = d.Value
	}
	if f.Failure == "" {
		f.Streams = r.streams(r.im.World.Standings())
	}
	return f
}

// failed records the state of the streams when the program failed, and calls Options.Failed.
func (r *flightRecorder) failed(err error) {
	r.mu.Lock()
	r.failure, r.at = err.Error(), r.streams(r.stood(err))
	r.mu.Unlock()
	if r.onFailure != nil {
		r.onFailure(r.record())
	}
}

// stood returns the standings (the current operations) of the streams at the time when the world ended with err.
func (r *flightRecorder) stood(err error) []device.Standing {
	var fault *device.Fault
	var dead *device.Deadlock
	var expired *device.Expired
	switch {
	case errors.As(err, &fault):
		return []device.Standing{{Rank: fault.Rank, Stream: fault.Stream, ID: fault.ID, Last: fault.Last,
			Does: "failed: " + fault.Err.Error()}}
	case errors.As(err, &dead):
		var list []device.Standing
		for _, b := range dead.Blocked {
			list = append(list, device.Standing{Rank: b.Rank, Stream: b.Stream, ID: b.ID, Does: "waits for " + b.On})
		}
		return list
	case errors.As(err, &expired) && len(expired.At) > 0:
		return expired.At
	}
	return r.im.World.Standings()
}

func (r *flightRecorder) streams(at []device.Standing) []FlightStream {
	list := []FlightStream{}
	for _, s := range at {
		f := FlightStream{Rank: s.Rank, Stream: s.Stream, Does: s.Does}
		if !s.Since.IsZero() {
			f.Since = &s.Since
		}
		if s.ID >= 0 && len(r.im.Plan.Cmds) > 0 {
			in := r.command(s.ID)
			f.In = &in
			if s.Last > s.ID {
				until := r.command(s.Last)
				f.Until = &until
			}
			f.WaitsFor = r.waitsFor(s, at)
			r.before(&f, s)
		}
		list = append(list, f)
	}
	return list
}

func (r *flightRecorder) command(id int64) FlightCommand {
	n := int64(len(r.im.Plan.Cmds))
	return FlightCommand{int(id % n), id / n, r.im.Plan.Where(id)}
}

// before lists the commands that the stream of s completed before its current command. A stream executes commands in
// the order of the plan.
func (r *flightRecorder) before(f *FlightStream, s device.Standing) {
	pl, n := r.im.Plan, int64(len(r.im.Plan.Cmds))
	stream := pl.Cmds[s.ID%n].Stream
	for id := s.ID - 1; id >= max(s.ID-2*n, 0); id-- {
		c := &pl.Cmds[id%n]
		if c.Rank != int32(s.Rank) || c.Stream != stream {
			continue
		}
		if len(f.Before) < flightBefore {
			f.Before = append(f.Before, r.command(id))
		}
		if c.Kind == plan.Collective && len(f.Collectives) < flightCollectives {
			f.Collectives = append(f.Collectives, r.command(id))
		}
		if len(f.Before) == flightBefore && len(f.Collectives) == flightCollectives {
			break
		}
	}
	slices.Reverse(f.Before)
	slices.Reverse(f.Collectives)
}

// waitsFor returns the ranks that have not completed commands on which s's current command depends. Streams that do not
// occur in the list at have completed all commands.
func (r *flightRecorder) waitsFor(s device.Standing, at []device.Standing) []int {
	pl, n := r.im.Plan, int64(len(r.im.Plan.Cmds))
	c, run := &pl.Cmds[s.ID%n], s.ID/n
	// behind reports whether the stream of command i has not yet completed that command in the same run.
	behind := func(i int) bool {
		o := &pl.Cmds[i]
		return slices.ContainsFunc(at, func(q device.Standing) bool {
			return q.ID >= 0 && int32(q.Rank) == o.Rank && pl.Cmds[q.ID%n].Stream == o.Stream && q.ID < run*n+int64(i)
		})
	}
	var ranks []int
	for i := range pl.Cmds {
		o := &pl.Cmds[i]
		needed := false
		switch c.Kind {
		case plan.Collective:
			needed = o.Kind == plan.Collective && o.Coll == c.Coll
		case plan.WaitEvent:
			needed = o.Kind == plan.Record && o.Event == c.Event
		case plan.WaitCounter:
			needed = o.Kind == plan.Signal && o.Counter == c.Counter && o.Elem == c.Elem && o.Peer == c.Rank
		case plan.Group:
			needed = o.Kind == plan.Group && meets(c, o)
		}
		if needed && o.Rank != c.Rank && behind(i) {
			ranks = append(ranks, int(o.Rank))
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

// meets reports whether commands a and b contain the two ends of one transfer.
func meets(a, b *plan.Cmd) bool {
	return slices.ContainsFunc(a.Group, func(x plan.P2P) bool {
		return slices.ContainsFunc(b.Group, func(y plan.P2P) bool { return x.Pair == y.Pair && x.Send != y.Send })
	})
}
