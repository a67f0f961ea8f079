package machine

import "hocket.example/hocket/ir"

// Collective is what the time of a collective depends on.
type Collective struct {
	Op      ir.Op
	Red     ir.Red // of what is reduced; NoRed elsewhere
	DType   ir.DType
	Members int64
	// Message is the largest operand of any member, Moved what each receives at the
	// least (plan.Coll.Moved), both in bytes.
	Message, Moved int64
	// AnyOrder: sums may be added in any order. Algorithm is the one that is pinned.
	AnyOrder  bool
	Algorithm string
	// Nodes is on how many nodes the members are, Near how many are on one, at the most. See
	// Description.Span; without it they are all on one.
	Nodes, Near int64
}

// Times are of collectives, measured on the machine that will run them, or on one
// like it.
type Times interface {
	// Points are the times of collectives like c by the bytes of their messages, which
	// ascend; none where nothing like c was measured.
	Points(c *Collective) []Point
}

// CollectiveTime is the time of a collective: what was measured where there is
// something, else what is described. Between two sizes measured it is interpolated
// linearly, which is exact for a latency and a rate; see at.
func (d *Description) CollectiveTime(c *Collective) float64 {
	us, _ := d.collective(c)
	return us
}

// Measured reports whether CollectiveTime is from Times.
func (d *Description) Measured(c *Collective) bool {
	_, measured := d.collective(c)
	return measured
}

// Contested is how many times longer a collective takes that starts while a GEMM runs, and
// the GEMM until it ends.
func (d *Description) Contested(c *Collective) float64 {
	if d.KernelBesideGEMM > 0 && d.Measured(c) {
		return d.KernelBesideGEMM
	}
	return d.GEMMBesideCollective
}

// Crosses reports whether CollectiveTime is of the tier between nodes.
func (d *Description) Crosses(c *Collective) bool { return d.Across != nil && c.Nodes > 1 }

func (d *Description) collective(c *Collective) (us float64, measured bool) {
	crosses := d.Crosses(c)
	if !crosses && d.Times != nil && c.Message > 0 && c.Members > 1 {
		if points := d.Times.Points(c); len(points) > 0 {
			return at(points, float64(c.Message)), true
		}
	}
	if crosses {
		return d.crossing(c), false
	}
	return d.Described(c.Op, c.Moved), false
}

// Described is the description's own figure; ops without a table of their own cost
// what an all_gather does.
func (d *Description) Described(op ir.Op, moved int64) float64 {
	switch op {
	case ir.OpBarrier:
		return d.Barrier
	case ir.OpAllReduce:
		return at(d.AllReduce, float64(moved))
	case ir.OpReduceScatter, ir.OpReduceScatterV:
		return at(d.ReduceScatter, float64(moved))
	}
	return at(d.AllGather, float64(moved))
}
