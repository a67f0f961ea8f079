package cuda

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

var reduceAlgorithms = named([]reduceAlgorithm{
	{name: "ll", kind: kernels.AllReduceLL, unrolls: []int{1, 2, 4}, most: 4 << 20},
	{name: "ll2", kind: kernels.AllReduceLL2, unrolls: []int{1}, most: 16 << 20, shots: 2},
	{name: "ll128", kind: kernels.AllReduceLL128, unrolls: []int{1, 2, 4}, most: 64 << 20},
	{name: "ll128x2", kind: kernels.AllReduceLL128x2, unrolls: []int{1, 2, 4}, most: 64 << 20, shots: 2},
	{name: "push", kind: kernels.AllReducePush, unrolls: []int{1, 2, 4, 8}, direct: true, aligned: true},
	{name: "pushwarp", kind: kernels.AllReducePushWarp, unrolls: []int{1, 2, 4, 8}, direct: true, aligned: true},
	{name: "stage", kind: kernels.AllReduceStage, unrolls: []int{1, 2, 4, 8}, most: 128 << 20, aligned: true},
	{name: "stagewarp", kind: kernels.AllReduceStageWarp, unrolls: []int{1, 2, 4, 8}, most: 128 << 20, aligned: true},
	{name: "bulk", kind: kernels.AllReduceBulk, unrolls: []int{4, 1, 2, 8}, most: 128 << 20, aligned: true},
	{name: "mixed", kind: kernels.AllReduceMixed, unrolls: []int{2, 1, 4, 8}, direct: true, aligned: true},
	{name: "pull", kind: kernels.AllReducePull, unrolls: []int{1, 2, 4}, direct: true, aligned: true},
})

func named(list []reduceAlgorithm) (all []namedAlgorithm) {
	for _, a := range list {
		all = append(all, namedAlgorithm{a.name, a})
	}
	return all
}

// reduceAlgorithm is an all-reduce as one kernel.
type reduceAlgorithm struct {
	name    string
	kind    kernels.AllReduceKind
	unrolls []int
	most    int64 // bytes, which it keeps in memory several times; 0 for any
	shots   int64 // 2: members add up a share each
	direct  bool  // reads or writes peers' operands
	aligned bool  // operands begin at multiples of 16 bytes
}

func (a reduceAlgorithm) sheets() bool {
	return a.kind == kernels.AllReduceLL128 || a.kind == kernels.AllReduceLL128x2 || a.kind == kernels.AllReduceMixed
}

func (a reduceAlgorithm) supports(t *team, tune device.Tuning, c *collective) error {
	if c.Op != ir.OpAllReduce {
		return fmt.Errorf("%w: it does all_reduce only", device.ErrUnsupported)
	}
	if c.Red < ir.Sum || c.Red > ir.Avg {
		return fmt.Errorf("there is no reduction %d", c.Red)
	}
	if len(t.members) < 2 {
		return fmt.Errorf("%w: a team of one", device.ErrUnsupported)
	}
	if tune.Unroll != 0 && !slices.Contains(a.unrolls, tune.Unroll) {
		return fmt.Errorf("%w: unroll %d; it has %v", device.ErrUnsupported, tune.Unroll, a.unrolls)
	}
	if tune.Threads != 0 && (tune.Threads%32 != 0 || tune.Threads < 32 || tune.Threads > threadsMost) {
		return fmt.Errorf("%w: %d threads; they are multiples of 32 up to %d", device.ErrUnsupported, tune.Threads, threadsMost)
	}
	if tune.Blocks < 0 || tune.Blocks > kernels.BlocksMost {
		return fmt.Errorf("%w: %d blocks; at most %d are possible", device.ErrUnsupported, tune.Blocks, kernels.BlocksMost)
	}
	if a.kind == kernels.AllReduceBulk {
		if err := a.supportsBulk(t, tune); err != nil {
			return err
		}
	}
	return a.supportsParts(t, tune, c)
}

func (a reduceAlgorithm) supportsParts(t *team, tune device.Tuning, c *collective) error {
	for i := range c.parts {
		p := &c.parts[i]
		if !p.reads || !p.writes {
			return fmt.Errorf("member %d: an all_reduce reads and writes", i)
		}
		if p.in.n != c.parts[0].in.n || p.out.n != p.in.n {
			return fmt.Errorf("member %d: %d elements into %d, where member 0 has %d", i, p.in.n, p.out.n, c.parts[0].in.n)
		}
		if !p.in.dense() || !p.out.dense() {
			return fmt.Errorf("%w: member %d: gaps between elements", device.ErrUnsupported, i)
		}
		if p.in.overlaps(&p.out) && p.in.addr != p.out.addr {
			return fmt.Errorf("%w: member %d: the result overlaps the operand otherwise than by being it", device.ErrUnsupported, i)
		}
		if a.most != 0 && p.in.bytes() > a.most {
			return fmt.Errorf("%w: %d bytes; at most %d", device.ErrUnsupported, p.in.bytes(), a.most)
		}
		if a.direct && (p.in.mem.kind != device.Shared || p.out.mem.kind != device.Shared) {
			return fmt.Errorf("%w: member %d: memory that peers do not reach", device.ErrUnsupported, i)
		}
		if a.aligned && (p.in.addr|p.out.addr)%16 != 0 {
			return fmt.Errorf("%w: member %d: an operand does not begin at a multiple of 16 bytes", device.ErrUnsupported, i)
		}
	}
	if a.kind == kernels.AllReduceMixed {
		r := a.request(t, tune, c)
		if _, ok := r.Mix(ceil(c.parts[0].in.bytes(), 16), int64(len(t.members))); !ok {
			return fmt.Errorf("%w: %d bytes are too few for %d blocks of %d threads", device.ErrUnsupported, c.parts[0].in.bytes(), r.Blocks, r.Threads)
		}
	}
	if a.sheets() {
		return t.keepsStretches()
	}
	return nil
}

// request is the launch as far as it follows from what was asked for; Blocks is
// the largest grid.
func (a reduceAlgorithm) request(t *team, tune device.Tuning, c *collective) *kernels.AllReduce {
	r := &kernels.AllReduce{Kind: a.kind, DType: c.parts[0].in.dt, Red: c.Red, Count: c.parts[0].in.n,
		Threads: cmp.Or(tune.Threads, a.threads()), Unroll: cmp.Or(tune.Unroll, a.unrolls[0])}
	for i := range c.parts {
		r.In, r.Out = append(r.In, c.parts[i].in.addr), append(r.Out, c.parts[i].out.addr)
	}
	r.Blocks = t.grid(tune, r.Threads, kernels.BlocksMost)
	return r
}

// supportsBulk asks for a device with bulk copies, and for room for them.
func (a reduceAlgorithm) supportsBulk(t *team, tune device.Tuning) error {
	if err := t.bulks(); err != nil {
		return err
	}
	threads, unroll := cmp.Or(tune.Threads, a.threads()), cmp.Or(tune.Unroll, a.unrolls[0])
	if threads%kernels.BulkThreads != 0 || threads > teamThreads {
		return fmt.Errorf("%w: %d threads; they are multiples of %d up to %d", device.ErrUnsupported, threads, kernels.BulkThreads, teamThreads)
	}
	if _, ok := kernels.BulkStages(threads, unroll); !ok {
		return fmt.Errorf("%w: %d threads with unroll %d take more shared memory than there is", device.ErrUnsupported, threads, unroll)
	}
	return nil
}

// threads is how many a block has where nobody says.
func (a reduceAlgorithm) threads() int {
	if a.kind == kernels.AllReduceBulk {
		return 256
	}
	return teamThreads
}

// keepsStretches returns nil where the members' links are known to deliver 128
// bytes that one warp writes as one: NVLink, and a device's own memory. Over a
// bus the last bytes may come first.
func (t *team) keepsStretches() error {
	for _, m := range t.members {
		for _, o := range t.members {
			if t.w.linkOf(m.dev.site, o.dev.site) == 'p' {
				return fmt.Errorf("%w: no NVLink between GPUs %d and %d", device.ErrUnsupported, m.dev.site.gpu.dev, o.dev.site.gpu.dev)
			}
		}
	}
	return nil
}

// prepare resolves the grid and reserves memory for what is pushed.
func (a reduceAlgorithm) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	r := a.request(t, tune, c)
	var err error
	switch a.kind {
	case kernels.AllReduceLL, kernels.AllReduceLL2:
		err = a.halves(t, tune, r)
	case kernels.AllReduceLL128, kernels.AllReduceLL128x2:
		err = a.inSheets(t, tune, r)
	case kernels.AllReduceMixed:
		err = a.mixed(t, r)
	default:
		err = a.flagged(t, tune, r)
	}
	if err != nil {
		return nil, err
	}
	steps := make([][]step, len(t.members))
	for i, m := range t.members {
		st, err := m.kernel(r.Meeting(i))
		if err != nil {
			return nil, err
		}
		steps[i] = []step{st}
	}
	return steps, nil
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }

// grid is the number of blocks where work for that many can be had.
func (t *team) grid(tune device.Tuning, threads int, work int64) int {
	n := int64(t.room(threads))
	if tune.Blocks > 0 {
		n = min(n, int64(tune.Blocks))
	}
	return int(max(1, min(n, work)))
}

// shared is what each member adds up of n, and how often that much lies in a
// region of what is pushed.
func (a reduceAlgorithm) shared(n, members, grain int64) (share, times int64) {
	if a.shots < 2 {
		return n, members
	}
	return ceil(ceil(n, members), grain) * grain, 2 * members
}

// halves is for lines of which half is data.
func (a reduceAlgorithm) halves(t *team, tune device.Tuning, r *kernels.AllReduce) error {
	units := ceil(r.Count*r.DType.Size(), 8)
	var times int64
	r.Share, times = a.shared(units, int64(len(t.members)), 16)
	r.Blocks = t.grid(tune, r.Threads, ceil(r.Share, int64(r.Threads*r.Unroll)))
	return t.pushed(r, "ll", times*r.Share*16)
}

func (t *team) pushed(r *kernels.AllReduce, name string, half int64) error {
	area, err := t.halves(name, half)
	if err != nil {
		return err
	}
	r.Data, r.Half = area.at, area.bytes/2
	return nil
}

// inSheets is for sheets.
func (a reduceAlgorithm) inSheets(t *team, tune device.Tuning, r *kernels.AllReduce) error {
	sheets := ceil(ceil(r.Count*r.DType.Size(), 16), kernels.SheetPacks(r.Unroll))
	var times int64
	r.Share, times = a.shared(sheets, int64(len(t.members)), 1)
	r.Blocks = t.grid(tune, r.Threads, r.Share)
	return t.pushed(r, "ll128", times*r.Share*512*int64(r.Unroll))
}

// flagged is for data that has no flags within.
func (a reduceAlgorithm) flagged(t *team, tune device.Tuning, r *kernels.AllReduce) error {
	members, group := int64(len(t.members)), int64(r.Threads)
	if a.kind == kernels.AllReducePushWarp || a.kind == kernels.AllReduceStageWarp {
		group = 32
	}
	r.Share = ceil(r.Count*r.DType.Size(), 16)
	one := a.kind == kernels.AllReduceStage || a.kind == kernels.AllReduceStageWarp || a.kind == kernels.AllReduceBulk
	if !one {
		r.Share = ceil(ceil(r.Share, members), 8) * 8
	}
	chunks := ceil(r.Share, group*int64(r.Unroll))
	r.Blocks = t.grid(tune, r.Threads, ceil(chunks*group, int64(r.Threads)))
	if a.kind == kernels.AllReduceBulk { // a block takes all of the shared memory
		chunks = ceil(r.Share, kernels.BulkAdders*int64(r.Unroll))
		r.Blocks = t.grid(tune, teamThreads, ceil(chunks*kernels.BulkThreads, int64(r.Threads)))
		r.Stages, _ = kernels.BulkStages(r.Threads, r.Unroll)
	}
	r.Slots = chunks + kernels.BlocksMost
	var area *area
	var err error
	switch {
	case a.kind == kernels.AllReducePull:
		r.Slots = 2 * kernels.BlocksMost
	case one: // not the memory of the others, which a launch leaves free at its end
		if area, err = t.reserve("staged", 2*members*r.Share*16); err == nil {
			r.Data, r.Half = area.at, area.bytes/2
		}
	default:
		if area, err = t.reserve("staging", members*r.Share*16); err == nil {
			r.Data = area.at
		}
	}
	if err != nil {
		return err
	}
	area, err = t.halves("flags", members*r.Slots*4)
	if err != nil {
		return err
	}
	r.Flags, r.FlagHalf = area.at, area.bytes/2
	return nil
}

// mixed is for data of which the end is in sheets.
func (a reduceAlgorithm) mixed(t *team, r *kernels.AllReduce) error {
	members := int64(len(t.members))
	sheets, _ := r.Mix(ceil(r.Count*r.DType.Size(), 16), members)
	chunks := ceil(r.Share, int64(r.Threads*r.Unroll))
	r.Slots = chunks + kernels.BlocksMost
	staging, err := t.reserve("staging", members*r.Share*16)
	if err != nil {
		return err
	}
	r.Data = staging.at
	flags, err := t.halves("flags", members*r.Slots*4)
	if err != nil {
		return err
	}
	r.Flags, r.FlagHalf = flags.at, flags.bytes/2
	rest, err := t.halves("ll128", members*sheets*512*kernels.MixedRows)
	if err != nil {
		return err
	}
	r.Sheets, r.SheetHalf = rest.at, rest.bytes/2
	return nil
}
