package planner

// A stream's commands are counted over all runs: position p is the p-th command
// it executes, from 1. What a stream knows is, for every stream of every rank,
// how many of its commands are certainly done: a vector clock.

// clock is a snapshot of what a stream knew. vec is shared and never changes;
// nil is all zeros. The stream's own entry stands in pos.
type clock struct {
	vec         []int32
	stream, pos int32
}

// knows reports whether position pos of stream is certainly done.
func (c *clock) knows(stream, pos int32) bool { return c.at(stream) >= pos }

// at returns the last position of stream that is certainly done.
func (c *clock) at(stream int32) int32 {
	switch {
	case c.stream == stream:
		return c.pos
	case c.vec == nil:
		return 0
	}
	return c.vec[stream]
}

// knowledge is what one stream knows now. Its vector is copied only when it
// changes after a snapshot, so snapshots between two joins share memory.
type knowledge struct {
	vec    []int32
	frozen bool
	stream int32
	pos    int32 // commands this stream has executed
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

// join adds what c knew. Knowing a position means knowing all that its stream
// knew by then, since every gain of knowledge is a command's; so a position
// known already brings nothing.
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

// adopt takes over a shared vector that holds all k knows and more.
func (k *knowledge) adopt(vec []int32) { k.vec, k.frozen = vec, true }

// together returns what several streams know in common; their own positions
// are entries like the others.
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
