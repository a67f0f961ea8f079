package trace

import "strings"

// collectiveWords are what collectives are called, without underscores, by
// NCCL's kernels and by torch; the first that a name contains decides.
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

// CollectiveOp returns the operation that a profile's name of a collective stands for,
// as hocket's programs call it: "_allgather_base" is all_gather. Other names come back
// as they are.
func CollectiveOp(name string) string {
	plain := strings.ReplaceAll(strings.ToLower(name), "_", "")
	for _, w := range collectiveWords {
		if strings.Contains(plain, w.word) {
			return w.op
		}
	}
	return strings.TrimPrefix(name, "nccl:")
}

// EndsTogether reports whether all members of a collective end at about the same time,
// since each needs data from all.
func EndsTogether(op string) bool {
	switch op {
	case "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier":
		return true
	}
	return false
}

// MovesBetweenRanks reports whether a kernel of this name is communication: NCCL's, or
// one of the reductions that torch and vLLM bring.
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

// dtypeSizes are bytes of an element by torch's names.
var dtypeSizes = map[string]int64{
	"double": 8, "long": 8, "int64": 8, "float64": 8, "complexfloat": 8, "float": 4, "int": 4, "float32": 4, "int32": 4,
	"half": 2, "bfloat16": 2, "float16": 2, "short": 2, "char": 1, "byte": 1, "bool": 1, "int8": 1, "uint8": 1,
}

// DTypeSize returns the bytes of an element of a type by torch's name, 0 for others.
func DTypeSize(name string) int64 {
	plain := strings.ToLower(name)
	if strings.HasPrefix(plain, "float8") {
		return 1
	}
	return dtypeSizes[plain]
}

// ShortName cuts a kernel's C++ name down to the function.
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
