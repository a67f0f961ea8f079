package kernels

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// attention computes softmax(Scale · q·kᵀ)·v for each leading index and head, with q[…, Tq, Hq, Dh] and k and v […, Tk,
// Hkv, Dh]. A fourth operand, integers of shape […] or […, Tq], holds the length of each sequence or query: the number
// of its keys. The last operand may be a mask of floats, […, Tq, Tk] or [Tq, Tk]. If op.LSE is set, stored is a second
// result: log Σ exp of the scores of each query and head, […, Tq, Hq].
func attention(j *job, op device.Attention, stored []Operand) ([]launch, error) {
	f, err := newAttending(j, op, stored)
	switch {
	case err != nil || j.Out.elements() == 0:
		return nil, err
	case op.LSE && (!f.cores || f.fixed || f.few()):
		return nil, fmt.Errorf("%w: one launch cannot compute attention and attention_lse of q%v and k%v", device.ErrUnsupported,
			j.Ins[0].Shape, j.Ins[1].Shape)
	case !f.cores:
		return f.plain()
	case f.few():
		return f.split(j)
	}
	return f.whole()
}

// attending describes an attention in the form that its kernels need.
type attending struct {
	cores   bool // whether tensor cores compute it
	hopper  bool // whether Hopper's tensor cores compute it
	dt      string
	lead    int   // number of batch dimensions, after merging
	dh      int64 // elements of a head
	result  int64 // number of elements of the result
	rows    int64 // number of rows: queries of all heads that use one head of keys and values
	heads   int64 // number of key heads, summed over all batches
	batches int64
	keys    int64
	given   bool  // whether an operand holds lengths (numbers of keys)
	bent    bool  // whether scores have a softcap or a mask
	fixed   bool  // see device.Attention
	room    int64 // in bytes; see splitRoom
	wider   int64 // see wideBlocks
	args    words // words of AttentionArgs or, if lse is set, FlashLSEArgs
	lse     bool  // see device.Attention
	cluster int64 // number of splits of the same rows that the thread blocks of a cluster have and join; 1 for no cluster
}

// lengths describes the operand that holds the numbers of keys: its address, and its strides in bytes. There is a
// stride for each batch dimension, and one from query to query.
type lengths struct {
	addr    nvlib.Ptr // address of the operand; 0 if there is none
	wide    bool
	batches []int64
	queries int64
}

// lengthsOf returns the description of the operand with lengths, of which ins holds at most one. It checks the operand
// for queries of the given shape.
func lengthsOf(ins []Operand, queries []int64) (lengths, error) {
	b := len(queries) - 1
	l := lengths{batches: make([]int64, b)}
	if len(ins) == 0 {
		return l, nil
	}
	o := ins[0]
	if !o.DType.IsInt() || !slices.Equal(o.Shape, queries) && !slices.Equal(o.Shape, queries[:b]) {
		return l, fmt.Errorf("lengths have type %s%v, which does not fit queries of shape %v", o.DType, o.Shape, queries)
	}
	l.addr, l.wide = o.Addr, o.DType == ir.I64
	for d := range l.batches {
		l.batches[d] = o.Strides[d] * o.DType.Size()
	}
	// A single query uses the length of its batch, so it needs no stride.
	if len(o.Shape) > b && queries[b] > 1 {
		l.queries = o.Strides[b] * o.DType.Size()
	}
	return l, nil
}

// maskOf checks a mask, if there is one, for queries of the given shape and number of keys. It returns the mask's
// strides.
func maskOf(mask Operand, queries []int64, keys int64) ([]int64, error) {
	b := len(queries) - 1
	strides, want := make([]int64, b+2), append(slices.Clone(queries), keys)
	switch {
	case mask.Shape == nil:
	case slices.Equal(mask.Shape, want):
		copy(strides, mask.Strides)
	case slices.Equal(mask.Shape, want[b:]):
		copy(strides[b:], mask.Strides)
	default:
		return nil, fmt.Errorf("a mask of shape %v does not fit queries of shape %v and %d keys", mask.Shape, queries, keys)
	}
	return strides, nil
}

// checkLSE checks the result operand of attention_lse.
func checkLSE(j *job, op device.Attention, lse Operand) error {
	switch {
	case len(j.Ins) != 3:
		return fmt.Errorf("%d operands and attention_lse", len(j.Ins))
	case op.Window != 0 || op.Softcap != 0:
		return fmt.Errorf("attention_lse has neither a window nor a softcap")
	}
	if err := lse.check(); err != nil {
		return fmt.Errorf("attention_lse: %w", err)
	}
	grad := device.AttentionGrad{Op: ir.OpAttentionLSE, Scale: op.Scale, Causal: op.Causal}
	return device.CheckAttentionGrad(grad, lse.DType, lse.Shape, j.types()[:2], j.shapes()[:2])
}

func newAttending(j *job, op device.Attention, stored []Operand) (*attending, error) {
	if err := j.count(3, 5); err != nil {
		return nil, err
	}
	lse := Operand{Strides: make([]int64, len(j.Out.Shape))}
	if op.LSE {
		lse = stored[0]
		if err := checkLSE(j, op, lse); err != nil {
			return nil, err
		}
	}
	lengthsAt, maskAt, err := device.AttentionExtras(j.types())
	if err != nil {
		return nil, err
	}
	var lengths []Operand
	var mask Operand
	if lengthsAt > 0 {
		lengths = j.Ins[3:4]
	}
	if maskAt > 0 {
		mask = j.Ins[maskAt]
	}
	j.Ins = j.Ins[:3]
	if err := j.alike(); err != nil {
		return nil, err
	}
	if err := j.floats(); err != nil {
		return nil, err
	}
	out, q, k, v := j.Out, j.Ins[0], j.Ins[1], j.Ins[2]
	b := len(q.Shape) - 3
	if b < 0 || len(k.Shape) != b+3 || !slices.Equal(k.Shape, v.Shape) || !slices.Equal(q.Shape, out.Shape) ||
		!slices.Equal(q.Shape[:b], k.Shape[:b]) || q.Shape[b+2] != k.Shape[b+2] || k.Shape[b+1] == 0 ||
		q.Shape[b+1]%k.Shape[b+1] != 0 {
		return nil, fmt.Errorf("q%v, k%v and v%v into %v", q.Shape, k.Shape, v.Shape, out.Shape)
	}
	if op.Causal && len(lengths) == 0 && q.Shape[b] > k.Shape[b] {
		return nil, fmt.Errorf("causal attention with %d queries and only %d keys: the first queries would see no key",
			q.Shape[b], k.Shape[b])
	}
	if op.Window >= k.Shape[b] && !op.Fixed {
		// The window contains all keys. With fixed bits, the choice must not depend on the number of keys for which
		// memory is allocated.
		op.Window = 0
	}
	tq, heads, dh, share := q.Shape[b], q.Shape[b+1], q.Shape[b+2], q.Shape[b+1]/k.Shape[b+1]
	if dh > 4*threads {
		return nil, fmt.Errorf("%w: heads of %d dimensions; at most %d are supported", device.ErrUnsupported, dh, 4*threads)
	}
	l, err := lengthsOf(lengths, q.Shape[:b+1])
	if err != nil {
		return nil, err
	}
	m, err := maskOf(mask, q.Shape[:b+1], k.Shape[b])
	if err != nil {
		return nil, err
	}
	lead, err := padded(shared(q.Shape[:b], out.Strides[:b], q.Strides[:b], k.Strides[:b], v.Strides[:b], l.batches,
		m[:b], lse.Strides[:b]), 7)
	if err != nil {
		return nil, err
	}
	var args words
	args.addr(out.Addr, q.Addr, k.Addr, v.Addr)
	args.float(op.Scale)
	args.ints(tq, k.Shape[b], heads, share, dh, truth(op.Causal))
	for _, o := range []Operand{out, q, k, v} {
		args.ints(o.Strides[b:]...)
	}
	args.ints(extents(lead)...)
	for o := range 4 {
		args.ints(column(lead, o)...)
	}
	args.addr(l.addr, j.fault)
	args.bits(j.tag)
	args.ints(truth(l.wide), l.queries)
	args.ints(column(lead, 4)...)
	args.ints(op.Window)
	args.float(op.Softcap)
	args.addr(mask.Addr)
	args.ints(m[b:]...)
	args.ints(column(lead, 5)...)
	if op.LSE {
		args.addr(lse.Addr)
		args.ints(lse.Strides[b:]...)
		args.ints(column(lead, 6)...)
	}
	f := &attending{cores: onTensorCores(j, lead) && op.Window == 0 && op.Softcap == 0 && maskAt < 0,
		hopper: j.arch == "sm_90a", dt: ctype(out.DType), lead: len(lead), dh: dh,
		result: out.elements(), rows: tq * share, heads: k.Shape[b+1], batches: 1, keys: k.Shape[b], given: l.addr != 0,
		bent: op.Softcap != 0 || maskAt > 0, fixed: op.Fixed, room: splitRoom, wider: wideBlocks, args: args, lse: op.LSE}
	for _, n := range q.Shape[:b] {
		f.batches *= n
	}
	f.heads *= f.batches
	return f, nil
}

const (
	flashRows = 128 // number of rows of a thread block of flash
	flashKeys = 1 << 30
	flashMost = 1 << 31 // limit of the number of rows of a key head
	// hopperKeys is the number of keys that a thread block of flashHopper processes at a time. hopperThreads is the
	// number of threads of two warpgroups that compute and one that loads keys.
	hopperKeys    = 128
	hopperThreads = 384
	warpRows      = 16  // number of rows of a warp of flashSplit
	splitKeys     = 128 // each split has a multiple of this number of keys
	// Each split has at least splitLeast keys. If there are more than manySplits splits, combining them takes longer,
	// so each then has at least manyLeast keys.
	splitLeast, manySplits, manyLeast = 256, 16, 512
	// fewBlocks is a number of thread blocks: with fewer, flash leaves half of a large GPU idle. No choice depends on
	// the size of the GPU, because the bits of results depend on the choice. flashHopper splits the keys only if there
	// are at least wideBlocks blocks without splitting. With fewer blocks, each result would have more splits, and the
	// last block would take longer to join them than a separate kernel.
	fewBlocks   = 64
	wideBlocks  = fewBlocks / 2
	splitBlocks = 128 // number of thread blocks that splitting the keys should result in
	splitMost   = 32  // largest number of splits of keys with lengths
	// clusterMost is the largest number of splits that the thread blocks of a cluster have. It is the largest size of a
	// cluster that all GPUs with clusters support.
	clusterMost = 8
	// splitRoom is the largest size in bytes of the partial results of a launch with fixed bits. An attention with so
	// many rows that it needs more is computed by several launches.
	splitRoom = 64 << 20
)

func (f *attending) blocks(rows int64) int64 { return (f.rows + rows - 1) / rows * f.heads }

// few reports whether there are so few queries that their keys should be split over thread blocks. If there are
// lengths, the answer does not depend on the batch, so that the bits of a sequence do not depend on the batch. With
// fixed bits, the answer depends only on the size of a head.
func (f *attending) few() bool {
	switch {
	case f.dh != 64 && f.dh != 128:
		return false
	case f.fixed:
		return true
	case f.given:
		return f.rows <= flashRows
	}
	return f.rows <= 2*warpRows || f.blocks(flashRows) < fewBlocks || f.wide()
}

// wide reports whether flashHopper splits the keys over thread blocks, the last of which joins their results.
func (f *attending) wide() bool {
	n := f.blocks(flashRows)
	return f.hopper && !f.fixed && !f.given && f.rows > 2*warpRows && f.keys >= 2*splitLeast &&
		f.wider <= n && n <= fewBlocks
}

// whole returns a launch in which each thread block processes all keys.
func (f *attending) whole() ([]launch, error) {
	grid, err := exactGrid(f.blocks(flashRows))
	block, args := "Whole", "AttentionArgs"
	if f.lse {
		block, args = "WithLSE", "FlashLSEArgs"
	}
	if f.hopper && f.dh%64 == 0 {
		return []launch{f.hopperLaunch(block, args, grid, f.args)}, err
	}
	c := f.code("flash", args, "flash_rows", "flash")
	if f.lse {
		c.files = append(c.files, "flash_lse")
		c.symbol += block
		c.body = fmt.Sprintf("flash<%s, %d, %d, Flash%s<%[1]s, %[2]d, %[3]d>>", f.dt, f.lead, f.dh, block)
	}
	return []launch{{blocks: grid, args: f.args, code: c}}, err
}

// hopperLaunch returns a launch of the kernel flashHopper, whose thread blocks are of the C++ type FlashWhole,
// FlashWithLSE or FlashPart.
func (f *attending) hopperLaunch(block, args string, grid uint32, w words) launch {
	c := f.code("flashHopper", args, "flash_rows", "warpgroup", "flash_join", "flash_hopper")
	if f.lse {
		c.files = append(c.files, "flash_lse")
	}
	c.symbol += block
	c.block = hopperThreads
	c.body = fmt.Sprintf("flashHopper<%s, %d, %d, %d, Flash%s<%[1]s, %[2]d, %[3]d>>", f.dt, f.lead, f.dh,
		hopperKeys, block)
	// The shared memory has room for two tiles of keys, three of values and one of queries.
	return launch{blocks: grid, shared: uint32((5*hopperKeys + flashRows) * f.dh * 2), args: w, code: c}
}

// plain returns a launch with one block for each query of each head.
func (f *attending) plain() ([]launch, error) {
	per := int64(1)
	for per*threads < f.dh {
		per *= 2
	}
	grid, err := exactGrid(f.result / f.dh)
	return []launch{{blocks: grid, args: f.args, code: code{
		files:  []string{"sync", "map", "rows", "attention"},
		symbol: symbol("attention", f.dt, fmt.Sprintf("b%dp%dc%d", f.lead, per, truth(f.bent))),
		args:   fmt.Sprintf("AttentionArgs<%d>", f.lead),
		body:   fmt.Sprintf("attention<%s, %d, %d, %t>", f.dt, f.lead, per, f.bent),
	}}}, err
}

// clusters reports whether a cluster of thread blocks may have the splits of the same rows, if the GPU has room for all
// of its blocks at once: see Target.Alone.
func (f *attending) clusters() bool { return f.hopper && !f.fixed && !f.wide() }

// split returns launches in which the keys of each result are split over several thread blocks. A second launch joins
// their results, unless the blocks do so themselves.
func (f *attending) split(j *job) ([]launch, error) {
	rows := f.splitRows()
	units := f.blocks(rows)
	most := splitBlocks / units
	if f.given {
		most = splitMost
	}
	each := f.keys / splitLeast
	if f.clusters() {
		each = ceil(f.keys, splitLeast)
	}
	splits := max(1, min(most, max(f.keys/manyLeast, min(manySplits, each))))
	length := ((f.keys+splits-1)/splits + splitKeys - 1) / splitKeys * splitKeys
	if f.fixed {
		length = manyLeast
	}
	splits = (f.keys + length - 1) / length
	once := units // number of units (row blocks of key heads) that one launch computes
	var parts [2]nvlib.Ptr
	if f.cluster = 1; f.clusters() && j.alone && splits <= clusterMost {
		f.cluster = splits
	}
	if splits > f.cluster {
		if f.fixed {
			once = min(units, max(1, f.room/(splits*rows*(f.dh+2)*4)))
		}
		for i, n := range []int64{f.dh, 2} {
			var err error
			if parts[i], err = j.scratch(once*splits*rows*n*4, false); err != nil {
				return nil, err
			}
		}
	}
	var arrived nvlib.Ptr
	if f.wide() {
		var err error
		if arrived, err = j.scratch(units*4, true); err != nil {
			return nil, err
		}
	}
	var all []launch
	for first := int64(0); first < units; first += once {
		args := slices.Clone(f.args)
		args.addr(parts[0], parts[1])
		args.ints(splits, length, f.rows, (f.rows+rows-1)/rows, f.heads/f.batches, first)
		args.addr(arrived)
		l, err := f.splitLaunches(j, args, min(once, units-first), splits)
		if err != nil {
			return nil, err
		}
		all = append(all, l...)
	}
	return all, nil
}

// splitLaunches returns the launches that compute the given number of units, each a block of rows of a key head.
func (f *attending) splitLaunches(j *job, args words, units, splits int64) ([]launch, error) {
	grid, err := exactGrid(units * splits)
	if err != nil {
		return nil, err
	}
	all := []launch{f.splitLaunch(j, args, grid)}
	if splits > f.cluster && !f.wide() {
		if grid, err = exactGrid(units * f.splitRows() * f.dh / 4 / threads); err != nil {
			return nil, err
		}
		c := f.code("flashJoin", "FlashSplitArgs", "flash_rows", "flash_join")
		c.symbol += fmt.Sprintf("w%d", f.splitWarps())
		c.body = fmt.Sprintf("flashJoin<%s, %d, %d, %d>", f.dt, f.lead, f.dh, f.splitRows())
		c.lets = true
		all = append(all, launch{blocks: grid, args: args, code: c})
	}
	return all, nil
}

// splitLaunch returns the launch whose thread blocks each process a part of the keys.
func (f *attending) splitLaunch(j *job, args words, grid uint32) launch {
	if f.wide() {
		return f.hopperLaunch("Part", "FlashSplitArgs", grid, args)
	}
	warps, times := f.splitWarps(), int64(2)
	if !j.lends(f.splitShared(times)) {
		times = 1
	}
	c := f.code("flashSplit", "FlashSplitArgs", "flash_rows", "flash_join", "cluster", "flash_split")
	c.symbol += fmt.Sprintf("w%ds%dc%d", warps, times*warps, f.cluster)
	c.body = fmt.Sprintf("flashSplit<%s, %d, %d, %d, %d, %d>", f.dt, f.lead, f.dh, warps, times*warps, f.cluster)
	c.cluster, c.lets, c.settles = int(f.cluster), true, true
	return launch{blocks: grid, shared: uint32(f.splitShared(times)), args: args, code: c}
}

// splitRows returns the number of rows of a thread block if the keys are split over thread blocks.
func (f *attending) splitRows() int64 {
	if f.wide() {
		return flashRows
	}
	return warpRows * f.splitWarps()
}

// splitWarps returns the number of warps of flashSplit that share keys: each loads some keys, and all use them. Four
// warps were not faster. The bits of results depend on this number.
func (f *attending) splitWarps() int64 {
	if f.rows <= warpRows && !f.fixed {
		return 1
	}
	return 2
}

// splitShared returns the size in bytes of a thread block's shared memory in flashSplit. It has room for 16 keys and 16
// values of each warp, in the given number of copies (times). The bits of results do not depend on times.
func (f *attending) splitShared(times int64) int64 { return times * threads / 32 * 16 * 2 * 2 * f.dh }

func (f *attending) code(body, args string, files ...string) code {
	return code{
		files:  append([]string{"sync", "map", "rows", "attention", "warp"}, files...),
		symbol: symbol(body, f.dt, fmt.Sprintf("b%dd%d", f.lead, f.dh)),
		args:   fmt.Sprintf("%s<%d>", args, f.lead),
		body:   fmt.Sprintf("%s<%s, %d, %d>", body, f.dt, f.lead, f.dh),
	}
}

// before80 reports whether a GPU is older than sm_80, and so lacks instructions that flash needs.
func before80(arch string) bool {
	n, err := strconv.Atoi(strings.TrimRight(strings.TrimPrefix(arch, "sm_"), "af"))
	return err == nil && n < 80
}

// onTensorCores reports whether tensor cores can compute this attention. The operands must be 2-byte floats, the heads
// must fit into registers, and the rows must permit accesses of 16 bytes.
func onTensorCores(j *job, lead []axis) bool {
	dh := j.Out.Shape[len(j.Out.Shape)-1]
	keys := j.Ins[1].Shape[len(j.Ins[1].Shape)-3]
	rows := j.Out.Shape[len(j.Out.Shape)-3] * j.Out.Shape[len(j.Out.Shape)-2] // number of rows of a key head
	if j.Out.DType.Size() != 2 || dh%16 != 0 || dh > 128 || before80(j.arch) ||
		keys < 1 || keys > flashKeys || rows >= flashMost {
		return false
	}
	all := []Operand{j.Out, j.Ins[0], j.Ins[1], j.Ins[2]}
	for n, o := range all {
		b := len(o.Shape) - 3
		if o.Strides[b+2] != 1 || uint64(o.Addr)%16 != 0 || o.Shape[b] > 1 && o.Strides[b]%8 != 0 || o.Shape[b+1] > 1 &&
			o.Strides[b+1]%8 != 0 ||
			slices.ContainsFunc(lead, func(a axis) bool { return a.s[n]%8 != 0 }) {
			return false
		}
	}
	return true
}
