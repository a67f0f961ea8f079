package tune

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"hocket.example/hocket/internal/contest"
)

var smArch = regexp.MustCompile(`sm_(\d+)(\d)[a-z]?`)

// WriteVLLM writes below which size kernels beat NCCL, as rows for the
// dictionaries of vLLM's all_reduce_utils.py: of vLLM's own kernels and of torch's
// symmetric memory where peers have figures of them, else of hocket's kernels.
func (u *Tuned) WriteVLLM(w io.Writer, peers []contest.Peer) error {
	arch := smArch.FindStringSubmatch(u.Table.Identity)
	if arch == nil {
		return contest.Usagef("--export vllm is for tables of GPUs, and this is of %s: give figures of GPUs by --peers", u.Table.Identity)
	}
	if len(peers) > 0 && !slices.ContainsFunc(peers, func(p contest.Peer) bool { return p.OfNCCL() }) {
		return contest.Usagef("--peers: there are no figures of NCCL to compare with, such as a column pynccl")
	}
	vllm, what := peersBeatNCCL(peers, "ca"), "vLLM's kernels. vLLM bounds them by CustomAllreduce's max_size, too: 8 MiB unless it is given"
	if len(vllm) == 0 {
		vllm, what = u.beatsNCCL(), "hocket's kernels, NOT vLLM's: those may stop earlier. Measure them by vLLM's\n# benchmark_device_communicators.py --output-json FILE, and give that by --peers FILE"
	}
	if len(vllm) == 0 && len(peers) == 0 {
		return contest.Usagef("--export vllm: no kernel was measured here to beat NCCL in an all_reduce of 2-byte elements; run hocket tune, or give figures by --peers")
	}
	t := &tableText{contest.Lines{W: w}}
	t.Line("# all_reduce below so many bytes, by number of ranks: where a kernel beat NCCL on")
	t.Line("# %s.", u.Table.Identity)
	t.Line("# Rows for vllm/distributed/device_communicators/all_reduce_utils.py, in place of those")
	t.Line("# with the same keys; leave the others there.")
	t.Line("KiB = 1024\nMiB = 1024 * 1024")
	t.limits("CUSTOM_ALL_REDUCE_MAX_SIZES", what, arch, vllm)
	torch, what := peersBeatNCCL(peers, "symm_mem"), "torch's symmetric memory, as vLLM uses it"
	if len(torch) == 0 {
		torch, what = peersBeatNCCL(peers, "torch"), "torch's symmetric memory without multicast, and without the copies that vLLM makes"
	}
	if len(torch) > 0 {
		t.limits("SYMM_MEM_ALL_REDUCE_MAX_SIZES", what, arch, torch)
	}
	return t.Err
}

// pythonBytes is a number of bytes as that file has them.
func pythonBytes(n int64) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d * MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d * KiB", n>>10)
	}
	return fmt.Sprint(n)
}

// endless is what a bracket without an end counts as: vLLM's own largest limit.
const endless = 64 << 20

// beatsNCCL returns, by number of members, the end of the last bracket before one
// that was not measured, or in which NCCL is the fastest. Of several entries of one
// number of members that of bf16 counts, and of shipped ones none that was not at least
// checked: this machine did not measure them.
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

// peersBeatNCCL returns, by number of ranks, below which size a peer whose name
// begins so was faster than NCCL, plain or with windows: halfway, in ratio,
// between the largest size at which it was and the next at which it was not. vLLM
// compares by <.
func peersBeatNCCL(peers []contest.Peer, prefix string) map[int]int64 {
	nccl, theirs := map[int]map[int64]float64{}, map[int]map[int64]float64{} // by ranks and bytes
	for _, p := range peers {
		if p.Op != "all_reduce" || p.Issued == "eager" {
			continue
		}
		to := theirs
		switch {
		case p.OfNCCL():
			to = nccl
		case !strings.HasPrefix(p.Name, prefix):
			continue
		}
		if to[p.Ranks] == nil {
			to[p.Ranks] = map[int64]float64{}
		}
		if old, ok := to[p.Ranks][p.Bytes]; !ok || p.Micros < old {
			to[p.Ranks][p.Bytes] = p.Micros
		}
	}
	out := map[int]int64{}
	for ranks, times := range theirs {
		if limit := limitOf(times, nccl[ranks]); limit > 0 {
			out[ranks] = limit
		}
	}
	return out
}

// limitOf is the size below which times are less than those of NCCL, both by
// size; 0 where they never are.
func limitOf(times, nccl map[int64]float64) int64 {
	won, lost := int64(0), int64(0)
	for bytes, us := range times {
		if other, ok := nccl[bytes]; ok && us < other {
			won = max(won, bytes)
		}
	}
	for bytes, us := range times {
		if other, ok := nccl[bytes]; ok && us >= other && bytes > won {
			lost = min(cmp.Or(lost, bytes), bytes)
		}
	}
	switch {
	case won == 0:
		return 0
	case lost == 0: // nothing is known beyond
		return won + 16
	}
	const kb = 1 << 10
	return max(int64(math.Sqrt(float64(won)*float64(lost)))/kb*kb, won+16)
}

func (t *tableText) limits(name, what string, arch []string, sizes map[int]int64) {
	t.Line("\n# %s.\n%s = {\n    \"%s.%s\": {", what, name, arch[1], arch[2])
	var members []int
	for m := range sizes {
		members = append(members, m)
	}
	slices.Sort(members)
	for _, m := range members {
		t.Line("        %d: %s,  # %s", m, pythonBytes(sizes[m]), contest.BytesText(sizes[m]))
	}
	t.Line("    },\n}")
}
