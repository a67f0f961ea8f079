package footprint

import (
	"bufio"
	"encoding/binary"
	"io"
	"path/filepath"

	"hocket.example/hocket/internal/plan"
)

// WriteViz writes a plan as a snapshot for PyTorch's memory viewer (pytorch.org/memory_viz). Each
// rank is a device, its arena is one segment, and time counts commands.
func WriteViz(w io.Writer, p *plan.Plan) error {
	k := &pickler{w: bufio.NewWriter(w)}
	k.bytes(0x80, 2)
	var segments, traces []any
	for r := range p.Ranks {
		s, t := vizRank(p, int32(r))
		segments, traces = append(segments, s), append(traces, t)
	}
	k.value(fields{
		{"segments", segments}, {"device_traces", traces}, {"allocator_settings",
			fields{}}, {"external_annotations", []any{}},
	})
	k.bytes('.')
	return k.w.Flush()
}

// vizBase is the address of a rank's arena in the viewer.
func vizBase(rank int32) int64 { return int64(rank+1) << 44 }

func vizRank(p *plan.Plan, rank int32) (segment fields, events []any) {
	base := vizBase(rank)
	lives, ops := Lives(p, rank)
	frames := func(line int32, name string) []any {
		return []any{fields{{"filename", filepath.Base(p.Program)}, {"line", int64(line)}, {"name", name}}}
	}
	event := func(action string, addr, size, at int64, frames []any) {
		events = append(events, fields{
			{"action", action}, {"addr", addr}, {"size", size}, {"stream", int64(0)}, {"time_us",
				at}, {"frames", frames},
		})
	}
	event("segment_alloc", base, p.ArenaBytes, 0, frames(0, p.Func))
	begins, ends := make([][]int, len(ops)+1), make([][]int, len(ops)+1)
	for i, l := range lives {
		if l.Bytes == 0 {
			continue
		}
		begins[l.Begin] = append(begins[l.Begin], i)
		if l.Role != plan.RoleInput {
			ends[l.End] = append(ends[l.End], i)
		}
	}
	// The viewer requires times that increase from event to event.
	at := int64(0)
	all := func(which []int, action string, stack func(l *Life) []any) {
		for _, i := range which {
			l := &lives[i]
			at++
			event(action, base+l.Offset, plan.Aligned(l.Bytes), at, stack(l))
		}
	}
	for i := range begins {
		if i < len(ops) {
			at = max(at+1, int64(i)*1000)
		}
		all(begins[i], "alloc", func(l *Life) []any { return frames(l.Line, l.Name) })
		where := func(*Life) []any { return frames(ops[min(i, len(ops)-1)].Line, ops[min(i, len(ops)-1)].Text) }
		all(ends[i], "free_requested", where)
		all(ends[i], "free_completed", where)
	}
	// At the end of a run, only the parameters are live in the arena.
	var blocks []any
	free := int64(0)
	block := func(at, size int64, state string, frames []any) {
		blocks = append(blocks, fields{{"address", base + at}, {"size", size}, {"requested_size", size},
			{"state", state}, {"frames", frames}})
	}
	held := int64(0)
	for _, l := range lives {
		if l.Role != plan.RoleInput || l.Bytes == 0 {
			continue
		}
		if l.Offset > free {
			block(free, l.Offset-free, "inactive", []any{})
		}
		size := plan.Aligned(l.Bytes)
		block(l.Offset, size, "active_allocated", frames(l.Line, l.Name))
		free, held = l.Offset+size, held+size
	}
	if free < p.ArenaBytes {
		block(free, p.ArenaBytes-free, "inactive", []any{})
	}
	return fields{
		{"device", int64(rank)}, {"address", base}, {"total_size", p.ArenaBytes}, {"allocated_size", held},
		{"active_size", held}, {"requested_size", held}, {"stream", int64(0)}, {"segment_type", "large"},
		{"segment_pool_id", tuple{int64(0), int64(0)}}, {"is_expandable", false}, {"frames", frames(0,
			p.Func)}, {"blocks", blocks},
	}, events
}

// These types are written as Python values: fields as a dict with ordered keys, tuple as a tuple.
type (
	fields []field
	field  struct {
		key   string
		value any
	}
	tuple []any
)

// pickler writes plain data in pickle protocol 2. The buffered writer keeps the first error.
type pickler struct{ w *bufio.Writer }

func (k *pickler) bytes(b ...byte) { _, _ = k.w.Write(b) }

// batch is the maximum number of entries that one opcode adds. It is limited because the viewer passes these entries as
// the arguments of one call.
const batch = 500

func (k *pickler) value(v any) {
	switch v := v.(type) {
	case string:
		k.bytes(binary.LittleEndian.AppendUint32([]byte{'X'}, uint32(len(v)))...)
		_, _ = k.w.WriteString(v)
	case int64:
		if v == int64(int32(v)) {
			k.bytes(binary.LittleEndian.AppendUint32([]byte{'J'}, uint32(v))...)
			return
		}
		k.bytes(0x8a, 8)
		k.bytes(binary.LittleEndian.AppendUint64(nil, uint64(v))...)
	case bool:
		if v {
			k.bytes(0x88)
		} else {
			k.bytes(0x89)
		}
	case tuple:
		k.bytes('(')
		for _, x := range v {
			k.value(x)
		}
		k.bytes('t')
	case []any:
		k.bytes(']')
		for len(v) > 0 {
			n := min(len(v), batch)
			k.bytes('(')
			for _, x := range v[:n] {
				k.value(x)
			}
			k.bytes('e')
			v = v[n:]
		}
	case fields:
		k.bytes('}')
		if len(v) > 0 {
			k.bytes('(')
			for _, f := range v {
				k.value(f.key)
				k.value(f.value)
			}
			k.bytes('u')
		}
	}
}
