package cpu

// picker selects, from the streams that are ready, the stream that executes the next step. The list ready is not
// empty and is in the order in which the streams were created.
type picker func(ready []*stream) *stream

// newPicker returns a picker with the random choices of a strategy for one Sync. There are several strategies, because
// no single one finds every missing wait. Random priorities with few changes (PCT) find a missing wait whose effect
// needs a few preemptions at particular points. Uniform choices find a missing wait between tasks that are issued
// shortly after each other. Delaying a rank finds a missing wait that has an effect only if a stream is very late.
func newPicker(w *world) picker {
	switch uint64(w.m.opts.Seed) % 4 {
	case 0:
		return w.priorities()
	case 1:
		return w.uniform
	case 2:
		return w.delayRank()
	}
	return w.mainsApart()
}

func (w *world) uniform(ready []*stream) *stream { return ready[w.rng.IntN(len(ready))] }

// priorities implements PCT. Every stream has a random priority, and the ready stream with the highest priority
// continues. At each of Depth random steps, the stream that would continue gets the lowest priority.
func (w *world) priorities() picker {
	priority := make(map[*stream]int)
	for i, p := range w.rng.Perm(len(w.streams)) {
		priority[w.streams[i]] = p + 1
	}
	drop := make(map[int]bool)
	for range w.m.opts.Depth {
		drop[w.rng.IntN(w.queued()+1)] = true
	}
	step, lowest := 0, 0
	return func(ready []*stream) *stream {
		s := highest(ready, priority)
		if drop[step] {
			lowest--
			priority[s] = lowest
			s = highest(ready, priority)
		}
		step++
		return s
	}
}

// delayRank lets the streams of one random rank continue only when no other rank can continue.
func (w *world) delayRank() picker {
	victim := w.rng.IntN(len(w.devices))
	return func(ready []*stream) *stream {
		return w.prefer(ready, func(s *stream) bool { return s.dev.rank != victim })
	}
}

// mainsApart lets main streams continue only when no other stream can continue, or the reverse.
func (w *world) mainsApart() picker {
	mainsFirst := w.rng.IntN(2) == 0
	return func(ready []*stream) *stream {
		return w.prefer(ready, func(s *stream) bool { return s.main == mainsFirst })
	}
}

// prefer selects at random one of the streams for which the function like returns true, or one of all streams if like
// returns true for none.
func (w *world) prefer(ready []*stream, like func(*stream) bool) *stream {
	var liked []*stream
	for _, s := range ready {
		if like(s) {
			liked = append(liked, s)
		}
	}
	if len(liked) == 0 {
		return w.uniform(ready)
	}
	return w.uniform(liked)
}

func highest(ready []*stream, priority map[*stream]int) *stream {
	best := ready[0]
	for _, s := range ready[1:] {
		if priority[s] > priority[best] {
			best = s
		}
	}
	return best
}

// queued returns the number of tasks of all streams.
func (w *world) queued() int {
	n := 0
	for _, s := range w.streams {
		n += len(s.queue.tasks) - s.queue.next
	}
	return n
}
