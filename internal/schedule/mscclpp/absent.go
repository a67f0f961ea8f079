package mscclpp

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/schedule"
)

// complete returns an error that names the first absent key that the plan needs. Otherwise an absent number would count
// as 0, and an absent name as an empty one. After complete has returned nil, the pointers that it checks are not nil.
func (f *File) complete() error {
	switch {
	case f.Collective == "":
		return fmt.Errorf("the plan lacks the key collective")
	case f.InPlace == nil && collectives[f.Collective] != schedule.Undefined &&
		collectives[f.Collective] != schedule.SendRecv:
		return fmt.Errorf("the plan lacks the key inplace: the result of %s depends on it", f.Collective)
	}
	for r := range f.GPUs {
		if err := f.GPUs[r].complete(r); err != nil {
			return err
		}
	}
	return nil
}

func (g *GPU) complete(r int) error {
	switch {
	case g.ID == nil:
		return fmt.Errorf("gpus[%d] lacks the key id", r)
	case g.InputChunks == nil:
		return fmt.Errorf("gpus[%d] lacks the key input_chunks", r)
	case g.OutputChunks == nil:
		return fmt.Errorf("gpus[%d] lacks the key output_chunks", r)
	case g.Threadblocks == nil:
		return fmt.Errorf("gpus[%d] lacks the key threadblocks", r)
	}
	for i := range g.Channels {
		if lacks := g.Channels[i].lacks(); lacks != "" {
			return fmt.Errorf("channels[%d] of rank %d %s", i, r, lacks)
		}
	}
	for i, b := range g.RemoteBuffers {
		switch {
		case b.Rank == nil:
			return fmt.Errorf("remote_buffers[%d] of rank %d lacks the key rank", i, r)
		case b.Type == "":
			return fmt.Errorf("remote_buffers[%d] of rank %d lacks the key type", i, r)
		}
	}
	for i, s := range g.Semaphores {
		if s.Init == nil {
			return fmt.Errorf("semaphores[%d] of rank %d lacks the key init_value", i, r)
		}
	}
	for t := range g.Threadblocks {
		b := &g.Threadblocks[t]
		where := fmt.Sprintf("threadblocks[%d] of rank %d", t, r)
		switch {
		case b.ID == nil:
			return fmt.Errorf("%s lacks the key id", where)
		case b.Ops == nil:
			return fmt.Errorf("%s lacks the key ops", where)
		case len(b.Channels) > 0 && g.Channels == nil:
			return fmt.Errorf("%s has channels, but gpus[%d] lacks the key channels", where, r)
		case len(b.Remote) > 0 && g.RemoteBuffers == nil:
			return fmt.Errorf("%s has remote_buffer_refs, but gpus[%d] lacks the key remote_buffers", where, r)
		}
		for i, c := range b.Channels {
			switch {
			case !slices.Contains(channelTypes, c.Type):
				return fmt.Errorf("channels[%d] of %s %s", i, where, unknownType("channel_type", c.Type))
			case c.IDs == nil:
				return fmt.Errorf("channels[%d] of %s lacks the key channel_ids", i, where)
			}
		}
		for i, ref := range b.Remote {
			switch {
			case !slices.Contains(channelTypes, ref.Type):
				return fmt.Errorf("remote_buffer_refs[%d] of %s %s", i, where,
					unknownType("access_channel_type", ref.Type))
			case ref.IDs == nil:
				return fmt.Errorf("remote_buffer_refs[%d] of %s lacks the key remote_buffer_ids", i, where)
			}
		}
		if err := g.completeOps(b, b.Ops, schedule.Place{Rank: r, Block: t}, false); err != nil {
			return err
		}
	}
	return nil
}

var channelTypes = []string{"memory", "port", "switch"}

// unknownType describes the error in a key that has to hold a channel type: it is absent, or its value is unknown.
func unknownType(key, value string) string {
	if value == "" {
		return "lacks the key " + key
	}
	return fmt.Sprintf("has the unknown %s %.40q: the types are memory, port and switch", key, value)
}

// lacks describes the first key that is absent in a channel, or whose value is unknown; "" if there is none.
func (c *Channel) lacks() string {
	switch {
	case !slices.Contains(channelTypes, c.Type):
		return unknownType("channel_type", c.Type)
	case c.Type == "switch" && c.Groups == nil:
		return "lacks the key rank_groups"
	case c.Type != "switch" && c.ConnectedTo == nil:
		return "lacks the key connected_to"
	}
	return ""
}

// completeOps returns an error if an operation of a thread block lacks a key, or if the block or the rank lacks one
// that the operation needs. inner is set for the operations of a pipeline.
func (g *GPU) completeOps(b *Threadblock, ops []Op, at schedule.Place, inner bool) error {
	for i := range ops {
		o := &ops[i]
		if at.Name = o.Name; inner {
			at.Inner = i + 1
		} else {
			at.Index = i
		}
		if key := o.absent(); key != "" {
			return fmt.Errorf("%s: it lacks the key %s", at, key)
		}
		switch {
		case len(o.Semaphores) > 0 && g.Semaphores == nil:
			return fmt.Errorf("%s: it has semaphore_ids, but gpus[%d] lacks the key semaphores", at, at.Rank)
		case len(o.ChannelIDs) > 0 && b.Channels == nil:
			return fmt.Errorf("%s: it has channel_ids, but the thread block lacks the key channels", at)
		}
		for _, list := range []struct {
			key    string
			chunks []Chunk
		}{{"src_buff", o.Src}, {"dst_buff", o.Dst}} {
			for k := range list.chunks {
				if key := list.chunks[k].absent(); key != "" {
					return fmt.Errorf("%s: %s[%d] lacks the key %s", at, list.key, k, key)
				}
				switch c := &list.chunks[k]; {
				case c.Buffer != nil && b.Remote == nil:
					return fmt.Errorf("%s: %s[%d] is remote, but the thread block lacks the key remote_buffer_refs", at,
						list.key, k)
				case c.Switch != nil && b.Channels == nil:
					return fmt.Errorf("%s: %s[%d] names a switch channel, but the thread block lacks the key channels",
						at, list.key, k)
				}
			}
		}
		if !inner {
			if err := g.completeOps(b, o.Ops, at, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// operandKeys lists, by the name of an operation, the keys that it needs in addition to its operands' own keys.
var operandKeys = map[string][]string{
	"barrier": {"barrier_id", "num_threadblocks"},
	"signal":  {"channel_type", "channel_ids"}, "wait": {"channel_type", "channel_ids"},
	"rlxsignal": {"channel_type", "channel_ids"}, "rlxwait": {"channel_type", "channel_ids"},
	"flush":       {"channel_type", "channel_ids"},
	"sem_release": {"semaphore_ids"}, "sem_acquire": {"semaphore_ids"},
	"pipeline": {"iter_context", "ops"},
	"copy":     {"src_buff", "dst_buff"}, "cpkt": {"src_buff", "dst_buff"}, "upkt": {"src_buff", "dst_buff"},
	"put": {"src_buff", "dst_buff", "channel_type"}, "get": {"src_buff", "dst_buff", "channel_type"},
	"ppkt": {"src_buff", "dst_buff", "channel_type"}, "rppkt": {"src_buff", "dst_buff", "channel_type"},
	"pws":  {"src_buff", "dst_buff", "channel_type", "channel_ids"},
	"pwsf": {"src_buff", "dst_buff", "channel_type", "channel_ids"},
	"re":   {"src_buff", "dst_buff", "reduce_op"}, "repkt": {"src_buff", "dst_buff", "reduce_op"},
	"recpkt":  {"src_buff", "dst_buff", "reduce_op"},
	"res":     {"src_buff", "dst_buff", "reduce_op", "channel_type"},
	"rre":     {"src_buff", "dst_buff", "reduce_op", "channel_type"},
	"rres":    {"src_buff", "dst_buff", "reduce_op", "channel_type"},
	"respkt":  {"src_buff", "dst_buff", "reduce_op", "channel_type"},
	"recspkt": {"src_buff", "dst_buff", "reduce_op", "channel_type"},
	"glres":   {"src_buff", "dst_buff"}, "gstore": {"src_buff", "dst_buff"}, "gstorepkt": {"src_buff", "dst_buff"},
	"glre": {"channel_ids", "buffer_type", "buffer_offset", "size", "dst_chunk"},
}

// absent returns the first key that the operation needs and lacks, or "". An empty list counts as absent.
func (o *Op) absent() string {
	if o.Name == "" {
		return "name"
	}
	has := map[string]bool{"barrier_id": o.BarrierID != nil, "num_threadblocks": o.Blocks != nil,
		"channel_type": o.ChannelType != "",
		"channel_ids":  len(o.ChannelIDs) > 0, "semaphore_ids": len(o.Semaphores) > 0,
		"iter_context": o.Iteration != nil,
		"ops":          len(o.Ops) > 0, "src_buff": len(o.Src) > 0, "dst_buff": len(o.Dst) > 0,
		"reduce_op":   o.ReduceOp != "",
		"buffer_type": o.BufferType != "", "buffer_offset": o.BufferOffset != nil, "size": o.Size != nil,
		"dst_chunk": o.DstChunk != nil}
	for _, key := range operandKeys[o.Name] {
		if !has[key] {
			return key
		}
	}
	if o.ChannelType == "port" && len(o.Dst) > 0 && len(o.ChannelIDs) == 0 {
		return "channel_ids"
	}
	switch it, s := o.Iteration, o.Slice; {
	case it != nil && it.Chunks == nil:
		return "num_chunks of iter_context"
	case it != nil && it.Unit == nil:
		return "unit_size of iter_context"
	case s != nil && s.ID == nil:
		return "tb_id of tbg_info"
	case s != nil && s.Size == nil:
		return "tbg_size of tbg_info"
	case o.DstChunk != nil && o.DstChunk.absent() != "":
		return o.DstChunk.absent() + " of dst_chunk"
	}
	return ""
}

// absent returns the first key that the operand needs and lacks, or "".
func (c *Chunk) absent() string {
	switch {
	case c.Type == "" && c.Buffer == nil && c.Switch == nil:
		return "type, buffer_id or switch_channel_id"
	case c.Index == nil:
		return "index"
	case c.Size == nil:
		return "size"
	}
	return ""
}
