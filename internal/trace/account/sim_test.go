package account

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/trace"
)

// cmd is a command of a program that a test simulates.
type cmd struct {
	rank         int
	stream, name string
	class        trace.Class
	long         int64
	gap          int64 // idle time of the stream before the command
	host         int64 // the delay with which the host issues the command
	call         string
	tie          *trace.Tie
	group        int
	bytes        int64
}

// player plays programs. Each command has a cost, the commands of a stream run in order, and a wait lasts until the
// command that it waits for has ended.
type player struct {
	ranks  int
	rng    *rand.Rand
	cmds   []cmd
	groups int
}

func newPlayer(ranks int, seed uint64) *player {
	return &player{ranks: ranks, rng: rand.New(rand.NewPCG(seed, 7))}
}

func (p *player) add(c cmd) *cmd {
	p.cmds = append(p.cmds, c)
	return &p.cmds[len(p.cmds)-1]
}

func (p *player) work(rank int, stream, name string, long int64) *cmd {
	return p.add(cmd{rank: rank, stream: stream, name: name, class: trace.Compute, group: trace.NoGroup,
		long: long + p.rng.Int64N(long/100+1)})
}

// collective adds the command of each rank for a collective.
func (p *player) collective(stream, name string, bytes, long int64) {
	for r := range p.ranks {
		p.add(cmd{rank: r, stream: stream, name: name, class: trace.Comm, long: long, group: p.groups, bytes: bytes})
	}
	p.groups++
}

func (p *player) waitStream(rank int, stream, on string) {
	p.add(cmd{rank: rank, stream: stream, name: "wait", class: trace.Sync, group: trace.NoGroup,
		tie: &trace.Tie{Stream: on, Until: int64(len(p.cmds)), Peer: -1}})
}

func (p *player) waitCounter(rank int, stream, counter string, count int64) {
	p.add(cmd{rank: rank, stream: stream, name: "wait", class: trace.Sync, group: trace.NoGroup,
		tie: &trace.Tie{Counter: counter, Count: count, Peer: -1}})
}

func (p *player) signal(rank int, stream, counter string, peer int) {
	p.add(cmd{rank: rank, stream: stream, name: "signal", class: trace.Sync, group: trace.NoGroup, long: 500,
		tie: &trace.Tie{Counter: counter, Peer: peer}})
}

func (p *player) put(rank int, stream string, peer int, bytes, long int64) {
	p.add(cmd{rank: rank, stream: stream, name: "put", class: trace.Comm, group: trace.NoGroup, bytes: bytes,
		long: long + p.rng.Int64N(long/50+1), tie: &trace.Tie{Peer: peer}})
}

// play returns the events, the times at which hosts issued them, and the calls of the hosts.
func (p *player) play() *trace.Trace {
	type stream struct {
		rank int
		name string
	}
	t := &trace.Trace{Ranks: p.ranks}
	at, ends := map[stream]int64{}, map[stream]int64{}
	hosts := make([]int64, p.ranks)
	signals := map[string][]int64{}
	for r := range hosts {
		hosts[r] = 1_000_000
	}
	begin := func(i int) *trace.Event {
		c := &p.cmds[i]
		s := stream{c.rank, c.stream}
		if c.host > 0 {
			from := max(hosts[c.rank], at[s])
			if c.call != "" {
				t.Host = append(t.Host, trace.HostCall{Rank: c.rank, Name: c.call, Start: from, End: from + c.host})
			}
			hosts[c.rank] = from + c.host
		}
		hosts[c.rank] += 1_500
		e := trace.Event{Rank: c.rank, Stream: c.stream, ID: int64(i), Name: c.name, Class: c.class, Tie: c.tie,
			Detail: fmt.Sprintf("%s (test.hkt:%d:1)", c.name, len(c.name)), Group: c.group, Bytes: c.bytes,
			Issued: hosts[c.rank],
			Start:  max(at[s]+1_000, hosts[c.rank]+3_000) + c.gap}
		if c.class == trace.Sync {
			e.Start = max(at[s], hosts[c.rank])
		}
		return &e
	}
	end := func(e *trace.Event) {
		s := stream{e.Rank, e.Stream}
		at[s], ends[s] = e.End, e.End
		t.Events = append(t.Events, *e)
	}
	for i := 0; i < len(p.cmds); i++ {
		c := &p.cmds[i]
		switch {
		case c.group != trace.NoGroup:
			var list []*trace.Event
			var arrival int64
			for k := i; k < len(p.cmds) && p.cmds[k].group == c.group; k++ {
				e := begin(k)
				list, arrival = append(list, e), max(arrival, e.Start)
			}
			for _, e := range list {
				e.End = arrival + p.cmds[e.ID].long + p.rng.Int64N(400)
				end(e)
			}
			i += len(list) - 1
		default:
			e := begin(i)
			e.End = e.Start + c.long
			if e.Waits() {
				until := ends[stream{c.rank, c.tie.Stream}]
				if c.tie.Counter != "" {
					until = signals[fmt.Sprint(c.rank, c.tie.Counter)][c.tie.Count-1]
				}
				e.End = max(e.Start, until) + 200
			}
			if e.Name == "signal" {
				k := fmt.Sprint(c.tie.Peer, c.tie.Counter)
				signals[k] = append(signals[k], e.End)
			}
			end(e)
		}
	}
	t.Sort()
	return t
}

// own writes a trace to a file as hocket run --trace does, and returns the report on the file.
func own(t testing.TB, dir string, tr *trace.Trace) *Report {
	t.Helper()
	x := *tr
	x.Host = nil
	var b bytes.Buffer
	if err := x.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "own.json")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Files([]string{path}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// kineto writes a trace as torch's profiler does, with one file and one clock for each rank, and computes the report
// for the files.
func kineto(t testing.TB, dir string, tr *trace.Trace) *Report {
	t.Helper()
	var paths []string
	for rank := range tr.Ranks {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("run.rank%d.json.gz", rank)))
		writeKineto(t, paths[rank], tr, rank, int64(rank)*7_654_321)
	}
	r, err := Files(paths, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func writeKineto(t testing.TB, path string, tr *trace.Trace, rank int, offset int64) {
	t.Helper()
	streams := map[string]int{"main": 7}
	var events []map[string]any
	put := func(cat, name string, tid int, start, end int64, args map[string]any) {
		events = append(events, map[string]any{"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": tid,
			"ts":   json.Number(fmt.Sprintf("%.3f", float64(start+offset)/1e3)),
			"dur":  json.Number(fmt.Sprintf("%.3f", float64(end-start)/1e3)),
			"args": args})
	}
	members := make([]int, tr.Ranks)
	for r := range members {
		members[r] = r
	}
	ranks, _ := json.Marshal(members)
	for i := range tr.Events {
		e := &tr.Events[i]
		if e.Rank != rank || e.Class == trace.Sync {
			continue
		}
		if streams[e.Stream] == 0 {
			streams[e.Stream] = 20 + len(streams)
		}
		args := map[string]any{"device": rank, "stream": streams[e.Stream], "correlation": e.ID + 1}
		name := e.Name
		if e.Class == trace.Comm {
			name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
			args["Collective name"], args["In msg nelems"], args["Out msg nelems"] = "allreduce", e.Bytes/2, e.Bytes/2
			args["dtype"], args["Group size"], args["Process Group Name"] = "BFloat16", tr.Ranks, "0"
			args["Process Group Description"], args["Process Group Ranks"] = "default_pg", string(ranks)
		} else {
			name = "void " + name + "<float>(int, float*)"
		}
		put("kernel", name, streams[e.Stream], e.Start, e.End, args)
		put("cuda_runtime", "cudaLaunchKernel", 843, e.Issued, e.Issued+1_000, map[string]any{"correlation": e.ID + 1})
	}
	for _, h := range tr.Host {
		if h.Rank == rank {
			put("cpu_op", h.Name, 843, h.Start, h.End, map[string]any{"External id": 5})
		}
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	doc := map[string]any{"schemaVersion": 1, "baseTimeNanoseconds": int64(1790857026000000000),
		"displayTimeUnit": "ms",
		"distributedInfo": map[string]any{"backend": "nccl", "rank": rank, "world_size": tr.Ranks},
		"traceEvents":     events}
	if err := json.NewEncoder(z).Encode(doc); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}
