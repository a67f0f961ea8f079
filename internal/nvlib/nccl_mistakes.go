package nvlib

import "fmt"

// Mistake is a bug in some versions of NCCL that affects hocket.
type Mistake uint8

// Mistakes.
const (
	// SwitchedOrder is a wrong order: with NVLink multicast, all_gather and reduce_scatter use the order of GPUs where
	// they should use the order of ranks.
	SwitchedOrder Mistake = iota
)

// KnownMistake describes a bug of NCCL, and the versions that have it.
type KnownMistake struct {
	Mistake Mistake
	// From is the first version with the bug. Before is the first version without it, or 0 if there is none yet. Both
	// numbers are in the form that Version returns.
	From, Before int
	// Multicast reports that the bug occurs only with NVLink multicast.
	Multicast bool
	What      string // the mistake
	Instead   string // how hocket avoids the mistake
	Source    string
}

// ncclMistakes lists the known mistakes. It does not contain an out-of-bounds write of all_reduce that is reported as
// fixed in 2.27.5. The cause of that report was a program that had passed NCCL memory that peers could not access
// (ggml-org/llama.cpp pull request 24491).
var ncclMistakes = []KnownMistake{
	{
		Mistake: SwitchedOrder, From: 21800, Multicast: true,
		What:    "with NVLink multicast blocks of all_gather and reduce_scatter are in the order of GPUs, not of ranks",
		Instead: "nccl declines both",
		Source:  "NVIDIA/nccl issue 1906, pull request 2377",
	},
}

// Mistakes returns the known bugs of the loaded library. If the library does not report its version, Mistakes returns
// all of them.
func (n *NCCL) Mistakes(multicast bool) []KnownMistake {
	v, err := n.Version()
	var list []KnownMistake
	for _, k := range ncclMistakes {
		if (err != nil || k.in(v)) && (multicast || !k.Multicast) {
			list = append(list, k)
		}
	}
	return list
}

func (k *KnownMistake) in(version int) bool {
	return version >= k.From && (k.Before == 0 || version < k.Before)
}

// Mistaken returns the description of the bug m if the loaded library has it, and nil otherwise.
func (n *NCCL) Mistaken(m Mistake, multicast bool) *KnownMistake {
	for _, k := range n.Mistakes(multicast) {
		if k.Mistake == m {
			return &k
		}
	}
	return nil
}

// String describes the bug, the versions that have it, and how hocket avoids it.
func (k KnownMistake) String() string {
	until := "in all versions since " + versionText(k.From)
	if k.Before > 0 {
		until = fmt.Sprintf("from %s to before %s", versionText(k.From), versionText(k.Before))
	}
	return fmt.Sprintf("%s (%s: %s): %s", k.What, until, k.Source, k.Instead)
}

// versionText formats 22807 as 2.28.7.
func versionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100) }
