package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestSweepBulk measures how much of an all-reduce few blocks should push, and how
// many of its results should go by way of host memory, on as many ranks as
// reduceSweepWorlds says. It needs reduceSweep as TestSweepAllReduce does.
func TestSweepBulk(t *testing.T) {
	if os.Getenv(reduceSweep) == "" {
		t.Skip(reduceSweep + " is not set")
	}
	ranks, err := strconv.Atoi(os.Getenv(reduceSweepWorlds))
	if err != nil {
		ranks = 2
	}
	seconds, err := strconv.Atoi(os.Getenv(reduceSweepSeconds))
	if err != nil {
		seconds = 60
	}
	s := newReduceSweep(t, ranks, false, time.Now())
	until := time.Now().Add(time.Duration(seconds) * time.Second)
	pushed, hosted := bulkPushed, bulkHosted
	defer func() { bulkPushed, bulkHosted = pushed, hosted }()
	one := func(mib, pushed, hosted int64, tune string) {
		if time.Now().After(until) {
			return
		}
		bulkPushed, bulkHosted = func(int) int64 { return pushed }, func(int) int64 { return hosted }
		var k device.Tuning
		if _, err := fmt.Sscanf(strings.NewReplacer(":", " ").Replace(tune), "%s %d %d %d", &k.Algo, &k.Blocks, &k.Threads, &k.Unroll); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(k.Algo, "move-") {
			before := bulkScattered
			bulkScattered = func(int) int64 { return pushed }
			us, err := s.scatter(k, mib<<20)
			bulkScattered = before
			fmt.Printf("reduce_scatter of %d, %2d MiB %s, %d ‰ pushed: %.2f %v\n", ranks, mib, tune, pushed, us, err)
			return
		}
		us, err := s.time(k, mib<<20)
		fmt.Printf("all_reduce of %d, %2d MiB %s, %d ‰ pushed, %d ‰ hosted: %.2f %v\n", ranks, mib, tune, pushed, hosted, us, err)
	}
	wide, tiles := "push:132:1024:2", []int{4, 2}
	if ranks > 2 {
		wide, tiles = "push:132:1024:1", []int{2, 1}
	}
	bulk := func(blocks, unroll int) string { return fmt.Sprintf("bulk:%d:0:%d", blocks, unroll) }
	for _, mib := range []int64{64, 16} {
		one(mib, 0, 0, wide)
		one(mib, 0, 0, "push-host:132:1024:0")
		one(mib, 0, 0, "few:8:0:0")
		for _, u := range tiles {
			for _, p := range []int64{0, 125, 250, 375, 500, 700, 1000} {
				one(mib, p, 0, bulk(8, u))
			}
		}
		for _, algo := range []string{"move-sum-host:132:1024:2", "move-pull:64:512:4", "move-few:8:0:0", "move-few:16:0:0"} {
			one(mib, 0, 0, algo)
		}
		for _, p := range []int64{0, 250, 500, 750, 1000} {
			one(mib, p, 0, fmt.Sprintf("move-sum-bulk:8:0:%d", tiles[0]))
		}
		for _, p := range []int64{0, 250, 500} {
			for _, h := range []int64{60, 120, 180} {
				one(mib, p, h, bulk(8, tiles[0]))
			}
		}
		for _, b := range []int{4, 6, 12, 16, 32} {
			one(mib, 0, 0, fmt.Sprintf("few:%d:0:0", b))
			for _, p := range []int64{0, 250, 500} {
				one(mib, p, 0, bulk(b, tiles[0]))
			}
		}
	}
}

// scatter is time of a reduce_scatter of so many bytes on each rank.
func (s *reduceSweeper) scatter(tune device.Tuning, bytes int64) (float64, error) {
	c := &device.Collective{Op: ir.OpReduceScatter, Red: ir.Sum}
	block := bytes / int64(s.ranks)
	for r := range s.ranks {
		c.Parts = append(c.Parts, device.Part{In: s.view(s.in[r], bytes), Out: s.view(s.out[r], block), Reads: true, Writes: true})
		s.out[r].(device.Poisoner).Poison(0, bytes)
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
	us, err := s.chain(8, func() error {
		for r, l := range launches {
			if err := s.streams[r].Launch(l); err != nil {
				return err
			}
		}
		return nil
	})
	for r := 0; err == nil && r < s.ranks; r++ {
		got := make([]byte, block)
		if err = errors.Join(s.streams[r].Download(got, s.view(s.out[r], block)), s.w.Sync(s.Context())); err == nil && !slices.Equal(got, s.want[int64(r)*block:int64(r+1)*block]) {
			err = fmt.Errorf("rank %d has another sum", r)
		}
	}
	return us, err
}
