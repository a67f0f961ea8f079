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

// bulkScattered is bulkPushed of a reduce_scatter.
var bulkScattered = func(members int) int64 { return 500 }

// bulk is for what few blocks' engines move.
func (t *team) bulk(tune device.Tuning, r *kernels.AllReduce) error {
	shareOut(r, int64(len(t.members)))
	return t.bulked(tune, r, bulkPushed(len(t.members)), bulkHosted(len(t.members)))
}

// bulkSum is a reduce_scatter by the same: its blocks are as those of pushSum.
type bulkSum struct{}

func (bulkSum) supports(t *team, tune device.Tuning, c *collective) error {
	if err := (pushSum{}).supports(t, tune, c); err != nil || c.empty() {
		return err
	}
	return t.bulkFits(tune)
}

func (bulkSum) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	r, err := pushSum{}.request(t, tune, c)
	if err != nil {
		return nil, err
	}
	r.Kind, r.Group = kernels.AllReduceSumBulk, 0
	if err := t.bulked(tune, r, bulkScattered(len(t.members)), 0); err != nil {
		return nil, err
	}
	return t.meeting(r)
}

// bulked completes r, of whose shares so many thousandths are pushed and those of the
// results of so many go by way of host memory.
func (t *team) bulked(tune device.Tuning, r *kernels.AllReduce, pushed, hosted int64) error {
	members := int64(len(t.members))
	r.Threads, r.Unroll = kernels.BulkThreads, bulkUnroll(tune, len(t.members))
	tune.Blocks = cmp.Or(tune.Blocks, 8)
	tile := kernels.BulkTile(r.Unroll)
	r.Blocks = t.grid(tune, teamThreads, ceil(r.Share, tile))
	r.Split, r.Writers = bulkParts(r, pushed, hosted)
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
func bulkParts(r *kernels.AllReduce, pushed, hosted int64) (split, writers int64) {
	members, blocks := int64(len(r.In)), int64(r.Blocks)
	tiles := max(0, min(r.Share, r.Count*r.DType.Size()/16-(members-1)*r.Share)/kernels.BulkTile(r.Unroll))
	split = tiles * pushed / 1000 / blocks * blocks
	return split, min((tiles-split)/2, tiles*hosted/1000) / blocks * blocks
}
