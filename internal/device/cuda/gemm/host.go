package gemm

import (
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Site is the part of a world that the preparation of GEMMs uses. The methods of a Site are called while the world's
// mutex is held and the GPU's context is current.
type Site interface {
	// Recording reports whether a graph is being recorded. During a recording, GEMMs are not timed, because the runs
	// would become part of the graph.
	Recording() bool
	// NewClock returns an event of the driver that records the time. FreeClocks frees such events.
	NewClock() (nvlib.Event, error)
	FreeClocks([]nvlib.Event)
	// Compile compiles the kernels of a problem and returns their launches. CompileAside does the same, but unlocks the
	// world's mutex while it compiles.
	Compile(p kernels.Problem) ([]*nvlib.Launch, error)
	CompileAside(p kernels.Problem) ([]*nvlib.Launch, error)
}

// Host prepares GEMMs for one GPU of a world. The world's mutex guards it.
type Host struct {
	site     Site
	drv      *nvlib.Driver
	gpu      *gpu.GPU
	heaps    *[3]*gpu.Heap // by kind
	picks    *Picks
	cache    *kernels.Cache             // stores picks on disk; nil for none
	tf32     bool                       // round operands of f32 GEMMs to TF32, with 11 significant bits
	skinny   bool                       // consider hocket's kernel for few rows
	live     map[*Launch]bool           // launches that are not freed
	chosen   map[Sum][]byte             // the choices that this process has made
	agreed   map[Sum][]byte             // the choices that all processes agreed on; nil before Adopt
	again    []func() error             // functions that were passed to Again; empty if there is only one process
	apart    map[member]bool            // see noteApart
	branches map[nvlib.Stream]*branches // by stream: the additional streams for concurrent GEMMs
}

// NewHost returns a Host without GEMMs. The options tf32 and skinny are as in cuda.Options.
func NewHost(site Site, drv *nvlib.Driver, g *gpu.GPU, heaps *[3]*gpu.Heap, all *Picks, cache *kernels.Cache, tf32, skinny bool) *Host {
	return &Host{site: site, drv: drv, gpu: g, heaps: heaps, picks: all, cache: cache, tf32: tf32, skinny: skinny,
		live: map[*Launch]bool{}, chosen: map[Sum][]byte{}, apart: map[member]bool{},
		branches: map[nvlib.Stream]*branches{}}
}

// NewStep returns a Launch of g without cuBLASLt descriptors; its method Describe creates them. The caller must free
// it.
func (h *Host) NewStep(lib *nvlib.CuBLASLt, handle nvlib.LtHandle, g LtProblem) *Launch {
	st := &Launch{host: h, Library: lib, Handle: handle, Problem: g}
	h.live[st] = true
	return st
}

// Prepare prepares g. It returns nil if cuBLASLt does not support g. The context is current.
func (h *Host) Prepare(g Problem) (*Launch, error) {
	l, ok := g.CuBLASLt()
	if !ok {
		return nil, nil
	}
	l.tf32 = h.tf32 && g.DType == ir.F32
	lib, handle, err := h.gpu.LtHandle()
	if err != nil {
		return nil, err
	}
	lib = lib.Watched(h.drv.Watch())
	st := h.NewStep(lib, handle, l)
	var choice *Pick
	st.own, err = h.skinnyLaunch(&g)
	st.few = st.own != nil
	if err == nil {
		err = st.Describe()
	}
	if err == nil {
		choice, err = h.pick(st)
	}
	if err != nil || choice == nil {
		st.Free()
		return nil, notTaken(err)
	}
	if choice.own {
		return st, nil
	}
	st.dropOwn()
	st.Need, st.guess = choice.Need, choice.guess
	st.Product = st.NewProduct(choice.Algo, l.B, l.A, l.Out)
	return st, nil
}

// Few reports whether hocket's kernel for few rows may be used.
func (h *Host) Few() bool { return h.skinny }

// TakesScaled reports whether cuBLASLt may support g, a GEMM of 8-bit operands whose scale modes are not determined
// yet.
func (h *Host) TakesScaled(g Problem) (bool, error) {
	if _, ok := g.CuBLASLt(); !ok {
		return false, nil
	}
	lib, _, err := h.gpu.LtHandle()
	return err == nil && lib.Version() >= nvlib.LtScalesSince, err
}

// Guesses returns descriptions of the GEMMs whose algorithms were not timed because of too little memory.
func (h *Host) Guesses() (list []string) {
	for st := range h.live {
		if st.guess {
			list = append(list, st.Problem.String())
		}
	}
	return list
}

// FreeAll frees all GEMMs that the host has prepared and that are not freed yet.
func (h *Host) FreeAll() {
	for st := range h.live {
		st.Free()
	}
}

// Workspace returns the size in bytes of the workspace that st needs.
func (st *Launch) Workspace() int64 {
	need := st.Need
	for _, other := range st.beside {
		need = max(need, other.Need)
	}
	return need
}

// Run issues the GEMM to a stream. The given workspace must be large enough.
func (st *Launch) Run(workspace nvlib.Ptr, h nvlib.Stream) error {
	if len(st.beside) > 0 && (st.shares || st.host.site.Recording()) {
		return st.runBeside(workspace, h)
	}
	return st.runInTurn(workspace, h)
}

// TakeOwn returns hocket's own kernel if it was selected, and frees the cuBLASLt descriptors. It returns nil if
// cuBLASLt computes st.
func (st *Launch) TakeOwn() *nvlib.Launch {
	own := st.own
	if own != nil {
		st.own = nil
		st.Free()
	}
	return own
}
