package capi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
)

// foreignOptions are the options of Foreign.
type foreignOptions struct {
	Ranks int `json:"ranks"`
	// In and Out name the parameters and results in the order of the buffers of a call.
	In  []string `json:"in"`
	Out []string `json:"out"`
}

// foreign runs a model on buffers of another runtime. That runtime makes one call for each rank, on
// different threads. The last of these calls enqueues the run.
type foreign struct {
	m        *model
	ranks    int
	in, out  []string
	patience time.Duration

	mu      sync.Mutex
	meeting *meeting // a run for which only some ranks have called so far; nil if none
	late    error    // set if a rank did not call in time; later calls cannot be assigned to runs then
}

// meeting collects the ranks' calls for one run.
type meeting struct {
	args hocket.EnqueueArgs
	here map[int]bool
	done chan struct{}
	err  error // valid once done is closed
}

// meetingPatience is the time for which the call of a rank waits for the calls of the other ranks.
const meetingPatience = time.Minute

// Foreign prepares a model for calls that pass buffers. text is the order of the model's parameters and results, as
// JSON.
func (l *Library) Foreign(handle int64, text string) (int64, error) {
	m, err := get[*model](l, handle)
	if err != nil {
		return 0, err
	}
	var o foreignOptions
	if err := options(text, &o); err != nil {
		return 0, err
	}
	if o.Ranks < 1 {
		return 0, fmt.Errorf("%w: a program with %d ranks", hocket.ErrInput, o.Ranks)
	}
	return l.add(&foreign{m: m, ranks: o.Ranks, in: o.In, out: o.Out, patience: meetingPatience}), nil
}

// CallForeign enqueues a rank's part of a run on the rank's stream, and returns before the run
// ends. It waits until the other ranks of this process have called too. The thread of the last call
// issues the run (see Enqueue).
func (l *Library) CallForeign(handle int64, rank int, stream uintptr, in, out []uintptr) error {
	f, err := get[*foreign](l, handle)
	if err != nil {
		return err
	}
	if f.ranks == 1 && (rank < 0 || f.m.machine.w != nil) { // a negative rank means an unknown GPU; with several processes the GPU is chosen by rank among all of them
		rank = 0
	}
	switch {
	case len(in) != len(f.in) || len(out) != len(f.out):
		return fmt.Errorf("%w: %d parameters and %d results are passed, but the program has %d and %d", hocket.ErrInput, len(in),
			len(out), len(f.in), len(f.out))
	case rank < 0:
		return fmt.Errorf("%w: the device of the buffers is unknown, because all buffers are empty: at least one must have elements",
			hocket.ErrInput)
	case rank >= f.ranks:
		return fmt.Errorf("%w: the buffers are on device %d, but the program has %d ranks, which use the first devices",
			hocket.ErrInput, rank, f.ranks)
	}
	m, last, err := f.join(rank, stream, in, out)
	if err != nil {
		return err
	}
	if !last {
		return f.await(m, rank)
	}
	defer close(m.done)
	// stays set if Enqueue panics
	m.err = fmt.Errorf("the call of rank %d panicked; it was the last call for the run", rank)
	defer f.m.bound.begin()()
	m.err = f.m.m.Enqueue(device.Here(l.named(context.Background())), m.args)
	return m.err
}

// join adds a rank's call to the calls of the other ranks for the same run, and reports whether it is the last call for
// that run.
func (f *foreign) join(rank int, stream uintptr, in, out []uintptr) (*meeting, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.late != nil { // without this error, the late rank's call would be assigned to the other ranks' next run
		return nil, false, fmt.Errorf("an earlier run failed: %w; load the program again", f.late)
	}
	m := f.meeting
	if m == nil {
		m = &meeting{here: map[int]bool{}, done: make(chan struct{}), args: hocket.EnqueueArgs{
			Streams: make([]uintptr, f.ranks), In: blocksOf(f.in), Out: blocksOf(f.out)}}
		f.meeting = m
	}
	if m.here[rank] {
		return nil, false, fmt.Errorf("%w: rank %d made another call before the other ranks made the previous one", hocket.ErrInput, rank)
	}
	m.here[rank] = true
	m.args.Streams[rank] = stream
	for i, name := range f.in {
		m.args.In[name][rank] = in[i]
	}
	for i, name := range f.out {
		m.args.Out[name][rank] = out[i]
	}
	if len(m.here) < f.ranks {
		return m, false, nil
	}
	f.meeting = nil
	return m, true, nil
}

func blocksOf(names []string) map[string]map[int]uintptr {
	blocks := make(map[string]map[int]uintptr, len(names))
	for _, n := range names {
		blocks[n] = map[int]uintptr{}
	}
	return blocks
}

// await waits until the last rank has enqueued the run. After a time limit it gives up, and refuses
// all later calls.
func (f *foreign) await(m *meeting, rank int) error {
	late := time.NewTimer(f.patience)
	defer late.Stop()
	select {
	case <-m.done:
		return m.err
	case <-late.C:
	}
	f.mu.Lock()
	if f.meeting != m { // meanwhile the last rank has called, or another rank's wait has timed out
		f.mu.Unlock()
		<-m.done
		return m.err
	}
	defer f.mu.Unlock()
	var missing []int
	for r := range f.ranks {
		if !m.here[r] {
			missing = append(missing, r)
		}
	}
	f.meeting = nil
	f.late = fmt.Errorf("rank %d waited %v for calls of ranks %v, which were not made", rank, f.patience, missing)
	m.err = f.late
	close(m.done)
	return m.err
}
