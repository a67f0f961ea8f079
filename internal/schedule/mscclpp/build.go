package mscclpp

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/schedule"
)

// builder converts a File to a schedule.Plan.
type builder struct {
	f        *File
	p        *schedule.Plan
	turns    int // number of iterations of a pipeline for each chunk
	counters map[counterKey]int
	other    map[counterKey]counterKey // maps each channel to the channel to which it is connected
	engines  map[[2]int]int            // maps a rank and its port channel to the engine
	meets    map[[2]int]int
	packets  bool
	noted    map[string]bool
	ids      map[[2]int]int // maps a rank and the id of a thread block to the block

	// These fields identify the operation that is being read.
	rank, block, index, inner, turn, turnCells int
	tb                                         *Threadblock
	op                                         *Op
}

type counterKey struct {
	kind    string
	rank, i int
}

// Plan returns the file as a plan for the checker. It returns an error that names the operation if no loader could read
// the file, or if an operation is not supported.
func (f *File) Plan() (*schedule.Plan, error) {
	b, err := f.build()
	if err != nil {
		return nil, err
	}
	return b.p, nil
}

func (f *File) build() (*builder, error) {
	b := &builder{f: f, turns: 2, counters: map[counterKey]int{}, engines: map[[2]int]int{}, meets: map[[2]int]int{},
		noted: map[string]bool{}, ids: map[[2]int]int{}}
	if err := f.complete(); err != nil {
		return nil, err
	}
	p := &schedule.Plan{Name: f.Name, InPlace: f.inPlace(), Ranks: len(f.GPUs), Double: f.DoubleScratch}
	b.p = p
	known := false
	if p.Collective, known = collectives[f.Collective]; !known {
		return nil, fmt.Errorf("unknown collective %.40q: the known ones are %s; test and custom have no defined result",
			f.Collective, strings.Join(slices.Sorted(maps.Keys(collectives)), ", "))
	}
	if f.Protocol != "" && f.Protocol != "Simple" && f.Protocol != "LL" {
		b.note("unknown protocol %.40q: MSCCL++ has Simple and LL; the check does not depend on it", f.Protocol)
	}
	if err := b.memory(); err != nil {
		return nil, err
	}
	for r := range f.GPUs {
		if err := b.channels(r); err != nil {
			return nil, err
		}
	}
	b.pair()
	for r := range f.GPUs {
		g := &f.GPUs[r]
		for t := range g.Threadblocks {
			if err := b.threadblock(r, t); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

func (b *builder) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !b.noted[text] && len(b.p.Notes) < 16 {
		b.noted[text] = true
		b.p.Notes = append(b.p.Notes, text)
	}
}

// memory lays out the buffers of all ranks in cells.
func (b *builder) memory() error {
	parts, err := b.parts()
	if err != nil {
		return err
	}
	b.p.Parts = parts
	for r := range b.f.GPUs {
		if err := b.inputAndOutput(r); err != nil {
			return err
		}
	}
	if err := b.scratch(); err != nil {
		return err
	}
	b.p.MessageBase = b.p.Cells
	return nil
}

// parts checks the ranks' numbers and chunks, and returns the number of parts into which the operations cut a chunk.
func (b *builder) parts() (int, error) {
	c := census{parts: 1}
	for r := range b.f.GPUs {
		g := &b.f.GPUs[r]
		if *g.ID != r {
			return 0, fmt.Errorf("gpus[%d] has id %d: ids must be 0, 1, 2, …", r, *g.ID)
		}
		for i, n := range []int{*g.InputChunks, *g.OutputChunks, g.scratch()} {
			if n < 0 || n > maxChunks {
				return 0, fmt.Errorf("rank %d: %s_chunks is %d, want 0 to %d", r,
					[]string{"input", "output", "scratch"}[i], n, maxChunks)
			}
		}
		for t := range g.Threadblocks {
			if err := c.add(g.Threadblocks[t].Ops, false); err != nil {
				return 0, fmt.Errorf("rank %d, tb %d, %w", r, t, err)
			}
		}
		if *g.InputChunks == 0 || *g.OutputChunks == 0 {
			b.note("rank %d has %d input and %d output chunks: MSCCL++'s loader divides by both", r, *g.InputChunks,
				*g.OutputChunks)
		}
	}
	b.packets = c.packets
	if c.pipelines {
		c.parts *= b.turns
	}
	return c.parts, nil
}

// census holds the properties of operations that the layout of memory depends on.
type census struct {
	parts     int  // into which tbg_info cuts chunks
	pipelines bool // an operation is a pipeline
	packets   bool // an operation reads or writes packets
}

// add includes operations in the census. The flag inPipeline reports whether the operations belong to a pipeline.
func (c *census) add(ops []Op, inPipeline bool) error {
	for i := range ops {
		o := &ops[i]
		if o.Slice != nil {
			id, size := *o.Slice.ID, *o.Slice.Size
			if size < 1 || id < 0 || id >= size {
				return fmt.Errorf("op %d (%s): tbg_info has block %d of %d", i, o.Name, id, size)
			}
			c.parts = lcm(c.parts, size)
		}
		switch o.Name {
		case "pipeline":
			if inPipeline {
				return fmt.Errorf("op %d: a pipeline within a pipeline", i)
			}
			c.pipelines = true
			if err := c.add(o.Ops, true); err != nil {
				return err
			}
		case "ppkt", "rppkt", "cpkt", "upkt", "repkt", "respkt", "recpkt", "recspkt", "gstorepkt":
			c.packets = true
		}
		if c.parts > maxParts {
			return fmt.Errorf("op %d (%s): tbg_info cuts chunks into more than %d parts", i, o.Name, maxParts)
		}
	}
	return nil
}

// inputAndOutput lays out the input and the output of rank r after the cells that exist.
func (b *builder) inputAndOutput(r int) error {
	p := b.p
	in, out, both, offset := b.extent(r)
	inAt, outAt := p.Cells, p.Cells
	switch {
	case !both:
		outAt += in * p.Parts
	case p.Collective == schedule.AllGather:
		inAt += offset * p.Parts
	case p.Collective == schedule.ReduceScatter:
		outAt += offset * p.Parts
	}
	if both {
		b.sameSize(r)
	}
	p.Cells = max(inAt+in*p.Parts, outAt+out*p.Parts)
	p.Buffers = append(p.Buffers, schedule.Buffer{Rank: r, Kind: schedule.Input, Base: inAt, Cells: in * p.Parts},
		schedule.Buffer{Rank: r, Kind: schedule.Output, Base: outAt, Cells: out * p.Parts})
	return p.Within()
}

// scratch lays out the scratch buffers of all ranks, at equal distances.
func (b *builder) scratch() error {
	p := b.p
	p.Cells += p.Cells % 2 // scratch, and each packet in it, begins at an even cell
	p.ScratchBase = p.Cells
	var cells []int
	for r := range b.f.GPUs {
		n := b.f.GPUs[r].scratch() * p.Parts
		if b.packets {
			n *= 2
		}
		cells = append(cells, n)
		p.Half = max(p.Half, n)
	}
	stride := p.Half
	if p.Double {
		stride *= 2
	}
	for r, n := range cells {
		p.Buffers = append(p.Buffers, schedule.Buffer{Rank: r, Kind: schedule.Scratch, Base: p.Cells, Cells: n})
		p.Cells += stride
		if err := p.Within(); err != nil {
			return err
		}
	}
	return nil
}

// extent returns the numbers of chunks of rank r's input and output. It also reports whether input and output share
// memory. If they do, the smaller of the two begins at the given offset in the larger.
func (b *builder) extent(r int) (in, out int, both bool, offset int) {
	g := &b.f.GPUs[r]
	in, out = *g.InputChunks, *g.OutputChunks
	if !b.f.inPlace() {
		return in, out, false, 0
	}
	switch b.p.Collective {
	case schedule.AllReduce, schedule.AllToAll:
		return max(in, out), max(in, out), true, 0
	case schedule.AllGather:
		return in, out, true, r * in
	case schedule.ReduceScatter:
		return in, out, true, r * out
	case schedule.Broadcast:
		return max(in, out), max(in, out), true, 0
	}
	return in, out, false, 0
}

// sameSize records an error if rank r has different numbers of input and output chunks, although the two are one
// buffer. A number of 0 is accepted: the buffer then has the size of the other.
func (b *builder) sameSize(r int) {
	in, out := *b.f.GPUs[r].InputChunks, *b.f.GPUs[r].OutputChunks
	switch b.p.Collective {
	case schedule.AllReduce, schedule.AllToAll, schedule.Broadcast:
		if in > 0 && out > 0 && in != out && b.p.Fault == nil {
			b.p.Fault = &schedule.Finding{Kind: schedule.Wrong, Message: fmt.Sprintf("rank %d has input_chunks %d and "+
				"output_chunks %d, but the two must be equal, since with inplace they are one buffer", r, in, out)}
		}
	}
}

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// channels creates the counters of rank r's channels and semaphores. The j-th channel from r to q is connected to the
// j-th channel from q to r.
func (b *builder) channels(r int) error {
	g := &b.f.GPUs[r]
	for i, s := range g.Semaphores {
		if *s.Init < 0 || *s.Init > 1<<20 {
			return fmt.Errorf("rank %d: semaphore %d begins at %d", r, i, *s.Init)
		}
		b.counters[counterKey{"semaphore", r, i}] = len(b.p.Counters)
		b.p.Counters = append(b.p.Counters,
			schedule.Counter{Name: fmt.Sprintf("semaphore %d of rank %d", i, r), Init: *s.Init, Kept: true})
	}
	for _, kind := range []string{"memory", "port"} {
		for i, q := range b.peers(r, kind) {
			if q < 0 || q >= len(b.f.GPUs) {
				return fmt.Errorf("rank %d: %s channel %d is connected to rank %d, but the ranks are 0 to %d", r, kind,
					i, q, len(b.f.GPUs)-1)
			}
			b.counters[counterKey{kind, r, i}] = len(b.p.Counters)
			b.p.Counters = append(b.p.Counters, schedule.Counter{
				Name: fmt.Sprintf("%s channel %d of rank %d (from rank %d)", kind, i, r, q), Kept: true})
			if kind == "port" {
				b.engines[[2]int{r, i}] = len(b.p.Engines)
				b.p.Engines = append(b.p.Engines,
					schedule.Engine{Rank: r, Name: fmt.Sprintf("port channel %d of rank %d to rank %d", i, r, q)})
			}
		}
	}
	return nil
}

// peers lists the peers of rank r's channels of the given kind.
func (b *builder) peers(r int, kind string) []int {
	var out []int
	for _, c := range b.f.GPUs[r].Channels {
		if c.Type == kind {
			out = append(out, c.ConnectedTo...)
		}
	}
	return out
}

// pair connects the two sides of all channels: the j-th channel of a kind from r to q is connected to the j-th channel
// of that kind from q to r.
func (b *builder) pair() {
	type direction struct {
		kind     string
		from, to int
	}
	nth := map[direction][]int{}
	b.other = map[counterKey]counterKey{}
	for _, kind := range []string{"memory", "port"} {
		for r := range b.f.GPUs {
			for i, q := range b.peers(r, kind) {
				d := direction{kind, r, q}
				nth[d] = append(nth[d], i)
			}
		}
	}
	for d, list := range nth {
		back := nth[direction{d.kind, d.to, d.from}]
		for j := range min(len(list), len(back)) {
			b.other[counterKey{d.kind, d.from, list[j]}] = counterKey{d.kind, d.to, back[j]}
		}
	}
}

func (b *builder) threadblock(r, t int) error {
	b.rank, b.block, b.tb = r, t, &b.f.GPUs[r].Threadblocks[t]
	b.p.Blocks = append(b.p.Blocks, schedule.Block{Rank: r, ID: t})
	if err := b.p.Within(); err != nil {
		return fmt.Errorf("rank %d, tb %d: %w", r, t, err)
	}
	if other, ok := b.ids[[2]int{r, *b.tb.ID}]; ok {
		return fmt.Errorf("rank %d: threadblocks[%d] has id %d, as threadblocks[%d] has: ids must differ", r, t,
			*b.tb.ID, other)
	}
	b.ids[[2]int{r, *b.tb.ID}] = t
	if *b.tb.ID != t {
		b.note("rank %d: threadblocks[%d] has id %d", r, t, *b.tb.ID)
	}
	n := 0
	for i := range b.tb.Ops {
		b.index, b.inner, b.turn, b.op = i, -1, 0, &b.tb.Ops[i]
		n += 1 + len(b.op.Ops)
		if b.op.Name != "pipeline" {
			if err := b.emit(); err != nil {
				return err
			}
			continue
		}
		if err := b.pipeline(b.op); err != nil {
			return err
		}
	}
	if n > 64 {
		b.note("rank %d, tb %d has %d operations: MSCCL++'s executor takes 64", r, t, n)
	}
	for _, c := range b.tb.Channels {
		if len(c.IDs) > 16 {
			b.note("rank %d, tb %d has %d %s channels: MSCCL++'s executor takes 16", r, t, len(c.IDs), c.Type)
		}
	}
	return nil
}

func (b *builder) pipeline(o *Op) error {
	if n := *o.Iteration.Chunks; n < 1 || n > maxChunks {
		return b.errorf("num_chunks is %d, want 1 to %d", n, maxChunks)
	}
	turns := *o.Iteration.Chunks * b.turns
	b.turnCells = b.p.Parts / b.turns
	for turn := range turns {
		for i := range o.Ops {
			b.inner, b.turn, b.op = i, turn, &o.Ops[i]
			if err := b.emit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// errorf returns an error that names the operation.
func (b *builder) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", b.where(), fmt.Errorf(format, args...))
}

func (b *builder) where() string { return b.place().String() }

func (b *builder) place() schedule.Place {
	return schedule.Place{Rank: b.rank, Block: b.block, Index: b.index, Inner: b.inner + 1, Name: b.op.Name}
}
