package lower

import (
	"fmt"
	"strconv"
	"strings"
)

// StrategyKind says how a pair of communication and GEMM is overlapped.
type StrategyKind uint8

// Kinds of strategies.
const (
	// Sequential leaves the pair as it is: one after the other.
	Sequential StrategyKind = iota
	// Chunked cuts the rows into chunks; the communication of one chunk runs on a separate stream while another chunk
	// is computed.
	Chunked
	// Exchange sends blocks directly between ranks, in rank-rotated order: a
	// rank computes its own block first (all_gather) or last (reductions). With
	// several parts it does so with one part of every block after the other.
	Exchange
)

// DefaultChunks is the number of chunks of "chunked" without a number.
const DefaultChunks = 4

// maxChunks bounds the number of chunks, which are unrolled.
const maxChunks = 1024

// Strategy is a kind and a number: of Chunked's chunks, or of the parts that
// Exchange cuts each block into, where 0 means one. It need not divide the rows
// nor have anything to do with the number of ranks.
type Strategy struct {
	Kind   StrategyKind
	Chunks int64
	// Own, of an Exchange of whole blocks, is the number of parts that a reduction's own block is cut into, which
	// comes last: each is summed, and an all-reduce's pushed, while the next is computed. 0 means one.
	Own int64
	// Ahead has Exchange's gathers leave while the pair before is computed, where they
	// can; those that have a whole pair's time are computed with as one: see ahead.go.
	Ahead bool
	// Ragged has an Exchange take blocks of ceildiv rows, of which the last ones are short or empty, where it cuts an
	// all-reduce's rows: they need not divide over the ranks then.
	Ragged bool
}

// String returns the strategy as ParseStrategy reads it: "chunked(4)".
func (s Strategy) String() string {
	if s.Ahead {
		return "ahead"
	}
	if s.Own > 1 {
		return fmt.Sprintf("%s(1,%d)", s.Kind, s.Own)
	}
	if s.Kind == Chunked || s.Kind == Exchange && s.Chunks > 1 {
		return fmt.Sprintf("%s(%d)", s.Kind, s.Chunks)
	}
	return s.Kind.String()
}

// String returns the kind's word.
func (k StrategyKind) String() string { return [...]string{"sequential", "chunked", "exchange"}[k] }

// ParseStrategy reads "sequential", "chunked", "chunked(8)", "exchange",
// "exchange(2)", "exchange(1,4)" or "ahead".
func ParseStrategy(text string) (Strategy, error) {
	switch text {
	case "", "sequential":
		return Strategy{}, nil
	case "chunked":
		return Strategy{Kind: Chunked, Chunks: DefaultChunks}, nil
	case "exchange":
		return Strategy{Kind: Exchange}, nil
	case "ahead":
		return Strategy{Kind: Exchange, Ahead: true}, nil
	}
	word, digits, _ := strings.Cut(text, "(")
	digits, ok := strings.CutSuffix(digits, ")")
	kind := map[string]StrategyKind{"chunked": Chunked, "exchange": Exchange}[word]
	if !ok || kind == Sequential {
		return Strategy{}, fmt.Errorf("there is no strategy %q; there are sequential, chunked, chunked(N), exchange, "+
			"exchange(N), exchange(1,N), ahead and auto", text)
	}
	last, own := strings.CutPrefix(digits, "1,")
	if own = own && kind == Exchange; !own {
		last = digits
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 1 || n > maxChunks {
		return Strategy{}, fmt.Errorf("%s takes a number from 1 to %d, and %q is none", word, maxChunks, digits)
	}
	if kind == Exchange && n == 1 {
		n = 0
	}
	if own {
		return Strategy{Kind: kind, Own: n}, nil
	}
	return Strategy{Kind: kind, Chunks: n}, nil
}
