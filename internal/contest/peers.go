package contest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Peer is a time that was measured by another program, for comparison. Scripts in tools/peers print measurements in
// this form, as one line of JSON each.
type Peer struct {
	// a collective such as "all_reduce", a layer such as "ag-gemm", the function of a program, "first_token" or
	// "per_token" of a model that generates tokens, or a host operation such as "kernel"
	Op     string  `json:"op"`
	Name   string  `json:"name"` // what was measured: "nccl", "torch two-shot"
	Ranks  int     `json:"ranks"`
	Bytes  int64   `json:"bytes,omitempty"`  // message size
	Shape  string  `json:"shape,omitempty"`  // for layers: MxNxK
	Prompt int64   `json:"prompt,omitempty"` // for first_token and per_token: tokens of each prompt, and sequences
	Batch  int64   `json:"batch,omitempty"`
	DType  string  `json:"dtype,omitempty"`
	Issued string  `json:"issued"` // "graph" or "eager"
	Micros float64 `json:"us"`
	// HostMicros is the part of Micros that the host needs to issue an op; 0 if unknown.
	HostMicros float64 `json:"host_us,omitempty"`
	// Spread is the spread of the measurements, if they were taken alternately with hocket's; 0 if unknown.
	Spread float64 `json:"spread_us,omitempty"`
	// Machine is the GPU that the source of the measurement names, for example "H100".
	Machine string `json:"machine,omitempty"`
}

// OfNCCL reports whether the measurement is of NCCL, plain or with windows, called by torch or vLLM.
func (p *Peer) OfNCCL() bool { return strings.HasPrefix(strings.TrimPrefix(p.Name, "py"), "nccl") }

// ReadPeers reads lines of JSON. ReadPeers skips lines that do not begin with {, because programs under a launcher
// print other lines too. ReadPeers also reads files that vLLM's benchmark_device_communicators.py writes with
// --output-json, and the tables that it prints.
func ReadPeers(r io.Reader) ([]Peer, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("figures of peers: %w", err)
	}
	list, err := readVLLM(data)
	if err != nil || len(list) > 0 {
		return list, err
	}
	if list, err = readVLLMTable(string(data)); err != nil || len(list) > 0 {
		return list, err
	}
	in := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var p Peer
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			return nil, Usagef("line %d is not a measurement of a peer: %v", n, err)
		}
		if !p.whole() {
			return nil, Usagef("line %d is not a measurement of a peer: it needs the fields op, name, ranks and "+
				"us, and no number may be negative", n)
		}
		list = append(list, p)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("figures of peers: %w", err)
	}
	if len(list) == 0 {
		return nil, Usagef("it contains no measurements of peers")
	}
	return list, nil
}

// whole reports whether a measurement has valid values in all required fields.
func (p *Peer) whole() bool {
	return p.Op != "" && p.Name != "" && p.Ranks > 0 && p.Bytes >= 0 && p.Prompt >= 0 && p.Batch >= 0 && p.Micros > 0 && p.Micros <= mostMicros &&
		p.HostMicros >= 0 && p.Spread >= 0
}

// vllmFile holds those parts of a file of vLLM's benchmark (--output-json) that are read.
type vllmFile struct {
	Ranks   int    `json:"world_size"`
	DType   string `json:"dtype"`
	Hidden  int64  `json:"hidden_size"`
	Results map[string]struct {
		Millis map[string]float64 `json:"timings"` // times in milliseconds, by communicator
	} `json:"results"` // results by number of rows
}

// These are the largest accepted numbers of rows and of columns, and the largest accepted time in microseconds.
const (
	mostHidden = 1 << 30
	mostMicros = 1e12
)

// readVLLM returns the measurements in a file of vLLM's benchmark; none for other data.
func readVLLM(data []byte) ([]Peer, error) {
	var f vllmFile
	if json.Unmarshal(data, &f) != nil || f.Results == nil {
		return nil, nil
	}
	dtype, ok := vllmTypes[f.DType]
	if !ok || f.Ranks < 1 || f.Hidden < 1 || f.Hidden > mostHidden {
		return nil, Usagef("a file of vLLM's benchmark with %d ranks, type %q, hidden size %d", f.Ranks, f.DType,
			f.Hidden)
	}
	var list []Peer
	for rows, r := range f.Results {
		n, err := strconv.ParseInt(rows, 10, 64)
		if err != nil || n < 1 || n > mostHidden {
			return nil, Usagef("a file of vLLM's benchmark with %q rows", rows)
		}
		for name, ms := range r.Millis {
			p := Peer{Op: "all_reduce", Name: name, Ranks: f.Ranks, Bytes: n * f.Hidden * 2, DType: dtype,
				Issued: "graph",
				Micros: math.Round(ms*1e6) / 1e3}
			if !p.whole() {
				return nil, Usagef("a file of vLLM's benchmark with %v ms of %q for %q rows", ms, name, rows)
			}
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Peer) int {
		return strings.Compare(fmt.Sprintf("%012d %s", a.Bytes, a.Name), fmt.Sprintf("%012d %s", b.Bytes, b.Name))
	})
	return list, nil
}
