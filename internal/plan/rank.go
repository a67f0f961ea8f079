package plan

// Rank is what one rank does before it is matched with the others: commands in
// issue order, with these differences from those of a Plan. Stream counts the
// rank's own streams, main first, and Event its own events. Coll is an index in
// Joins, and the Pair of a group's entry an index in Ends.
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

// Join is a rank's part of a collective: the next one that it issues to a team.
type Join struct {
	Team []int // ranks in team order
	Coll Coll  // without Channel, Seq and Parts
	Part CollPart
}

// End is one side of a transfer: the next send, or the next recv, between two
// ranks along an axis.
type End struct {
	Axis string
	Peer int32
	Ref  Ref
}
