package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Scheduled is one member's launch of a schedule of another tool: ScheduleArgs of src/collective_schedule.cuh. The
// kernel's source contains the steps of all members.
type Scheduled struct {
	*device.Schedule
	DType      ir.DType
	At         [device.ScheduleAreas][]nvlib.Ptr // by area of the schedule and by member: address of the memory
	PacketHalf int64                             // size in bytes of one of the two halves of packet memory
	Words      []nvlib.Ptr                       // by member: address of the words that members wait for, in two halves
	WordHalf   int64                             // size in bytes of one half of Words, at least ScheduleWords
	Cell       int64                             // size in bytes of a cell (a unit of the operands), a multiple of 16
	Threads    int
}

// ScheduleWords returns the size in bytes of one of the two halves of the words that members of a schedule wait for.
func ScheduleWords(s *device.Schedule) int64 {
	return int64(2*TeamMost*BlocksMost*4 + 8*s.Counters)
}

// Meeting returns the launch on the member rank.
func (s Scheduled) Meeting(rank int) Meeting {
	text := s.list()
	sum := sha256.Sum256([]byte(text))
	element := "u32" // an unsigned type for bits that are only moved
	if s.Op == ir.OpAllReduce || s.Op == ir.OpReduceScatter {
		element = ctype(s.DType)
	}
	name := fmt.Sprintf("schedule_%s_%s", hex.EncodeToString(sum[:8]), element)
	var w words
	for _, at := range s.At {
		w.addrs(at)
	}
	w.ints(s.PacketHalf)
	w.addrs(s.Words)
	closes := int64(0)
	if s.Closes {
		closes = 1
	}
	w.ints(s.WordHalf, s.Cell, closes)
	return Meeting{
		File: "collective_schedule", Args: "ScheduleArgs",
		Own: fmt.Sprintf("static __device__ const u32 %s_list[] = {%s};\nstruct %s { DEV const u32* list() { return %s_list; } };\n",
			name, text, name, name),
		Body:   fmt.Sprintf("runSchedule<%s, %s>", element, name),
		Symbol: symbol(name),
		Words:  w, Blocks: s.Blocks, Threads: s.Threads,
	}
}

// These constants are the kinds of steps in the kernel's source; 0 marks the end of a list.
const (
	stepSync = 1 + iota
	stepRaise
	stepAwait
	stepMove
)

// list returns the steps of the schedule in the form that the kernel reads: the index of the first step of each block,
// followed by all steps.
func (s Scheduled) list() string {
	begins, steps := make([]uint32, s.Members*s.Blocks), []uint32(nil)
	at := func() uint32 { return uint32(len(begins) + len(steps)) }
	for m := range s.Members {
		for b := range s.Blocks {
			begins[m*s.Blocks+b] = at()
			if b < len(s.Steps[m]) {
				for i := range s.Steps[m][b] {
					steps = appendStep(steps, &s.Steps[m][b][i])
				}
			}
			steps = append(steps, 0)
		}
	}
	var text strings.Builder
	for i, w := range append(begins, steps...) {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, "%d", w)
	}
	return text.String()
}

func appendStep(list []uint32, st *device.ScheduleStep) []uint32 {
	switch st.Kind {
	case device.ScheduleSync:
		return append(list, stepSync)
	case device.ScheduleRaise:
		return append(list, uint32(stepRaise|st.Thread<<8), uint32(st.Member), uint32(st.Counter), uint32(st.Value))
	case device.ScheduleAwait:
		return append(list, uint32(stepAwait|st.Thread<<8), uint32(st.Member), uint32(st.Counter), uint32(st.Value))
	}
	packed := 0
	if st.Packed {
		packed = 1
	}
	list = append(list, uint32(stepMove|packed<<8|len(st.From)<<16|len(st.To)<<24), uint32(st.Cells))
	for _, operands := range [][]device.ScheduleSpan{st.From, st.To} {
		for _, sp := range operands {
			w := uint32(sp.Area) | uint32(sp.Member)<<8
			if sp.Raw {
				w |= 1 << 16
			}
			list = append(list, w, uint32(sp.Cell))
		}
	}
	return list
}
