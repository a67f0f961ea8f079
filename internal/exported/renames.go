package exported

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/tensor"
)

// rename describes a weight that has other names in files than in the model. A "*" in a pattern represents the
// number of an expert. If a pattern contains "*", the weight consists of the tensors of all experts, one after
// another. If there are several patterns, each expert has one tensor for each pattern; the tensors of one expert
// are concatenated along the first dimension that follows the dimension of the experts.
type rename struct {
	module string   // suffix of the weight's name in the model
	files  []string // the corresponding suffixes in files
}

// renames lists the renames of transformers (conversion_mapping.py).
var renames = []rename{
	{"mlp.gate.weight", []string{"block_sparse_moe.gate.weight"}},
	{"mlp.experts.gate_up_proj", []string{"block_sparse_moe.experts.*.w1.weight",
		"block_sparse_moe.experts.*.w3.weight"}},
	{"mlp.experts.down_proj", []string{"block_sparse_moe.experts.*.w2.weight"}},
	{"mlp.experts.gate_up_proj", []string{"mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"}},
	{"mlp.experts.down_proj", []string{"mlp.experts.*.down_proj.weight"}},
	{"feed_forward.experts.gate_up_proj", []string{"feed_forward.experts.*.gate_proj.weight",
		"feed_forward.experts.*.up_proj.weight"}},
	{"feed_forward.experts.down_proj", []string{"feed_forward.experts.*.down_proj.weight"}},
	{"lm_head.weight", []string{"embed_out.weight"}},
	{"LayerNorm.weight", []string{"LayerNorm.gamma"}},
	{"LayerNorm.bias", []string{"LayerNorm.beta"}},
}

// find searches files for a weight that has the given names in the model. It returns the tensors of which the
// weight consists, in order, or nil if the weight is not in the files. The archive may name a weight with
// additional outer modules, so a name in a file may be a suffix of the weight's name.
func find(files map[string]Source, names []string, want *tensor.Tensor) ([]piece, error) {
	if len(files) == 0 {
		return nil, nil
	}
	for _, name := range names {
		for rest, more := name, true; more; _, rest, more = strings.Cut(rest, ".") {
			if files[rest] != nil && strings.Contains(rest, ".") {
				p, err := pieceOf(files, rest, want.DType, want.Shape)
				return []piece{p}, err
			}
			for _, r := range renames {
				before, ok := strings.CutSuffix(rest, r.module)
				if !ok || before != "" && !strings.HasSuffix(before, ".") {
					continue
				}
				if pieces, err := packed(files, before, r.files, want); pieces != nil || err != nil {
					return pieces, err
				}
			}
		}
	}
	return nil, nil
}

// packed returns the tensors of files that together form a packed weight. The result is nil if the files do not contain
// the first of the tensors that form the weight.
func packed(files map[string]Source, before string, patterns []string, want *tensor.Tensor) ([]piece, error) {
	experts, shape := int64(1), want.Shape
	many := strings.Contains(patterns[0], "*")
	if many {
		if len(shape) < 2 {
			return nil, nil
		}
		experts, shape = shape[0], shape[1:]
	}
	k := int64(len(patterns))
	if len(shape) == 0 || shape[0]%k != 0 {
		return nil, nil
	}
	each := append([]int64{shape[0] / k}, shape[1:]...)
	var list []piece
	at := int64(0)
	for e := range experts {
		for _, p := range patterns {
			name := before + strings.Replace(p, "*", fmt.Sprint(e), 1)
			if files[name] == nil {
				if list == nil {
					return nil, nil
				}
				return nil, fmt.Errorf("%w: the files have no tensor %q, but they have the tensors of other experts",
					ErrMismatch,
					name)
			}
			x, err := pieceOf(files, name, want.DType, each)
			if err != nil {
				return nil, err
			}
			x.at = at
			list = append(list, x)
			at += x.size
		}
	}
	return list, nil
}
