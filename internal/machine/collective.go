package machine

import "hocket.example/hocket/ir"

// Collective holds everything that the time of a collective depends on.
type Collective struct {
	Op      ir.Op
	Red     ir.Red // how values are reduced; NoRed without reduction
	DType   ir.DType
	Members int64
	// Message is the size of the largest operand of any member. Moved is how much each member must receive
	// (plan.Coll.Moved). Both are in bytes.
	Message, Moved int64
	// AnyOrder says that sums may be added in any order. Algorithm is the one that the program requires, if any.
	AnyOrder  bool
	Algorithm string
	// Nodes is the number of nodes that the members are on. Near is the largest number of members on one node. See
	// Description.Span. Without these fields all members are on one node.
	Nodes, Near int64
}

// Times are measured times of collectives, from the machine that will run them or a similar one.
type Times interface {
	// Points returns the times of collectives like c by the bytes of their messages, in ascending order. It returns none
	// if nothing like c was measured.
	Points(c *Collective) []Point
}

// CollectiveTime is the time of a collective: the measured one if there is one, and otherwise the described one.
// Between two measured sizes it interpolates linearly, which is exact for a latency and a rate; see at.
func (d *Description) CollectiveTime(c *Collective) float64 {
	us, _ := d.collective(c)
	return us
}

// Measured reports whether CollectiveTime comes from Times.
func (d *Description) Measured(c *Collective) bool {
	_, measured := d.collective(c)
	return measured
}

// Contested is the factor by which a collective takes longer if it starts during a GEMM. The GEMM
// slows down by the same factor until the collective ends.
func (d *Description) Contested(c *Collective) float64 {
	if d.KernelBesideGEMM > 0 && d.Measured(c) {
		return d.KernelBesideGEMM
	}
	return d.GEMMBesideCollective
}

// Crosses reports whether CollectiveTime comes from the connection between nodes.
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

// Described is the time in the description itself. An op without its own table costs as much as an all_gather.
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
