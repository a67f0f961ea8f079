package fakedriver

import (
	"cmp"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// NCCL is a libnccl in Go that works on the memory of a fake GPU driver. Like the real library, it requires that a
// group has the calls of all ranks, and that each rank uses a separate stream.
type NCCL struct {
	GPU     *GPU
	Teams   [][]uintptr // communicators by rank
	depth   int
	calls   []Call
	broken  bool // a call of the current group failed
	Aborted []uintptr
	Left    []uintptr // destroyed communicators
	Async   int32     // result of ncclCommGetAsyncError
	Version int32     // version that the library reports; 0 for one without known bugs

	shared interface { // state shared with fakes of other processes; nil if there are none
		calls(table map[string]func([]uintptr) uintptr)
		give(calls []Call)
	}
}

type Call struct {
	name         string
	in, out, n   uintptr
	dt           nvlib.NCCLType
	red          nvlib.NCCLRed
	peer         int
	comm, stream uintptr
}

// Open returns the fake as a library.
func (x *NCCL) Open() (*nvlib.NCCL, error) {
	names := []string{"ncclGetUniqueId", "ncclCommInitRank"}
	table := map[string]func([]uintptr) uintptr{}
	for _, n := range names {
		table[n] = func([]uintptr) uintptr { return 0 }
	}
	table["ncclGetVersion"] = func(a []uintptr) uintptr { return Set(a[0], cmp.Or(x.Version, 23102)) }
	text := cabi.NewCStrings([]string{"fake trouble"})
	table["ncclGetErrorString"] = func([]uintptr) uintptr { return cabi.Load[uintptr](text.Addr()) }
	table["ncclCommInitAll"] = func(a []uintptr) uintptr {
		x.GPU.Remembered = true
		var comms []uintptr
		for i := range a[1] {
			c := uintptr(1000*(len(x.Teams)+1)) + i
			comms = append(comms, c)
			cabi.Store(a[0]+8*i, c)
		}
		x.Teams = append(x.Teams, comms)
		return 0
	}
	table["ncclCommAbort"] = func(a []uintptr) uintptr {
		x.GPU.Mu.Lock()
		defer x.GPU.Mu.Unlock()
		x.Aborted = append(x.Aborted, a[0])
		return 0
	}
	table["ncclCommDestroy"] = func(a []uintptr) uintptr {
		x.GPU.Mu.Lock()
		defer x.GPU.Mu.Unlock()
		x.Left = append(x.Left, a[0])
		return 0
	}
	table["ncclCommGetAsyncError"] = func(a []uintptr) uintptr { return Set(a[1], x.Async) }
	table["ncclGroupStart"] = func([]uintptr) uintptr { x.depth++; return 0 }
	table["ncclGroupEnd"] = func([]uintptr) uintptr {
		if x.broken {
			x.drop()
			return 5 // ncclInvalidUsage
		}
		x.depth--
		x.end()
		return 0
	}
	add := func(c Call) uintptr {
		if x.depth != 1 {
			x.GPU.Errorf("%s outside a group", c.name)
		}
		x.calls = append(x.calls, c)
		return 0
	}
	table["ncclAllReduce"] = func(a []uintptr) uintptr {
		return add(Call{"all_reduce", a[0], a[1], a[2], nvlib.NCCLType(a[3]), nvlib.NCCLRed(a[4]), 0, a[5], a[6]})
	}
	table["ncclReduceScatter"] = func(a []uintptr) uintptr {
		return add(Call{"reduce_scatter", a[0], a[1], a[2], nvlib.NCCLType(a[3]), nvlib.NCCLRed(a[4]), 0, a[5], a[6]})
	}
	table["ncclReduce"] = func(a []uintptr) uintptr {
		return add(Call{"reduce", a[0], a[1], a[2], nvlib.NCCLType(a[3]), nvlib.NCCLRed(a[4]), int(a[5]), a[6], a[7]})
	}
	table["ncclBroadcast"] = func(a []uintptr) uintptr {
		return add(Call{"broadcast", a[0], a[1], a[2], nvlib.NCCLType(a[3]), 0, int(a[4]), a[5], a[6]})
	}
	table["ncclAllGather"] = func(a []uintptr) uintptr {
		return add(Call{"all_gather", a[0], a[1], a[2], nvlib.NCCLType(a[3]), 0, 0, a[4], a[5]})
	}
	table["ncclSend"] = func(a []uintptr) uintptr {
		return add(Call{"send", a[0], 0, a[1], nvlib.NCCLType(a[2]), 0, int(a[3]), a[4], a[5]})
	}
	table["ncclRecv"] = func(a []uintptr) uintptr {
		return add(Call{"recv", 0, a[0], a[1], nvlib.NCCLType(a[2]), 0, int(a[3]), a[4], a[5]})
	}
	if x.shared != nil {
		x.shared.calls(table)
	}
	x.GPU.failing(table, 1, func(name string) {
		x.broken = x.depth > 0
		if name == "ncclGroupEnd" {
			x.drop()
		}
	})
	return nvlib.NCCLOn(cabi.Fake("fake libnccl", table))
}

// drop drops all calls of a group in which a call failed.
func (x *NCCL) drop() {
	x.depth, x.calls, x.broken = 0, nil, false
}

// rank returns the index of a communicator's team and its rank in it.
func (x *NCCL) rank(c uintptr) (team, rank int) {
	for t, comms := range x.Teams {
		for r, o := range comms {
			if o == c {
				return t, r
			}
		}
	}
	x.GPU.Errorf("no communicator %d", c)
	return 0, 0
}

// end ends a group: it executes the calls of all ranks once all streams have reached them.
func (x *NCCL) end() {
	calls := x.calls
	x.calls = nil
	if len(calls) == 0 {
		return
	}
	if x.shared != nil {
		x.shared.give(calls)
		return
	}
	team, _ := x.rank(calls[0].comm)
	n := len(x.Teams[team])
	by := make([][]Call, n)
	streams := map[uintptr]int{}
	for _, c := range calls {
		t, r := x.rank(c.comm)
		if o, twice := streams[c.stream]; t != team || twice && o != r {
			x.GPU.Errorf("a group has calls of two teams, or of two ranks on one stream")
		}
		streams[c.stream] = r
		by[r] = append(by[r], c)
	}
	x.GPU.Mu.Lock()
	defer x.GPU.Mu.Unlock()
	for s := range streams {
		x.GPU.do(s, func() {}) // checks that work may be issued to the stream
	}
	x.GPU.do(calls[0].stream, func() { x.perform(by) })
}

var elementTypes = map[nvlib.NCCLType]ir.DType{nvlib.NCCLF32: ir.F32, nvlib.NCCLF64: ir.F64, nvlib.NCCLF16: ir.F16,
	nvlib.NCCLBF16: ir.BF16, nvlib.NCCLInt32: ir.I32, nvlib.NCCLInt64: ir.I64}

func (x *NCCL) perform(by [][]Call) {
	n := len(by)
	first := by[0]
	if len(first) == 0 || first[0].name == "send" || first[0].name == "recv" {
		x.exchange(by)
		return
	}
	for r := range by {
		if len(by[r]) != 1 || by[r][0].name != first[0].name || by[r][0].n != first[0].n {
			x.GPU.Fatalf("ranks' calls differ: %+v", by)
		}
	}
	count, dt := int(first[0].n), first[0].dt
	switch first[0].name {
	case "all_gather":
		parts := make([][]byte, n)
		for r := range by {
			parts[r] = append([]byte(nil), cabi.Bytes(by[r][0].in, count)...)
		}
		for r := range by {
			for i, p := range parts {
				copy(cabi.Bytes(by[r][0].out+uintptr(i*count), count), p)
			}
		}
		return
	case "broadcast":
		src := append([]byte(nil), cabi.Bytes(by[first[0].peer][0].in, count)...)
		for r := range by {
			copy(cabi.Bytes(by[r][0].out, count), src)
		}
		return
	}
	t := elementTypes[dt]
	all := count
	if first[0].name == "reduce_scatter" {
		all *= n
	}
	sum, v := make([]float64, all), make([]float64, all)
	for r := range by {
		tensor.ToFloat64(v, cabi.Bytes(by[r][0].in, all*int(t.Size())), t)
		for k := range v {
			switch {
			case r == 0:
				sum[k] = v[k]
			case first[0].red == nvlib.NCCLMax:
				sum[k] = max(sum[k], v[k])
			case first[0].red == nvlib.NCCLMin:
				sum[k] = min(sum[k], v[k])
			default:
				sum[k] += v[k]
			}
		}
	}
	if first[0].red == nvlib.NCCLAvg {
		for k := range sum {
			sum[k] /= float64(n)
		}
	}
	for r := range by {
		part := sum
		if first[0].name == "reduce_scatter" {
			part = sum[r*count : (r+1)*count]
		}
		if first[0].name != "reduce" || r == first[0].peer {
			tensor.FromFloat64(cabi.Bytes(by[r][0].out, len(part)*int(t.Size())), part, t)
		}
	}
}

// exchange matches sends with receives, in order for each pair of ranks.
func (x *NCCL) exchange(by [][]Call) {
	type pair struct{ from, to int }
	sent := map[pair][][]byte{}
	for r := range by {
		for _, c := range by[r] {
			if c.name == "send" {
				sent[pair{r, c.peer}] = append(sent[pair{r, c.peer}],
					append([]byte(nil), cabi.Bytes(c.in, int(c.n))...))
			}
		}
	}
	for r := range by {
		for _, c := range by[r] {
			if c.name != "recv" {
				continue
			}
			p := pair{c.peer, r}
			if len(sent[p]) == 0 || len(sent[p][0]) != int(c.n) {
				x.GPU.Fatalf("rank %d receives %d bytes from rank %d, which does not send them", r, c.n, c.peer)
			}
			copy(cabi.Bytes(c.out, int(c.n)), sent[p][0])
			sent[p] = sent[p][1:]
		}
	}
	for p, left := range sent {
		if len(left) > 0 {
			x.GPU.Fatalf("%d sends from rank %d to rank %d are not received", len(left), p.from, p.to)
		}
	}
}
