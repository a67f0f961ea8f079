package cuda

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
)

// TestSumHost checks which reduce_scatters transfer a part through host memory, and how those are launched that have
// too few thread blocks for that.
func TestSumHost(t *testing.T) {
	for _, x := range []struct {
		ranks int   // on four GPUs
		rows  int64 // of 128 bytes
		axis  int
		off   int64
		tune  device.Tuning
		Want  string // name of the launched kernel, or the reason for a refusal
	}{
		{4, 1 << 18, 0, 0, device.Tuning{}, "reduceScatterHost<RedSum, bf16, 4, 2>"},
		{4, 1 << 18, 0, 0, device.Tuning{Blocks: 108, Unroll: 4}, "reduceScatterHost<RedSum, bf16, 4, 2>"},
		{4, 1 << 18, 0, 0, device.Tuning{Blocks: 107, Unroll: 1}, "reduceScatterPush<RedSum, bf16, 4, 1>"},
		{8, 1 << 18, 0, 0, device.Tuning{}, "reduceScatterPush<RedSum, bf16, 8, 2>"}, // two members share a GPU
		{4, 1 << 18, 0, 8, device.Tuning{}, "does not begin at a multiple"},
		{4, 1 << 18, 1, 0, device.Tuning{}, "gaps"},
		{4, 1 << 11, 0, 0, device.Tuning{}, "blocks of 65536 bytes are not worth cutting"},
		{4, 1 << 11, 0, 0, device.Tuning{Threads: 64}, "reduceScatterHost<RedSum, bf16, 4, 2>"},
		{4, 1 << 18, 0, 0, device.Tuning{Unroll: 16}, "unroll 16"},
	} {
		t.Run(fmt.Sprintf("%d ranks, %d rows, %+v", x.ranks, x.rows, x.tune), func(t *testing.T) { // frees its memory
			l, w, tm := noted(t, 4, x.ranks)
			x.tune.Algo = "move-sum-host"
			c := scattered(t, w, x.rows, x.axis)
			if x.off > 0 { // a result that is not aligned to 16 bytes
				c.Parts[1].Out.Mem, c.Parts[1].Out.Off = scattered(t, w, x.rows, x.axis).Parts[1].In.Mem, x.off
			}
			launches, err := tm.Prepare(x.tune, c)
			if err != nil {
				if !strings.Contains(err.Error(), x.Want) {
					t.Errorf("%+v: %v", x, err)
				}
				return
			}
			for i, m := range l.got {
				if m.Body != x.Want || m.Blocks != l.got[0].Blocks || m.Team.Rank != i {
					t.Errorf("%+v: member %d launches %s with %d blocks", x, i, m.Body, m.Blocks)
				}
			}
			for _, y := range launches {
				y.Release()
			}
		})
	}
}
