package machine

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/jsontext"
	"hocket.example/hocket/ir"
)

// Across describes the network between nodes: the times of transfers that leave a node. The Description contains the
// times within a node.
type Across struct {
	Source string `json:"source"`
	// Latency is the time from a member's call until the first bytes arrive on another node.
	Latency float64 `json:"latency_us"`
	// Bandwidth is the bandwidth of one NIC in one direction, in GB/s, as collectives see it. NICs is the number of NICs
	// per node.
	Bandwidth float64 `json:"gbps"`
	NICs      int     `json:"nics"`
	// AllReduce, AllGather and ReduceScatter are measured times of collectives with one member on each node, by the
	// number of bytes that each member must receive. These tables are nil if only latency and bandwidth are known.
	AllReduce     []Point `json:"all_reduce,omitempty"`
	AllGather     []Point `json:"all_gather,omitempty"`
	ReduceScatter []Point `json:"reduce_scatter,omitempty"`
}

// ParseAcross reads a connection.
func ParseAcross(data []byte) (*Across, error) {
	a := &Across{}
	if err := jsontext.Decode(data, a); err != nil {
		return nil, err
	}
	return a, a.check()
}

func (a *Across) check() error {
	if !(a.Latency >= 0 && a.Latency <= MostMicros) {
		return fmt.Errorf("latency_us is %v; it must not be negative, and at most %v", a.Latency, MostMicros)
	}
	if err := checkRate(a.Bandwidth); err != nil {
		return fmt.Errorf("gbps %w", err)
	}
	if a.NICs < 1 || a.NICs > 1024 {
		return fmt.Errorf("nics is %d; it must be from 1 to 1024", a.NICs)
	}
	for what, table := range map[string][]Point{"all_reduce": a.AllReduce, "all_gather": a.AllGather,
		"reduce_scatter": a.ReduceScatter} {
		if table == nil {
			continue
		}
		if err := checkTable(table); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

// Span sets the nodes that a collective of the given ranks spans, if the ranks of the description are on several
// nodes.
func (d *Description) Span(c *Collective, team []int) {
	c.Nodes, c.Near = 1, int64(len(team))
	on := map[int]int64{}
	for _, r := range team {
		if r < len(d.Nodes) {
			on[d.Nodes[r]]++
		}
	}
	if len(on) < 2 {
		return
	}
	c.Nodes, c.Near = int64(len(on)), slices.Max(slices.Collect(maps.Values(on)))
}

// Wire returns the time in which the NICs of a node transfer the given number of bytes.
func (a *Across) Wire(bytes float64) float64 { return bytes / (a.Bandwidth * float64(a.NICs)) * 1e-3 }

// crossing returns the time of a collective that spans nodes. Each member receives the data that it needs from other
// nodes itself.
func (d *Description) crossing(c *Collective) float64 {
	a := d.Across
	n, near, moved := float64(c.Members), float64(c.Near), float64(c.Moved)
	if c.Op == ir.OpBarrier {
		return a.Latency
	}
	if table := a.table(c.Op); table != nil && c.Near == 1 {
		return at(table, moved)
	}
	us := a.Latency + a.Wire(moved*(n-near)/max(n-1, 1)*near)
	if c.Op == ir.OpAllReduce && c.Members > 2 {
		us += a.Latency // the all_reduce transfers data twice
	}
	if c.Red != ir.NoRed {
		us += d.ReduceTime(c.Message)
	}
	return us
}

// table returns the measured times of an op, or nil if there are none.
func (a *Across) table(op ir.Op) []Point {
	switch op {
	case ir.OpAllReduce:
		return a.AllReduce
	case ir.OpReduceScatter:
		return a.ReduceScatter
	case ir.OpAllGather:
		return a.AllGather
	}
	return nil
}
