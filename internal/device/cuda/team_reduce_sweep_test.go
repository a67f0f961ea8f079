package cuda

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// reduceSweep is the environment variable with the file that TestSweepAllReduce writes; without it the test is skipped.
// reduceSweepWorlds lists the worlds to measure, each as its number of ranks, or as "ranks:late" if members issue late.
const (
	reduceSweep        = "HOCKET_SWEEP"
	reduceSweepWorlds  = "HOCKET_SWEEP_WORLDS"
	reduceSweepBytes   = "HOCKET_SWEEP_BYTES"
	reduceSweepSeconds = "HOCKET_SWEEP_SECONDS"
	reduceSweepTunings = "HOCKET_SWEEP_TUNINGS" // list of algo:blocks:threads:unroll; by default it depends on the size
)

// reduceSwept is one measurement.
type reduceSwept struct {
	Op     string  `json:"op"`
	Ranks  int     `json:"ranks"`
	Late   bool    `json:"late,omitempty"`
	Bytes  int64   `json:"bytes"`
	Algo   string  `json:"algo"`
	Blocks int     `json:"blocks"`
	Thread int     `json:"threads"`
	Unroll int     `json:"unroll"`
	Us     float64 `json:"us"`
}

// TestSweepAllReduce times all_reduces of bf16 on all GPUs, consecutive ones in a graph, for many sizes and tunings. It
// checks the results and writes the times as JSON.
func TestSweepAllReduce(t *testing.T) {
	path := os.Getenv(reduceSweep)
	if path == "" {
		t.Skip(reduceSweep + " names no file")
	}
	worlds := os.Getenv(reduceSweepWorlds)
	if worlds == "" {
		worlds = "2,2:late,4"
	}
	seconds, _ := strconv.Atoi(os.Getenv(reduceSweepSeconds))
	if seconds == 0 {
		seconds = 60
	}
	var all []reduceSwept
	for _, name := range strings.Split(worlds, ",") {
		count, late := strings.CutSuffix(name, ":late")
		ranks, _ := strconv.Atoi(count)
		s := newReduceSweep(t, ranks, late, time.Now().Add(time.Duration(seconds)*time.Second/time.Duration(strings.Count(worlds, ",")+1)))
		s.run()
		all = append(all, s.all...)
		text, err := json.Marshal(all)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sweepRanks returns the numbers of ranks in reduceSweepWorlds, and the time for measuring each, from
// reduceSweepSeconds or the given default. It skips the test if reduceSweep is not set.
func sweepRanks(t *testing.T, seconds int) (worlds []int, each time.Duration) {
	t.Helper()
	if os.Getenv(reduceSweep) == "" {
		t.Skip(reduceSweep + " is not set")
	}
	for _, s := range strings.Split(cmp.Or(os.Getenv(reduceSweepWorlds), "2"), ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		worlds = append(worlds, n)
	}
	n, err := strconv.Atoi(cmp.Or(os.Getenv(reduceSweepSeconds), strconv.Itoa(seconds)))
	if err != nil {
		t.Fatal(err)
	}
	return worlds, time.Duration(n) * time.Second
}

// reduceSweeper is a world that is measured, with a team and operands for all sizes.
type reduceSweeper struct {
	*testing.T
	w        *world
	ranks    int
	late     bool
	team     device.Team
	streams  []device.Stream
	in, out  []device.Memory
	want     []byte
	deadline time.Time
	all      []reduceSwept
}

const reduceSweepMost = 64 << 20

func newReduceSweep(t *testing.T, ranks int, late bool, deadline time.Time) *reduceSweeper {
	m := real(t, Options{TeamTimeout: 2 * time.Second, Graphs: formOne, teamsLate: late})
	gpus := len(m.sys.GPUs)
	m.opts.RanksPerGPU = (ranks + gpus - 1) / gpus
	w, err := m.Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	s := &reduceSweeper{T: t, w: w.(*world), ranks: ranks, late: late, deadline: deadline}
	t.Cleanup(func() { s.must(w.Close()) })
	t.Log(s.w.Identity())
	n := reduceSweepMost / 2
	sum := make([]float64, n)
	rng := rand.New(rand.NewPCG(1, 2))
	var members []device.Member
	for r := range ranks {
		st, err := w.Device(r).NewStream(device.StreamOptions{Name: "main"})
		s.must(err)
		vals := make([]float64, n)
		for i := range vals {
			vals[i] = float64(rng.IntN(33) - 16)
			sum[i] += vals[i]
		}
		in, err := w.Device(r).Alloc(reduceSweepMost, device.Shared)
		s.must(err)
		out, err := w.Device(r).Alloc(reduceSweepMost, device.Shared)
		s.must(err)
		enc := make([]byte, reduceSweepMost)
		tensor.FromFloat64(enc, vals, ir.BF16)
		s.must(st.Upload(s.view(in, reduceSweepMost), enc))
		s.in, s.out, s.streams = append(s.in, in), append(s.out, out), append(s.streams, st)
		members = append(members, device.Member{Rank: r, Stream: st})
	}
	s.must(w.Sync(t.Context()))
	s.want = make([]byte, reduceSweepMost)
	tensor.FromFloat64(s.want, sum, ir.BF16)
	s.team, err = s.w.OpenTeam(members)
	s.must(err)
	return s
}

func (s *reduceSweeper) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *reduceSweeper) view(m device.Memory, bytes int64) device.View {
	return device.View{Mem: m, DType: ir.BF16, Shape: []int64{bytes / 2}, Strides: []int64{1}}
}

func (s *reduceSweeper) run() {
	rows := []int64{1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 3062, 4096}
	sizes := make([]int64, 0, len(rows))
	for _, r := range rows {
		sizes = append(sizes, r*16384)
	}
	if list := os.Getenv(reduceSweepBytes); list != "" {
		sizes = sizes[:0]
		for _, f := range strings.Split(list, ",") {
			n, _ := strconv.ParseInt(f, 10, 64)
			sizes = append(sizes, n)
		}
	}
	for _, bytes := range sizes {
		best := map[string]reduceSwept{}
		for _, tune := range s.tunings(bytes) {
			if time.Now().After(s.deadline) {
				s.Logf("TP=%d: out of time at %d bytes", s.ranks, bytes)
				return
			}
			us, err := s.time(tune, bytes)
			if errors.Is(err, device.ErrUnsupported) {
				continue
			}
			if err != nil {
				s.Errorf("%v, %d bytes: %v", tune, bytes, err)
				return
			}
			r := reduceSwept{"all_reduce", s.ranks, s.late, bytes, tune.Algo, tune.Blocks, tune.Threads, tune.Unroll, us}
			s.all = append(s.all, r)
			if b, ok := best[tune.Algo]; !ok || us < b.Us {
				best[tune.Algo] = r
			}
		}
		line := fmt.Sprintf("TP=%d late=%v %8.3f MB", s.ranks, s.late, float64(bytes)/(1<<20))
		for _, a := range coll.Algorithms {
			if b, ok := best[a.Name]; ok {
				line += fmt.Sprintf("  %s %.2f (%dx%d/%d)", a.Name, b.Us, b.Blocks, b.Thread, b.Unroll)
			}
		}
		fmt.Println(line)
	}
}

// tunings returns the list of the tunings to measure.
func (s *reduceSweeper) tunings(bytes int64) (list []device.Tuning) {
	if text := os.Getenv(reduceSweepTunings); text != "" {
		for _, f := range strings.Split(text, ",") {
			var t device.Tuning
			part := strings.Split(f, ":")
			t.Algo = part[0]
			t.Blocks, _ = strconv.Atoi(part[1])
			t.Threads, _ = strconv.Atoi(part[2])
			t.Unroll, _ = strconv.Atoi(part[3])
			list = append(list, t)
		}
		return list
	}
	add := func(algo string, blocks, threads, unrolls []int) {
		for _, b := range blocks {
			for _, t := range threads {
				for _, u := range unrolls {
					if room := s.team.(*team).Room(t); b <= room || b == blocks[0] {
						list = append(list, device.Tuning{Algo: algo, Blocks: b, Threads: t, Unroll: u})
					}
				}
			}
		}
	}
	few := s.late
	switch {
	case bytes <= 64<<10:
		add("ll", []int{4, 8, 16, 32, 64}, []int{128, 256, 512}, []int{1, 2})
		add("ll128", []int{4, 8, 16, 32, 64}, []int{128, 256, 512}, []int{1, 2})
		add("lamport", []int{8, 16, 32, 64, 96}, []int{128, 256}, []int{1})
		if s.ranks > 2 {
			add("ll2", []int{8, 16, 32}, []int{256, 512}, []int{1})
			add("ll128x2", []int{8, 16, 32}, []int{256, 512}, []int{1, 2})
		}
	case bytes <= 1<<20:
		if bytes <= 256<<10 {
			add("ll", []int{32, 64, 128}, []int{256, 512}, []int{1, 2})
		}
		add("ll128", []int{64, 96, 132}, []int{256, 512, 1024}, []int{1, 2})
		add("lamport", []int{96, 132}, []int{256, 512}, []int{1, 2})
		if s.ranks > 2 {
			add("lamportx2", []int{64, 132}, []int{128, 256, 512}, []int{1})
			add("ll2", []int{16, 32}, []int{256, 512}, []int{1})
			add("ll128x2", []int{16, 32, 64, 128}, []int{256, 512}, []int{1, 2, 4})
			add("push", []int{32, 64}, []int{256, 512}, []int{1, 2})
			add("pull", []int{32, 64}, []int{256, 512}, []int{1, 2})
		}
	default:
		add("ll128", []int{132}, []int{512, 1024}, []int{2, 4})
		add("lamport", []int{132}, []int{512, 1024}, []int{1, 2})
		if s.ranks > 2 {
			add("lamportx2", []int{128, 132}, []int{256, 512, 1024}, []int{1, 2})
			add("ll128x2", []int{33, 66, 132}, []int{256, 512}, []int{2, 4})
			add("push", []int{64, 96}, []int{512}, []int{1, 2})
			add("pull", []int{64, 96}, []int{512}, []int{1, 2})
		}
		if few {
			return list
		}
		add("push", []int{132}, []int{512, 1024}, []int{1, 2, 4})
		add("lamport-host", []int{132}, []int{1024}, []int{1, 2})
		add("pull", []int{132}, []int{512, 1024}, []int{2, 4})
	}
	return list
}

// time measures and returns the time of one all_reduce in microseconds, from many in a graph.
func (s *reduceSweeper) time(tune device.Tuning, bytes int64) (float64, error) {
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	for r := range s.ranks {
		c.Parts = append(c.Parts, device.Part{In: s.view(s.in[r], bytes), Out: s.view(s.out[r], bytes), Reads: true, Writes: true})
		s.out[r].Poison(0, bytes)
	}
	launches, err := s.team.Prepare(tune, c)
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, l := range launches {
			l.Release()
		}
	}()
	many := int(min(max(1000/(3+float64(bytes)/3e5), 6), 150))
	us, err := s.chain(many, func() error {
		for r, l := range launches {
			if err := s.streams[r].Launch(l); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = s.check(bytes)
	}
	return us, err
}

// chain measures and returns the time of one round in microseconds, from many in a graph.
func (s *reduceSweeper) chain(many int, round func() error) (float64, error) {
	g, err := s.w.Capture(func() error {
		for range many {
			if err := round(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	run := func(times int) (time.Duration, error) {
		began := time.Now()
		for range times {
			if err := g.Launch(s.Context()); err != nil {
				return 0, err
			}
		}
		err := s.w.devices[0].bound(func() error { return s.w.drv.SyncStream(s.w.sites[0].origin.h) })
		took := time.Since(began)
		if err == nil {
			err = s.w.Sync(s.Context())
		}
		return took, err
	}
	us, err := perTime(6, 4, run)
	return us / float64(many), errors.Join(err, g.Close())
}

// perTime returns the time of one repetition in microseconds: it measures runs of several repetitions and of one, and
// divides the difference of the times by that of the numbers. It uses the median of the rounds after the first.
func perTime(rounds, several int, run func(times int) (time.Duration, error)) (float64, error) {
	var us []float64
	for i := range rounds {
		one, err := run(1)
		if err != nil {
			return 0, err
		}
		more, err := run(several)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			us = append(us, float64((more-one).Nanoseconds())/1e3/float64(several-1))
		}
	}
	slices.Sort(us)
	return us[len(us)/2], nil
}

// check compares three parts of every result with the expected values: the beginning, the end and an interval in the
// middle.
func (s *reduceSweeper) check(bytes int64) error {
	n := min(bytes, 64<<10)
	for _, off := range []int64{0, (bytes - n) / 2 &^ 1, bytes - n} {
		for r, m := range s.out {
			got := make([]byte, n)
			v := s.view(m, n)
			v.Off = off
			if err := s.streams[r].Download(got, v); err != nil {
				return err
			}
			if err := s.w.Sync(s.Context()); err != nil {
				return err
			}
			for i := range got {
				if got[i] != s.want[off+int64(i)] {
					return fmt.Errorf("rank %d: byte %d is %#x, want %#x", r, off+int64(i), got[i], s.want[off+int64(i)])
				}
			}
		}
	}
	return nil
}
