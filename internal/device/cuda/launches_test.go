package cuda

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

var launchesDump = flag.String("launches.dump", "", "a file for all that TestLaunches hashes")

// launchTrace records launches in text form. Addresses and handles are replaced by names: m1+64 is 64 bytes into the
// first block of memory that was seen.
type launchTrace struct {
	*meetings
	out   strings.Builder
	names map[uintptr]string
	count map[string]int
}

// name returns the text that replaces a handle of the given kind.
func (l *launchTrace) name(kind string, h uintptr) string {
	if l.names[h] == "" {
		l.count[kind]++
		l.names[h] = fmt.Sprint(kind, l.count[kind])
	}
	return l.names[h]
}

// at returns the text that replaces an address; other numbers are unchanged.
func (l *launchTrace) at(v uintptr) string {
	for base, b := range l.Blocks {
		if v >= base && v < base+uintptr(len(b.Bytes())) {
			return fmt.Sprintf("%s+%d", l.name("m", base), v-base)
		}
	}
	return fmt.Sprint(v)
}

// Meeting records the arguments of a launch.
func (l *launchTrace) Meeting(t kernels.Target, m kernels.Meeting) (kernels.Step, error) {
	st, err := l.meetings.Meeting(t, m)
	l.Mu.Lock()
	defer l.Mu.Unlock()
	fmt.Fprintf(&l.out, "meeting %s %s %d×%d shared %d rank %d timeout %d tag %d", m.Symbol, m.Body, m.Blocks,
		m.Threads, m.Shared, m.Team.Rank, m.Team.Timeout, m.Team.Tag)
	for _, p := range append(slices.Clone(m.Team.Control), m.Team.Abort, m.Team.Record) {
		fmt.Fprint(&l.out, " ", l.at(uintptr(p)))
	}
	for _, w := range m.Words {
		fmt.Fprint(&l.out, " ", l.at(uintptr(w)))
	}
	fmt.Fprintln(&l.out)
	return st, err
}

// driver records the calls that issue work.
func (l *launchTrace) driver(name string, a []uintptr) {
	stream := func(h uintptr) string { return l.name("s", h) }
	switch name {
	case "cuLaunchKernel":
		fmt.Fprintln(&l.out, "launch", a[1], a[4], stream(a[8]))
	case "cuLaunchKernelEx":
		fmt.Fprintln(&l.out, "early launch", stream(cabi.Load[uintptr](a[0]+32)))
	case "cuMemcpyAsync":
		fmt.Fprintln(&l.out, "copy", l.at(a[0]), l.at(a[1]), a[2], stream(a[3]))
	case "cuMemcpy2DAsync_v2":
		r := cabi.Load[[16]uint64](a[0])
		fmt.Fprintln(&l.out, "rows", l.at(uintptr(r[11])), l.at(uintptr(r[4])), r[13], r[6], r[14], r[15], stream(a[1]))
	case "cuMemsetD32Async", "cuMemsetD8Async":
		fmt.Fprintln(&l.out, "fill", l.at(a[0]), a[2]) // omitted: the value, which may be half of an address
	case "cuEventRecord":
		fmt.Fprintln(&l.out, "record", l.name("e", a[0]), stream(a[1]))
	case "cuStreamWaitEvent":
		fmt.Fprintln(&l.out, "wait", stream(a[0]), l.name("e", a[1]))
	case "cuStreamBeginCapture_v2", "cuStreamEndCapture":
		fmt.Fprintln(&l.out, name, stream(a[0]))
	}
}

// hash returns a hash of the launches recorded since its last call, and the number of lines.
func (l *launchTrace) hash(t *testing.T, what string) string {
	text := l.out.String()
	l.out.Reset()
	clear(l.names)
	clear(l.count)
	if *launchesDump != "" {
		f, err := os.OpenFile(*launchesDump, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintf(f, "== %s\n%s", what, text)
	}
	return fmt.Sprintf("%s: %d lines %.16x\n", what, strings.Count(text, "\n"), sha256.Sum256([]byte(text)))
}

// TestLaunches compares the launches of collectives with recorded ones: kernels, grids, all arguments, copies and
// events, for every algorithm, without and with a graph. After an intended change of launches, -update rewrites
// testdata/launches.txt.
func TestLaunches(t *testing.T) {
	var all strings.Builder
	for _, world := range [][2]int{{2, 2}, {4, 4}, {2, 4}} {
		gpus, ranks := world[0], world[1]
		l := &launchTrace{meetings: &meetings{GPU: fakedriver.New(t, gpus)}, names: map[uintptr]string{},
			count: map[string]int{}}
		sys := system(l.GPU)
		x := &fakedriver.NCCL{GPU: l.GPU}
		sys.NCCL = x.Open
		for _, g := range sys.GPUs {
			g.SMs = 132
		}
		w, err := newMachine(sys, Options{Kernels: l, RanksPerGPU: ranks / gpus}).Open(t.Context(), ranks)
		mustOf(t)(err)
		l.OnCall = l.driver
		team := []int{1, 0, 3, 2}[:ranks]
		r := newTeamRig(t, w, "team", team)
		for _, algo := range device.AlgorithmNames(w.TeamAlgorithms()) {
			r.must(r.team.Close()) // each case gets fresh team memory
			r.team, err = w.OpenTeam(r.members)
			r.must(err)
			l.out.Reset()
			for _, op := range append([]ir.Op{ir.OpAllReduce}, moveOps...) {
				for _, c := range launchCases(op, algo, ranks, gpus == ranks) {
					for _, tune := range []device.Tuning{{}, {Blocks: 24, Threads: 256, Unroll: 2}} {
						l.issue(r, c, tune)
					}
				}
				if l.out.Len() > 0 {
					all.WriteString(l.hash(t, fmt.Sprintf("%d ranks on %d GPUs, %s by %s", ranks, gpus, op, algo)))
				}
			}
		}
		r.must(r.team.Close())
		r.team, err = w.OpenTeam(r.members)
		r.must(err)
		l.out.Reset()
		for _, rows := range []int64{1, 16} {
			l.norm(r, rows)
		}
		all.WriteString(l.hash(t, fmt.Sprintf("%d ranks on %d GPUs, normalised sums", ranks, gpus)))
		r.close()
		mustOf(t)(w.Close())
	}
	golden.File(t, "testdata/launches.txt", all.String())
}

// launchCases returns a few collectives, with sizes that algorithms handle differently.
func launchCases(op ir.Op, algo string, n int, large bool) []teamCase {
	list := casesOf(op, algo, n, [][]int64{{7}, {4096}, {16, 128}})
	if !large {
		return list
	}
	for _, elems := range []int64{1 << 17, 9 << 18} {
		list = append(list, teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{elems}, root: n - 1, shift: 1,
			algo: algo})
	}
	return list
}

// issue prepares a case, if the algorithm supports it, and executes it directly and with a graph.
func (l *launchTrace) issue(r *teamRig, c teamCase, tune device.Tuning) {
	r.place(c)
	rc := r.cases[len(r.cases)-1]
	defer r.drop()
	tune.Algo = c.algo
	r.team.PrepareAhead(tune, rc.collective())
	launches, err := r.team.Prepare(tune, rc.collective())
	if err != nil {
		return
	}
	fmt.Fprintln(&l.out, c, tune)
	run := func() error {
		for i, m := range r.members {
			if launches[i] != nil {
				r.must(m.Stream.Launch(launches[i]))
			}
		}
		return nil
	}
	r.must(r.w.Batch(run))
	r.must(r.w.Sync(r.t.Context()))
	if c.shape[0] == 4096 {
		g, err := r.w.Capture(run)
		r.must(err)
		r.must(g.Close())
	}
	for _, x := range launches {
		if x != nil {
			x.Release()
		}
	}
	fmt.Fprintln(&l.out, "the team has", r.team.Bytes())
}

// norm prepares an all_reduce fused with rms_norm, of the given number of rows, in place and not in place.
func (l *launchTrace) norm(r *teamRig, rows int64) {
	for _, inPlace := range []bool{false, true} {
		n := &device.Norm{Eps: 1e-5}
		for _, m := range r.members {
			view := func(shape ...int64) device.View { return r.view(m.Rank, ir.BF16, shape, 0) }
			p := device.NormPart{In: view(rows, 512), Residual: view(rows, 512), Weight: view(512),
				Sum: view(rows, 512), Out: view(rows, 512)}
			if inPlace {
				p.Sum, p.Out = p.Residual, p.In
			}
			n.Parts = append(n.Parts, p)
		}
		r.team.PrepareNormAhead(n)
		launches, err := r.team.PrepareNorm(n)
		r.must(err)
		r.must(r.w.Batch(func() error {
			for i, m := range r.members {
				r.must(m.Stream.Launch(launches[i]))
			}
			return nil
		}))
		r.must(r.w.Sync(r.t.Context()))
	}
}
