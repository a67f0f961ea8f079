package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"hocket.example/hocket/internal/device/cuda/gpu"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// cuBLASLt guesses which of its algorithms is fastest, and is often wrong by
// some percent. So the best guesses are run on scratch memory and timed, once
// for each product that is unlike those before; what was found is kept, in the
// process and on disk. A guess that no memory was there to look beyond is kept in the
// process alone: its bits stay, and the next process looks again.

// pick is the algorithm for a product.
type pick struct {
	algo  nvlib.LtAlgo
	need  int64 // workspace, in bytes
	guess bool  // the first, for want of memory to time others in
	own   bool  // hocket's kernel for few rows, and no algorithm
}

// picks are the process's. mu is held while one is looked for: two measurements
// at a time would disturb each other.
type picks struct {
	mu   sync.Mutex
	made map[string]*pick // by key; nil where no algorithm takes the product
	ran  map[onGPU]bool   // which of them ran
	// watch is told how candidates fared, where it is set: for tests.
	watch func(key string, cands []candidate, best int)
}

// onGPU is a pick, by its key, on a GPU.
type onGPU struct {
	gpu *gpu.GPU
	key string
}

const (
	// mostCandidates is how many of cuBLASLt's guesses are tried.
	mostCandidates = 12
	// trialMs bounds the device time that a product's race takes, and the duel
	// after it, more or less.
	trialMs = 30
	// trialRounds is how often each candidate is timed, at most, and chainMs how
	// long a timing lasts at the least.
	trialRounds = 5
	chainMs     = 1
	// leastWork is how many multiplications make a product worth a trial; less
	// takes about a microsecond, whatever the algorithm.
	leastWork = 1 << 27
	// worthwhile is what another algorithm must win over the first guess.
	worthwhile = 0.99
)

// pick returns the algorithm for st, which has run on this GPU then; nil where
// there is none. The context is current.
func (s *site) pick(st *gemmStep) (*pick, error) {
	all := &s.w.m.sys.picks
	all.mu.Lock()
	defer all.mu.Unlock()
	key := st.key(s)
	p, known := all.made[key]
	if !known {
		var ran bool
		var err error
		if p, ran, err = s.choose(st, key); err != nil {
			return nil, err
		}
		if all.made == nil {
			all.made = map[string]*pick{}
		}
		all.made[key] = p
		s.w.m.sys.picks.noteRan(s.gpu, key, ran)
	}
	if p == nil || p.own || !st.g.relu {
		return p, s.exercise(st, p, key)
	}
	return s.withRelu(st, *p, key)
}

// withRelu has st end in a relu, by the algorithm that it has without one: sums
// are taken in the same order then, and the relu changes no more than it says.
// Nil where that algorithm cannot.
func (s *site) withRelu(st *gemmStep, p pick, key string) (*pick, error) {
	if err := st.setRelu(); err != nil {
		return nil, err
	}
	la := st.layouts
	r, err := st.lib.Check(st.h, st.desc, la[0], la[1], la[2], la[2], p.algo)
	if err != nil || r.State != 0 || r.Workspace > workspaceBytes {
		return nil, notTaken(err)
	}
	p.need = max(p.need, int64(r.Workspace))
	return &p, s.exercise(st, &p, key+" relu")
}

// exercise runs a pick once on each GPU, if it has not run there: its code is
// brought to the device when it first runs.
func (s *site) exercise(st *gemmStep, p *pick, key string) error {
	if p == nil || p.own || s.w.m.sys.picks.ran[onGPU{s.gpu, key}] {
		return nil
	}
	ran, err := s.runOnce(st, p)
	if err == nil && !ran {
		ran, err = s.runSmall(st, p)
	}
	if err == nil {
		s.w.m.sys.picks.noteRan(s.gpu, key, ran)
	}
	return err
}

// runOnce runs a pick on scratch memory; not where there is none, or a graph is recorded.
func (s *site) runOnce(st *gemmStep, p *pick) (ran bool, err error) {
	t, err := s.newTrial(st, p.need, 1)
	if err != nil {
		if withoutTrial(err) {
			err = nil
		}
		return false, err
	}
	err = t.close(t.try(candidate{pick: *p}))
	return err == nil, err
}

// smallSide is how many rows and columns of a product are computed where there is no
// memory for all: whole tiles of any algorithm.
const smallSide = 256

// runSmall runs a pick on a corner of st, which the same code computes; not where that
// is all of it, or where cuBLASLt does not take it by that algorithm.
func (s *site) runSmall(st *gemmStep, p *pick) (ran bool, err error) {
	g := st.g
	g.m, g.n, g.batch = min(g.m, smallSide), min(g.n, smallSide), 1
	if g == st.g {
		return false, nil
	}
	small := s.w.gemmStep(st.lib, st.h, g)
	defer small.free()
	if err := small.describe(); err != nil {
		return false, notTaken(err)
	}
	if g.relu {
		if err := small.setRelu(); err != nil {
			return false, err
		}
	}
	need, ok := small.takes(p.algo)
	if !ok {
		return false, nil
	}
	ran, err = s.runOnce(small, &pick{algo: p.algo, need: need})
	return ran, notTaken(err)
}

// noteRan notes whether a pick has run on a GPU.
func (p *picks) noteRan(g *gpu.GPU, key string, ran bool) {
	if p.ran == nil {
		p.ran = map[onGPU]bool{}
	}
	p.ran[onGPU{g, key}] = ran
}

// choose looks for an algorithm: among those kept, else among cuBLASLt's
// guesses, by measurement where that is wanted and there is memory for it.
func (s *site) choose(st *gemmStep, key string) (p *pick, ran bool, err error) {
	m, g := s.w.m, &st.g
	if b, ok := m.cache.LoadNote(key); ok && !g.fixed {
		if p := st.kept(b); p != nil {
			return p, false, nil
		}
	}
	wish := nvlib.Wish{Workspace: workspaceBytes, Align: g.alignments(), NoSplit: g.fixed}
	la, n := st.layouts, mostCandidates
	if g.fixed || float64(g.batch)*float64(g.m)*float64(g.n)*float64(g.k) < leastWork {
		n = 1
	}
	found, err := st.lib.Heuristic(st.h, st.desc, la[0], la[1], la[2], la[2], wish, n)
	if err != nil {
		return nil, false, err
	}
	var cands []candidate
	for i, f := range found {
		cands = append(cands, candidate{pick: pick{algo: f.Algo, need: int64(f.Workspace)}})
		if i == 0 && st.own != nil { // so early, so that it is tried where few are
			cands = append(cands, candidate{pick: pick{own: true}})
		}
	}
	switch {
	case len(cands) == 0 && st.own != nil:
		return &pick{own: true}, false, nil
	case len(cands) == 0:
		return nil, false, nil
	}
	if len(cands) == 1 {
		return &cands[0].pick, false, nil
	}
	t, err := s.newTrial(st, workspaceBytes, st.weights())
	switch {
	case err == nil:
	case !withoutTrial(err):
		return nil, false, err
	case g.timed && errors.Is(err, device.ErrOutOfMemory):
		return nil, false, s.trialError(st, err)
	default:
		cands[0].guess = true
		return &cands[0].pick, false, nil
	}
	best, err := t.fastest(cands)
	if err = t.close(err); err != nil {
		return nil, false, err
	}
	if watch := m.sys.picks.watch; watch != nil {
		watch(key, cands, best)
	}
	m.cache.StoreNote(key, cands[best].bytes())
	return &cands[best].pick, true, nil
}

// trialError says what a trial of st takes, which is not there.
func (s *site) trialError(st *gemmStep, err error) error {
	a, b, out := st.g.spans()
	free, _, ierr := s.w.drv.MemInfo()
	bytes := a + b*st.weights() + out + workspaceBytes
	return &device.TrialError{What: st.g.String(), Bytes: bytes, Free: free, Err: errors.Join(err, ierr)}
}

// String names the product.
func (g *ltGemm) String() string {
	batch := ""
	if g.batch > 1 {
		batch = fmt.Sprintf("%d of ", g.batch)
	}
	return fmt.Sprintf("%s%dx%dx%d %s", batch, g.m, g.n, g.k, g.dt)
}

// Guesses implements device.Guesser.
func (w *world) Guesses() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for st := range w.products {
		if st.guess {
			list = append(list, st.g.String())
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// ownNeed stands on disk for hocket's kernel, in the place of what an algorithm needs.
const ownNeed = -1

// bytes is the pick as it is kept on disk.
func (p *pick) bytes() []byte {
	need := p.need
	if p.own {
		need = ownNeed
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(need))
	for _, w := range p.algo {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// kept returns the pick that b is, if cuBLASLt says that it computes st.
func (st *gemmStep) kept(b []byte) *pick {
	var p pick
	if len(b) != 8*(1+len(p.algo)) {
		return nil
	}
	if int64(binary.LittleEndian.Uint64(b)) == ownNeed {
		if st.own == nil {
			return nil
		}
		return &pick{own: true}
	}
	for i := range p.algo {
		p.algo[i] = binary.LittleEndian.Uint64(b[8*(1+i):])
	}
	need, ok := st.takes(p.algo)
	if !ok {
		return nil
	}
	p.need = need
	return &p
}

// takes returns the workspace with which cuBLASLt computes st by an algorithm, if it does.
func (st *gemmStep) takes(algo nvlib.LtAlgo) (need int64, ok bool) {
	la := st.layouts
	r, err := st.lib.Check(st.h, st.desc, la[0], la[1], la[2], la[2], algo)
	return int64(r.Workspace), err == nil && r.State == 0 && r.Workspace <= workspaceBytes
}

// candidate is an algorithm under trial.
type candidate struct {
	pick
	runs   []func() error // one for each copy of b
	ms     float32        // the shortest time yet; 0 for none
	out    bool           // of the race
	events [2]nvlib.Event
}

// fastest returns the index of the candidate to take. It fills in what they took.
func (t *trial) fastest(cands []candidate) (int, error) {
	if err := t.try(cands[0]); err != nil {
		return 0, err
	}
	if err := t.round(cands[:1], 0, 1); err != nil {
		return 0, err
	}
	once := max(cands[0].ms, 1e-3)
	if once > trialMs {
		return 0, nil
	}
	cands[0].ms = 0
	cands = cands[:min(len(cands), max(3, int(trialMs/3/once)))]
	if err := t.admit(cands); err != nil {
		return 0, err
	}
	chain := min(max(int(chainMs/once), 1), 20)
	best, err := t.race(cands, chain)
	if err != nil || best == 0 {
		return 0, err
	}
	rounds := max(1, min(trialRounds, int(trialMs/2/once/float32(chain))))
	ratio, err := t.duel(&cands[0], &cands[best], rounds, chain)
	if ratio > worthwhile {
		best = 0
	}
	return best, err
}

// race times the candidates in rounds, and lets those go that are far behind. It
// returns the fastest.
func (t *trial) race(cands []candidate, chain int) (best int, err error) {
	used := float32(0)
	for round := range trialRounds {
		if err := t.round(cands, round*3, chain); err != nil {
			return 0, err
		}
		for i := range cands {
			if c := &cands[i]; c.ms > 0 && c.ms < cands[best].ms {
				best = i
			}
		}
		before := used
		for i := range cands {
			c := &cands[i]
			if !c.out {
				used += c.ms * float32(chain)
			}
			c.out = c.out || i > 0 && c.ms > cands[best].ms*1.1
		}
		if used+(used-before) > trialMs {
			break
		}
	}
	return best, nil
}

// duel returns what b takes of what a takes, the median of pairs in turns: races
// favour whom the device's clocks favoured.
func (t *trial) duel(a, b *candidate, rounds, chain int) (float32, error) {
	var ratios []float32
	for i := range rounds {
		pair := []*candidate{a, b}
		if i%2 == 1 {
			slices.Reverse(pair)
		}
		ms, err := t.times(pair, chain)
		if err != nil {
			return 1, err
		}
		if i%2 == 1 {
			slices.Reverse(ms)
		}
		ratios = append(ratios, ms[1]/ms[0])
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2], nil
}

// String is for tests: what the candidate took.
func (c candidate) String() string {
	if c.ms == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fµs", c.ms*1e3)
}
