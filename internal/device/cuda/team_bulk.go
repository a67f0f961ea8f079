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

// bulkHosted is how much of its results, in thousandths, go by way of host memory.
var bulkHosted = func(members int) int64 { return 0 }

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
	r.Split, r.Writers = bulkParts(r)
	if r.Split > 0 {
		area, err := t.reserve("staging", members*r.Split*tile*16)
		if err != nil {
			return err
		}
		r.Data = area.at
	}
	if r.Writers > 0 {
		var err error
		if r.Host, err = t.hostMemory(r.Writers * tile * 16); err != nil {
			return err
		}
	}
	return t.flagged(r, r.BulkSlots())
}

// bulkParts is how many tiles of each share are pushed, and the results of how many go
// by way of host memory: as many for each block, of those that are whole on the last
// member too, whose share may be less than others'.
func bulkParts(r *kernels.AllReduce) (pushed, hosted int64) {
	members, blocks := int64(len(r.In)), int64(r.Blocks)
	tiles := max(0, min(r.Share, r.Count*r.DType.Size()/16-(members-1)*r.Share)/kernels.BulkTile(r.Unroll))
	pushed = tiles * bulkPushed(len(r.In)) / 1000 / blocks * blocks
	hosted = min((tiles-pushed)/2, tiles*bulkHosted(len(r.In))/1000) / blocks * blocks
	return pushed, hosted
}
