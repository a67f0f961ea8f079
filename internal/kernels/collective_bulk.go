package kernels

import "fmt"

// Threads of a block of AllReduceBulk: bulkAdding that add up, and those that move.
const (
	BulkThreads = bulkAdding + bulkAside
	bulkAdding  = 256
	bulkAside   = 96
)

// bulkSlots is how many tiles a block has under way of what it pushes, bulkTold how
// many bytes it tells of at once.
const (
	bulkSlots = 4
	bulkTold  = 32 << 10
)

// BulkTile is how many packs of 16 bytes a tile of AllReduceBulk has.
func BulkTile(unroll int) int64 { return int64(unroll) * bulkAdding }

// BulkStages is how many stages, a tile of each member, a block's shared memory of up
// to 227 KiB has room for. It takes 2 or more.
func BulkStages(members, unroll int) int {
	tile := 16 * int(BulkTile(unroll))
	return min(8, (224<<10-bulkSlots*tile)/(members*tile))
}

// BulkTold is how many tiles for each other member a block of AllReduceBulk tells of
// at once.
func BulkTold(members, unroll int) int64 {
	return max(1, bulkTold/(16*BulkTile(unroll)*int64(members-1)))
}

// bulk is the launch of r by reduceBulk of src/collective_bulk.cuh.
func (r AllReduce) bulk() Meeting {
	members, tile, stages, told := len(r.In), 16*int(BulkTile(r.Unroll)), BulkStages(len(r.In), r.Unroll), BulkTold(len(r.In), r.Unroll)
	gates := (8*(3*stages+2*bulkSlots) + 127) / 128 * 128
	return Meeting{
		File: "collective_bulk", Upon: []string{"collective_reduce"}, Args: "ReduceArgs",
		Body:   fmt.Sprintf("reduceBulk<%s, %s, %d, %d, %d, %d, %d, %d, %t>", r.red(), ctype(r.DType), members, tile, stages, bulkSlots, told, bulkAdding, r.Kind == AllReduceBulk),
		Symbol: symbol("reduce_bulk", r.Red.String(), fmt.Sprintf("%s_%s_%d_%d", r.Kind, r.DType, members, r.Unroll)),
		Words:  r.words(), Blocks: r.Blocks, Threads: BulkThreads, Shared: gates + (stages*members+bulkSlots)*tile,
	}
}

// BulkSlots is how many flags AllReduceBulk takes for each pair of members.
func (r *AllReduce) BulkSlots() int64 {
	blocks := int64(r.Blocks)
	return ceil(r.Split/blocks, BulkTold(len(r.In), r.Unroll))*blocks + r.Writers + 2*BlocksMost
}
