package bench

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"hocket.example/hocket/internal/comm"
)

// TunedFrom is a table that there was, and the file it lies in.
func TunedFrom(f comm.Found) *Tuned {
	return &Tuned{Table: f.Table, Hash: f.Table.Hash(), File: f.From}
}

// Save keeps the table where worlds of its machine look for it, or in path
// where that is not empty.
func (u *Tuned) Save(path string) (err error) {
	if path != "" {
		u.File = path
		return u.Table.Write(path)
	}
	u.File, err = u.Table.Save()
	return err
}

// WriteText writes the table: for each collective the brackets of sizes, with
// what is chosen and what comes next.
func (u *Tuned) WriteText(w io.Writer) error {
	t := &table{w: w}
	t.line("machine  %s", u.Table.Identity)
	t.line("made     %s", u.Table.Made)
	t.line("hash     %s", u.Hash)
	t.line("file     %s", u.File)
	if u.Fresh {
		t.line("took     %.1f s", u.Took)
	}
	for _, n := range u.Notes {
		t.line("note     %s", n)
	}
	for _, e := range u.Table.Entries {
		t.entry(&e)
	}
	return t.err
}

func (t *table) entry(e *comm.Entry) {
	fixed := ""
	if e.Fixed != nil {
		fixed = "; fixed: " + tuningText(*e.Fixed)
	}
	t.line("\n%s, %d members, elements of %d bytes%s", e.Op, e.Members, e.Elem, fixed)
	rows := [][]string{{"to", "algorithm", "µs", "then"}}
	for _, b := range e.Brackets {
		to := "∞"
		if b.UpTo > 0 {
			to = bytesText(b.UpTo)
		}
		row := []string{to, "", "", ""}
		for i, x := range b.Best {
			if i == 0 {
				row[1] = tuningText(x.Tuning)
				if x.Micros > 0 {
					row[2] = fmt.Sprintf("%.2f", x.Micros)
				}
				continue
			}
			next := x.Algo
			if x.Micros > 0 {
				next += fmt.Sprintf(" %.2f", x.Micros)
			}
			row[3] += strings.Repeat(", ", min(i-1, 1)) + next
		}
		rows = append(rows, row)
	}
	t.rows(rows)
}

var smArch = regexp.MustCompile(`sm_(\d+)(\d)[a-z]?`)

// WriteVLLM writes the largest messages at which kernels beat NCCL as the
// dictionaries of vLLM's all_reduce_utils.py: of vLLM's own kernels and torch's
// where peers have figures of them, else of hocket's kernels of the same kind.
func (u *Tuned) WriteVLLM(w io.Writer, peers []Peer) error {
	arch := smArch.FindStringSubmatch(u.Table.Identity)
	if arch == nil {
		return usagef("--export vllm is for tables of GPUs, and this is of %s", u.Table.Identity)
	}
	t := &table{w: w}
	t.line("# Largest all_reduce, in bytes by number of ranks, at which a kernel beat NCCL on")
	t.line("# %s", u.Table.Identity)
	t.line("MiB = 1024 * 1024")
	own := u.beatsNCCL()
	vllm := peersBeatNCCL(peers, "ca")
	what := "vLLM's kernels, as measured by its benchmark"
	if len(vllm) == 0 {
		vllm, what = own, "hocket's kernels; vLLM's own may stop earlier: give figures of them by --peers"
	}
	t.limits("CUSTOM_ALL_REDUCE_MAX_SIZES", what, arch, vllm)
	if torch := peersBeatNCCL(peers, "torch"); len(torch) > 0 {
		t.limits("SYMM_MEM_ALL_REDUCE_MAX_SIZES", "torch's symmetric memory without multicast", arch, torch)
	}
	return t.err
}

func (t *table) limits(name, what string, arch []string, sizes map[int]int64) {
	t.line("\n# %s\n%s = {\n    \"%s.%s\": {", what, name, arch[1], arch[2])
	var members []int
	for m := range sizes {
		members = append(members, m)
	}
	slices.Sort(members)
	for _, m := range members {
		value := fmt.Sprintf("%d * MiB", sizes[m]>>20)
		if sizes[m]%(1<<20) != 0 {
			value = fmt.Sprint(sizes[m])
		}
		t.line("        %d: %s,  # %s", m, value, bytesText(sizes[m]))
	}
	t.line("    },\n}")
}

// beatsNCCL returns, by number of members, the end of the last bracket before
// NCCL is the fastest; the largest size measured has no end and counts as 256 MiB.
func (u *Tuned) beatsNCCL() map[int]int64 {
	out := map[int]int64{}
	for _, e := range u.Table.Entries {
		if e.Op != "all_reduce" {
			continue
		}
		for _, b := range e.Brackets {
			if len(b.Best) == 0 || strings.HasPrefix(b.Best[0].Algo, "nccl") {
				break
			}
			out[e.Members] = b.UpTo
			if b.UpTo == 0 {
				out[e.Members] = 256 << 20
			}
		}
	}
	return out
}

// peersBeatNCCL returns, by number of ranks, the largest size at which a peer
// whose name begins so was faster than NCCL, plain or with windows.
func peersBeatNCCL(peers []Peer, prefix string) map[int]int64 {
	type at struct {
		ranks int
		bytes int64
	}
	nccl, theirs := map[at]float64{}, map[at]float64{}
	for _, p := range peers {
		if p.Op != "all_reduce" || p.Issued == "eager" {
			continue
		}
		list, k := theirs, at{p.Ranks, p.Bytes}
		switch {
		case strings.HasPrefix(p.Name, "nccl"):
			list = nccl
		case !strings.HasPrefix(p.Name, prefix):
			continue
		}
		if old, ok := list[k]; !ok || p.Micros < old {
			list[k] = p.Micros
		}
	}
	out := map[int]int64{}
	for k, us := range theirs {
		if other, ok := nccl[k]; ok && us < other {
			out[k.ranks] = max(out[k.ranks], k.bytes)
		}
	}
	return out
}

// KeptTable is a tuned table as doctor tells of it.
type KeptTable struct {
	File    string `json:"file"`
	Machine string `json:"machine,omitempty"`
	Ranks   int    `json:"ranks,omitempty"`
	Hash    string `json:"hash,omitempty"`
	Broken  string `json:"broken,omitempty"` // why it is not used
}

// KeptTables lists the tuned tables that are kept.
func KeptTables() []KeptTable {
	var list []KeptTable
	for _, f := range comm.Kept() {
		k := KeptTable{File: f.From, Broken: f.Ignored}
		if f.Table != nil {
			k.Machine, k.Ranks, k.Hash = f.Table.Identity, f.Table.Ranks, f.Table.Hash()
		}
		list = append(list, k)
	}
	return list
}

// String says it in a line.
func (k KeptTable) String() string {
	if k.Broken != "" {
		return fmt.Sprintf("%s is not used: %s", k.File, k.Broken)
	}
	return fmt.Sprintf("%s, %d ranks: %s", k.Machine, k.Ranks, k.File)
}
