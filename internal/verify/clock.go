package verify

// view is the knowledge of one stream, as a vector clock: for every stream of every rank, the number of commands
// that are certain to be complete. Snapshots share the vector; it is copied before it changes.
type view struct {
	vec    []int32
	shared bool
	stream int32
	done   int32 // number of commands that this stream has executed, over all runs
}

// snapshot is the knowledge of a stream at one point of its execution.
type snapshot struct {
	vec    []int32
	stream int32
	done   int32
}

func (v *view) knows(e epoch) bool {
	if e.stream == v.stream {
		return e.pos <= v.done
	}
	return v.upTo(e.stream) >= e.pos
}

// upTo returns the number of commands of another stream that are complete according to v.
func (v *view) upTo(stream int32) int32 {
	if v.vec == nil {
		return 0
	}
	return v.vec[stream]
}

func (v *view) snapshot() snapshot {
	v.shared = true
	return snapshot{v.vec, v.stream, v.done}
}

func (s *snapshot) knows(e epoch) bool {
	if e.stream == s.stream {
		return e.pos <= s.done
	}
	return s.vec != nil && s.vec[e.stream] >= e.pos
}

// join adds the knowledge in s to v, and reports whether v changed. A view that includes the n-th command of another
// stream also includes all knowledge that the other stream had at that command. Therefore a snapshot adds nothing if
// the view already includes the command at which it was taken.
func (v *view) join(s snapshot, width int) bool {
	if v.knows(epoch{s.stream, s.done}) {
		return false
	}
	if v.vec == nil {
		v.vec = make([]int32, width)
	} else if v.shared {
		v.vec = append(make([]int32, 0, width), v.vec...)
	}
	v.shared = false
	into := v.vec[:len(s.vec)]
	for i, n := range s.vec {
		if n > into[i] {
			into[i] = n
		}
	}
	v.vec[s.stream] = max(v.vec[s.stream], s.done)
	return true
}

// merge returns the combined knowledge of several streams.
func merge(views []*view, width int) []int32 {
	all := make([]int32, width)
	for _, v := range views {
		for i, n := range v.vec {
			if n > all[i] {
				all[i] = n
			}
		}
		all[v.stream] = max(all[v.stream], v.done)
	}
	return all
}
