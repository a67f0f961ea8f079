package kernels

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"slices"
	"sync"

	"hocket.example/hocket/internal/nvlib"
)

// Team is the part of a kernel's argument that describes a team whose members wait for each other: see
// src/collective.cuh. For each member of the team, the Team differs.
type Team struct {
	Rank    int         // the member's index
	Control []nvlib.Ptr // by member: address of the control memory, which has ControlBytes bytes
	Abort   nvlib.Ptr   // address of a word of 8 bytes in host memory; if it is not 0, every wait ends
	Record  nvlib.Ptr   // address of FaultBytes bytes of host memory, for a fault report
	Timeout int64       // nanoseconds
	Tag     uint64      // identifies the launch in a fault report
}

// These constants limit the size of teams.
const (
	TeamMost   = 8   // members
	BlocksMost = 256 // largest number of blocks of a launch
	// RegionsMost is the number of memory regions that a member's control memory can list. Each time one of a team's
	// nine areas grows, it uses one more region. Two areas never grow, and one has at most 64 MiB; the others double in
	// size each time, from 64 KiB to at most 2 GiB.
	RegionsMost = 112
)

// These constants define the layout of control memory, which is initially zero except for the epochs.
const (
	ControlBytes = 4*BlocksMost + 8 + 8 + 16*RegionsMost + 16
	// ControlEpochs is the offset of the epochs: 32-bit words, one for each of BlocksMost thread blocks, that hold the
	// number of the last launch in the block.
	ControlEpochs = 0
	// ControlBegun is the offset of a 32-bit word that holds the number of the launch that was begun last.
	ControlBegun = 4*BlocksMost + 8
	// ControlRegions is the offset of a 32-bit word that holds the number of regions. For each region, two words of 8
	// bytes follow it: the region's address and half its size.
	ControlRegions = ControlBegun + 4
	// FirstEpoch is the initial value of the epochs. It is neither 0 nor 1, because kernels clear halves of regions
	// after launches with these numbers.
	FirstEpoch = 2
)

// words returns the structure Team.
func (t Team) words() words {
	var w words
	w.ints(int64(len(t.Control)), int64(t.Rank))
	w.addrs(t.Control)
	w.addr(t.Abort, t.Record)
	w.ints(t.Timeout)
	w.bits(t.Tag)
	return w
}

// addrs appends TeamMost addresses: those in list, followed by zeros.
func (w *words) addrs(list []nvlib.Ptr) {
	w.addr(list...)
	for range TeamMost - len(list) {
		w.addr(0)
	}
}

// Meeting describes a launch of a kernel in which the members of a team wait for each other. All members launch grids
// of equal size.
type Meeting struct {
	// File is the name of the source file in src, without its suffix. Body is the name of a function in this file, with
	// template arguments. Args is the type of the function's argument, a structure of 8-byte words that begins with a
	// Team. Symbol names the instance.
	File, Body, Args, Symbol string
	Upon                     []string // names of the sources on which File depends
	Own                      string   // source text for this instance only, which follows the files
	Team                     Team
	Words                    []uint64 // the kernel's argument without Team, in words
	Blocks, Threads          int
	Shared                   int // bytes of dynamic shared memory
}

func (m Meeting) launch() launch {
	files := slices.Concat([]string{"sync", "collective"}, m.Upon, []string{m.File})
	return launch{blocks: uint32(m.Blocks), shared: uint32(m.Shared), args: append(m.Team.words(), m.Words...), code: code{
		files: files, own: m.Own, symbol: m.Symbol, args: m.Args, body: m.Body, threads: max(meetingThreads, m.Threads),
	}}
}

// meetingThreads is the block size for which the compiler allocates registers, unless a Meeting has larger blocks.
const meetingThreads = 512

// Meeting returns the launch of the meeting m on one member.
func (l *Library) Meeting(t Target, m Meeting) (Step, error) {
	w := m.launch()
	s, err := l.step(t.Arch, w)
	s.Shape.Block[0] = uint32(m.Threads)
	return s, err
}

// MeetingAhead starts the compilation that Meeting(t, m) needs, and returns without waiting. Meeting reports the
// errors.
func (l *Library) MeetingAhead(t Target, m Meeting) { l.images.ahead(m.launch().code, t.Arch) }

// MeetingsHash returns a hash of the code, without comments, of all kernels in which members wait for each other.
func MeetingsHash() string { return meetingsHash() }

var meetingsHash = sync.OnceValue(func() string {
	h := sha256.New()
	names, _ := fs.Glob(sources, "src/collective*.cuh")
	for _, n := range append(names, "src/prelude.cuh", "src/sync.cuh") {
		b, _ := sources.ReadFile(n)
		h.Write(withoutComments(b))
	}
	return hex.EncodeToString(h.Sum(nil))
})

// withoutComments returns a source without its comments and the white space before each. No string in the kernels
// contains two slashes.
func withoutComments(text []byte) []byte {
	var code []byte
	for {
		before, comment, found := bytes.Cut(text, []byte("//"))
		if !found {
			return append(code, text...)
		}
		code = append(code, bytes.TrimRight(before, " \t\n\f\r")...)
		end := bytes.IndexByte(comment, '\n')
		if end < 0 {
			return code
		}
		text = comment[end:]
	}
}
