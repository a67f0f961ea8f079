package trace

import "strings"

// collectiveWords maps words to operations of collectives. The words occur, without underscores, in the names of NCCL's
// kernels and of torch's collectives. The first word in the list that a name contains determines the operation.
var collectiveWords = []struct{ word, op string }{
	{"allreduce", "all_reduce"},
	{"crossdevicereduce", "all_reduce"},
	{"allgather", "all_gather"},
	{"reducescatter", "reduce_scatter"},
	{"alltoall", "all_to_all"},
	{"barrier", "barrier"},
	{"broadcast", "broadcast"},
	{"sendrecv", "send_recv"},
	{"gather", "gather"},
	{"scatter", "scatter"},
	{"reduce", "reduce"},
	{"send", "send"},
	{"recv", "recv"},
}

// CollectiveOp returns the operation of a collective, as hocket's programs name it, for the name of the collective in a
// profile. For example, "_allgather_base" is all_gather. Unknown names are returned unchanged.
func CollectiveOp(name string) string {
	plain := strings.ReplaceAll(strings.ToLower(name), "_", "")
	for _, w := range collectiveWords {
		if strings.Contains(plain, w.word) {
			return w.op
		}
	}
	return strings.TrimPrefix(name, "nccl:")
}

// EndsTogether reports whether all members of a collective end at about the same time, because each member needs data
// from all other members.
func EndsTogether(op string) bool {
	switch op {
	case "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier":
		return true
	}
	return false
}

// MovesBetweenRanks reports whether a kernel of this name communicates: a kernel of NCCL, or one of the reductions in
// torch and vLLM.
func MovesBetweenRanks(kernel string) bool {
	plain := strings.ToLower(kernel)
	for _, s := range []string{"nccldevkernel", "ncclkernel", "nccldev", "cross_device_reduce", "one_shot_all_reduce",
		"two_shot_all_reduce", "multimem_all_", "multimem_one_shot", "multimem_reduce", "nvshmem", "allreduce_fusion"} {
		if strings.Contains(plain, s) {
			return true
		}
	}
	return false
}

// dtypeSizes maps torch's names of element types to their sizes in bytes.
var dtypeSizes = map[string]int64{
	"double": 8, "long": 8, "int64": 8, "float64": 8, "complexfloat": 8, "float": 4, "int": 4, "float32": 4, "int32": 4,
	"half": 2, "bfloat16": 2, "float16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1,
}

// DTypeSize returns the size of an element in bytes for torch's name of a type, or 0 for other names.
func DTypeSize(name string) int64 {
	plain := strings.ToLower(name)
	if strings.HasPrefix(plain, "float8") {
		return 1
	}
	return dtypeSizes[plain]
}

// ShortName reduces the C++ name of a kernel to the name of the function.
func ShortName(name string) string {
	s := strings.TrimPrefix(name, "void ")
	s = strings.ReplaceAll(s, "(anonymous namespace)::", "")
	if i := strings.IndexAny(s, "<("); i > 0 {
		s = s[:i]
	}
	if i := strings.LastIndex(s, "::"); i >= 0 && i+2 < len(s) {
		s = s[i+2:]
	}
	return s
}
