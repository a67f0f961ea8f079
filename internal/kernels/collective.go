package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"slices"

	"hocket.example/hocket/internal/nvlib"
)

// Team is what a kernel in which members of a team meet knows of the team: see
// src/collective.cuh. Each member has its own.
type Team struct {
	Rank    int         // the member's index
	Control []nvlib.Ptr // of each member, ControlBytes
	Abort   nvlib.Ptr   // a word of 8 bytes in host memory: not 0 ends every wait
	Record  nvlib.Ptr   // FaultBytes of host memory
	Timeout int64       // nanoseconds
	Tag     uint64      // comes with the record
}

// Limits of teams.
const (
	TeamMost   = 8   // members
	BlocksMost = 256 // blocks of a launch
	// RegionsMost is how many regions a member's control memory can name: one more whenever
	// a team's halves of some name grow, of which there are nine. Two never do, one has at most
	// 64 MiB; the others have twice as much each time, from 64 KiB to no more than 2 GiB.
	RegionsMost = 112
)

// Layout of control memory, which begins as zeros but for the epochs.
const (
	ControlBytes = 4*BlocksMost + 8 + 8 + 16*RegionsMost + 16
	// ControlEpochs is where the 32-bit words of BlocksMost blocks are, the
	// number of the last launch in each.
	ControlEpochs = 0
	// ControlBegun is where the 32-bit number of the launch begun last is.
	ControlBegun = 4*BlocksMost + 8
	// ControlRegions is where the 32-bit number of regions is, and behind it, for
	// each, its address and half its size, in words of 8 bytes.
	ControlRegions = ControlBegun + 4
	// FirstEpoch is what the words of the epochs begin with: not 0 or 1, after
	// which halves are cleared.
	FirstEpoch = 2
)

// words is the structure Team.
func (t Team) words() words {
	var w words
	w.ints(int64(len(t.Control)), int64(t.Rank))
	w.addrs(t.Control)
	w.addr(t.Abort, t.Record)
	w.ints(t.Timeout)
	w.bits(t.Tag)
	return w
}

// addrs appends an address for each member that a team can have.
func (w *words) addrs(list []nvlib.Ptr) {
	w.addr(list...)
	for range TeamMost - len(list) {
		w.addr(0)
	}
}

// Meeting is a launch of a kernel in which the members of a team meet. All
// members launch equal grids.
type Meeting struct {
	// File names the source in src, without its suffix; Body is a function of it
	// with template arguments, Args the type of its argument: a structure of
	// 8-byte words that begins with a Team. Symbol names the instance.
	File, Body, Args, Symbol string
	Upon                     []string // the sources that File builds upon
	Own                      string   // what is written for this instance alone, after the files
	Team                     Team
	Words                    []uint64 // what follows Team
	Blocks, Threads          int
	Shared                   int // bytes of dynamic shared memory
}

func (m Meeting) launch() launch {
	files := slices.Concat([]string{"sync", "collective"}, m.Upon, []string{m.File})
	return launch{blocks: uint32(m.Blocks), shared: uint32(m.Shared), args: append(m.Team.words(), m.Words...), code: code{
		files: files, own: m.Own, symbol: m.Symbol, args: m.Args, body: m.Body, threads: max(meetingThreads, m.Threads),
	}}
}

// meetingThreads is what the registers of a Meeting are shared out for, unless it
// has larger blocks.
const meetingThreads = 512

// Meeting returns the launch of m on one member.
func (l *Library) Meeting(t Target, m Meeting) (Step, error) {
	w := m.launch()
	s, err := l.step(t.Arch, w)
	s.Shape.Block[0] = uint32(m.Threads)
	return s, err
}

// MeetingAhead begins to compile what Meeting(t, m) will need, and returns at
// once. Errors are for Meeting to tell.
func (l *Library) MeetingAhead(t Target, m Meeting) { l.images.ahead(m.launch().code, t.Arch) }

// MeetingsHash identifies the sources of all kernels in which members meet.
func MeetingsHash() string {
	h := sha256.New()
	names, _ := fs.Glob(sources, "src/collective*.cuh")
	for _, n := range append(names, "src/prelude.cuh", "src/sync.cuh") {
		b, _ := sources.ReadFile(n)
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}
