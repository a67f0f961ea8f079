// Package chrome reads timelines in Chrome's trace-event JSON format. Torch's profiler (Kineto) and hocket write such
// timelines.
package chrome

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/jsonscan"
)

// Limits of the contents of one file.
const (
	maxEvent  = 1 << 20   // bytes of one event's text
	maxEvents = 1_500_000 // number of events that are stored
)

// ErrOther is returned for a JSON file that has no key "traceEvents".
var ErrOther = errors.New(`JSON without "traceEvents"`)

// Read reads one file. Read numbers the ranks of the trace from 0. The field IDs of the trace has the rank numbers that
// the file states, or -1 if it states none.
func Read(r io.Reader, names *trace.Names) (*trace.Trace, error) {
	f := &file{scan: jsonscan.New(r), words: names, members: map[string][]int{}, ranks: map[string]int{}, labels: map[string]string{},
		threads: map[string]string{}, issued: map[int64]int64{}, rank: -1, ignored: map[string]bool{}}
	first, err := f.scan.Peek()
	if err != nil {
		return nil, err
	}
	if first == '[' { // the file consists of the list of events alone
		err = f.events()
	} else {
		err = f.scan.Object(f.field)
	}
	if err == nil {
		err = f.scan.End()
	}
	switch {
	case err != nil:
		return nil, err
	case !f.found:
		return nil, ErrOther
	}
	return f.finish()
}

// file holds the contents of a file that have been read so far.
type file struct {
	scan  *jsonscan.Scanner
	found bool // whether the file has a list of events
	own   bool // whether hocket wrote the file
	base  int64
	rank  int // the rank according to the file, or -1
	world int // number of ranks in the job according to the file, or 0

	ignored map[string]bool // categories of events that are not used

	words   *trace.Names
	members map[string][]int  // members of each group of ranks, by the text in the file that lists them
	ranks   map[string]int    // ranks by the name of the process to which device events belong
	labels  map[string]string // names of processes
	threads map[string]string // names of threads, by process and thread
	// times at which the host issued work, by correlation number; 0 if several calls have the same number
	issued  map[int64]int64
	devices []trace.Event
	host    []trace.HostCall
	steps   []trace.Step
	virtual bool
	clocks  []int // clock of each rank; only in files that hocket wrote
}

func (f *file) field(key string) error {
	switch key {
	case "traceEvents":
		return f.events()
	case "entries": // the file is a flight record, whose contents are not read here
		return ErrOther
	case "hocket":
		f.own = true
		var head trace.Head
		err := f.into(&head)
		f.virtual, f.clocks = head.Virtual, head.Clocks
		return err
	case "baseTimeNanoseconds":
		if err := f.into(&f.base); err != nil {
			return err
		}
		if f.base < 0 || f.base > mostTime*1e3 {
			return fmt.Errorf("baseTimeNanoseconds: %d is not a number of nanoseconds since 1970", f.base)
		}
		return nil
	case "distributedInfo":
		return f.distributed()
	}
	return f.scan.Skip()
}

// maxRank is the largest number of a rank, and of ranks in a job, that is accepted.
const maxRank = 1 << 20

// distributed reads the number of the rank and the number of ranks in the job.
func (f *file) distributed() error {
	var head struct {
		Rank  *int
		World int `json:"world_size"`
	}
	if err := f.into(&head); err != nil {
		return err
	}
	if head.World < 0 || head.World > maxRank {
		return fmt.Errorf("distributedInfo: world_size is %d", head.World)
	}
	f.world = head.World
	if head.Rank == nil {
		return nil
	}
	switch f.rank = *head.Rank; {
	case f.rank < 0 || f.rank > maxRank:
		return fmt.Errorf("distributedInfo: %d is not the number of a rank", f.rank)
	case f.world > 0 && f.rank >= f.world:
		return fmt.Errorf("distributedInfo: rank %d in a job of %d ranks, which are numbered from 0", f.rank, f.world)
	}
	return nil
}

func (f *file) into(v any) error {
	raw, err := f.scan.Raw(maxEvent)
	if err == nil {
		err = f.scan.Decode(raw, v)
	}
	return err
}

func (f *file) events() error {
	f.found = true
	n := 0
	return f.scan.Array(func() error {
		n++
		raw, err := f.scan.Raw(maxEvent)
		if err != nil {
			return fmt.Errorf("event %d: %w", n, err)
		}
		var e entry
		if err := f.scan.Decode(raw, &e); err != nil {
			return fmt.Errorf("event %d: %w", n, err)
		}
		if err := cmp.Or(f.event(&e), f.words.Err()); err != nil {
			return fmt.Errorf("event %d at %s, %.200q: %w", n, f.scan.Begin(), e.Name, err)
		}
		if len(f.devices)+len(f.host)+len(f.steps) > maxEvents {
			return fmt.Errorf("more than %d events: profile fewer iterations", maxEvents)
		}
		return nil
	})
}

// entry is an event in the form in which the file contains it.
type entry struct {
	Ph, Cat, Name string
	PID, TID      json.RawMessage
	TS, Dur       json.RawMessage
	Args          json.RawMessage
}

func (f *file) word(s string) string { return f.words.Word(s) }

func (f *file) event(e *entry) error {
	switch {
	case e.Ph == "M" && (e.Name == "process_name" || e.Name == "thread_name"):
		var args struct{ Name string }
		if json.Unmarshal(e.Args, &args) == nil && e.Name == "process_name" {
			f.labels[f.word(string(e.PID))] = f.word(args.Name)
		} else {
			f.threads[f.thread(e)] = f.word(args.Name)
		}
		return nil
	case e.Ph != "X":
		return nil
	}
	if now, old := renamed[strings.ToLower(e.Cat)]; old {
		e.Cat = now
	}
	switch e.Cat {
	case "kernel", "gpu_memcpy", "gpu_memset":
		return f.kernel(e)
	case "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation":
		return f.hostCall(e)
	case "compute", "comm", "sync", "io":
		if f.own {
			return f.command(e)
		}
	}
	if len(f.ignored) < 8 {
		f.ignored[f.word(e.Cat)] = true
	}
	return nil
}

// renamed maps the categories of torch before version 1.13, in lower case, to the current ones.
var renamed = map[string]string{"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset",
	"runtime": "cuda_runtime", "operator": "cpu_op"}

// times returns the start and the end of an event, on the clock of the file.
func (f *file) times(e *entry) (start, end int64, err error) {
	start, err = nanoseconds(e.TS, mostTime)
	if err != nil {
		return 0, 0, fmt.Errorf("ts: %w", err)
	}
	dur, err := nanoseconds(e.Dur, mostDur)
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("dur: %w", err)
	case dur < 0:
		return 0, 0, fmt.Errorf("it ends %v µs before it begins", -float64(dur)/1e3)
	}
	return start, start + dur, nil
}

// Limits of times, in microseconds. A file may have times since 1970 in two parts, the time of an event and a base for
// all events. With these limits the sum of both parts, and the difference of two such sums, fit in 64 bits as
// nanoseconds.
const (
	mostTime = 3_000_000_000_000_000 // in the year 2065
	mostDur  = 1_000_000_000_000     // about twelve days
)

// nanoseconds converts a number of microseconds between -mostDur and most. The result is an exact integer, because a
// float64 cannot represent every nanosecond since 1970.
func nanoseconds(raw json.RawMessage, most int64) (int64, error) {
	text := string(raw)
	if text == "" {
		return 0, errors.New("it is missing")
	}
	if text[0] != '-' && (text[0] < '0' || text[0] > '9') {
		return 0, fmt.Errorf("%.40q is not a number of microseconds", text)
	}
	whole, frac, _ := strings.Cut(text, ".")
	if strings.ContainsAny(text, "eE") {
		x, _, err := big.ParseFloat(text, 10, 96, big.ToNearestEven)
		if err != nil {
			return 0, fmt.Errorf("%.40q is not a number of microseconds", text)
		}
		whole, frac, _ = strings.Cut(shortFloat(x, most), ".")
	}
	v, err := strconv.ParseInt(whole, 10, 64)
	if v > most || v < -mostDur || errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%.40q is out of range: it is in microseconds, and at most %d", text, most)
	}
	digits, bad := strconv.ParseUint((frac + "0000")[:4], 10, 64)
	if cmp.Or(err, bad) != nil {
		return 0, fmt.Errorf("%.40q is not a number of microseconds", text)
	}
	n := int64(digits+5) / 10
	if whole[0] == '-' {
		n = -n
	}
	return v*1e3 + n, nil
}

// shortFloat writes a number without an exponent, with four digits after the point. For numbers above most, which may
// have many digits, it writes most + 1.
func shortFloat(x *big.Float, most int64) string {
	limit := new(big.Float).SetInt64(most + 1)
	switch {
	case x.Cmp(limit) > 0:
		x = limit
	case x.Cmp(new(big.Float).Neg(limit)) < 0:
		x = new(big.Float).Neg(limit)
	}
	return x.Text('f', 4)
}

// rankOf returns the rank of a process. Processes with device events get consecutive ranks.
func (f *file) rankOf(process string) int {
	r, ok := f.ranks[process]
	if !ok {
		r = len(f.ranks)
		f.ranks[f.word(process)] = r
	}
	return r
}

// command reads an event that hocket wrote.
func (f *file) command(e *entry) error {
	start, end, err := f.times(e)
	if err != nil {
		return err
	}
	var args struct {
		Run, ID    int64
		Statement  string
		Bytes      int64
		Collective *int
		Tie        *trace.Tie
	}
	if err := json.Unmarshal(e.Args, &args); err != nil {
		return err
	}
	d := trace.Event{Name: f.word(e.Name), Detail: f.word(args.Statement), Run: args.Run, ID: args.ID, Tie: args.Tie,
		Bytes: args.Bytes,
		Start: start, End: end, Group: trace.NoGroup, Rank: f.rankOf(string(e.PID)),
		Stream: f.threads[f.thread(e)]}
	for c := range trace.IO + 1 {
		if c.String() == e.Cat {
			d.Class = c
		}
	}
	if t := args.Tie; t != nil {
		t.Stream, t.Counter = f.word(t.Stream), f.word(t.Counter)
	}
	if args.Collective != nil {
		d.Group = *args.Collective
	}
	if d.Stream == "" {
		d.Stream = f.stream(e)
	}
	f.devices = append(f.devices, d)
	return nil
}

// thread returns a key for the thread of an event.
func (f *file) thread(e *entry) string { return f.word(string(e.PID) + " " + string(e.TID)) }

// stream returns the name of the stream of an event. Old versions of torch write the name, and newer ones a number.
func (f *file) stream(e *entry) string {
	return f.word("stream " + strings.TrimPrefix(strings.Trim(string(e.TID), `"`), "stream "))
}
