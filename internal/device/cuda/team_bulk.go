package cuda

import (
	"cmp"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// bulkPushed is how much of a share, in thousandths, is pushed to its owner: the rest
// is read.
var bulkPushed = func(members int) int64 {
	if members == 2 {
		return 250
	}
	return 350
}

// bulkUnroll makes tiles as large as leaves room for several stages.
func bulkUnroll(tune device.Tuning, members int) int {
	unroll := 1
	switch {
	case members == 2:
		unroll = 4
	case members <= 4:
		unroll = 2
	}
	return cmp.Or(tune.Unroll, unroll)
}

// bulkFits refuses what there is no engine or no shared memory for.
func (t *team) bulkFits(tune device.Tuning) error {
	for _, m := range t.members {
		if arch := strings.TrimPrefix(m.dev.site.gpu.arch, "sm_"); len(arch) < 2 || len(strings.TrimRight(arch, "af")) == 2 && arch < "90" {
			return fmt.Errorf("%w: GPU %d, %s, has no bulk copies", device.ErrUnsupported, m.dev.site.gpu.dev, m.dev.site.gpu.arch)
		}
	}
	unroll := bulkUnroll(tune, len(t.members))
	switch {
	case tune.Threads != 0 && tune.Threads != kernels.BulkThreads:
		return fmt.Errorf("%w: %d threads; it has %d", device.ErrUnsupported, tune.Threads, kernels.BulkThreads)
	case kernels.BulkStages(len(t.members), unroll) < 2:
		return fmt.Errorf("%w: tiles of unroll %d take more shared memory than there is", device.ErrUnsupported, unroll)
	}
	return nil
}

// bulk is for what few blocks' engines move.
func (t *team) bulk(tune device.Tuning, r *kernels.AllReduce) error {
	members := int64(len(t.members))
	shareOut(r, members)
	r.Threads, r.Unroll = kernels.BulkThreads, bulkUnroll(tune, len(t.members))
	tune.Blocks = cmp.Or(tune.Blocks, 8)
	tile := kernels.BulkTile(r.Unroll)
	r.Blocks = t.grid(tune, teamThreads, ceil(r.Share, tile))
	r.Split = bulkSplit(r, members, bulkPushed(len(t.members)))
	if r.Split > 0 {
		area, err := t.reserve("staging", members*r.Split*tile*16)
		if err != nil {
			return err
		}
		r.Data = area.at
	}
	return t.flagged(r, r.BulkSlots())
}

// bulkSplit is how many tiles of each share are pushed: all that are have to be whole,
// those of the last member too, whose share may be less than others'.
func bulkSplit(r *kernels.AllReduce, members, permille int64) int64 {
	tile := kernels.BulkTile(r.Unroll)
	last := min(r.Share, r.Count*r.DType.Size()/16-(members-1)*r.Share)
	return max(0, min(last/tile, r.Share/tile*permille/1000))
}
