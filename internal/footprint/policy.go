package footprint

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Policies lists the policies that Simulate accepts.
func Policies() []string { return []string{"caching", "deferred-free", "captured", "captured-caching"} }

// Settings are the settings of PYTORCH_CUDA_ALLOC_CONF that the simulation supports.
type Settings struct {
	expandable bool
	maxSplit   int64   // maximum size of blocks that may be split, in bytes; 0 for no limit
	threshold  float64 // threshold of garbage collection, as a fraction of memory; 0 for no garbage collection
	memory     int64   // number of bytes that the process may use; threshold is a fraction of this number
}

// Expandable reports whether segments can grow. If segments can grow, the number of segments does not show whether
// reserved memory grows.
func (s *Settings) Expandable() bool { return s.expandable }

// ParsePolicy reads a policy and, optionally, settings in the syntax of PYTORCH_CUDA_ALLOC_CONF:
// "deferred-free", or "deferred-free,expandable_segments:True". garbage_collection_threshold
// requires memory_mb, the memory that the process may use
// (torch.cuda.set_per_process_memory_fraction), since torch collects nothing without that limit.
func ParsePolicy(text string) (policy string, s Settings, err error) {
	policy, rest, more := strings.Cut(text, ",")
	if !slices.Contains(Policies(), policy) {
		return "", s, fmt.Errorf("there is no policy %q: one of %v", policy, Policies())
	}
	for more {
		var word string
		word, rest, more = strings.Cut(rest, ",")
		key, value, _ := strings.Cut(word, ":")
		n, wrong := strconv.ParseFloat(value, 64)
		ok := wrong == nil && n > 0
		switch key {
		case "expandable_segments":
			s.expandable, wrong = strconv.ParseBool(value)
			ok = wrong == nil
		case "max_split_size_mb":
			ok = ok && n > 20 && n < 1<<20 // torch refuses values below the size of its large segments
			s.maxSplit = int64(n * (1 << 20))
		case "garbage_collection_threshold":
			ok = ok && n < 1
			s.threshold = n
		case "memory_mb":
			ok = ok && n < 1<<30
			s.memory = int64(n * (1 << 20))
		default:
			return "", s, fmt.Errorf("there is no setting %q: expandable_segments, max_split_size_mb, garbage_collection_threshold, memory_mb", key)
		}
		if !ok {
			return "", s, fmt.Errorf("the setting %s cannot be %q", key, value)
		}
	}
	if s.threshold > 0 && s.memory == 0 {
		return "", s, errors.New("garbage_collection_threshold is a fraction of the memory that the process may use: set memory_mb; torch collects only after set_per_process_memory_fraction")
	}
	return policy, s, nil
}

// Speed describes the speed of host and device. The zero value stands for an H100 whose host runs Python.
type Speed struct {
	HostSec   float64 // seconds that the host needs to issue one op; 0 means 220 µs
	FlopsSec  float64 // FLOP/s of GEMMs; 0 means 650e12
	MemorySec float64 // bytes per second that other ops read and write; 0 means 2.5e12
	LinkSec   float64 // bytes per second that a collective delivers to a rank; 0 means 200e9
	Workspace int64   // bytes of the GEMM workspace, which stays allocated; 0 means 32 MiB, -1 means no workspace
	Runs      int     // number of runs back to back; 0 means 5
}

func (s *Speed) fill() {
	set := func(v *float64, d float64) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&s.HostSec, 220e-6)
	set(&s.FlopsSec, 650e12)
	set(&s.MemorySec, 2.5e12)
	set(&s.LinkSec, 200e9)
	if s.Workspace == 0 {
		s.Workspace = 32 << 20
	}
	if s.Runs <= 0 {
		s.Runs = 5
	}
}

// Simulation is the memory that a simulated caching allocator reserves for a plan's program. The numbers are computed
// by a model, and are not measured.
type Simulation struct {
	Policy        string `json:"policy"`
	ReservedPeak  int64  `json:"reserved_peak"`
	AllocatedPeak int64  `json:"allocated_peak"`
	Waiting       int64  `json:"waiting_for_streams"`
	Segments      int    `json:"segments"`
	// time between the host's end of the last run and the device's end of that run
	HostAhead float64 `json:"host_ahead_ms"`
	// ByRun is the number of segments that were reserved in each run. An allocator in steady state reserves no
	// segments.
	ByRun    []int     `json:"segments_by_run"`
	Curve    []Point   `json:"-"`
	Snapshot *Snapshot `json:"-"` // snapshot with the trace
}

// Simulate runs rank 0's ops of a plan, in issue order, on a simulation of torch's caching allocator. Each buffer is
// allocated before its first use, and the host frees it after its last use. The host proceeds at its own speed,
// independent of the device. The policies are:
//
//   - "deferred-free": collectives run on a second stream, which waits for main, and for which main
//     waits. The buffers of collectives are recorded on the second stream (record_stream). When the
//     host frees such a buffer, an event is recorded on the second stream. The buffer becomes free
//     once this event has passed.
//   - "captured": the same within the capture of a graph. Events cannot be queried during a
//     capture, so no such buffer becomes free before it ends.
//   - "caching": collectives run on main.
//   - "captured-caching": the same as caching, within a capture.
//
// A captured program keeps the results of a run until the results of the next run exist, because the results of a graph
// are read after the graph ran.
func Simulate(p *plan.Plan, text string, s Speed) (*Simulation, error) {
	policy, settings, err := ParsePolicy(text)
	if err != nil {
		return nil, err
	}
	s.fill()
	m := &simulator{p: p, speed: s, deferred: policy == "deferred-free" || policy == "captured",
		captured: policy == "captured" || policy == "captured-caching",
		at:       map[int32]*block{}, recorded: map[int32]bool{}}
	m.a.settings = settings
	m.count()
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Role == plan.RoleInput && b.Space == plan.Arena && b.Bytes > 0 {
			m.alloc(b)
		}
	}
	byRun := make([]int, s.Runs)
	for run := range byRun {
		before := m.a.Segments
		for i := range p.Cmds {
			if p.Cmds[i].Rank == 0 {
				m.step(&p.Cmds[i], int32(i))
			}
		}
		m.endRun()
		byRun[run] = m.a.Segments - before
	}
	return &Simulation{Policy: text, ReservedPeak: m.a.ReservedPeak, AllocatedPeak: m.a.HeldPeak,
		Waiting:  m.a.WaitingPeak,
		Segments: m.a.Segments, HostAhead: 1e3 * max(0, max(m.main, m.comm)-m.host), ByRun: byRun, Curve: m.a.Curve,
		Snapshot: m.a.snapshot()}, nil
}

// alloc allocates a buffer at the host's current time.
func (m *simulator) alloc(b *plan.Buffer) *block {
	m.a.trace.site = fmt.Sprintf("%s:%d %s", path.Base(m.p.Program), m.p.Sites[b.Site].Pos.Line, b.Name)
	at, _ := m.a.Alloc(b.Bytes, m.host)
	return at
}

type simulator struct {
	p        *plan.Plan
	speed    Speed
	deferred bool
	captured bool
	a        Allocator
	at       map[int32]*block // by buffer
	recorded map[int32]bool   // set of buffers that the second stream uses
	last     map[int32]int32  // by buffer: rank 0's last command that uses the buffer
	results  []dropped        // results of this run, kept by a captured program
	earlier  []dropped        // results of the previous run
	// host, main and comm are the current times of the host and of the two streams.
	host, main, comm float64
}

// dropped is a block that the program no longer needs, and the time at which other streams finish using that block.
type dropped struct {
	b     *block
	until float64
}

func (m *simulator) count() {
	m.last = map[int32]int32{}
	for i := range m.p.Cmds {
		if m.p.Cmds[i].Rank == 0 {
			for _, r := range m.p.Touches(&m.p.Cmds[i]) {
				m.last[r.Buf] = int32(i)
			}
		}
	}
}

func (m *simulator) step(c *plan.Cmd, index int32) {
	work := c.Kind == plan.Compute || c.Kind == plan.Copy || c.Kind == plan.Collective || c.Kind == plan.Group
	if work {
		m.host += m.speed.HostSec
	}
	for _, r := range m.p.Touches(c) {
		b := &m.p.Buffers[r.Buf]
		if b.Role == plan.RoleInput || b.Space != plan.Arena || b.Bytes == 0 || r.Rank != 0 || m.at[r.Buf] != nil {
			continue
		}
		m.at[r.Buf] = m.alloc(b)
	}
	if work {
		m.run(c)
	}
	for _, r := range m.p.Touches(c) {
		b := m.at[r.Buf]
		if b == nil || m.last[r.Buf] != index {
			continue
		}
		until := 0.0
		if m.recorded[r.Buf] {
			until = m.comm
			if m.captured {
				until = math.Inf(1)
			}
		}
		if m.captured && m.p.Buffers[r.Buf].Role == plan.RoleOutput {
			m.results = append(m.results, dropped{b, until})
		} else {
			m.a.Free(b, m.host, until)
		}
		delete(m.at, r.Buf)
		delete(m.recorded, r.Buf)
	}
}

// endRun frees the results of the previous run.
func (m *simulator) endRun() {
	for _, d := range m.earlier {
		m.a.Free(d.b, m.host, d.until)
	}
	m.earlier, m.results = m.results, nil
}

// run executes one op: it advances the time of the host and of the op's stream.
func (m *simulator) run(c *plan.Cmd) {
	d := m.seconds(c)
	if c.Kind != plan.Collective || !m.deferred {
		if gemm(c) && m.speed.Workspace > 0 {
			m.a.trace.site = "gemm:0 workspace"
			m.a.Alloc(m.speed.Workspace, m.host)
			m.speed.Workspace = 0 // the GEMM workspace is allocated only once
		}
		m.main = max(m.main, m.host) + d
		return
	}
	m.comm = max(m.comm, m.main, m.host) + d
	m.main = m.comm // main waits for the result
	for _, r := range m.p.Touches(c) {
		m.recorded[r.Buf] = true
	}
}

func gemm(c *plan.Cmd) bool {
	return c.Kind == plan.Compute && (c.Op == ir.OpLinear || c.Op == ir.OpMatmul)
}

func (m *simulator) seconds(c *plan.Cmd) float64 {
	switch {
	case c.Kind == plan.Collective:
		coll := &m.p.Colls[c.Coll]
		return 10e-6 + float64(coll.Moved(int(c.Part)))/m.speed.LinkSec
	case gemm(c):
		out, in := c.Outs[0].Elements(), c.Ins[0].Shape
		return 5e-6 + 2*float64(out)*float64(in[len(in)-1])/m.speed.FlopsSec
	}
	bytes := int64(0)
	for _, r := range m.p.Touches(c) {
		bytes += r.Bytes()
	}
	return 3e-6 + float64(bytes)/m.speed.MemorySec
}
