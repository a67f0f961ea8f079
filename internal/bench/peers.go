package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Peer is one figure of somebody else's program: what scripts in bench/peers
// print, a line of JSON each.
type Peer struct {
	Op     string  `json:"op"`   // "all_reduce", a layer: "ag-gemm", or an op of host: "kernel"
	Name   string  `json:"name"` // "nccl", "torch two-shot"
	Ranks  int     `json:"ranks"`
	Bytes  int64   `json:"bytes,omitempty"` // of the message
	Shape  string  `json:"shape,omitempty"` // of layers: MxNxK
	DType  string  `json:"dtype,omitempty"`
	Issued string  `json:"issued"` // "graph" or "eager"
	Micros float64 `json:"us"`
	// HostMicros is the part of Micros that the host takes to issue an op; 0 where
	// nobody says.
	HostMicros float64 `json:"host_us,omitempty"`
	// Spread is that of figures taken in turns with ours; 0 where nobody says.
	Spread float64 `json:"spread_us,omitempty"`
}

// ReadPeers reads lines of JSON; lines that do not begin with { are skipped,
// since programs under a launcher print more than they mean to. It also reads
// what vLLM's benchmark_device_communicators.py writes by --output-json.
func ReadPeers(r io.Reader) ([]Peer, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("figures of peers: %w", err)
	}
	list, err := readVLLM(data)
	if err != nil || list != nil {
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
			return nil, usagef("line %d is no figure of a peer: %v", n, err)
		}
		if p.Op == "" || p.Name == "" || p.Ranks < 1 || !(p.Micros > 0) {
			return nil, usagef("line %d is no figure of a peer: it needs op, name, ranks and us", n)
		}
		list = append(list, p)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("figures of peers: %w", err)
	}
	if len(list) == 0 {
		return nil, usagef("there are no figures of peers in it")
	}
	return list, nil
}

// eagerSuffix is added to the names of eager figures.
const eagerSuffix = ", eager"

// peersOf returns the figures for a call, by name; those of eager calls have
// that added.
func peersOf(list []Peer, c call, ranks int) map[string]float64 {
	var out map[string]float64
	for _, p := range list {
		if p.Op != c.op.String() || p.Ranks != ranks || p.Bytes != c.bytes {
			continue
		}
		name := p.Name
		if p.Issued == "eager" {
			name += eagerSuffix
		}
		if out == nil {
			out = map[string]float64{}
		}
		out[name] = p.Micros
	}
	return out
}

// layerPeers returns the figures of a kind of layer.
func layerPeers(list []Peer, op string, ranks int) []Peer {
	return slices.DeleteFunc(slices.Clone(list), func(p Peer) bool { return p.Op != op || p.Ranks != ranks })
}

// hostPeers returns the figures of ops that a host issues, on up to as many ranks.
func hostPeers(list []Peer, ranks int) []Peer {
	return slices.DeleteFunc(slices.Clone(list), func(p Peer) bool { return p.Op != kernelOp || p.Ranks > ranks })
}

// peers writes the figures for a layer in a line.
func (t *table) peers(list []Peer, s Shape) {
	var parts []string
	for _, p := range list {
		if p.Shape != s.String() {
			continue
		}
		text := fmt.Sprintf("%s %.1f", p.Name, p.Micros)
		if p.Spread > 0 {
			text += fmt.Sprintf(" ±%.1f", p.Spread)
		}
		parts = append(parts, text)
	}
	if len(parts) > 0 {
		t.line("peers, µs: %s", strings.Join(parts, "; "))
	}
}

// peerNames lists the names in any of the rows, sorted.
func peerNames(rows []Collective) []string {
	var names []string
	for _, r := range rows {
		for n := range r.Peers {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	return names
}
