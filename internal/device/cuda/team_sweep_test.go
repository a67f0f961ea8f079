package cuda

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// sweepVariable names the environment variable with the name of the file that TestTeamSweep writes; without it the test
// is skipped.
const sweepVariable = "HOCKET_TEAM_SWEEP"

// sizesVariable is the environment variable with a list of sizes in bytes.
const sizesVariable = "HOCKET_TEAM_SIZES"

// swept is one measurement: the time of one collective of all members in microseconds, from many in a graph. Bytes is
// the size of the largest operand.
type swept struct {
	Op      string  `json:"op"`
	Ranks   int     `json:"ranks"`
	Bytes   int64   `json:"bytes"`
	Algo    string  `json:"algo"`
	Blocks  int     `json:"blocks,omitempty"`
	Threads int     `json:"threads,omitempty"`
	Unroll  int     `json:"unroll,omitempty"`
	Micros  float64 `json:"us"`
}

// graphTimer measures launches on the GPUs by events around graphs.
type graphTimer struct {
	t    *testing.T
	w    *world
	from nvlib.Event
	to   nvlib.Event
}

func newGraphTimer(t *testing.T, w *world) *graphTimer {
	t.Helper()
	tm := &graphTimer{t: t, w: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.devices[0].bound(func() (err error) {
		if tm.from, err = w.devices[0].site.clock.Event(true); err == nil {
			tm.to, err = w.devices[0].site.clock.Event(true)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

func (tm *graphTimer) record(e nvlib.Event) {
	tm.t.Helper()
	tm.w.mu.Lock()
	defer tm.w.mu.Unlock()
	if err := tm.w.devices[0].bound(func() error { return tm.w.drv.Record(e, tm.w.sites[0].origin.h) }); err != nil {
		tm.t.Fatal(err)
	}
}

// micros returns the shortest time of a launch in microseconds, over several rounds, from graphs of many launches.
func (tm *graphTimer) micros(r *teamRig, c *rigCase, nodes int) float64 {
	tm.t.Helper()
	g, err := tm.w.Capture(func() error {
		for range nodes {
			for i, l := range c.launches {
				if l == nil {
					continue
				}
				if err := r.members[i].Stream.Launch(l); err != nil {
					return err
				}
			}
		}
		return nil
	})
	r.must(err)
	var times []float64
	for round := range 4 {
		tm.record(tm.from)
		r.must(g.Launch(tm.t.Context()))
		tm.record(tm.to)
		r.must(tm.w.Sync(tm.t.Context()))
		ms, err := tm.w.drv.Elapsed(tm.from, tm.to)
		r.must(err)
		if round > 0 {
			times = append(times, float64(ms)*1000/float64(nodes))
		}
	}
	r.must(g.Close())
	return slices.Min(times)
}

// sweepTunings returns the tunings to measure for an algorithm and size.
func sweepTunings(op ir.Op, algo string, bytes int64) []device.Tuning {
	grid := func(blocks, threads, unroll []int) (list []device.Tuning) {
		for _, b := range blocks {
			for _, th := range threads {
				for _, u := range unroll {
					list = append(list, device.Tuning{Blocks: b, Threads: th, Unroll: u})
				}
			}
		}
		return list
	}
	small, large := bytes <= 64<<10, bytes > 4<<20
	switch {
	case algo == ncclName, algo == "move-copy" && large:
		return []device.Tuning{{}}
	case algo == "move-copy":
		return nil
	case algo == "move-ll" && bytes > 1<<20, algo == "move-ll128" && bytes > 16<<20, (algo == "move-push" || algo == "move-pull") && small:
		return nil
	case algo == "move-ll":
		return grid([]int{32, 64, 128}, []int{256, 512}, []int{1})
	case algo == "move-ll128":
		return grid([]int{64, 132}, []int{256, 512}, []int{1, 2, 4})
	case !large:
		return grid([]int{8, 16, 32}, []int{512}, []int{2, 4})
	}
	return grid([]int{8, 16, 32, 64, 128}, []int{512}, []int{2, 4, 8})
}

// TestTeamSweep measures the collectives of all GPUs by every algorithm, at every size, with many tunings.
func TestTeamSweep(t *testing.T) {
	file := os.Getenv(sweepVariable)
	if file == "" {
		t.Skipf("%s names no file to write", sweepVariable)
	}
	dw := openAll(t)
	n := dw.Ranks()
	w := dw.(*world)
	r := newTeamRig(t, w, "sweep", upTo(n))
	g, err := w.Capture(func() error { return nil }) // creates the stream for graphs
	r.must(err)
	r.must(g.Close())
	tm := newGraphTimer(t, w)
	var all []swept
	for _, op := range []ir.Op{ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpBroadcast, ir.OpReduce, ir.OpAllReduce} {
		for _, bytes := range sweepSizes(t) {
			all = append(all, tm.size(r, op, bytes)...)
		}
	}
	r.close()
	r.must(w.Close())
	b, err := json.MarshalIndent(all, "", " ")
	r.must(err)
	r.must(os.WriteFile(file, b, 0o666))
}

// sweepSizes returns the sizes of sizesVariable, or the default sizes.
func sweepSizes(t *testing.T) (list []int64) {
	for _, s := range strings.Fields(os.Getenv(sizesVariable)) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, n)
	}
	if list == nil {
		for n := int64(1 << 10); n <= 256<<20; n *= 2 {
			list = append(list, n)
		}
	}
	return list
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// size measures collectives on operands of one size, and prints a line.
func (tm *graphTimer) size(r *teamRig, op ir.Op, bytes int64) (all []swept) {
	tm.t.Helper()
	n := len(r.members)
	elems := bytes / 2
	switch op {
	case ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll:
		elems /= int64(n)
	}
	nodes := 400
	switch {
	case bytes > 8<<20:
		nodes = 10
	case bytes > 256<<10:
		nodes = 80
	}
	line := fmt.Sprintf("%-14s %9d", op, bytes)
	for _, algo := range moveAlgorithmNames() {
		var best *swept
		for _, tune := range sweepTunings(op, algo, bytes) {
			if !r.add(teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{elems}, algo: algo}, tune) {
				continue
			}
			c := r.cases[len(r.cases)-1]
			s := swept{op.String(), n, bytes, algo, tune.Blocks, tune.Threads, tune.Unroll, tm.micros(r, c, nodes)}
			all = append(all, s)
			if best == nil || s.Micros < best.Micros {
				best = &s
			}
			r.drop()
		}
		if best != nil {
			line += fmt.Sprintf("  %s %8.2f", algo, best.Micros)
			if best.Blocks > 0 {
				line += fmt.Sprintf(" (%dx%d/%d)", best.Blocks, best.Threads, best.Unroll)
			}
		}
	}
	fmt.Println(line)
	return all
}

// drop releases the launches and the memory of the last case.
func (r *teamRig) drop() {
	r.t.Helper()
	c := r.cases[len(r.cases)-1]
	r.cases = r.cases[:len(r.cases)-1]
	for _, l := range c.launches {
		if l != nil {
			l.Release()
		}
	}
	for _, p := range c.parts {
		if p.Reads {
			r.must(p.In.Mem.Free())
		}
		if p.Writes && (!p.Reads || p.Out.Mem != p.In.Mem) {
			r.must(p.Out.Mem.Free())
		}
	}
}
