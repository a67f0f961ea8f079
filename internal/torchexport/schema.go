package torchexport

import (
	"encoding/json"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// program is the contents of models/*.json. The type has those fields of ExportedProgram in
// torch/_export/serde/schema.yaml that this package uses.
type program struct {
	GraphModule struct {
		Graph     subgraph `json:"graph"`
		Signature struct {
			InputSpecs  []map[string]inputSpec  `json:"input_specs"`
			OutputSpecs []map[string]outputSpec `json:"output_specs"`
		} `json:"signature"`
	} `json:"graph_module"`
	RangeConstraints map[string]*struct {
		MinVal *int64 `json:"min_val"`
		MaxVal *int64 `json:"max_val"`
	} `json:"range_constraints"`
	SchemaVersion struct {
		Major int `json:"major"`
		Minor int `json:"minor"`
	} `json:"schema_version"`
}

// subgraph is the program's graph, or a nested graph that is an argument of a call.
type subgraph struct {
	Inputs       []arg                  `json:"inputs"`
	Outputs      []arg                  `json:"outputs"`
	Nodes        []node                 `json:"nodes"`
	TensorValues map[string]*tensorMeta `json:"tensor_values"`
	SymIntValues map[string]symInt      `json:"sym_int_values"`
}

// node is a call of an operator.
type node struct {
	Target   string            `json:"target"`
	Inputs   []namedArg        `json:"inputs"`
	Outputs  []arg             `json:"outputs"`
	Metadata map[string]string `json:"metadata"`
}

type namedArg struct {
	Name string `json:"name"`
	Arg  arg    `json:"arg"`
}

// arg is a union: an object with one key, such as "as_tensor", and its value.
type arg struct {
	kind  string
	value json.RawMessage
}

// UnmarshalJSON reads {"as_…": value}.
func (a *arg) UnmarshalJSON(text []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	if len(m) != 1 {
		return fmt.Errorf("an argument has %d kinds, want 1", len(m))
	}
	for a.kind, a.value = range m {
	}
	return nil
}

// into decodes the argument's value into v.
func (a *arg) into(v any) error {
	if err := json.Unmarshal(a.value, v); err != nil {
		return malformed("an argument %s: %w", clip(a.kind), err)
	}
	return nil
}

type tensorName struct {
	Name string `json:"name"`
}

// tensor returns the name of the tensor, or "" for None.
func (a *arg) tensor() (string, error) {
	switch a.kind {
	case "as_none":
		return "", nil
	case "as_tensor":
		var n tensorName
		err := a.into(&n)
		return n.Name, err
	}
	return "", fmt.Errorf("its kind is %s, but it must be a tensor", clip(a.kind))
}

type inputSpec struct {
	Arg                json.RawMessage `json:"arg"`
	ParameterName      string          `json:"parameter_name"`
	BufferName         string          `json:"buffer_name"`
	TensorConstantName string          `json:"tensor_constant_name"`
}

type outputSpec struct {
	Arg        json.RawMessage `json:"arg"`
	BufferName string          `json:"buffer_name"`
}

// specName returns the name in the graph of the tensor that an input or output specification describes.
func specName(text json.RawMessage) (string, error) {
	var named struct {
		Name     string      `json:"name"`
		AsTensor *tensorName `json:"as_tensor"`
	}
	if err := json.Unmarshal(text, &named); err != nil {
		return "", malformed("signature: %w", err)
	}
	if named.AsTensor != nil {
		return named.AsTensor.Name, nil
	}
	return named.Name, nil
}

// tensorMeta describes the type of a tensor.
type tensorMeta struct {
	DType         int      `json:"dtype"`
	Sizes         []symInt `json:"sizes"`
	Strides       []symInt `json:"strides"`
	StorageOffset *symInt  `json:"storage_offset"`
	Layout        int      `json:"layout"`
}

// symInt is an extent: a number, or an expression over symbols.
type symInt struct {
	AsInt  *int64          `json:"as_int"`
	AsExpr json.RawMessage `json:"as_expr"`
	AsName string          `json:"as_name"`
}

// maxExtent is the maximum of extents and strides. It is so small that sums of products of two extents or strides fit
// 64 bits.
const maxExtent = 1 << 30

// maxRank is the maximum number of dimensions. This is more than torch's kernels support.
const maxRank = 16

func ints(list []symInt) ([]int64, error) {
	if len(list) > maxRank {
		return nil, malformed("a tensor of %d dimensions", len(list))
	}
	out := make([]int64, len(list))
	for i, s := range list {
		switch {
		case s.AsInt == nil && (s.AsExpr != nil || s.AsName != ""):
			return nil, unsupported("an extent is neither a number nor an expression over symbols")
		case s.AsInt == nil || *s.AsInt < 0 || *s.AsInt > maxExtent:
			return nil, malformed("an extent or stride is not a number from 0 to %d", maxExtent)
		}
		out[i] = *s.AsInt
	}
	return out, nil
}

// into stores the element type, shape and strides in s.
func (m *tensorMeta) into(s *stored) (err error) {
	if s.dtype, err = dtypeOf(m.DType); err != nil {
		return err
	}
	if s.shape, err = ints(m.Sizes); err != nil {
		return err
	}
	if s.strides, err = ints(m.Strides); err != nil {
		return err
	}
	if len(s.strides) != len(s.shape) {
		return malformed("it has %d dimensions and %d strides", len(s.shape), len(s.strides))
	}
	elems := int64(1)
	for _, d := range s.shape {
		if elems *= max(d, 1); elems > 1<<40 {
			return malformed("a tensor of shape %v is too large", s.shape)
		}
	}
	if m.StorageOffset != nil {
		o := m.StorageOffset
		if o.AsInt == nil || *o.AsInt < 0 || *o.AsInt > 1<<40 {
			return malformed("a storage offset is not a number from 0 to 1<<40")
		}
		s.offset = *o.AsInt
	}
	return nil
}

// scalarTypes maps the numbers of torch's element types to types of the graph.
var scalarTypes = map[int]graph.DType{
	4: graph.I32, 5: graph.I64, 6: graph.F16, 7: graph.F32, 8: graph.F64, 12: graph.Bool, 13: graph.BF16,
}

func dtypeOf(n int) (graph.DType, error) {
	if d := scalarTypes[n]; d != "" {
		return d, nil
	}
	names := map[int]string{1: "uint8", 2: "int8", 3: "int16", 9: "complex32", 10: "complex64", 11: "complex128",
		28: "uint16", 29: "float8_e4m3fn", 30: "float8_e5m2"}
	if name := names[n]; name != "" {
		return "", unsupported("element type %s", name)
	}
	return "", malformed("element type %d", n)
}

// origin returns the module, and the line of the model's code, from which torch exported a node.
func (n *node) origin() graph.Origin {
	o := graph.Origin{Name: clip(strings.TrimPrefix(n.Target, "torch.ops."))}
	if stack := n.Metadata["nn_module_stack"]; stack != "" {
		stack = stack[strings.LastIndexByte(stack, ';')+1:]
		if parts := strings.SplitN(stack, ",", 3); len(parts) == 3 {
			o.Module = clip(parts[1])
		}
	}
	// Use the innermost line of code that is not in torch itself.
	trace := n.Metadata["stack_trace"]
	for trace != "" && o.Source == "" {
		i := strings.LastIndex(trace, `File "`)
		if i < 0 {
			break
		}
		var file, line string
		rest := trace[i+len(`File "`):]
		trace = trace[:i]
		file, rest, _ = strings.Cut(rest, `", line `)
		if strings.HasPrefix(file, "torch/") || strings.Contains(file, "-packages/torch/") {
			continue
		}
		line = rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		o.Source = clip(file[strings.LastIndexByte(file, '/')+1:] + ":" + line)
	}
	return o
}
