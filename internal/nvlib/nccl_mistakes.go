package nvlib

import "fmt"

// Mistake is something that some versions of NCCL do wrong and that concerns hocket.
type Mistake uint8

// Mistakes.
const (
	// SwitchedOrder: with NVLink multicast all_gather and reduce_scatter take the order
	// of GPUs for that of ranks.
	SwitchedOrder Mistake = iota
)

// KnownMistake is a row of the table.
type KnownMistake struct {
	Mistake Mistake
	// From is the first version that has it and Before the first without, 0 where
	// there is none yet, as Version tells them.
	From, Before int
	// Multicast says that it takes NVLink multicast.
	Multicast bool
	What      string // goes wrong
	Instead   string // is done about it
	Source    string
}

// ncclMistakes lists what is known. An out-of-bounds write of all_reduce that is said to
// have been fixed in 2.27.5 is not among them: the program had given NCCL memory that
// peers could not reach (ggml-org/llama.cpp pull request 24491).
var ncclMistakes = []KnownMistake{
	{
		Mistake: SwitchedOrder, From: 21800, Multicast: true,
		What:    "with NVLink multicast blocks of all_gather and reduce_scatter are in the order of GPUs, not of ranks",
		Instead: "nccl declines both",
		Source:  "NVIDIA/nccl issue 1906, pull request 2377",
	},
}

// Mistakes returns what is known to be wrong with the library that was loaded. One that
// does not tell its version has them all.
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

// Mistaken returns the row of a mistake that the library has, nil where it has not.
func (n *NCCL) Mistaken(m Mistake, multicast bool) *KnownMistake {
	for _, k := range n.Mistakes(multicast) {
		if k.Mistake == m {
			return &k
		}
	}
	return nil
}

// String says what goes wrong in which versions, and what is done about it.
func (k KnownMistake) String() string {
	until := "in all versions since " + versionText(k.From)
	if k.Before > 0 {
		until = fmt.Sprintf("from %s to before %s", versionText(k.From), versionText(k.Before))
	}
	return fmt.Sprintf("%s (%s: %s): %s", k.What, until, k.Source, k.Instead)
}

// versionText is 22807 as 2.28.7.
func versionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100) }
