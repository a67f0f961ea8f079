package bench

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// eagerSuffix is added to the names of measurements of eager calls.
const eagerSuffix = ", eager"

// peersOf returns the measurements of peers for a call, by name. The names of eager measurements end with
// eagerSuffix.
func peersOf(list []contest.Peer, c contest.Call, ranks int) map[string]float64 {
	var out map[string]float64
	for _, p := range list {
		if p.Op != c.Op.String() || p.Ranks != ranks || p.Bytes != c.Bytes {
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

// layerPeers returns the measurements by other programs of a kind of layer with operands of type dtype. Measurements
// whose type is unknown are included.
func layerPeers(list []contest.Peer, op, dtype string, ranks int) []contest.Peer {
	return slices.DeleteFunc(slices.Clone(list), func(p contest.Peer) bool {
		return p.Op != op || p.Ranks != ranks || p.DType != "" && dtype != "" && p.DType != dtype
	})
}

// lackPeers adds a note to the report if there are measurements of other programs but none for the op and the number of
// ranks, and, if sizes are given, for one of the sizes.
func (j *job) lackPeers(op string, sizes []int64) {
	var ranks []string
	for _, p := range j.Peers {
		if p.Op == op && p.Ranks == j.Ranks && (len(sizes) == 0 || slices.Contains(sizes, p.Bytes)) {
			return
		}
		if n := fmt.Sprint(p.Ranks); p.Op == op && !slices.Contains(ranks, n) {
			ranks = append(ranks, n)
		}
	}
	switch {
	case len(j.Peers) == 0:
	case len(ranks) == 0:
		j.method("peers: there are no measurements of %s", op)
	case slices.Contains(ranks, fmt.Sprint(j.Ranks)):
		j.method("peers: there are no measurements of %s with these sizes on %d ranks", op, j.Ranks)
	default:
		j.method("peers: there are no measurements of %s on %d ranks, but on %s", op, j.Ranks, strings.Join(ranks,
			", "))
	}
}

// peers writes one line with the times of other programs for a layer.
func (t *table) peers(list []contest.Peer, s Shape) {
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
		t.Line("peers, µs: %s", strings.Join(parts, "; "))
	}
}

// peerNames returns the sorted names of all other programs that have a time in any of the rows.
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
