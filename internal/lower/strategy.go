package lower

import (
	"fmt"
	"strconv"
	"strings"
)

// StrategyKind selects how communication and GEMM of a pair are overlapped.
type StrategyKind uint8

// The kinds of strategies.
const (
	// Sequential leaves the pair unchanged, so that the collective and the GEMMs run one after the other.
	Sequential StrategyKind = iota
	// Chunked cuts the rows into chunks; the communication of one chunk runs on a separate stream while another chunk
	// is computed.
	Chunked
	// Exchange sends blocks directly between ranks, in an order that is rotated for each rank. A rank computes its own
	// block first if the collective is an all_gather, and last if it is a reduction. If blocks are cut into several
	// parts, the rank computes one part of every block, then the next part of every block.
	Exchange
)

// DefaultChunks is the number of chunks if the text of a strategy is "chunked" without a number.
const DefaultChunks = 4

// maxChunks is the maximum number of chunks. The number of chunks is limited because loops over chunks are unrolled.
const maxChunks = 1024

// Strategy is a kind with its parameters. For Chunked, the field Chunks is the number of chunks. For Exchange, Chunks
// is the number of parts into which each block is cut; 0 means one part. The number of rows need not be a multiple of
// Chunks, and Chunks need not be related to the number of ranks.
type Strategy struct {
	Kind   StrategyKind
	Chunks int64
	// Own is the number of parts into which a rank's own block of a reduction is cut, if an Exchange sends whole
	// blocks. 0 means one part. The own block is computed last. While one part of the own block is computed, the
	// previous part is summed and, for an all-reduce, put into the buffers of the peers.
	Own int64
	// Ahead makes the gathers of an Exchange send their blocks while the preceding pair is computed, if that is
	// possible. The GEMM of a gather whose blocks are sent during a whole pair is computed with all blocks at once
	// (see ahead.go).
	Ahead bool
	// Ragged makes an Exchange that cuts an all-reduce's rows use blocks of ceildiv(rows, ranks) rows. The last blocks
	// are shorter or empty, so the number of rows need not be a multiple of the number of ranks.
	Ragged bool
	// Delayed leaves the pairs unchanged and delays reductions instead (see bucket.go).
	Delayed bool
}

// String returns the strategy in the form that ParseStrategy accepts, for example "chunked(4)".
func (s Strategy) String() string {
	switch {
	case s.Ahead:
		return "ahead"
	case s.Delayed:
		return "delayed"
	}
	if s.Own > 1 {
		return fmt.Sprintf("%s(1,%d)", s.Kind, s.Own)
	}
	if s.Kind == Chunked || s.Kind == Exchange && s.Chunks > 1 {
		return fmt.Sprintf("%s(%d)", s.Kind, s.Chunks)
	}
	return s.Kind.String()
}

// String returns the name of the kind.
func (k StrategyKind) String() string { return [...]string{"sequential", "chunked", "exchange"}[k] }

// ParseStrategy parses the text of a strategy: "sequential", "chunked", "chunked(8)", "exchange", "exchange(2)",
// "exchange(1,4)", "ahead" or "delayed".
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
	case "delayed":
		return Strategy{Delayed: true}, nil
	}
	word, digits, _ := strings.Cut(text, "(")
	digits, ok := strings.CutSuffix(digits, ")")
	kind := map[string]StrategyKind{"chunked": Chunked, "exchange": Exchange}[word]
	if !ok || kind == Sequential {
		return Strategy{}, fmt.Errorf("unknown strategy %q; the strategies are sequential, chunked, chunked(N), exchange, "+
			"exchange(N), exchange(1,N), ahead, delayed and auto", text)
	}
	last, own := strings.CutPrefix(digits, "1,")
	if own = own && kind == Exchange; !own {
		last = digits
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 1 || n > maxChunks {
		return Strategy{}, fmt.Errorf("%s needs a number from 1 to %d, but %q is given", word, maxChunks, digits)
	}
	if kind == Exchange && n == 1 {
		n = 0
	}
	if own {
		return Strategy{Kind: kind, Own: n}, nil
	}
	return Strategy{Kind: kind, Chunks: n}, nil
}
