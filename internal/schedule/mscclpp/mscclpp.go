// Package mscclpp reads and writes the execution plans of MSCCL++, which are JSON files.
package mscclpp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/jsontext"
	"hocket.example/hocket/internal/schedule"
)

// File is an execution plan as the JSON file describes it. Numbers whose absence must be noticed, because 0 is a valid
// value, are pointers: they are nil if the file lacks their key.
type File struct {
	Name            string  `json:"name"`
	Collective      string  `json:"collective"`
	Protocol        string  `json:"protocol"`
	InPlace         *bool   `json:"inplace,omitempty"`
	ReuseResources  bool    `json:"reuse_resources"`
	GPUs            []GPU   `json:"gpus"`
	ThreadsPerBlock *int    `json:"num_threads_per_block,omitempty"`
	DoubleScratch   bool    `json:"use_double_scratch_buffer"`
	Alignment       *int    `json:"buffer_alignment,omitempty"`
	MinMessage      uint64  `json:"min_message_size"`
	MaxMessage      *uint64 `json:"max_message_size,omitempty"`
}

// GPU describes the part of a plan that one rank executes.
type GPU struct {
	ID            *int           `json:"id,omitempty"`
	InputChunks   *int           `json:"input_chunks,omitempty"`
	OutputChunks  *int           `json:"output_chunks,omitempty"`
	ScratchChunks *int           `json:"scratch_chunks,omitempty"`
	Threadblocks  []Threadblock  `json:"threadblocks"`
	Channels      []Channel      `json:"channels"`
	RemoteBuffers []RemoteBuffer `json:"remote_buffers"`
	Semaphores    []Semaphore    `json:"semaphores"`
}

// Channel lists a rank's channels of one type. For a switch it lists the ranks of each group; for the other types it
// lists the peer of each channel.
type Channel struct {
	Type        string      `json:"channel_type"`
	ConnectedTo []int       `json:"connected_to,omitempty"`
	BufferType  string      `json:"buffer_type,omitempty"`
	Buff        string      `json:"buff,omitempty"` // name of buffer_type in older plans
	Groups      []RankGroup `json:"rank_groups,omitempty"`
}

// RankGroup lists the ranks of a switch channel.
type RankGroup struct {
	Size  int   `json:"size"`
	Ranks []int `json:"ranks"`
}

// RemoteBuffer describes a buffer of another rank.
type RemoteBuffer struct {
	Rank   *int     `json:"rank,omitempty"`
	Type   string   `json:"type"`
	Access []string `json:"access_channel_types"`
}

// Semaphore describes one of a rank's semaphores.
type Semaphore struct {
	Init *int `json:"init_value,omitempty"`
}

// Threadblock holds the list of operations of one thread block.
type Threadblock struct {
	ID       *int        `json:"id,omitempty"`
	Ops      []Op        `json:"ops"`
	Channels []ChannelID `json:"channels"`
	Remote   []RemoteRef `json:"remote_buffer_refs,omitempty"`
}

// ChannelID lists a thread block's channels of one type, by their numbers in the rank's list.
type ChannelID struct {
	Type string `json:"channel_type"`
	IDs  []int  `json:"channel_ids"`
	Buff string `json:"buff,omitempty"`
}

// RemoteRef lists the remote buffers that a thread block accesses through channels of one type.
type RemoteRef struct {
	Type string `json:"access_channel_type"`
	IDs  []int  `json:"remote_buffer_ids"`
}

// Op is an operation of a thread block.
type Op struct {
	Name         string     `json:"name"`
	Src          []Chunk    `json:"src_buff,omitempty"`
	Dst          []Chunk    `json:"dst_buff,omitempty"`
	ChannelIDs   []int      `json:"channel_ids,omitempty"`
	ChannelType  string     `json:"channel_type,omitempty"`
	ReduceOp     string     `json:"reduce_op,omitempty"`
	Slice        *Slice     `json:"tbg_info,omitempty"`
	BarrierID    *int       `json:"barrier_id,omitempty"`
	Blocks       *int       `json:"num_threadblocks,omitempty"`
	Semaphores   []int      `json:"semaphore_ids,omitempty"`
	Iteration    *Iteration `json:"iter_context,omitempty"`
	Ops          []Op       `json:"ops,omitempty"`
	BufferType   string     `json:"buffer_type,omitempty"`
	BufferOffset *int       `json:"buffer_offset,omitempty"`
	Size         *int       `json:"size,omitempty"`
	DstChunk     *Chunk     `json:"dst_chunk,omitempty"`
}

// Chunk describes an operand. A buffer of the rank itself is given by its type, a remote buffer by its id, and a buffer
// of a switch channel by the channel.
type Chunk struct {
	Rank   *int   `json:"rank,omitempty"`
	Type   string `json:"type,omitempty"`
	Buffer *int   `json:"buffer_id,omitempty"`
	Switch *int   `json:"switch_channel_id,omitempty"`
	Index  *int   `json:"index,omitempty"`
	Size   *int   `json:"size,omitempty"`
}

// Slice selects the part of each operand that the thread block processes, out of several equal parts.
type Slice struct {
	ID   *int `json:"tb_id,omitempty"`
	Size *int `json:"tbg_size,omitempty"`
}

// Iteration describes the pieces in which a pipeline processes its operands.
type Iteration struct {
	Unit   *int `json:"unit_size,omitempty"`
	Chunks *int `json:"num_chunks,omitempty"`
}

// These constants limit the size of the plans that Parse accepts.
const (
	maxRanks  = 1024
	maxChunks = 1 << 20
	maxParts  = 1 << 10
	// maxThreads is the largest number of threads of a CUDA block.
	maxThreads = 1024
)

// IsPlan reports whether text looks like an execution plan.
func IsPlan(text string) bool {
	return strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{")
}

// Parse reads an execution plan. Errors give the line and the column.
func Parse(text []byte) (*File, error) {
	f := &File{}
	if err := jsontext.Decode(text, f); err != nil { // an unknown key could change the plan's meaning
		return nil, fmt.Errorf("execution plan, %w", err)
	}
	if len(f.GPUs) == 0 {
		return nil, fmt.Errorf("the plan has no gpus: is it an execution plan of MSCCL++?")
	}
	if len(f.GPUs) > maxRanks {
		return nil, fmt.Errorf("%d gpus, more than %d", len(f.GPUs), maxRanks)
	}
	if key, err := f.impossible(); err != nil {
		return nil, fmt.Errorf("execution plan, %w", jsontext.AtKey(text, key, err))
	}
	return f, nil
}

// impossible returns a key of the plan whose value no launch can have, with the reason. If there is no such key, the
// error is nil.
func (f *File) impossible() (key string, err error) {
	switch {
	case f.ThreadsPerBlock != nil && (*f.ThreadsPerBlock < 1 || *f.ThreadsPerBlock > maxThreads):
		return "num_threads_per_block", fmt.Errorf("it is %d, want 1 to %d", *f.ThreadsPerBlock, maxThreads)
	case f.Alignment != nil && *f.Alignment < 1:
		return "buffer_alignment", fmt.Errorf("it is %d, want at least 1 byte", *f.Alignment)
	case f.MaxMessage != nil && f.MinMessage > *f.MaxMessage:
		return "max_message_size", fmt.Errorf("it is %d, less than min_message_size, which is %d", *f.MaxMessage,
			f.MinMessage)
	}
	return "", nil
}

// inPlace reports whether the input and the output share memory.
func (f *File) inPlace() bool { return f.InPlace != nil && *f.InPlace }

// scratch returns the number of chunks of the rank's scratch memory.
func (g *GPU) scratch() int {
	if g.ScratchChunks == nil {
		return 0
	}
	return *g.ScratchChunks
}

// Encode writes a plan in the format of MSCCL++'s own tools, with an indentation of one blank.
func (f *File) Encode() ([]byte, error) {
	text, err := json.MarshalIndent(f, "", " ")
	return append(text, '\n'), err
}

// Clone returns a copy of f whose lists of operations can be changed without changing the lists of f.
func (f *File) Clone() *File {
	out := *f
	out.GPUs = slices.Clone(f.GPUs)
	for i := range out.GPUs {
		g := &out.GPUs[i]
		g.Threadblocks = slices.Clone(g.Threadblocks)
		g.Semaphores = slices.Clone(g.Semaphores)
		for j := range g.Threadblocks {
			g.Threadblocks[j].Ops = cloneOps(g.Threadblocks[j].Ops)
		}
	}
	return &out
}

func cloneOps(ops []Op) []Op {
	out := slices.Clone(ops)
	for i := range out {
		if out[i].Ops != nil {
			out[i].Ops = cloneOps(out[i].Ops)
		}
	}
	return out
}

var collectives = map[string]schedule.Collective{
	"allreduce": schedule.AllReduce, "allgather": schedule.AllGather, "reducescatter": schedule.ReduceScatter,
	"alltoall": schedule.AllToAll, "broadcast": schedule.Broadcast, "sendrecv": schedule.SendRecv,
	"test": schedule.Undefined, "custom": schedule.Undefined,
}
