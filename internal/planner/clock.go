package planner

// The commands of a stream are numbered over all runs: position p is the p-th command that the stream executes,
// counted from 1. The knowledge of a stream is a vector clock with one entry for each stream of each rank: how many
// commands of that stream are certain to be done when this stream continues.

// clock is a snapshot of the knowledge of a stream. Snapshots share vec, which never changes; if it is nil, all
// entries are zero. pos is the entry for the stream itself.
type clock struct {
	vec         []int32
	stream, pos int32
}

// knows reports whether, according to c, the command at position pos of stream is certain to be done.
func (c *clock) knows(stream, pos int32) bool { return c.at(stream) >= pos }

// at returns the position of the last command of stream that is certain to be done.
func (c *clock) at(stream int32) int32 {
	switch {
	case c.stream == stream:
		return c.pos
	case c.vec == nil:
		return 0
	}
	return c.vec[stream]
}

// knowledge is the current vector clock of one stream. It copies its vector only if the vector changes after a
// snapshot, so snapshots share memory as long as the stream does not wait.
type knowledge struct {
	vec    []int32
	frozen bool
	stream int32
	pos    int32 // number of commands that this stream has executed
}

func (k *knowledge) knows(stream, pos int32) bool {
	if k.stream == stream {
		return k.pos >= pos
	}
	return k.vec != nil && k.vec[stream] >= pos
}

func (k *knowledge) snapshot() clock {
	k.frozen = true
	return clock{k.vec, k.stream, k.pos}
}

// join adds the knowledge in c to k. If k contains a position of another stream, it also contains everything that
// the other stream knew at that position, because the knowledge of a stream grows only by commands. Therefore
// joining a clock whose own position is already in k changes nothing.
func (k *knowledge) join(c clock, width int) {
	if k.knows(c.stream, c.pos) {
		return
	}
	switch {
	case k.vec == nil:
		k.vec = make([]int32, width)
	case k.frozen:
		k.vec = append([]int32(nil), k.vec...)
	}
	k.frozen = false
	for i, v := range c.vec {
		k.vec[i] = max(k.vec[i], v)
	}
	k.vec[c.stream] = max(k.vec[c.stream], c.pos)
}

// adopt replaces k's vector with a shared vector, whose entries must not be smaller than those of k.
func (k *knowledge) adopt(vec []int32) { k.vec, k.frozen = vec, true }

// together returns the elementwise maximum of the vector clocks of several streams, including their own positions.
func together(ks []*knowledge, width int) []int32 {
	vec := make([]int32, width)
	for _, k := range ks {
		for i, v := range k.vec {
			vec[i] = max(vec[i], v)
		}
		vec[k.stream] = max(vec[k.stream], k.pos)
	}
	return vec
}
