package tune

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"hocket.example/hocket/internal/contest"
)

var smArch = regexp.MustCompile(`sm_(\d+)(\d)[a-z]?`)

// Figures holds the tuned table of a machine, and measurements of peers (other programs) on that machine.
type Figures struct {
	Tuned *Tuned
	Peers []contest.Peer
}

// WriteVLLM writes rows for the dictionaries in vLLM's all_reduce_utils.py, which have for each kernel the message size
// up to which it is the fastest. If the peers include measurements of vLLM's own kernels and torch's symmetric memory,
// the rows are for these. Otherwise the rows are for hocket's kernels.
func WriteVLLM(w io.Writer, list []Figures) error {
	var machines []string
	var custom, symm []rows
	ours := false
	for _, f := range list {
		arch := smArch.FindStringSubmatch(f.Tuned.Table.Identity)
		if arch == nil {
			return contest.Usagef("--export vllm needs a table of GPUs, but this one is of %s: pass measurements "+
				"of GPUs with --peers",
				f.Tuned.Table.Identity)
		}
		c, s, err := f.rows(arch[1] + "." + arch[2])
		if err != nil {
			return err
		}
		for i, other := range custom {
			if other.arch == c.arch {
				return contest.Usagef("%s and %s both have the key %q of vLLM's dictionaries: select one machine",
					machines[i], f.Tuned.Table.Identity, c.arch)
			}
		}
		ours = ours || c.ours
		custom, symm, machines = append(custom, c), append(symm, s), append(machines, f.Tuned.Table.Identity)
	}
	t := &tableText{contest.Lines{W: w}}
	t.Line("# Limits of all_reduce in bytes, by number of ranks, from figures of")
	t.Line("# %s.", strings.Join(machines, ",\n# "))
	t.Line("# Merge these rows into vllm/distributed/device_communicators/all_reduce_utils.py; rows")
	t.Line("# that are not here stay. A limit is halfway, in ratio, between two sizes measured. Of all limits that vLLM's")
	t.Line("# order allows (custom kernels, symmetric memory, NCCL), these make the product of the times at the sizes")
	t.Line("# measured the least.")
	t.Line("KiB = 1024\nMiB = 1024 * 1024")
	t.Line("")
	if ours {
		t.Line("# Below these sizes hocket's kernels, NOT vLLM's, beat NCCL; vLLM's may stop earlier. Measure those by " +
			"vLLM's")
		t.Line("# benchmark_device_communicators.py --output-json FILE, and give that by --peers FILE.")
	} else {
		t.Line("# Below these sizes vLLM runs its custom kernels: up to where symmetric memory, or NCCL, is the faster.")
		t.Line("# It runs one stage on 2 GPUs, below 512 KiB on 4, and below 256 KiB on 6 and 8; else two: each row " +
			"names the")
		t.Line("# columns that were compared. CustomAllreduce's max_size bounds them, too: 8 MiB unless it is given.")
	}
	t.rows("CUSTOM_ALL_REDUCE_MAX_SIZES", custom)
	if !slices.ContainsFunc(symm, func(r rows) bool { return len(r.of) > 0 }) {
		return t.Err
	}
	t.Line("")
	t.Line("# Below these sizes, and from the limits above, vLLM runs torch's symmetric memory: up to where NCCL is " +
		"the faster.")
	if slices.ContainsFunc(symm, func(r rows) bool { return r.ours }) {
		t.Line("# Columns named torch are without multicast, and without the copies that vLLM makes.")
	}
	t.rows("SYMM_MEM_ALL_REDUCE_MAX_SIZES", symm)
	return t.Err
}

// rows holds the entries for one key of one of vLLM's dictionaries, by number of ranks.
type rows struct {
	arch string
	of   map[int]limit
	ours bool // whether the times are of other kernels than vLLM's, or of other calls of these
}

// limit is a message size in bytes, with a text that explains how it was determined.
type limit struct {
	bytes int64
	why   string
}

// rows returns the rows of both dictionaries, for custom kernels and for symmetric memory.
func (f *Figures) rows(arch string) (custom, symm rows, err error) {
	if len(f.Peers) > 0 && !slices.ContainsFunc(f.Peers, func(p contest.Peer) bool { return p.OfNCCL() }) {
		return custom, symm, contest.Usagef(
			"--peers: there are no figures of NCCL to compare with, such as a column pynccl")
	}
	custom, symm = rows{arch: arch, of: map[int]limit{}}, rows{arch: arch, of: map[int]limit{}}
	for ranks, t := range timesOf(f.Peers, arch) {
		t.limits(ranks, custom.of, symm.of)
		symm.ours = symm.ours || t.torch
	}
	if len(custom.of) > 0 {
		return custom, symm, nil
	}
	for ranks, bytes := range f.Tuned.beatsNCCL() {
		custom.of[ranks] = limit{bytes: bytes}
	}
	custom.ours = len(custom.of) > 0
	if len(custom.of) == 0 && len(f.Peers) == 0 {
		err = contest.Usagef("--export vllm: no measurement shows a kernel that is faster than NCCL in an " +
			"all_reduce of 2-byte elements; run hocket tune, or pass measurements with --peers")
	}
	return custom, symm, err
}

// pythonBytes formats a number of bytes in the style of all_reduce_utils.py.
func pythonBytes(n int64) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d * MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d * KiB", n>>10)
	}
	return fmt.Sprint(n)
}

// endless replaces the end of a size bracket without a limit. The value of endless is the largest limit in vLLM's
// dictionaries.
const endless = 64 << 20

// beatsNCCL returns, for each number of members, the message size up to which hocket's kernels are faster than NCCL.
// The size is the end of the last size bracket before the first one that was not measured or in which NCCL is the
// fastest. beatsNCCL considers only entries for sums of 2-byte elements that were measured or checked on this machine.
func (u *Tuned) beatsNCCL() map[int]int64 {
	out := map[int]int64{}
	for _, e := range u.Table.Entries {
		if e.Shipped || e.Op != "all_reduce" || e.Reduction == "minmax" || e.Elem != 2 {
			continue
		}
		for _, b := range e.Brackets {
			if len(b.Best) == 0 || b.Best[0].Micros == 0 || u.Table.Library(b.Best[0].Algo) {
				break
			}
			out[e.Members] = max(out[e.Members], cmp.Or(b.UpTo, endless))
		}
	}
	return out
}

// times holds the measured times for one number of ranks. The maps have, for each message size, the column of the
// kernel and its time.
type times struct {
	custom, symm, nccl map[int64]column
	torch              bool // whether all times in symm are from torch's columns
}

type column struct {
	name   string
	micros float64
}

// multimem lists the numbers of ranks for which vLLM's symm_mem.py uses multicast, by compute
// capability.
var multimem = map[string][]int{"9.0": {4, 6, 8}, "10.0": {6, 8}, "10.3": {6, 8}}

// customColumn returns the column of the kernel that vLLM's custom_all_reduce.cuh runs.
func customColumn(ranks int, bytes int64) string {
	if ranks == 2 || ranks <= 4 && bytes < 512<<10 || bytes < 256<<10 {
		return "ca_1stage"
	}
	return "ca_2stage"
}

// timesOf returns, for each number of ranks, the times of the kernels that vLLM would run. For NCCL it uses the shorter
// of the times with and without windows. For symmetric memory it uses the shortest time if the column of the kernel
// that vLLM would run is missing.
func timesOf(peers []contest.Peer, arch string) map[int]*times {
	out := map[int]*times{}
	for _, p := range peers {
		if p.Op == "all_reduce" && p.Issued != "eager" && out[p.Ranks] == nil {
			symm, torch := symmColumn(peers, p.Ranks, arch)
			t := &times{custom: map[int64]column{}, symm: map[int64]column{}, nccl: map[int64]column{}, torch: torch}
			for _, q := range peers {
				switch {
				case q.Op != "all_reduce" || q.Issued == "eager" || q.Ranks != p.Ranks:
				case q.OfNCCL():
					faster(t.nccl, q)
				case q.Name == customColumn(q.Ranks, q.Bytes):
					faster(t.custom, q)
				case strings.HasPrefix(q.Name, symm):
					faster(t.symm, q)
				}
			}
			out[p.Ranks] = t
		}
	}
	return out
}

func faster(to map[int64]column, p contest.Peer) {
	if old, ok := to[p.Bytes]; !ok || p.Micros < old.micros {
		to[p.Bytes] = column{p.Name, p.Micros}
	}
}

// symmColumn returns the prefix of the column for the kernel of symmetric memory that vLLM would run. If that column is
// missing, it returns the prefix of another column of symmetric memory.
func symmColumn(peers []contest.Peer, ranks int, arch string) (prefix string, torch bool) {
	has := func(prefix string) bool {
		return slices.ContainsFunc(peers, func(p contest.Peer) bool {
			return p.Op == "all_reduce" && p.Issued != "eager" && p.Ranks == ranks && strings.HasPrefix(p.Name, prefix)
		})
	}
	prefix = "symm_mem"
	if known := multimem[arch]; slices.Contains(known, ranks) {
		prefix = "symm_mem_multimem"
	} else if known != nil {
		prefix = "symm_mem_two_shot"
	}
	switch {
	case has(prefix):
		return prefix, false
	case has("symm_mem"):
		return "symm_mem", false
	}
	return "torch", has("torch")
}

// limits adds the limits for a number of ranks to the rows of the two dictionaries.
func (t *times) limits(ranks int, custom, symm map[int]limit) {
	var sizes []int64
	for bytes := range t.nccl {
		_, c := t.custom[bytes]
		_, s := t.symm[bytes]
		if (c || len(t.custom) == 0) && (s || len(t.symm) == 0) {
			sizes = append(sizes, bytes)
		}
	}
	slices.Sort(sizes)
	if len(sizes) == 0 {
		return
	}
	micros := func(of map[int64]column) (list []float64) {
		for _, bytes := range sizes {
			if c, ok := of[bytes]; ok {
				list = append(list, c.micros)
			}
		}
		return list
	}
	c, s := handOver(micros(t.custom), micros(t.symm), micros(t.nccl))
	if len(t.custom) > 0 {
		custom[ranks] = limitAt(sizes, c, t.custom)
	}
	if len(t.symm) > 0 {
		if s == c { // the limit of symmetric memory applies where custom kernels cannot run
			_, s = handOver(nil, micros(t.symm), micros(t.nccl))
		}
		symm[ranks] = limitAt(sizes, s, t.symm)
	}
}

// handOver returns two numbers of message sizes, counted from the smallest: those for which vLLM should run the first
// kernel, and those for which it should run the first or the second. handOver minimizes the product of the times at all
// sizes. vLLM considers the first kernel, the second and NCCL in this order, and uses the first one whose limit permits
// the size. If several pairs of limits have the same product, the largest limits are used. The list of a kernel that
// does not exist is empty.
func handOver(first, second, nccl []float64) (int, int) {
	least, a, b := math.Inf(1), 0, 0
	for i := 0; i <= len(first) || i == 0; i++ {
		for k := i; k <= len(nccl) && (k == i || len(second) > 0); k++ {
			cost := 0.0
			for at, us := range nccl {
				switch {
				case at < i:
					us = first[at]
				case at < k:
					us = second[at]
				}
				cost += math.Log(us)
			}
			if cost <= least+1e-9 {
				least, a, b = cost, i, k
			}
		}
	}
	return a, b
}

// limitAt returns a limit that is larger than the first n sizes, because vLLM runs a kernel for sizes below its limit.
// The limit is the geometric mean of the n-th size and the next size.
func limitAt(sizes []int64, n int, of map[int64]column) limit {
	var names []string
	for _, bytes := range sizes {
		if name := of[bytes].name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	by := strings.Join(names, ", ")
	switch n {
	case 0:
		return limit{sizes[0], fmt.Sprintf("%s: slower at the smallest measured size", by)}
	case len(sizes):
		last := sizes[n-1]
		return limit{last + 16, fmt.Sprintf("%s: faster up to the largest measured size, %s", by,
			contest.BytesText(last))}
	}
	const kb = 1 << 10
	won, lost := sizes[n-1], sizes[n]
	return limit{max(int64(math.Sqrt(float64(won)*float64(lost)))/kb*kb, won+16),
		fmt.Sprintf("%s: between %s and %s", by, contest.BytesText(won), contest.BytesText(lost))}
}

// vllmRanks are the numbers of ranks in vLLM's dictionaries.
var vllmRanks = []int{2, 4, 6, 8}

func (t *tableText) rows(name string, list []rows) {
	t.Line("%s = {", name)
	for _, r := range list {
		t.Line("    %q: {", r.arch)
		ranks := slices.Collect(maps.Keys(r.of))
		for _, n := range vllmRanks {
			if _, ok := r.of[n]; !ok {
				ranks = append(ranks, n)
			}
		}
		slices.Sort(ranks)
		for _, n := range ranks {
			l, ok := r.of[n]
			if !ok {
				t.Line("        # no figures for %d ranks: keep vLLM's", n)
				continue
			}
			why := contest.BytesText(l.bytes)
			if l.why != "" {
				why += "; " + l.why
			}
			t.Line("        %d: %s,  # %s", n, pythonBytes(l.bytes), why)
		}
		t.Line("    },")
	}
	t.Line("}")
}
