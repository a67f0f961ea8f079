package files

import (
	"bytes"
	"encoding/binary"
	"regexp"
)

// kinds lists the kinds of files that commands read: a pattern for the beginning of a file, and a description with the
// commands that accept the file. A byte that is not UTF-8, such as the first byte of a pickle, is matched as a
// character that is not ASCII.
var kinds = []struct {
	begins *regexp.Regexp
	what   string
}{
	{regexp.MustCompile(`^SQLite format 3\x00`), "a database, as nsys export --type sqlite writes: hocket trace explains it"},
	{regexp.MustCompile(`^PK\x03\x04`), "an archive, as torch.export.save writes: hocket check, run and memory take it"},
	{regexp.MustCompile(`^[^\x00-\x7f][\x00-\x05](?s:.*)segments`), "a memory snapshot of torch: hocket memory explains it"},
	{regexp.MustCompile(`^[^\x00-\x7f][\x00-\x05](?s:.*)(entries|pg_config)`), "a flight record of torch: hocket trace explains it"},
	{regexp.MustCompile(`^\s*\{(?s:.*)"traceEvents"`), "a timeline: hocket trace explains it"},
	{regexp.MustCompile(`^\s*\{(?s:.*)"(entries|pg_config|nccl_version|comm_lib_version)"`), "a flight record of torch: hocket trace explains it"},
	{regexp.MustCompile(`^\s*\{(?s:.*)"(collective|gpus|protocol)"`), "a schedule of MSCCL++: hocket check, run and import take it"},
	{regexp.MustCompile(`^\s*(<\?xml[^>]*>\s*)?<algo\b`), "a schedule of MSCCL: hocket check, run and import take it"},
	{regexp.MustCompile(`(?m)^\s*func\s+\w+\(`), "a program: hocket check, run, opt and memory take it"},
	{regexp.MustCompile(`%HostIrContainer \{`), "a dump of nvFuser: hocket check, run and import take it"},
	{regexp.MustCompile(`(?m)^\s*module\b(?s:.*)(stablehlo\.|func\.func)`), "a StableHLO module: hocket check, run and import take it"},
	{regexp.MustCompile(`Start \(ns\)|cuda_gpu_trace|(?m)^(\S+ +){4}.*ncclDevKernel`), "what nsys stats prints: hocket trace explains it"},
}

// What describes a file by its first bytes: its kind, and the commands that accept it, for example "a timeline: hocket
// trace explains it". It returns "" for unknown kinds.
func What(begin []byte) string {
	begin = begin[:min(len(begin), 1<<14)]
	if len(begin) > 8 && begin[8] == '{' && binary.LittleEndian.Uint64(begin) < 1<<30 && bytes.Contains(begin, []byte("data_offsets")) {
		return "a safetensors file of weights: hocket run PROGRAM --in takes it"
	}
	for _, k := range kinds {
		if k.begins.Match(begin) {
			return k.what
		}
	}
	return ""
}
