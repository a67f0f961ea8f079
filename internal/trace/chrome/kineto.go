package chrome

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/trace"
)

// kernelArgs holds the fields that torch's profiler writes about an event on a device.
type kernelArgs struct {
	Device, Stream, Correlation *int64
	Bytes                       int64
	Collective                  string `json:"Collective name"`
	In                          *int64 `json:"In msg nelems"`
	Out                         *int64 `json:"Out msg nelems"`
	DType                       string `json:"dtype"`
	Group                       string `json:"Process Group Name"`
	GroupText                   string `json:"Process Group Description"`
	Members                     string `json:"Process Group Ranks"`
	Seq                         *int64 `json:"Seq"`
}

// kernel reads an event on a device, as torch's profiler writes it.
func (f *file) kernel(e *entry) error {
	start, end, err := f.times(e)
	if err != nil {
		return err
	}
	var args kernelArgs
	if len(e.Args) > 0 {
		if err := json.Unmarshal(e.Args, &args); err != nil {
			return err
		}
	}
	d := trace.Event{ID: -1, Name: f.word(trace.ShortName(e.Name)), Detail: f.word(e.Name), Bytes: args.Bytes,
		Start: start, End: end, Group: trace.NoGroup, Class: trace.Compute, Rank: f.rankOf(string(e.PID)),
		Stream: f.stream(e)}
	if args.Correlation != nil {
		d.ID = *args.Correlation
	}
	switch {
	case e.Cat != "kernel":
		d.Class, d.Name = trace.IO, d.Detail
	case args.Collective != "" || trace.MovesBetweenRanks(e.Name):
		f.collective(&d, e.Name, &args)
	}
	f.devices = append(f.devices, d)
	return nil
}

func (f *file) collective(d *trace.Event, kernel string, args *kernelArgs) {
	name := args.Collective
	if name == "" {
		name = kernel
	}
	d.Class, d.Name = trace.Comm, trace.CollectiveOp(f.word(name))
	c := &trace.Call{Group: f.word(args.GroupText), Seq: -1, DType: f.word(args.DType), In: -1, Out: -1,
		Members: f.membersOf(args.Members)}
	if c.Group == "" || c.Group == "undefined" {
		c.Group = f.word(args.Group)
	}
	if args.Seq != nil {
		c.Seq = *args.Seq
	}
	if args.In != nil && args.Out != nil && *args.In >= 0 && *args.Out >= 0 {
		c.In, c.Out = *args.In, *args.Out
		if size := trace.DTypeSize(args.DType); max(c.In, c.Out) < 1<<50 {
			d.Bytes = size * max(c.In, c.Out)
		}
	}
	switch d.Name {
	case "send", "recv", "send_recv":
		c.PointToPoint = true
	}
	d.Call = c
}

// membersOf returns the ranks that a text lists as the members of a group. Each text is parsed only once.
func (f *file) membersOf(text string) []int {
	list, ok := f.members[text]
	if !ok {
		list = members(text)
		_ = f.words.Spend(8 * len(list)) // an error is ignored here, because the loop over events checks the limit
		f.members[f.word(text)] = list
	}
	return list
}

// members reads a list such as "[0, 1]". members returns nil if the text is cut short.
func members(text string) []int {
	inner, begun := strings.CutPrefix(text, "[")
	inner, ended := strings.CutSuffix(inner, "]")
	if !begun || !ended {
		return nil
	}
	var out []int
	for word := range strings.SplitSeq(inner, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 0 {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// hostCall records a call of the host, and the time at which the call issued work.
func (f *file) hostCall(e *entry) error {
	start, end, err := f.times(e)
	if err != nil {
		return err
	}
	if e.Cat == "cuda_runtime" || e.Cat == "cuda_driver" {
		var args struct{ Correlation *int64 }
		if len(e.Args) > 0 && json.Unmarshal(e.Args, &args) == nil && args.Correlation != nil {
			if _, twice := f.issued[*args.Correlation]; twice {
				start = 0
			}
			f.issued[*args.Correlation] = start
		}
	}
	if strings.HasPrefix(e.Name, "ProfilerStep#") {
		f.steps = append(f.steps, trace.Step{Name: f.word(e.Name), Start: start, End: end})
		return nil
	}
	f.host = append(f.host, trace.HostCall{Name: f.word(e.Name), Start: start, End: end})
	return nil
}

// finish computes the parts of the trace that depend on the whole file.
func (f *file) finish() (*trace.Trace, error) {
	if f.virtual {
		return nil, errors.New("its times are steps of a schedule: trace a run without --schedules")
	}
	if len(f.devices) == 0 {
		return nil, f.noDevice()
	}
	t := &trace.Trace{Ranks: len(f.ranks), World: f.world, Virtual: f.virtual, IDs: make([]int, len(f.ranks)),
		Clocks: make([]int, len(f.ranks))}
	if !f.own {
		t.Source = "kineto"
	}
	for process, r := range f.ranks {
		t.IDs[r] = f.number(process)
		if !f.own {
			t.Clocks[r] = r // the file does not state that its ranks share a clock
		} else if id := t.IDs[r]; id >= 0 && id < len(f.clocks) {
			t.Clocks[r] = f.clocks[id]
		}
	}
	t.Events = f.devices
	for i := range t.Events {
		e := &t.Events[i]
		if at := f.issued[e.ID]; at != 0 && len(f.ranks) == 1 && !f.own {
			e.Issued = at + f.base
		}
		e.Start, e.End = e.Start+f.base, e.End+f.base
	}
	if len(f.ranks) == 1 { // with several ranks, the file does not say to which one a call of the host belongs
		t.Host, t.Steps = f.host, f.steps
		for i := range t.Host {
			t.Host[i].Start, t.Host[i].End = t.Host[i].Start+f.base, t.Host[i].End+f.base
		}
		for i := range t.Steps {
			t.Steps[i].Start, t.Steps[i].End = t.Steps[i].Start+f.base, t.Steps[i].End+f.base
		}
		slices.SortFunc(t.Host, func(a, b trace.HostCall) int { return cmp.Compare(a.Start, b.Start) })
	}
	t.Sort()
	if !f.own && twice(t.Events) {
		return nil, errors.New("it has each event of the device twice: write the profile once")
	}
	return t, nil
}

// noDevice returns the error for a file without events of a device. The error names the categories of all other events,
// because device events may have an unknown category.
func (f *file) noDevice() error {
	const help = "was the profiler told to record CUDA activities?"
	var cats []string
	for c := range f.ignored {
		cats = append(cats, strconv.Quote(c))
	}
	slices.Sort(cats)
	others := ""
	if len(cats) > 0 {
		others = ", and events of the unused categories " + strings.Join(cats, ", ")
	}
	return fmt.Errorf("it has no events of a device, which have the category kernel, gpu_memcpy or gpu_memset%s: %s",
		others, help)
}

// twice reports whether sorted events consist of equal pairs. A few equal events are possible, because the times of
// old versions of torch are in whole microseconds.
func twice(sorted []trace.Event) bool {
	equal := 0
	for i := 1; i < len(sorted); i++ {
		a, b := &sorted[i-1], &sorted[i]
		if a.Rank == b.Rank && a.Stream == b.Stream && a.Start == b.Start && a.End == b.End && a.ID == b.ID &&
			a.Detail == b.Detail {
			equal++
		}
	}
	return len(sorted) > 1 && 2*equal >= len(sorted)
}

// number returns the rank number of a process in its job, or -1 if the file does not state it.
func (f *file) number(process string) int {
	if len(f.ranks) == 1 && f.rank >= 0 {
		return f.rank
	}
	for _, lead := range []string{"rank ", "Rank ", "rank", "Rank"} {
		if text, ok := strings.CutPrefix(f.labels[process], lead); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil && n >= 0 {
				return n
			}
		}
	}
	return -1
}
