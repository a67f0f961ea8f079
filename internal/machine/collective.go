package machine

import "hocket.example/hocket/ir"

// Collective holds everything that the time of a collective depends on.
type Collective struct {
	Op      ir.Op
	Red     ir.Red // how values are reduced; NoRed without reduction
	DType   ir.DType
	Members int64
	// Message is the size of the largest operand of any member. Moved is the number of bytes that each member must
	// receive (plan.Coll.Moved). Both are in bytes.
	Message, Moved int64
	// AnyOrder reports that sums may be added in any order. Algorithm is the algorithm that the program requires;
	// empty if it requires none.
	AnyOrder  bool
	Algorithm string
	// Nodes is the number of nodes on which the members are. Near is the largest number of members on one node.
	// Description.Span sets both. If Nodes and Near are 0, all members are on one node.
	Nodes, Near int64
}

// Times provides measured times of collectives, from the machine that will run them or from a similar one.
type Times interface {
	// Points returns the times of collectives like c by the bytes of their messages, in ascending order. Points returns
	// none if nothing like c was measured.
	Points(c *Collective) []Point
}

// CollectiveTime returns the time of a collective. CollectiveTime returns the measured time if there is one, and
// otherwise the time in the description. Between two measured sizes it interpolates linearly, which is exact if the
// time is a latency plus the size divided by a rate; see at.
func (d *Description) CollectiveTime(c *Collective) float64 {
	us, _ := d.collective(c)
	return us
}

// Measured reports whether CollectiveTime returns a time from Times.
func (d *Description) Measured(c *Collective) bool {
	_, measured := d.collective(c)
	return measured
}

// Contested returns the factor by which a collective takes longer if it starts during a GEMM. The GEMM is slower by
// the same factor until the collective ends.
func (d *Description) Contested(c *Collective) float64 {
	if d.KernelBesideGEMM > 0 && d.Measured(c) {
		return d.KernelBesideGEMM
	}
	return d.GEMMBesideCollective
}

// Crosses reports whether CollectiveTime returns a time of the network between nodes.
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

// Described returns the time of a collective in the description itself. An op without its own table is assumed to take
// as long as an all_gather.
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
