package plan

// Rank holds the commands of one rank before they are matched with those of the other ranks. The commands are in issue
// order and differ from those of a Plan as follows. Stream is an index among the rank's own streams, of which main is
// the first, and Event is an index among the rank's own events. Coll is an index in Joins, and the Pair of a group's
// entry is an index in Ends.
type Rank struct {
	Rank    int32
	Streams []Stream
	Events  int
	Cmds    []Cmd
	Joins   []Join
	Ends    []End
	// Inputs and Outputs are the rank's blocks of the plan's Inputs and Outputs.
	Inputs, Outputs []Ref
}

// Join is a rank's part of the next collective that the rank issues to a team.
type Join struct {
	Team []int // ranks in team order
	Coll Coll  // without Channel, Seq and Parts
	Part CollPart
}

// End is one side of a transfer: the next send, or the next recv, between two ranks along an axis.
type End struct {
	Axis string
	Peer int32
	Ref  Ref
}
