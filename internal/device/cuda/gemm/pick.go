package gemm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// cuBLASLt predicts which of its algorithms is fastest, and the prediction is often wrong by a few percent. The
// algorithms that it predicts to be fastest are therefore timed on scratch memory, once for each distinct GEMM. The
// selected algorithm is stored in the process and on disk. If there is too little memory to time several algorithms,
// the first prediction is stored in the process only. Results of this process then keep the same bits, and the next
// process measures again.

// Pick is the algorithm that was selected for a GEMM.
type Pick struct {
	Algo  nvlib.LtAlgo
	Need  int64 // workspace, in bytes
	guess bool  // cuBLASLt's first suggestion, which was not timed because of too little memory
	own   bool  // hocket's kernel for few rows was selected; Algo is not used
}

// Picks holds the selected algorithms of this process. A goroutine holds the mutex mu during a measurement, because
// concurrent measurements would distort each other.
type Picks struct {
	mu   sync.Mutex
	made map[string]*Pick // the picks, by key of the GEMM; nil if no algorithm supports the GEMM
	ran  map[onGPU]bool   // whether a pick has run on a GPU
	// joint holds, by the key of a Joint, whether one launch is faster than separate launches.
	joint map[string]bool
	// Watch, unless nil, is called with all timed candidates and the index of the selected one. Tests set it.
	Watch func(key string, cands []Candidate, best int)
}

// onGPU identifies a GPU together with a pick, which it names by its key.
type onGPU struct {
	gpu *gpu.GPU
	key string
}

const (
	// MostCandidates is the largest number of cuBLASLt's suggestions that are timed for one GEMM.
	MostCandidates = 12
	// TrialMs is the approximate limit of the device time, in milliseconds, that timing the candidates of one GEMM may
	// take (race and duel).
	TrialMs = 30
	// TrialRounds is the largest number of times that each candidate is timed. chainMs is the smallest duration of one
	// timing, in milliseconds; shorter GEMMs are run several times.
	TrialRounds = 5
	chainMs     = 1
	// leastWork is the number of multiplications in a GEMM from which its algorithms are timed. A smaller GEMM takes
	// about a microsecond with any algorithm.
	leastWork = 1 << 27
	// worthwhile is a limit for replacing cuBLASLt's first suggestion: the time of another algorithm divided by that of
	// the first suggestion must be less.
	worthwhile = 0.99
)

// pick returns the selected algorithm for st, and ensures that it has run once on this GPU. It returns nil if no
// algorithm supports st. The caller has made the context current.
func (h *Host) pick(st *Launch) (*Pick, error) {
	all := h.picks
	if w := h.drv.Watch(); !w.Hold(&all.mu) {
		return nil, errors.New("canceled: a call of the driver did not return")
	}
	defer h.drv.Watch().Release(&all.mu)
	key := st.key()
	sum := sumOf(key)
	p, known := all.made[key]
	if agreed := h.agreed[sum]; agreed != nil {
		if p = st.kept(agreed); p == nil {
			return nil, fmt.Errorf("GEMM %s: cuBLASLt rejects the algorithm that another process found fastest; "+
				"use the same libraries and drivers in all processes", st.Problem.String())
		}
		key += " adopted"
	} else if !known {
		var ran bool
		var err error
		if p, ran, err = h.choose(st, key); err != nil {
			return nil, err
		}
		if all.made == nil {
			all.made = map[string]*Pick{}
		}
		all.made[key] = p
		h.picks.noteRan(h.gpu, key, ran)
	}
	if p != nil {
		h.chosen[sum] = p.bytes()
	}
	if p == nil || p.own || !st.Problem.Relu {
		return p, h.exercise(st, p, key)
	}
	return h.withRelu(st, *p, key)
}

// withRelu adds a relu to the GEMM st. It keeps the algorithm p, which was selected without the relu, so that the order
// of additions does not change. It returns nil if this algorithm does not support a relu.
func (h *Host) withRelu(st *Launch, p Pick, key string) (*Pick, error) {
	if err := st.setRelu(); err != nil {
		return nil, err
	}
	la := st.Layouts
	r, err := st.Library.Check(st.Handle, st.Desc, la[0], la[1], la[2], la[2], p.Algo)
	if err != nil || r.State != 0 || r.Workspace > WorkspaceBytes {
		return nil, notTaken(err)
	}
	p.Need = max(p.Need, int64(r.Workspace))
	return &p, h.exercise(st, &p, key+" relu")
}

// exercise runs a pick once on each GPU on which it has not run yet, because the driver loads the code of an algorithm
// when it first runs.
func (h *Host) exercise(st *Launch, p *Pick, key string) error {
	if p == nil || p.own || h.picks.ran[onGPU{h.gpu, key}] {
		return nil
	}
	ran, err := h.runOnce(st, p)
	if err == nil && !ran {
		ran, err = h.runSmall(st, p)
	}
	if err == nil {
		h.picks.noteRan(h.gpu, key, ran)
	}
	return err
}

// runOnce runs a pick on scratch memory. It does nothing if there is too little memory, or if a graph is being
// recorded.
func (h *Host) runOnce(st *Launch, p *Pick) (ran bool, err error) {
	t, err := h.newTrial(st, p.Need, 1)
	if err != nil {
		if withoutTrial(err) {
			err = nil
		}
		return false, err
	}
	err = t.close(t.try(Candidate{Pick: *p}))
	return err == nil, err
}

// smallSide is the number of rows and of columns that runSmall computes. It is a multiple of every algorithm's tile
// size.
const smallSide = 256

// runSmall runs a pick on a corner of st's matrices, for when there is too little memory for all of st. The corner uses
// the same code. It does nothing if the corner would be all of st, or if the algorithm does not support the corner.
func (h *Host) runSmall(st *Launch, p *Pick) (ran bool, err error) {
	g := st.Problem
	g.M, g.N, g.Batch = min(g.M, smallSide), min(g.N, smallSide), 1
	if g == st.Problem {
		return false, nil
	}
	small := h.NewStep(st.Library, st.Handle, g)
	defer small.Free()
	if err := small.Describe(); err != nil {
		return false, notTaken(err)
	}
	if g.Relu {
		if err := small.setRelu(); err != nil {
			return false, err
		}
	}
	need, ok := small.takes(p.Algo)
	if !ok {
		return false, nil
	}
	ran, err = h.runOnce(small, &Pick{Algo: p.Algo, Need: need})
	return ran, notTaken(err)
}

// noteRan records whether a pick has run on a GPU.
func (p *Picks) noteRan(g *gpu.GPU, key string, ran bool) {
	if p.ran == nil {
		p.ran = map[onGPU]bool{}
	}
	p.ran[onGPU{g, key}] = ran
}

// choose returns the stored algorithm for key, or else one of cuBLASLt's suggestions. It times the suggestions if the
// GEMM is large enough and if there is enough memory.
func (h *Host) choose(st *Launch, key string) (p *Pick, ran bool, err error) {
	g := &st.Problem
	if b, ok := h.cache.LoadNote(key); ok && !g.Fixed {
		if p := st.kept(b); p != nil {
			return p, false, nil
		}
	}
	wish := nvlib.Wish{Workspace: WorkspaceBytes, Align: g.Alignments(), NoSplit: g.Fixed}
	la, n := st.Layouts, MostCandidates
	if g.Fixed || float64(g.Batch)*float64(g.M)*float64(g.N)*float64(g.K) < leastWork {
		n = 1
	}
	found, err := st.Library.Heuristic(st.Handle, st.Desc, la[0], la[1], la[2], la[2], wish, n)
	if err != nil {
		return nil, false, err
	}
	var cands []Candidate
	for i, f := range found {
		cands = append(cands, Candidate{Pick: Pick{Algo: f.Algo, Need: int64(f.Workspace)}})
		if i == 0 && st.own != nil { // second, so that it is tried even if few candidates are
			cands = append(cands, Candidate{Pick: Pick{own: true}})
		}
	}
	switch {
	case len(cands) == 0 && st.own != nil:
		return &Pick{own: true}, false, nil
	case len(cands) == 0:
		return nil, false, nil
	}
	if len(cands) == 1 {
		return &cands[0].Pick, false, nil
	}
	t, err := h.newTrial(st, WorkspaceBytes, st.weights())
	switch {
	case err == nil:
	case !withoutTrial(err):
		return nil, false, err
	case g.Timed && errors.Is(err, device.ErrOutOfMemory):
		return nil, false, h.trialError(st, err)
	default:
		cands[0].guess = true
		return &cands[0].Pick, false, nil
	}
	best, err := t.fastest(cands)
	if err = t.close(err); err != nil {
		return nil, false, err
	}
	if watch := h.picks.Watch; watch != nil {
		watch(key, cands, best)
	}
	h.cache.StoreNote(key, cands[best].bytes())
	return &cands[best].Pick, true, nil
}

// trialError returns an error that states how much memory timing st's algorithms needs, and how much is free.
func (h *Host) trialError(st *Launch, err error) error {
	a, b, out := st.Problem.spans()
	free, _, ierr := h.drv.MemInfo()
	bytes := a + b*st.weights() + out + WorkspaceBytes
	return &device.TrialError{What: st.Problem.String(), Bytes: bytes, Free: free, Err: errors.Join(err, ierr)}
}

// String describes the product.
func (g *LtProblem) String() string {
	batch := ""
	if g.Batch > 1 {
		batch = fmt.Sprintf("%d of ", g.Batch)
	}
	return fmt.Sprintf("%s%dx%dx%d %s", batch, g.M, g.N, g.K, g.DType)
}

// bytes returns the pick in the form that is stored on disk.
func (p *Pick) bytes() []byte {
	need := p.Need
	if p.own {
		need = ownNeed
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(need))
	for _, w := range p.Algo {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// kept decodes the pick that is stored as b. It returns nil if cuBLASLt reports that st cannot be computed with this
// pick.
func (st *Launch) kept(b []byte) *Pick {
	var p Pick
	if len(b) != 8*(1+len(p.Algo)) {
		return nil
	}
	if int64(binary.LittleEndian.Uint64(b)) == ownNeed {
		if st.own == nil {
			return nil
		}
		return &Pick{own: true}
	}
	for i := range p.Algo {
		p.Algo[i] = binary.LittleEndian.Uint64(b[8*(1+i):])
	}
	need, ok := st.takes(p.Algo)
	if !ok {
		return nil
	}
	p.Need = need
	return &p
}

// takes reports whether the algorithm supports st, and returns the size of the workspace that it needs.
func (st *Launch) takes(algo nvlib.LtAlgo) (need int64, ok bool) {
	la := st.Layouts
	r, err := st.Library.Check(st.Handle, st.Desc, la[0], la[1], la[2], la[2], algo)
	return int64(r.Workspace), err == nil && r.State == 0 && r.Workspace <= WorkspaceBytes
}

// Candidate is an algorithm that is being timed.
type Candidate struct {
	Pick
	runs   []func() error // runs[i] runs the candidate on copy i of the operand b
	ms     float32        // the shortest time that was measured so far; 0 if not timed
	out    bool           // dropped from the race
	events [2]nvlib.Event
}

// fastest times all candidates and returns the index of the one to select.
func (t *trial) fastest(cands []Candidate) (int, error) {
	if err := t.try(cands[0]); err != nil {
		return 0, err
	}
	if err := t.round(cands[:1], 0, 1); err != nil {
		return 0, err
	}
	once := max(cands[0].ms, 1e-3)
	if once > TrialMs {
		return 0, nil
	}
	cands[0].ms = 0
	cands = cands[:min(len(cands), max(3, int(TrialMs/3/once)))]
	if err := t.admit(cands); err != nil {
		return 0, err
	}
	chain := min(max(int(chainMs/once), 1), 20)
	best, err := t.race(cands, chain)
	if err != nil || best == 0 {
		return 0, err
	}
	rounds := max(1, min(TrialRounds, int(TrialMs/2/once/float32(chain))))
	ratio, err := t.duel(&cands[0], &cands[best], rounds, chain)
	if ratio > worthwhile {
		best = 0
	}
	return best, err
}

// race times the candidates in rounds and drops candidates that are much slower than the fastest. It returns the index
// of the fastest.
func (t *trial) race(cands []Candidate, chain int) (best int, err error) {
	used := float32(0)
	for round := range TrialRounds {
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
		if used+(used-before) > TrialMs {
			break
		}
	}
	return best, nil
}

// duel compares two candidates: it returns b's time divided by a's time, the median over several pairs of timings in
// alternating order. It is needed because a candidate can win the race before it only because the device's clock was
// faster while it ran.
func (t *trial) duel(a, b *Candidate, rounds, chain int) (float32, error) {
	var ratios []float32
	for i := range rounds {
		pair := []*Candidate{a, b}
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

// String returns the candidate's time. It is for tests.
func (c Candidate) String() string {
	if c.ms == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1fµs", c.ms*1e3)
}
