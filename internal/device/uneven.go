package device

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// Rows is a range of rows of an operand: Count rows from Lo on.
type Rows struct{ Lo, Count int64 }

// Share returns, for each member, the rows of its operand that member me receives in an uneven collective. counts[i]
// holds member i's counts. held is the number of rows of each operand, and room is the number of rows of member me's
// result. all_gatherv and all_to_allv concatenate the returned rows; reduce_scatterv reduces them. If some counts do
// not fit, Share returns an error that names the member. Otherwise all returned rows are within the operands and the
// result.
func Share(op ir.Op, counts [][]int64, me int, held, room int64) ([]Rows, error) {
	shares, gets := make([]Rows, len(counts)), int64(0)
	for i, c := range counts {
		if op != ir.OpAllToAllV && !slices.Equal(c, counts[me]) {
			return nil, fmt.Errorf("the counts of member %d of the team are %v, those of member %d %v: all members must have equal counts",
				i, c, me, counts[me])
		}
		gives, before := int64(0), int64(0)
		for j, n := range c {
			if n < 0 || n > max(held, room) {
				return nil, fmt.Errorf("counts[%d] of member %d of the team is %d, with operands of %d rows and a result of %d", j, i, n, held, room)
			}
			if j == me {
				before = gives
			}
			gives += n
		}
		if op == ir.OpAllGatherV {
			gives = c[i]
			shares[i] = Rows{0, c[i]}
		} else {
			shares[i] = Rows{before, c[me]}
		}
		if gives > held {
			return nil, fmt.Errorf("the counts %v of member %d of the team take %d rows from an operand of %d", c, i, gives, held)
		}
		if gets += shares[i].Count; op == ir.OpReduceScatterV {
			gets = c[me]
		}
	}
	if gets > room {
		return nil, fmt.Errorf("member %d of the team gets %d rows, and its result has room for %d", me, gets, room)
	}
	return shares, nil
}
